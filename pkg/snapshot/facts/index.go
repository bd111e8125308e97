package facts

import (
	"cmp"
	"iter"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/karpenter"
)

// Index holds the objects of which a cluster may have thousands, keyed for lookups. It is immutable: With returns a new one, which shares the unchanged
// parts. So the cost of a change does not depend on the size of the cluster, and a decision reads an Index without copying or locking it. Results that
// are computed for a node or a machine are cached with it.
type Index struct {
	pods  table[*corev1.Pod]
	nodes table[*Site]
	// providers has the sorted names of the nodes with a provider ID.
	providers table[[]string]
	// gpus has the nodes that have a GPU resource.
	gpus table[*Site]
	// pending has the pods that are not bound. ended has the Jobs' pods that have succeeded.
	pending, ended table[*corev1.Pod]
	// kin has the pods that rules of other pods count, by namespace. repelling has those of them with anti-affinity.
	kin       table[[]*Kin]
	repelling table[*Kin]
	// holders has the bound pods that request a GPU resource, by their text (Content).
	holders table[*Holders]
	// members has the pods of each group, by the text of its key.
	members table[*memberSet]
	claims  table[*karpv1.NodeClaim]
	// ours and canaries are Karve's NodeClaims, sorted by name.
	ours, canaries []*Claimed
	volumeClaims   table[*corev1.PersistentVolumeClaim]
	volumes        table[*corev1.PersistentVolume]
	csiNodes       table[*storagev1.CSINode]
}

// Site is a node with the pods that are bound to it.
type Site struct {
	Name string
	// Node is nil if pods are bound to a node that does not exist.
	Node *corev1.Node
	// Pods have not ended. They are sorted by name.
	Pods []*corev1.Pod
	// heartbeat is the time of the latest heartbeat of the node.
	heartbeat time.Time
	once      sync.Once
	inUse     Use
	// RoomSlot is for the room of the node.
	RoomSlot Slot
}

// Kin are running pods of one namespace with the same labels and required anti-affinity.
type Kin struct {
	Key string
	// Pod is any of these pods, which may be gone by now.
	Pod *corev1.Pod
	// On has the number of pods by node.
	On Tally
}

// Holders are bound pods with the same text (Content).
type Holders struct {
	Pod *corev1.Pod
	On  Tally
}

// Tally has the number of pods by node.
type Tally struct {
	// Numbers are sorted by node.
	Numbers []NodeCount
	// madeBy is the edit that created the tally. Only that edit may change it.
	madeBy *editID
}

// NodeCount is the number of pods on a node.
type NodeCount struct {
	Node string
	Pods int
}

// editID identifies an edit by its address.
type editID struct{ _ byte }

// Claimed is one of Karve's NodeClaims.
type Claimed struct {
	Claim *karpv1.NodeClaim
	// MachineSlot is for the machine of the NodeClaim.
	MachineSlot Slot
}

// Site returns a node with its pods, or nil if there is no such Node.
func (x *Index) Site(name string) *Site {
	if s := x.nodes.get(name); s != nil && s.Node != nil {
		return s
	}
	return nil
}

// SiteOf returns the node of a NodeClaim with its pods, or nil if it has none.
func (x *Index) SiteOf(claim *karpv1.NodeClaim) *Site {
	if s := x.Site(claim.Status.NodeName); s != nil || claim.Status.ProviderID == "" {
		return s
	}
	if names := x.providers.get(claim.Status.ProviderID); len(names) > 0 {
		return x.Site(names[0])
	}
	return nil
}

// Node returns a Node with the pods that are bound to it and have not ended, sorted by name. The Node is nil if it does not exist.
func (x *Index) Node(name string) (*corev1.Node, []*corev1.Pod) {
	if s := x.nodes.get(name); s != nil {
		return s.Node, s.Pods
	}
	return nil, nil
}

