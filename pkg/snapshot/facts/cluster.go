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

	"github.com/awslabs/operatorpkg/status"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/nodecontract"
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

// NodeClassState describes a node class of the cloud.
type NodeClassState struct {
	// Ready reports whether the node class exists and its condition Ready is True for its current generation.
	Ready bool
	// Reason and Message explain why it is not Ready.
	Reason, Message string
	// Generation is the object's metadata.generation, or 0 if the object does not exist.
	Generation int64
	// Subnets has the zone of each subnet in its status, by ID. It is nil for kinds other than EC2NodeClass.
	Subnets map[string]string
	// InstanceTypes are the instance types that it can launch, with their allocatable resources and the zones of its subnets. They are also set for
	// node classes that are not Ready, because their machines may still run.
	InstanceTypes []catalog.InstanceType
	// Reservations are the reservations that the node class selects, as far as Karpenter has found them. SelectsReservations reports whether it selects any.
	Reservations        []catalog.Reservation
	SelectsReservations bool
	// CatalogReason and CatalogMessage name the part of InstanceTypes that is out of date, and why. They are empty if it is up to date.
	CatalogReason, CatalogMessage string
	// CatalogRead is when InstanceTypes were read from the cloud. It is zero if unknown.
	CatalogRead time.Time
	// Hash and HashVersion are Karpenter's hash of the spec of an EC2NodeClass, which it compares to detect drift. They are "" for other kinds.
	Hash, HashVersion string
	// Images are the machine images in its status. It is nil for kinds other than EC2NodeClass.
	Images []Image
}

// Learn sets the instance types from a catalog. A node class without instance types is not Ready.
func (s *NodeClassState) Learn(listing catalog.Listing) {
	s.InstanceTypes, s.CatalogReason, s.CatalogMessage = listing.InstanceTypes, listing.Reason, listing.Message
	s.CatalogRead, s.Reservations = listing.Read, listing.Reservations
	if s.Ready && listing.Reason != "" && !slices.ContainsFunc(listing.InstanceTypes, func(t catalog.InstanceType) bool { return len(t.Offerings) > 0 }) {
		s.Ready, s.Reason, s.Message = false, "CatalogUnavailable", listing.Message
	}
}

// Image is a machine image in the status of a node class.
type Image = cloud.Image

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

// IsOurs reports whether a NodePool refers to a GPUNodeClass. Karve provisions for it, and Karpenter ignores it.
func IsOurs(np *karpv1.NodePool) bool {
	ref := np.Spec.Template.Spec.NodeClassRef
	return ref != nil && ref.Group == v1alpha1.Group && ref.Kind == v1alpha1.Kind
}

// IsOurClaim reports whether Karve created the NodeClaim for pods.
func IsOurClaim(claim *karpv1.NodeClaim) bool {
	return claim.Annotations[nodecontract.ResourceAnnotation] != "" && claim.Labels[karpv1.NodePoolLabelKey] != "" && !IsCanary(claim)
}

// IsCanary reports whether Karve created the NodeClaim to test a machine image. Karve plans no pods for it.
func IsCanary(claim *karpv1.NodeClaim) bool { return claim.Labels[v1alpha1.CanaryLabel] != "" }

// Condition returns the condition with a type, or nil if there is none. Karpenter's StatusConditions cannot be used: it adds missing conditions to the
// object, and these objects are read-only.
func Condition(conditions []status.Condition, conditionType string) *status.Condition {
	for i := range conditions {
		if conditions[i].Type == conditionType {
			return &conditions[i]
		}
	}
	return nil
}
