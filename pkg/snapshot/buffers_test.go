package snapshot_test

import (
	"math"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/snapshot"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

func TestCapacityBuffersShareTheirPodsByNamespace(t *testing.T) {
	t.Parallel()
	c := Shared()
	template := corev1.PodTemplateSpec{Spec: Pod("", Asking("cpu", "100m", "nvidia.com/gpu.shared", "1")).Spec}
	add := func(namespace, name string, replicas int32) {
		c.Buffers = append(c.Buffers, karpenter.Buffer{Namespace: namespace, Name: name, Replicas: replicas, Template: template})
	}
	add("small", "one", 7)
	if v := snapshot.Build(c); len(v.Reserves) != 1 || len(v.Reserves[0].Class.Pods) != 7 {
		t.Fatalf("the headroom is %d", len(v.Reserves))
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		add("large", name, math.MaxInt32)
	}
	v := snapshot.Build(c)
	var pods []int
	for _, r := range v.Reserves {
		pods = append(pods, len(r.Class.Pods))
	}
	if len(pods) != 5 || pods[0] != 7 || pods[1] != 1250 || pods[4] != 1250 {
		t.Errorf("the buffers have %v pods", pods)
	}
}