// NodeOf returns the Node with a provider ID, or nil if there is none.
func (x *Index) NodeOf(providerID string) *corev1.Node {
	for _, name := range x.providers.get(providerID) {
		return x.Site(name).Node
	}
	return nil
}

// AllNodes returns all Nodes, in no order.
func (x *Index) AllNodes() iter.Seq[*corev1.Node] {
	return func(yield func(*corev1.Node) bool) {
		for s := range x.Sites() {
			if !yield(s.Node) {
				return
			}
		}
	}
}

// Used returns all Nodes with the total requests of their pods in the planner's units, where each pod counts as one of the resource pods. They are in no
// order.
func (x *Index) Used() iter.Seq2[*corev1.Node, map[corev1.ResourceName]int64] {
	return func(yield func(*corev1.Node, map[corev1.ResourceName]int64) bool) {
		for s := range x.Sites() {
			if !yield(s.Node, s.Use().All.byResource()) {
				return
			}
		}
	}
}

func (x *Index) Sites() iter.Seq[*Site] {
	return func(yield func(*Site) bool) {
		for _, s := range x.nodes.all() {
			if s.Node != nil && !yield(s) {
				return
			}
		}
	}
}

// LastHeartbeat returns the time of the latest heartbeat of any Node.
func (x *Index) LastHeartbeat() time.Time {
	var last time.Time
	for s := range x.Sites() {
		if s.heartbeat.After(last) {
			last = s.heartbeat
		}
	}
	return last
}

// NodeClaim returns the NodeClaim with a name, or nil if there is none.
func (x *Index) NodeClaim(name string) *karpv1.NodeClaim { return x.claims.get(name) }

// HasNodeClaim reports whether there is a NodeClaim with a name.
func (x *Index) HasNodeClaim(name string) bool { return x.claims.get(name) != nil }

// NodeClaims returns all NodeClaims, in no order.
func (x *Index) NodeClaims() iter.Seq2[string, *karpv1.NodeClaim] { return x.claims.all() }

// Pod returns the pod with a name, which is namespace/name, or nil if there is none.
func (x *Index) Pod(name string) *corev1.Pod { return x.pods.get(name) }

// Pending returns the pods that are not bound to a node and have not ended, sorted by name.
func (x *Index) Pending() []*corev1.Pod { return sortedPods(x.pending) }

// Ended returns the pods of Jobs that have succeeded, in no order.
func (x *Index) Ended() iter.Seq2[string, *corev1.Pod] { return x.ended.all() }

// VolumeClaim returns the PersistentVolumeClaim with a name, which is namespace/name, or nil if there is none.
func (x *Index) VolumeClaim(name string) *corev1.PersistentVolumeClaim {
	return x.volumeClaims.get(name)
}

// Volume returns the PersistentVolume with a name, or nil if there is none.
func (x *Index) Volume(name string) *corev1.PersistentVolume { return x.volumes.get(name) }

// CSINode returns the CSINode with a name, or nil if there is none.
func (x *Index) CSINode(name string) *storagev1.CSINode { return x.csiNodes.get(name) }

// CSINodes returns all CSINodes, in no order.
func (x *Index) CSINodes() iter.Seq2[string, *storagev1.CSINode] { return x.csiNodes.all() }

// Unbound returns the pods that are not bound to a node and have not ended, in no order.
func (x *Index) Unbound() iter.Seq2[string, *corev1.Pod] { return x.pending.all() }

// WithGPU returns the nodes that have a GPU resource, by name, in no order.
func (x *Index) WithGPU() iter.Seq2[string, *Site] { return x.gpus.all() }

// Bound returns the bound pods that request a GPU resource, one of each text (Content), in no order.
func (x *Index) Bound() iter.Seq2[string, *Holders] { return x.holders.all() }

// Repellers returns the kin with required anti-affinity, in no order.
func (x *Index) Repellers() iter.Seq2[string, *Kin] { return x.repelling.all() }

