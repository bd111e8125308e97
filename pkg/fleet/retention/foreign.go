package retention

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
)

// OtherNodes finds places for foreign pods on the nodes that exist. It reads the cluster when it is first asked, and then no more.
type OtherNodes struct {
	cluster *snapshot.Cluster
	read    sync.Once
	// nodes are those that take pods and stay, by name.
	nodes  []freeNode
	filter *snapshot.NodeFilter
	// draining are the Nodes of ours that are being deleted with foreign pods on them, promised the foreign pods of those by the Nodes that they have a place on.
	draining func() map[string]bool
	promised map[string][]*corev1.Pod
	// admitting are the indices of the nodes whose taints and labels admit a pod, by what the pod asks of a node.
	admitting map[string][]int
}

// NewOtherNodes returns the nodes of the cluster as places for foreign pods.
func NewOtherNodes(c *snapshot.Cluster) *OtherNodes {
	return &OtherNodes{cluster: c, draining: sync.OnceValue(func() map[string]bool { return draining(c) }), promised: map[string][]*corev1.Pod{}, admitting: map[string][]int{}}
}

// draining are the Nodes of ours that are being deleted with foreign pods on them.
func draining(c *snapshot.Cluster) map[string]bool {
	gone, held := map[string]bool{}, map[string]bool{}
	for i := range c.NodeClaims {
		if claim := &c.NodeClaims[i]; snapshot.IsOurClaim(claim) && !claim.DeletionTimestamp.IsZero() {
			gone[claim.Status.NodeName] = true
		}
	}
	for i := range c.Pods {
		if pod := &c.Pods[i]; pod.Spec.NodeName != "" && gone[pod.Spec.NodeName] && snapshot.IsForeign(pod) {
			held[pod.Spec.NodeName] = true
		}
	}
	return held
}

// freeNode is a node with what it has left.
type freeNode struct {
	node *corev1.Node
	free corev1.ResourceList
}

// Hold says which of the foreign pods of machines that go would have no place on another node that is there, ours or not, and why; "" when all have one. The foreign
// pods of machines that are being deleted and have their place on one that goes are among them.
// Taken is what others are to have of nodes, by their names. Machines are not launched for such pods: those that ask anything of other pods are taken to have no
// place, and so are those that nobody would make again.
func (o *OtherNodes) Hold(going []*snapshot.Machine, taken map[string]planner.Resources) string {
	var pods []*corev1.Pod
	leaves := map[string]bool{}
	for _, m := range going {
		pods = append(pods, m.ForeignPods()...)
		if m.Node != nil {
			leaves[m.Node.Name] = true
		}
	}
	if len(pods) == 0 && len(o.draining()) == 0 {
		return ""
	}
	o.read.Do(o.look)
	for _, name := range slices.Sorted(maps.Keys(leaves)) {
		pods = append(pods, o.promised[name]...)
	}
	left := remainder{OtherNodes: o, leaves: leaves, taken: taken, changed: map[int]corev1.ResourceList{}}
	for _, pod := range pods {
		if _, why := left.settle(pod); why != "" {
			return fmt.Sprintf("pod %s, which holds no replica, would have no place on another node: %s", snapshot.PodName(pod), why)
		}
	}
	return ""
}

// look reads the cluster. Foreign pods of machines that are being deleted already, and those that wait to be bound again, have the first claim to the places.
func (o *OtherNodes) look() {
	o.nodes, o.filter = freeNodes(o.cluster), o.cluster.NodeFilter()
	ahead := remainder{OtherNodes: o, changed: map[int]corev1.ResourceList{}}
	for i := range o.cluster.Pods {
		pod := &o.cluster.Pods[i]
		if draining := o.draining()[pod.Spec.NodeName]; (draining || pod.Spec.NodeName == "") && snapshot.IsForeign(pod) {
			// Who finds no place takes none.
			if node, why := ahead.settle(pod); why == "" && draining {
				o.promised[node] = append(o.promised[node], pod)
			}
		}
	}
	for i, free := range ahead.changed {
		o.nodes[i].free = free
	}
}

// freeNodes are the nodes that take pods and stay, by name.
func freeNodes(c *snapshot.Cluster) []freeNode {
	leaves := map[string]bool{}
	for _, m := range c.Machines() {
		if m.Node != nil && (m.Leaving() || !m.Started()) {
			leaves[m.Node.Name] = true
		}
	}
	pods := c.PodsByNode()
	var nodes []freeNode
	for i := range c.Nodes {
		node := &c.Nodes[i]
		if leaves[node.Name] || !snapshot.TakesPods(node) {
			continue
		}
		free := node.Status.Allocatable.DeepCopy()
		for _, pod := range pods[node.Name] {
			take(free, withSlot(snapshot.PodRequests(pod)))
		}
		nodes = append(nodes, freeNode{node, free})
	}
	slices.SortFunc(nodes, func(a, b freeNode) int { return strings.Compare(a.node.Name, b.node.Name) })
	return nodes
}

// remainder is what the nodes have left while pods of machines that go are settled on them.
type remainder struct {
	*OtherNodes
	leaves map[string]bool
	taken  map[string]planner.Resources
	// changed is what is left of the nodes that pods were settled on, by index.
	changed map[int]corev1.ResourceList
}

// settle takes a place for the pod and returns its Node, or says why there is none.
func (r *remainder) settle(pod *corev1.Pod) (node, why string) {
	if metav1.GetControllerOf(pod) == nil {
		return "", "it has no owner that would make it again"
	}
	demand, why := r.filter.Demand(pod)
	if why != "" {
		return "", why
	}
	asks := withSlot(snapshot.PodRequests(pod))
	why = "there is none"
	if slices.ContainsFunc(r.nodes, func(n freeNode) bool { return !r.leaves[n.node.Name] }) {
		why = "none admits it with room for it"
	}
	for _, i := range r.admit(demand) {
		if r.leaves[r.nodes[i].node.Name] {
			continue
		}
		if free := r.free(i); has(free, asks) {
			r.changed[i] = free.DeepCopy()
			take(r.changed[i], asks)
			return r.nodes[i].node.Name, ""
		}
		why = "none that admits it has room"
	}
	return "", why
}

// free is what is left of a node. It is not to be changed.
func (r *remainder) free(i int) corev1.ResourceList {
	if free, ok := r.changed[i]; ok {
		return free
	}
	others, ok := r.taken[r.nodes[i].node.Name]
	if !ok {
		return r.nodes[i].free
	}
	free := r.nodes[i].free.DeepCopy()
	take(free, listOf(others))
	r.changed[i] = free
	return free
}

// admit returns the indices of the nodes that admit a pod. Pods that ask the same of a node are matched once.
func (o *OtherNodes) admit(demand snapshot.NodeDemand) []int {
	if known, ok := o.admitting[demand.Key]; ok {
		return known
	}
	admits := demand.Admits()
	var admitting []int
	for i := range o.nodes {
		if admits(o.nodes[i].node) {
			admitting = append(admitting, i)
		}
	}
	o.admitting[demand.Key] = admitting
	return admitting
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
