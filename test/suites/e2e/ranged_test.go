package e2e

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/test/harness/cluster"
)

func TestReplicasGrowForPodsWithLittleMemory(t *testing.T) {
	cluster.Long(t)
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "ranged")
	s.class("2s", func(c *v1alpha1.GPUNodeClassSpec) {
		c.Sharing.Replicas, c.Sharing.MaxReplicas = new(int32(2)), new(int32(8))
	})
	s.pool(poolOptions{})
	pods := func(from, to int, memory string) {
		t.Helper()
		for i := from; i < to; i++ {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: fmt.Sprintf("pod-%d", i)}, Spec: s.podSpec(asking("50m"))}
			if memory != "" {
				pod.Annotations = map[string]string{v1alpha1.GPUMemoryAnnotation: memory}
			}
			s.create(pod)
		}
	}
	shares := func(want string) {
		t.Helper()
		s.until(enough, "the only node has "+want+" replicas", func() (bool, string) {
			nodes := s.nodes(s.name)
			if len(nodes) != 1 {
				return false, fmt.Sprintf("%d nodes", len(nodes))
			}
			has := nodes[0].Status.Allocatable[v1alpha1.ResourceGPUShared]
			return has.String() == want, exposed(&nodes[0])
		})
	}
	// Five pods fit by memory. That is more than the minimum of the class.
	pods(0, 3, "2Gi")
	s.untilRunning(3)
	shares("3")
	pods(3, 5, "2Gi")
	s.untilRunning(5)
	shares("5")
	s.wantClaims(s.claims(), 1, karpv1.CapacityTypeOnDemand, 526_000)
	s.untilEvent("Node", s.nodes(s.name)[0].Name, "ReplicasChanged", "5 nvidia.com/gpu.shared instead of", "device memory") // Of 3, or of 4 if the pods came one after the other.

	// A T4 has memory for seven pods of 2 GiB, not for eight.
	pods(5, 8, "2Gi")
	s.untilRunning(8)
	s.wantClaims(s.claims(), 2, karpv1.CapacityTypeOnDemand, 1_052_000)

	// The memory of a pod that states none is unknown.
	pods(8, 9, "")
	s.untilRunning(9)
	s.until(enough, "no machine is shared into more than it has to be", func() (bool, string) {
		now, all := "", true
		for _, n := range s.nodes(s.name) {
			now += fmt.Sprintln(n.Name, n.Annotations[nodecontract.ReplicasPerGPUAnnotation])
			all = all && n.Annotations[nodecontract.ReplicasPerGPUAnnotation] == "2"
		}
		return all, now
	})
	s.stays(3*time.Second, "no machine more than these", func() (bool, string) { return len(s.claims()) <= 3, lines(s.claims()) })
}
