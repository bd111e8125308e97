package snapshot

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/planner"
)

// Squatters are the pods of the machine that hold no replica and could run anywhere; by name.
func (m *Machine) Squatters() []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(m.Pods), func(pod *corev1.Pod) bool { return !squats(pod) })
}

func squats(pod *corev1.Pod) bool { return !mentionsGPU(pod) && karpenter.IsReschedulable(pod) }

// Unused says that the machine holds no replica for anybody: its pods, if there are any, belong to it or squat on it.
func (m *Machine) Unused() bool {
	return !slices.ContainsFunc(m.Pods, func(pod *corev1.Pod) bool { return isWorkload(pod) && !squats(pod) })
}

// Elsewhere says which of the squatters of machines that go would have no place on another node that is there, ours or not, and why; "" when all have one.
// Taken is what others are to have of nodes, by their names. Machines are not launched for such pods: those that ask anything of other pods are taken to have no
// place, and so are those that nobody would make again.
func (c *Cluster) Elsewhere(going []*Machine, taken map[string]planner.Resources) string {
	var pods []*corev1.Pod
	leaves := map[string]bool{}
	for _, m := range going {
		pods = append(pods, m.Squatters()...)
		if m.Node != nil {
			leaves[m.Node.Name] = true
		}
	}
	if len(pods) == 0 {
		return ""
	}
	free := c.freeNodes(leaves, taken)
	storage := c.storage()
	for _, pod := range pods {
		if why := settle(pod, free, storage); why != "" {
			return fmt.Sprintf("pod %s, which holds no replica, would have no place on another node: %s", podName(pod), why)
		}
	}
	return ""
}

// freeNode is a node with what it has left.
type freeNode struct {
	node *corev1.Node
	free corev1.ResourceList
}

// freeNodes are the nodes that take pods and stay, by name.
func (c *Cluster) freeNodes(leaves map[string]bool, taken map[string]planner.Resources) []freeNode {
	for _, m := range c.Machines() {
		if m.Node != nil && (m.Leaving() || !m.Started()) {
			leaves[m.Node.Name] = true
		}
	}
	pods := c.podsByNode()
	var nodes []freeNode
	for i := range c.Nodes {
		node := &c.Nodes[i]
		if leaves[node.Name] || !takesPods(node) {
			continue
		}
		free := node.Status.Allocatable.DeepCopy()
		for _, pod := range pods[node.Name] {
			take(free, withSlot(podRequests(pod)))
		}
		take(free, listOf(taken[node.Name]))
		nodes = append(nodes, freeNode{node, free})
	}
	slices.SortFunc(nodes, func(a, b freeNode) int { return strings.Compare(a.node.Name, b.node.Name) })
	return nodes
}

// settle takes a place for the pod, or says why there is none.
func settle(pod *corev1.Pod, nodes []freeNode, storage *storage) string {
	if metav1.GetControllerOf(pod) == nil {
		return "it has no owner that would make it again"
	}
	if hasTerms(pod) || len(hostPorts(pod)) > 0 || unsupported(pod) != "" {
		return "it asks for places by other pods, ports or devices, which is not planned for"
	}
	demand := demandOf(pod)
	if v := storage.of(pod); v != nil {
		if v.problem != "" {
			return v.problem
		}
		demand.places = v.places
	}
	asks := withSlot(demand.requests)
	why := "there is none"
	for i := range nodes {
		n := &nodes[i]
		if err := demand.refusal(n.node.Spec.Taints, n.node.Name, n.node.Labels); err != nil {
			why = "none admits it with room for it"
			continue
		}
		if !has(n.free, asks) {
			why = "none that admits it has room"
			continue
		}
		take(n.free, asks)
		return ""
	}
	return why
}

// withSlot adds the pod itself to what it asks for.
func withSlot(asks corev1.ResourceList) corev1.ResourceList {
	all := asks.DeepCopy()
	if all == nil {
		all = corev1.ResourceList{}
	}
	all[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
	return all
}

func listOf(r planner.Resources) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU: *resource.NewMilliQuantity(r.MilliCPU, resource.DecimalSI), corev1.ResourceMemory: *resource.NewQuantity(r.MemoryBytes, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(r.EphemeralBytes, resource.BinarySI), corev1.ResourcePods: *resource.NewQuantity(r.Pods, resource.DecimalSI),
	}
}

func take(free, asks corev1.ResourceList) {
	for name, amount := range asks {
		left := free[name]
		left.Sub(amount)
		free[name] = left
	}
}

func has(free, asks corev1.ResourceList) bool {
	for name, amount := range asks {
		if left := free[name]; amount.Sign() > 0 && left.Cmp(amount) < 0 {
			return false
		}
	}
	return true
}
