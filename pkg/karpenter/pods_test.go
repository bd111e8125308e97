package karpenter

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// pod returns a pod that the scheduler could not place.
func pod(edits ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	p.Status = corev1.PodStatus{Phase: corev1.PodPending, StartTime: &metav1.Time{Time: now.Add(-time.Hour)}, Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable},
	}}
	for _, edit := range edits {
		edit(p)
	}
	return p
}

func ownedBy(apiVersion, kind string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = append(p.OwnerReferences, metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: "owner"})
	}
}

func running(p *corev1.Pod) {
	p.Spec.NodeName = "node"
	p.Status.Phase = corev1.PodRunning
}

func terminating(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }

func ended(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }

func failed(p *corev1.Pod) { p.Status.Conditions[0].Reason = corev1.PodReasonSchedulerError }

func doNotDisrupt(value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{"karpenter.sh/do-not-disrupt": value} }
}

// The wrappers return Karpenter's answers. The tables check what Karve relies on, so that a change in a new version of Karpenter fails here.

func TestIsProvisionable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"a pending pod":             {pod(), true},
		"a bound pod":               {pod(running), false},
		"a terminating pod":         {pod(terminating), false},
		"a finished pod":            {pod(ended), false},
		"a DaemonSet pod":           {pod(ownedBy("apps/v1", "DaemonSet")), false},
		"a mirror pod":              {pod(ownedBy("v1", "Node")), false},
		"a preempting pod":          {pod(func(p *corev1.Pod) { p.Status.NominatedNodeName = "node" }), false},
		"an error of the scheduler": {pod(failed), false},
		"an error of the scheduler for a group": {pod(failed, func(p *corev1.Pod) {
			p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("train")}
		}), true},
		"a gated pod": {pod(func(p *corev1.Pod) { p.Status.Conditions[0].Reason = corev1.PodReasonSchedulingGated }), false},
		"a new pod":   {pod(func(p *corev1.Pod) { p.Status.Conditions = nil }), false},
	} {
		if got := IsProvisionable(c.pod); got != c.want {
			t.Errorf("%s: IsProvisionable = %t, want %t", name, got, c.want)
		}
	}
}

func TestDaemonAndReschedulablePods(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pod                   *corev1.Pod
		daemon, reschedulable bool
	}{
		"a ReplicaSet pod":                  {pod(running, ownedBy("apps/v1", "ReplicaSet")), false, true},
		"a pod without an owner":            {pod(running), false, true},
		"a DaemonSet pod":                   {pod(running, ownedBy("apps/v1", "DaemonSet")), true, false},
		"a mirror pod":                      {pod(running, ownedBy("v1", "Node")), true, false},
		"a pod of a foreign DaemonSet kind": {pod(running, ownedBy("example.com/v1", "DaemonSet")), false, true},
		"a terminating ReplicaSet pod":      {pod(running, terminating), false, false},
	} {
		if got := IsDaemon(c.pod); got != c.daemon {
			t.Errorf("%s: IsDaemon = %t, want %t", name, got, c.daemon)
		}
		if got := IsReschedulable(c.pod); got != c.reschedulable {
			t.Errorf("%s: IsReschedulable = %t, want %t", name, got, c.reschedulable)
		}
	}
}

func TestDoNotDisrupt(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(now)
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"a pod without the annotation is disruptable":  {pod(running), true},
		"a pod with the annotation is not disruptable": {pod(running, doNotDisrupt("true")), false},
		"a duration that has not passed":               {pod(running, doNotDisrupt("2h")), false},
		"a duration that has passed":                   {pod(running, doNotDisrupt("30m")), true},
		"a finished pod is disruptable":                {pod(ended, doNotDisrupt("true")), true},
	} {
		if got := IsDisruptable(c.pod, clk); got != c.want {
			t.Errorf("%s: IsDisruptable = %t, want %t", name, got, c.want)
		}
		want := ""
		if !c.want {
			want = "pod default/web carries karpenter.sh/do-not-disrupt"
		}
		if got := (Evictions{clock: clk}).Blocker([]*corev1.Pod{pod(running), c.pod}); got != want {
			t.Errorf("%s: Blocker = %q, want %q", name, got, want)
		}
	}
}

func TestPodsThatAreNotEvictedDoNotBlockNode(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(now)
	tolerant := func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} }
	for name, p := range map[string]*corev1.Pod{
		"a pod that tolerates everything": pod(running, doNotDisrupt("true"), tolerant),
		"a mirror pod":                    pod(running, doNotDisrupt("true"), ownedBy("v1", "Node")),
		"a terminating pod":               pod(running, doNotDisrupt("true"), terminating),
	} {
		if IsEvicted(p, clk) {
			t.Errorf("%s is evicted", name)
		}
		if got := (Evictions{clock: clk}).Blocker([]*corev1.Pod{p}); got != "" {
			t.Errorf("%s blocks its node: %s", name, got)
		}
	}
}
