package replay_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"karve.sh/karve/pkg/replay"
)

// aging returns a trace of four pods that run for a day on the examples' NodePool, of which some only keep room free.
func aging(t *testing.T, life time.Duration, placeholders int) replay.Trace {
	t.Helper()
	requests := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("300m"), corev1.ResourceMemory: resource.MustParse("1Gi"), "nvidia.com/gpu.shared": resource.MustParse("1")}
	template := corev1.Pod{Spec: corev1.PodSpec{
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		Containers:  []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: requests, Limits: corev1.ResourceList{"nvidia.com/gpu.shared": resource.MustParse("1")}}}},
	}}
	var pods []replay.Pod
	for i := range 4 {
		pods = append(pods, replay.Pod{Ends: 24 * time.Hour, Placeholder: i < placeholders})
	}
	c := examples(t)
	for i := range c.NodePools {
		c.NodePools[i].Spec.Template.Spec.ExpireAfter.Duration = &life
		if life == 0 {
			c.NodePools[i].Spec.Template.Spec.ExpireAfter.Duration = nil
		}
	}
	trace, why := replay.Of(c, []corev1.Pod{template}, pods, 24*time.Hour)
	if why[0] != "" {
		t.Fatal(why)
	}
	return trace
}

// TestPodsOfMachinesThatExpireRestart replays pods on a machine that lives for some hours. Each of its lives restarts the pods, and none that only keeps room.
func TestPodsOfMachinesThatExpireRestart(t *testing.T) {
	t.Parallel()
	const step = 5 * time.Minute
	forever, err := replay.Total(new(aging(t, 0, 0)), step)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		life         time.Duration
		placeholders int
		restarts     int64
	}{{25 * time.Hour, 0, 0}, {13 * time.Hour, 0, 4}, {7 * time.Hour, 0, 12}, {7 * time.Hour, 3, 3}, {7 * time.Hour, 4, 0}} {
		trace := aging(t, c.life, c.placeholders)
		r, err := replay.Run(&trace, replay.Setup{Provision: plans, Batch: step})
		if err != nil || int64(r.Expired) != c.restarts || r.Peak != 1 || r.Evictions != 0 {
			t.Errorf("%+v: %d pods restarted on %d machines at a time, %v", c, r.Expired, r.Peak, err)
		}
		// Machines start at once, so only the restarts cost more.
		if price, err := replay.Total(&trace, step); err != nil || int64(price-forever) != c.restarts*50_000 {
			t.Errorf("%+v: it costs %d more, %v", c, price-forever, err)
		}
	}
}
