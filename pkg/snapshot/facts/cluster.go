// Package facts holds what was read from the API server and from the cloud: the objects of a cluster and an index of them. Its functions read one object, such as
// what a pod requests. It decides nothing, and has no client, no clock and no log.
//
// Nobody changes these objects. So what is computed from an entry of the index stays right as long as the entry: see [Remember], which says where a result
// is kept, and when it is computed again.
package facts

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/prices"
	"karve.sh/karve/pkg/provreq"
)

// Cluster holds the objects that were read from the API server and from the cloud. They are read-only.
type Cluster struct {
	Now time.Time
	// Generation is equal for clusters that were read together: they have the same objects. It is 0 if unknown, such as after an edit.
	Generation uint64
	// NodePools are all NodePools, including those that Karpenter provisions for.
	NodePools      []karpv1.NodePool
	GPUNodeClasses []v1alpha1.GPUNodeClass
	// NodeClasses has the state of each cloud node class that a GPUNodeClass refers to.
	NodeClasses map[v1alpha1.NodeClassReference]NodeClassState
	NodeClaims  []karpv1.NodeClaim
	Nodes       []corev1.Node
	Pods        []corev1.Pod
	// Index has the NodeClaims, Nodes, Pods, PersistentVolumeClaims, PersistentVolumes and CSINodes. If it is set, the fields with these names are
	// ignored. If it is nil, Indexed makes an index of these fields each time.
	Index      *Index
	DaemonSets []appsv1.DaemonSet
	// DRA describes the cluster's support for GPUNodeClasses with backend DRA. Nodes have the replicas that their agents publish among their allocatable
	// resources: see [Published.On].
	DRA DRA
	// NodeOverlays are those that Karpenter found valid. With them, Karpenter's own pools can offer shared GPUs.
	NodeOverlays []karpv1alpha1.NodeOverlay
	// Buffers are CapacityBuffers. OddBuffers are those for which no capacity is kept free, because what they refer to cannot be read.
	Buffers    []karpenter.Buffer
	OddBuffers []karpenter.OddBuffer
	// PodGroups say how many pods are of use only together.
	PodGroups PodGroups
	// Requests are the ProvisioningRequests of Karve's classes.
	Requests []provreq.Request
	// Namespaces are needed for affinity terms with a namespaceSelector.
	Namespaces []corev1.Namespace
	// These objects describe the volumes of pods, and how many volumes a node can attach.
	PersistentVolumeClaims []corev1.PersistentVolumeClaim
	PersistentVolumes      []corev1.PersistentVolume
	StorageClasses         []storagev1.StorageClass
	CSINodes               []storagev1.CSINode
	// UnknownFields has, for the UID of a NodePool or GPUNodeClass, the paths of fields that the vendored types do not know.
	UnknownFields map[types.UID][]string
	// Refused has the offerings that the cloud refused, by GPUNodeClass.
	Refused map[string][]v1alpha1.RefusedOffering
	// PriceLimits are the limits of the prices of InstanceTypes, without reservations.
	PriceLimits []catalog.PriceLimit
	// Queue orders classes of pods if there are too many for one plan. It may be nil.
	Queue ClassQueue
	// ReadAhead says which pods are included that the scheduler has not tried yet.
	ReadAhead ReadAhead
	// ReplicasTimeout is how long the replicas of a registered node may take to appear.
	ReplicasTimeout time.Duration
	// PriorityCutoff is the lowest priority of pods for which machines are launched. It is nil if they are launched for all.
	PriorityCutoff *int32
	// Visit is called with each object before it is translated, and with nil before work that concerns no single object. So a caller can tell which object
	// takes long. It may be nil. It may panic to end the translation.
	Visit func(kind string, object metav1.Object)
}

func (c *Cluster) BeginVisit(kind string, object metav1.Object) {
	switch {
	case c.Visit == nil:
	case SetAsideWhy(object) != "":
		c.EndVisit() // Little is left of it.
	default:
		c.Visit(kind, object)
	}
}

// EndVisit ends the visit of an object.
func (c *Cluster) EndVisit() {
	if c.Visit != nil {
		c.Visit("", nil)
	}
}

func (c *Cluster) GPUNodeClass(name string) *v1alpha1.GPUNodeClass {
	for i := range c.GPUNodeClasses {
		if c.GPUNodeClasses[i].Name == name {
			return &c.GPUNodeClasses[i]
		}
	}
	return nil
}

// UseInstanceTypes sets the same instance types for all node classes.
func (c *Cluster) UseInstanceTypes(types []catalog.InstanceType) {
	for ref, state := range c.NodeClasses {
		state.InstanceTypes = types
		c.NodeClasses[ref] = state
	}
}

// UsePrices sets the prices of all instance types to those of a book.
func (c *Cluster) UsePrices(b *prices.Book) {
	c.PriceLimits = b.Limits()
	if b.Empty() {
		return
	}
	for ref, state := range c.NodeClasses {
		state.InstanceTypes = b.Types(PriceLabels(ref), state.InstanceTypes)
		c.NodeClasses[ref] = state
	}
}

