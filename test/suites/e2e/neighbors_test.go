package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// team is a label that only nodes and pods of the test have: pools of other tests have no taints.
const team = "example.com/team"

// Keys of EKS Auto Mode.
const (
	autoGroup = "eks.amazonaws.com"
	autoKind  = "NodeClass"
)

// autoPool creates a NodePool of EKS Auto Mode, which the Karpenter of the cluster ignores as Karve does.
func (s *scene) autoPool(name, taintKey string, requirements map[string][]any) {
	s.t.Helper()
	var all []any
	requirements[team] = []any{s.name}
	for key, values := range requirements {
		all = append(all, map[string]any{"key": key, "operator": "In", "values": values})
	}
	spec := map[string]any{"nodeClassRef": map[string]any{"group": autoGroup, "kind": autoKind, "name": "default"}, "requirements": all}
	if taintKey != "" {
		spec["taints"] = []any{map[string]any{"key": taintKey, "value": s.name, "effect": "NoSchedule"}}
	}
	s.removed(manifest("karpenter.sh/v1", "NodePool", name, map[string]any{"template": map[string]any{"spec": spec}}))
}

// removed creates an object that the test removes at its end.
func (s *scene) removed(o client.Object) {
	s.t.Helper()
	s.create(o)
	s.t.Cleanup(func() {
		if err := client.IgnoreNotFound(s.api.Delete(context.WithoutCancel(s.t.Context()), o)); err != nil {
			s.t.Error(err)
		}
	})
}

// autoNode creates a machine that EKS Auto Mode has launched: a NodeClaim, and a Node with one GPU.
func (s *scene) autoNode(pool, taintKey string) (name string) {
	s.t.Helper()
	name = pool + "-1"
	labels := map[string]string{
		karpv1.NodePoolLabelKey: pool, autoGroup + "/compute-type": "auto", autoGroup + "/instance-gpu-name": "a10g", corev1.LabelInstanceTypeStable: "g5.xlarge", corev1.LabelHostname: name, team: s.name,
	}
	s.removed(&karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{karpv1.NodePoolLabelKey: pool}},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: autoGroup, Kind: autoKind, Name: "default"},
			Requirements: []karpv1.NodeSelectorRequirementWithMinValues{{Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"g5.xlarge"}}},
		},
	})
	amounts := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("15Gi"), corev1.ResourcePods: resource.MustParse("20"), v1alpha1.ResourceGPU: resource.MustParse("1"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: taintKey, Value: s.name, Effect: corev1.TaintEffectNoSchedule}}},
	}
	s.foreignNode(node, amounts)
	return name
}

// foreignNode creates a ready node that neither Karpenter nor Karve has launched.
func (s *scene) foreignNode(node *corev1.Node, amounts corev1.ResourceList) {
	s.t.Helper()
	s.removed(node)
	s.until(enough, "the node is ready", func() (bool, string) { // Others write to it as well.
		if err := s.api.Get(s.t.Context(), client.ObjectKeyFromObject(node), node); err != nil {
			return false, err.Error()
		}
		node.Status.Capacity, node.Status.Allocatable = amounts, amounts
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}}
		err := s.api.Status().Update(s.t.Context(), node)
		return err == nil, fmt.Sprint(err)
	})
}

// TestKarveKeepsToItsNodesBesideAutoModeAndGPUOperator has NodePools of EKS Auto Mode and the labels of the GPU Operator in the cluster.
func TestKarveKeepsToItsNodesBesideAutoModeAndGPUOperator(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "neighbors")
	const taint = "nvidia.com/gpu"
	one := []func(*corev1.PodSpec){asks(v1alpha1.ResourceGPU, "1"), tolerates(taint, s.name), selects(team, s.name)}
	ten := []func(*corev1.PodSpec){asks(v1alpha1.ResourceGPU, "10"), tolerates(taint, s.name), selects(team, s.name)}
	s.autoPool("neighbors-general", "", map[string][]any{autoGroup + "/instance-category": {"c", "m", "r"}})
	s.class(v1alpha1.IdleNever, func(spec *v1alpha1.GPUNodeClassSpec) { spec.Sharing.ResourceName = v1alpha1.ResourceGPU })
	s.pool(poolOptions{taintKey: taint, labels: map[string]string{"nvidia.com/gpu.deploy.operands": "false", team: s.name}})

	// The built-in pool of Auto Mode has no GPUs, so the pod is Karve's.
	s.pod("ours", ten...)
	s.untilRunning(1)
	ours := s.nodes(s.name)[0]
	if ours.Labels["nvidia.com/gpu.deploy.operands"] != "false" {
		t.Errorf("node %s has the labels %v", ours.Name, ours.Labels)
	}

	// One with GPUs could serve the pod as well, so Karve leaves it alone unless the pod chooses.
	s.autoPool("neighbors-auto", taint, map[string][]any{autoGroup + "/instance-family": {"g5"}})
	s.pod("either", one...)
	s.untilEvent("Pod", "either", "LeftToKarpenter", "neighbors-auto", s.name)
	s.delete(&corev1.Pod{ObjectMeta: objectMetaIn(s.name, "either")})
	s.pod("chosen", append(slices.Clip(ten), selects(karpv1.NodePoolLabelKey, s.name))...)
	s.untilRunning(2)
	s.wantClaims(s.claims(), 2, karpv1.CapacityTypeOnDemand, 2*526_000)

	// A node of Auto Mode has room for pods, and is nobody's business otherwise. The GPU Operator labels Karve's nodes as it likes.
	auto := s.autoNode("neighbors-auto", taint)
	s.pod("theirs", append(slices.Clip(one), selects(karpv1.NodePoolLabelKey, "neighbors-auto"))...)
	s.until(enough, "the pod runs on the node of Auto Mode", func() (bool, string) {
		for _, p := range s.pods() {
			if p.Name == "theirs" {
				return p.Spec.NodeName == auto, fmt.Sprint(p.Spec.NodeName, p.Status.Conditions)
			}
		}
		return false, "no pod"
	})
	s.patch(&ours, `{"metadata":{"labels":{"nvidia.com/gpu.deploy.device-plugin":"false","nvidia.com/gpu.deploy.driver":"pre-installed","nvidia.com/gpu.deploy.operands":"true","nvidia.com/gpu.present":"false"}}}`)
	s.stays(settings.Settle+5*time.Second, "all nodes are left alone", func() (bool, string) {
		node := &corev1.Node{}
		if err := s.api.Get(t.Context(), client.ObjectKey{Name: auto}, node); err != nil {
			return false, err.Error()
		}
		untouched := node.DeletionTimestamp == nil && len(node.Spec.Taints) == 1
		for key := range node.Annotations {
			untouched = untouched && !strings.HasPrefix(key, v1alpha1.Group)
		}
		return untouched && len(alive(s.claims())) == 2, fmt.Sprintf("%v %v\n%s", node.Spec.Taints, node.Annotations, lines(s.claims()))
	})
}
