package retention

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// OtherNodes finds room for foreign pods on the existing nodes. It reads the cluster once, when it is first needed.
type OtherNodes struct {
	cluster *facts.Cluster
	read    sync.Once
	// nodes lists the nodes that accept pods and stay, sorted by name.
	nodes  []freeNode
	filter *snapshot.NodeFilter
	// draining returns the names of the Nodes of Karve's machines that are being deleted and have foreign pods. promised has those of their pods that have
	// found room, by the name of the Node with the room.
	draining func() map[string]bool
	promised map[string][]*corev1.Pod
	// admitting maps the key of a pod's demand to the indices of the nodes whose taints and labels allow it.
	admitting map[string][]int
}

// NewOtherNodes returns an OtherNodes for the nodes of the cluster.
func NewOtherNodes(c *facts.Cluster) *OtherNodes {
	return &OtherNodes{cluster: c, draining: sync.OnceValue(func() map[string]bool { return draining(c) }), promised: map[string][]*corev1.Pod{}, admitting: map[string][]int{}}
}

// draining returns the names of the Nodes of Karve's machines that are being deleted and have foreign pods.
func draining(c *facts.Cluster) map[string]bool {
	x, held := c.Indexed(), map[string]bool{}
	for _, claim := range x.NodeClaims() {
		if facts.IsOurClaim(claim) && !claim.DeletionTimestamp.IsZero() && claim.Status.NodeName != "" {
			if _, pods := x.Node(claim.Status.NodeName); slices.ContainsFunc(pods, facts.IsForeign) {
				held[claim.Status.NodeName] = true
			}
		}
	}
	return held
}

type freeNode struct {
	node *corev1.Node
	free amounts
}

// amounts are amounts of resources in the planner's units.
type amounts = map[corev1.ResourceName]int64

// Hold returns which foreign pod of the machines to be removed would find no room on another existing node, and why. It returns "" if all would find
// room. The other node need not belong to Karve. Foreign pods of machines that are being deleted are included if their room is on one of the removed
// machines. taken has the resources of nodes, by name, that others will use. Karve launches no machines for foreign pods. A pod with constraints on
// other pods, or without a controller that would recreate it, counts as one without room.
func (o *OtherNodes) Hold(going []*records.Machine, taken map[string]planner.Resources) string {
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
	left := remainder{OtherNodes: o, leaves: leaves, taken: taken, changed: map[int]amounts{}}
	for _, pod := range pods {
		if _, why := left.settle(pod); why != "" {
			return fmt.Sprintf("pod %s, which holds no replica, would have no place on another node: %s", facts.PodName(pod), why)
		}
	}
	return ""
}

// look reads the cluster. Foreign pods of machines that are being deleted, and pending foreign pods, take room first.
func (o *OtherNodes) look() {
	o.nodes, o.filter = freeNodes(o.cluster), snapshot.NewNodeFilter(o.cluster)
	ahead := remainder{OtherNodes: o, changed: map[int]amounts{}}
	x := o.cluster.Indexed()
	for _, name := range slices.Sorted(maps.Keys(o.draining())) {
		_, pods := x.Node(name)
		for _, pod := range pods {
			if facts.IsForeign(pod) {
				if node, why := ahead.settle(pod); why == "" { // A pod that finds no room takes none.
					o.promised[node] = append(o.promised[node], pod)
				}
			}
		}
	}
	for _, pod := range x.Pending() {
		if facts.IsForeign(pod) {
			ahead.settle(pod)
		}
	}
	for i, free := range ahead.changed {
		o.nodes[i].free = free
	}
}

// freeNodes returns the nodes that accept pods and stay, sorted by name.
func freeNodes(c *facts.Cluster) []freeNode {
	leaves := map[string]bool{}
	for _, m := range records.Machines(c) {
		if m.Node != nil && (m.Leaving() || !m.Started()) {
			leaves[m.Node.Name] = true
		}
	}
	var nodes []freeNode
	for node, used := range c.Indexed().Used() {
		if leaves[node.Name] || !facts.TakesPods(node) {
			continue
		}
		free := facts.AmountsOf(node.Status.Allocatable)
		takeRoom(free, used)
		nodes = append(nodes, freeNode{node, free})
	}
	slices.SortFunc(nodes, func(a, b freeNode) int { return strings.Compare(a.node.Name, b.node.Name) })
	return nodes
}

// remainder is the capacity that the nodes have left while pods of removed machines are placed on them.
type remainder struct {
	*OtherNodes
	leaves map[string]bool
	taken  map[string]planner.Resources
	// changed is the free capacity of the nodes that pods were placed on, by index.
	changed map[int]amounts
}

// settle places the pod on a node and returns the name of the node, or why no node fits.
func (r *remainder) settle(pod *corev1.Pod) (node, why string) {
	if metav1.GetControllerOf(pod) == nil {
		return "", "it has no owner that would make it again"
	}
	if why := facts.TooLarge(pod); why != "" {
		return "", "it " + why
	}
	demand, why := r.filter.Demand(pod)
	if why != "" {
		return "", why
	}
	asks := withSlot(facts.AmountsOf(facts.PodRequests(pod)))
	why = "there is none"
	if slices.ContainsFunc(r.nodes, func(n freeNode) bool { return !r.leaves[n.node.Name] }) {
		why = "none admits it with room for it"
	}
	for _, i := range r.admit(demand) {
		if r.leaves[r.nodes[i].node.Name] {
			continue
		}
		if free := r.free(i); hasRoom(free, asks) {
			r.changed[i] = maps.Clone(free)
			takeRoom(r.changed[i], asks)
			return r.nodes[i].node.Name, ""
		}
		why = "none that admits it has room"
	}
	return "", why
}

// free returns the free capacity of a node. Callers must not change it.
func (r *remainder) free(i int) amounts {
	if free, ok := r.changed[i]; ok {
		return free
	}
	others, ok := r.taken[r.nodes[i].node.Name]
	if !ok {
		return r.nodes[i].free
	}
	free := maps.Clone(r.nodes[i].free)
	takeRoom(free, listOf(others))
	r.changed[i] = free
	return free
}

// admit returns the indices of the nodes that allow a pod. It caches the result for pods with the same demand.
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

// withSlot adds one pod to the requests of a pod.
func withSlot(asks amounts) amounts {
	asks[corev1.ResourcePods] = 1
	return asks
}

func listOf(r planner.Resources) amounts {
	return amounts{
		corev1.ResourceCPU: r.MilliCPU, corev1.ResourceMemory: r.MemoryBytes, corev1.ResourceEphemeralStorage: r.EphemeralBytes, corev1.ResourcePods: r.Pods,
	}
}

func takeRoom(free, asks amounts) {
	for name, n := range asks {
		free[name] = amount.Sub(free[name], n)
	}
}

func hasRoom(free, asks amounts) bool {
	for name, n := range asks {
		if n > 0 && free[name] < n {
			return false
		}
	}
	return true
}