// PriceLabels returns the labels that the machines of a node class have in addition to those of their offerings, by which rules for prices can select them.
func PriceLabels(ref v1alpha1.NodeClassReference) map[string]string {
	return map[string]string{karpv1.NodeClassLabelKey(schema.GroupKind{Group: ref.Group, Kind: ref.Kind}): ref.Name}
}

// InstanceTypes returns the instance types of all node classes. If several node classes have a type, the first one wins.
func (c *Cluster) InstanceTypes() []catalog.InstanceType {
	refs := slices.SortedFunc(maps.Keys(c.NodeClasses), compareRefs)
	if len(refs) == 1 {
		return c.NodeClasses[refs[0]].InstanceTypes
	}
	var types []catalog.InstanceType
	known := map[string]bool{}
	for _, ref := range refs {
		for _, t := range c.NodeClasses[ref].InstanceTypes {
			if !known[t.Name] {
				known[t.Name] = true
				types = append(types, t)
			}
		}
	}
	return types
}

func compareRefs(a, b v1alpha1.NodeClassReference) int {
	return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name))
}

// Reservations returns the reservations of all node classes, sorted by ID, each once.
func (c *Cluster) Reservations() []catalog.Reservation {
	var all []catalog.Reservation
	for _, state := range c.NodeClasses {
		all = append(all, state.Reservations...)
	}
	slices.SortFunc(all, func(a, b catalog.Reservation) int { return cmp.Or(strings.Compare(a.ID, b.ID), b.Read.Compare(a.Read)) })
	return slices.CompactFunc(all, func(a, b catalog.Reservation) bool { return a.ID == b.ID })
}

// TypesOf returns the instance types of a node class, or all of them if it is unknown.
func (c *Cluster) TypesOf(ref *karpv1.NodeClassReference, all func() []catalog.InstanceType) []catalog.InstanceType {
	if ref != nil {
		if state := c.NodeClasses[v1alpha1.NodeClassReference{Group: ref.Group, Kind: ref.Kind, Name: ref.Name}]; len(state.InstanceTypes) > 0 {
			return state.InstanceTypes
		}
	}
	return all()
}

// Membership returns the group to which a pod belongs in the cluster. It returns false if it belongs to none.
func (c *Cluster) Membership(pod *corev1.Pod) (Membership, bool) {
	m, err := MembershipOf(pod)
	if err != nil || m.Group.Name == "" || m.Group.API.HasObjects() && !c.PodGroups.Served[m.Group.API] {
		return Membership{}, false
	}
	return m, true
}

// Indexed returns the index of a cluster. If the cluster has none, it makes one from the objects.
func (c *Cluster) Indexed() *Index {
	if c.Index != nil {
		return c.Index
	}
	x, _ := (*Index)(nil).With(Changes{
		Pods: byName(c.Pods, PodName), Nodes: byName(c.Nodes, (*corev1.Node).GetName), NodeClaims: byName(c.NodeClaims, (*karpv1.NodeClaim).GetName),
		PersistentVolumeClaims: byName(c.PersistentVolumeClaims, func(o *corev1.PersistentVolumeClaim) string { return o.Namespace + "/" + o.Name }),
		PersistentVolumes:      byName(c.PersistentVolumes, (*corev1.PersistentVolume).GetName), CSINodes: byName(c.CSINodes, (*storagev1.CSINode).GetName),
	})
	return x
}

func byName[T any](all []T, name func(*T) string) map[string]*T {
	named := make(map[string]*T, len(all))
	for i := range all {
		named[name(&all[i])] = &all[i]
	}
	return named
}

// UntriedPods returns the untried pods to plan for. others reports whether there is anything else to plan for. A pod that could preempt a running one is not
// among them, because it may need no machine.
func (c *Cluster) UntriedPods(others bool) []*corev1.Pod {
	r := &c.ReadAhead
	open := r.Open && others
	if !open && len(r.Planned) == 0 {
		return nil
	}
	var pods []*corev1.Pod
	lowest, known := int32(0), false
	for _, pod := range c.Indexed().Pending() {
		switch {
		case !Untried(pod):
			continue
		case r.Planned.Has(pod.UID):
		case !open || r.Overtaken(pod):
			continue
		default:
			if !known {
				lowest, known = c.Indexed().lowestPriority(), true
			}
			if schedulinghelper.PodPriority(pod) > lowest {
				continue
			}
		}
		pods = append(pods, pod)
	}
	return pods
}

// Consumers returns the pods that take the room of ProvisioningRequests, whatever has become of them, by the namespace and the name of the request.
func (c *Cluster) Consumers() map[string][]*corev1.Pod {
	pods := map[string][]*corev1.Pod{}
	if len(c.Requests) == 0 {
		return pods // Looking at all pods takes time.
	}
	for _, pod := range c.Indexed().pods.all() {
		if name := pod.Annotations[provreq.ConsumeAnnotation]; name != "" {
			pods[pod.Namespace+"/"+name] = append(pods[pod.Namespace+"/"+name], pod)
		}
	}
	return pods
}
