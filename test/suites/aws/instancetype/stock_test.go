package instancetype_test

import (
	"testing"

	ec2v1 "github.com/aws/karpenter-provider-aws/pkg/apis/v1"
	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
	fakeaws "karve.sh/karve/test/harness/aws"
)

// Karpenter's AWS provider registers its labels as well-known: Karpenter assumes that a machine may have them if its requirements do not say. A type without
// disks says that it has none, so a pod that needs disks is not left to a pool of such machines.
func TestKarpenterPoolLacksLabelsThatItsTypesLack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fakeaws.Config{})
	listing := w.until(object(t, nodeClass("gpu")), "fresh", fresh)
	for family, left := range map[string]bool{"g5g": false, "g5": true} {
		c := Empty()
		state := c.NodeClasses[NodeClassRef]
		state.Learn(listing)
		c.NodeClasses[NodeClassRef] = state
		c.GPUNodeClasses = []v1alpha1.GPUNodeClass{Class("gpu", 0)}
		c.NodePools = append(c.NodePools, Pool("gpu", "gpu"), KarpenterPool("stock", Requiring(ec2v1.LabelInstanceFamily, corev1.NodeSelectorOpIn, family)))
		c.Pods = []corev1.Pod{Pod("a", Asking("cpu", "1", v1alpha1.ResourceGPU, "1"), func(pod *corev1.Pod) {
			pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: ec2v1.LabelInstanceLocalNVME, Operator: corev1.NodeSelectorOpExists}}}},
			}}}
		})}
		classes := snapshot.Build(c).Classes
		if len(classes) != 1 {
			t.Fatalf("%d classes", len(classes))
		}
		if got := classes[0].Blocked != nil && classes[0].Blocked.Reason == planner.ReasonLeftToKarpenter; got != left {
			t.Errorf("beside a stock pool of %s the pod is left to it: %v", family, got)
		}
	}
}
