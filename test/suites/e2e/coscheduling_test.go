package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"karve.sh/karve/test/harness/batch"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

// TestCoschedulingStartsGroupsWhole runs the scheduler of scheduler-plugins for the pods of groups.
func TestCoschedulingStartsGroupsWhole(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	w := coschedulingWorld(t)
	t.Run("together", w.groupsStartWhole)
	t.Run("the controller is killed while a group starts", func(t *testing.T) { killedWhileAGroupStarts(t, w) })
}

// coschedulingWorld starts a cluster for one test, with the scheduler of scheduler-plugins and CRDs in addition to its own.
func coschedulingWorld(t *testing.T, crds ...string) *world {
	t.Helper()
	crd, err := batch.PodGroups(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w := ownWorld(t, cluster.Config{CRDs: append(crds, crd), OnExit: func(cluster.Component, error) {}}, karve.Options{Alone: true})
	if err := batch.StartCoscheduling(t.Context(), w.Cluster); err != nil {
		t.Fatal(err)
	}
	w.groups = groupAPI{
		object: func(name string, n int) *unstructured.Unstructured {
			return manifest("scheduling.x-k8s.io/v1alpha1", "PodGroup", name, map[string]any{"minMember": n})
		},
		join: func(pod *corev1.Pod, group string) {
			pod.Labels["scheduling.x-k8s.io/pod-group"] = group
			pod.Spec.SchedulerName = batch.SchedulerName
		},
		beside: func(spec *corev1.PodSpec) { spec.SchedulerName = batch.SchedulerName },
	}
	return w
}