// KinIn returns the kin in the namespaces, in no order. Nil means all namespaces.
func (x *Index) KinIn(namespaces []string) iter.Seq[*Kin] {
	return func(yield func(*Kin) bool) {
		in := func(all []*Kin) bool { return !slices.ContainsFunc(all, func(k *Kin) bool { return !yield(k) }) }
		if namespaces == nil {
			for _, all := range x.kin.all() {
				if !in(all) {
					return
				}
			}
			return
		}
		for _, namespace := range namespaces {
			if !in(x.kin.get(namespace)) {
				return
			}
		}
	}
}

// Claimed returns Karve's NodeClaims, sorted by name, and those of canaries.
func (x *Index) Claimed() (ours, canaries []*Claimed) { return x.ours, x.canaries }

func sortedPods(t table[*corev1.Pod]) []*corev1.Pod {
	pods := make([]*corev1.Pod, 0, t.size)
	for _, pod := range t.all() {
		pods = append(pods, pod)
	}
	slices.SortFunc(pods, ComparePods)
	return pods
}

// ExclusiveUsers returns the pod that may use each exclusive PersistentVolumeClaim, by namespace and name of the claim: the bound pod, or else the one of the
// waiting pods that the scheduler would bind first. As in the scheduler, a pod that is being deleted uses its claims until it is gone.
func (x *Index) ExclusiveUsers() map[string]*corev1.Pod {
	users := map[string]*corev1.Pod{}
	note := func(pod *corev1.Pod) {
		for i := range pod.Spec.Volumes {
			name, ok := ClaimName(pod, &pod.Spec.Volumes[i])
			if !ok {
				continue
			}
			key := pod.Namespace + "/" + name
			if claim := x.volumeClaims.get(key); claim == nil || !IsExclusive(claim) {
				continue
			}
			if other := users[key]; other == nil || usesFirst(pod, other) < 0 {
				users[key] = pod
			}
		}
	}
	for _, s := range x.nodes.all() {
		for _, pod := range s.Pods {
			note(pod)
		}
	}
	for _, pod := range x.pending.all() {
		if pod.Status.NominatedNodeName != "" && pod.DeletionTimestamp.IsZero() || karpenter.IsProvisionable(pod) && TooLarge(pod) == "" {
			note(pod)
		}
	}
	return users
}

// usesFirst orders the users of an exclusive PersistentVolumeClaim: bound pods, nominated pods, and then as the scheduler takes pods from its queue.
func usesFirst(a, b *corev1.Pod) int {
	stage := func(pod *corev1.Pod) int {
		switch {
		case pod.Spec.NodeName != "":
			return 0
		case pod.Status.NominatedNodeName != "":
			return 1
		}
		return 2
	}
	return cmp.Or(cmp.Compare(stage(a), stage(b)), cmp.Compare(schedulinghelper.PodPriority(b), schedulinghelper.PodPriority(a)), Older(a, b))
}

// memberSet has the pods of a group by name.
type memberSet struct {
	pods map[string]*corev1.Pod
	// madeBy is the edit that created the set. Only that edit may change it.
	madeBy *editID
}

// Members returns the pods that name a group, in no order, without those that have failed. Pods that have succeeded are included.
func (x *Index) Members(group GroupKey) iter.Seq[*corev1.Pod] {
	if set := x.members.get(group.String()); set != nil {
		return maps.Values(set.pods)
	}
	return func(func(*corev1.Pod) bool) {}
}

// lowestPriority returns the lowest priority of the running pods that request a GPU resource.
func (x *Index) lowestPriority() int32 {
	lowest := int32(math.MaxInt32)
	for _, h := range x.holders.all() {
		lowest = min(lowest, schedulinghelper.PodPriority(h.Pod))
	}
	return lowest
}

// Use returns what the pods of a node use. It is computed once.
func (s *Site) Use() *Use {
	s.once.Do(func() { s.inUse = useOf(s.Pods) })
	return &s.inUse
}
