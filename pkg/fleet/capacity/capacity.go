// Package capacity learns the capacity of instance types from running machines, and corrects the catalog with it. The package has no clock and no client.
package capacity

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud/clouds"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Observed is the least capacity that machines of one kind were found to have.
type Observed struct {
	// MemoryBytes is the memory , in bytes, that the operating system reports.
	MemoryBytes int64
	// Allocatable is what the kubelet leaves for pods.
	Allocatable catalog.Resources
	// Seen reports whether such a machine exists now and has been registered by Karpenter.
	Seen bool
}

// Kind identifies machines that should have the same capacity. Another image or another spec of the node class may change the capacity.
type Kind struct {
	NodeClass    v1alpha1.NodeClassReference
	Hash, Image  string
	InstanceType string
}

// Learned is the observed capacity of each kind of machine. Learned keeps kinds with less capacity than in the catalog after their machines are gone.
// Otherwise Karve would launch the next machine for pods that do not fit on it.
type Learned map[Kind]Observed

// Learn returns the previous capacities, updated with those of the cluster's machines. It forgets the kinds whose image or node class spec is no longer
// in use.
func Learn(c *facts.Cluster, before Learned) Learned {
	now := Learned{}
	for kind, known := range before {
		if state := c.NodeClasses[kind.NodeClass]; !state.Ready || launches(&state, kind) {
			known.Seen = false
			now[kind] = known
		}
	}
	x := c.Indexed()
	for _, claim := range x.NodeClaims() {
		if claim.Status.ProviderID == "" || claim.Spec.NodeClassRef == nil {
			continue
		}
		node := x.NodeOf(claim.Status.ProviderID)
		if node == nil {
			continue
		}
		kind, seen, ok := observe(c, claim, node)
		if !ok {
			continue
		}
		if known, ok := now[kind]; ok {
			seen = seen.and(known)
		}
		now[kind] = seen
	}
	return now
}

// observe returns the capacity of one machine. It returns false if the machine is not representative of its kind. A machine counts as soon as it has a
// Node: from then on the planner uses the capacity that the Node reports, and replans pods that do not fit.
func observe(c *facts.Cluster, claim *karpv1.NodeClaim, node *corev1.Node) (Kind, Observed, bool) {
	ref := claim.Spec.NodeClassRef
	kind := Kind{
		NodeClass: v1alpha1.NodeClassReference{Group: ref.Group, Kind: ref.Kind, Name: ref.Name},
		Hash:      hashOf(clouds.NodeClassHash(claim.Annotations)), Image: claim.Status.ImageID,
		InstanceType: claim.Labels[corev1.LabelInstanceTypeStable],
	}
	state := c.NodeClasses[kind.NodeClass]
	promised := catalog.Named(state.InstanceTypes, kind.InstanceType)
	if promised == nil || !state.Ready || !launches(&state, kind) {
		return Kind{}, Observed{}, false
	}
	a := facts.ResourcesOf(node.Status.Allocatable, "")
	seen := Observed{
		MemoryBytes: facts.ResourcesOf(node.Status.Capacity, "").MemoryBytes, Seen: node.Labels[karpv1.NodeRegisteredLabelKey] == "true",
		Allocatable: catalog.Resources{MilliCPU: a.MilliCPU, MemoryBytes: a.MemoryBytes, EphemeralBytes: a.EphemeralBytes, Pods: a.Pods},
	}
	// A node with less than half of the expected capacity is broken and not representative.
	half := catalog.Resources{
		MilliCPU: promised.Allocatable.MilliCPU / 2, MemoryBytes: promised.Allocatable.MemoryBytes / 2,
		EphemeralBytes: promised.Allocatable.EphemeralBytes / 2, Pods: promised.Allocatable.Pods / 2,
	}
	if seen.MemoryBytes <= 0 || least(seen.Allocatable, half) != half {
		return Kind{}, Observed{}, false
	}
	return kind, seen, true
}

// launches reports whether the node class launches machines with the image and the spec hash of the kind.
func launches(s *facts.NodeClassState, kind Kind) bool {
	return kind.Image != "" && kind.Hash == hashOf(s.Hash, s.HashVersion) && slices.ContainsFunc(s.Images, func(i facts.Image) bool { return i.ID == kind.Image })
}

// hashOf returns a hash together with its version, because hashes of different versions cannot be compared.
func hashOf(hash, version string) string { return version + "/" + hash }

func least(a, b catalog.Resources) catalog.Resources {
	return catalog.Resources{
		MilliCPU: min(a.MilliCPU, b.MilliCPU), MemoryBytes: min(a.MemoryBytes, b.MemoryBytes),
		EphemeralBytes: min(a.EphemeralBytes, b.EphemeralBytes), Pods: min(a.Pods, b.Pods),
	}
}

// and returns the smaller value of each field. Seen is true if it is true in either of them.
func (o Observed) and(other Observed) Observed {
	return Observed{min(o.MemoryBytes, other.MemoryBytes), least(o.Allocatable, other.Allocatable), o.Seen || other.Seen}
}

// Correct sets the instance types of the cluster's node classes to the learned capacities.
func (l Learned) Correct(c *facts.Cluster) {
	for ref, state := range c.NodeClasses {
		found := map[string]Observed{}
		for kind, seen := range l {
			if kind.NodeClass != ref || !launches(&state, kind) {
				continue
			}
			if known, ok := found[kind.InstanceType]; ok {
				seen = seen.and(known)
			}
			found[kind.InstanceType] = seen
		}
		if len(found) == 0 {
			continue
		}
		state.InstanceTypes = slices.Clone(state.InstanceTypes)
		for i := range state.InstanceTypes {
			if seen, ok := found[state.InstanceTypes[i].Name]; ok {
				seen.correct(&state.InstanceTypes[i])
			}
		}
		c.NodeClasses[ref] = state
	}
}

// correct sets an instance type to the observed capacity. Like Karpenter's AWS provider, it takes the memory of one machine for that of its kind,
// whether it is less or more. More memory counts only while such a machine exists: Karpenter forgets it on restart, and would then find no instance
// type for the NodeClaim.
func (o Observed) correct(t *catalog.InstanceType) {
	if o.Seen || o.MemoryBytes < t.Capacity.MemoryBytes {
		t.Allocatable.MemoryBytes = max(0, t.Allocatable.MemoryBytes+o.MemoryBytes-t.Capacity.MemoryBytes)
		t.Capacity.MemoryBytes = o.MemoryBytes
	}
	t.Allocatable = least(t.Allocatable, o.Allocatable)
}
