// Package capacity learns from the machines that run what machines of their kind really have, and corrects what the catalogue promises of them. It is pure.
package capacity

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud/clouds"
	"karve.sh/karve/pkg/snapshot"
)

// Observed is what machines of one kind were found to have, the least of them.
type Observed struct {
	// MemoryBytes is the memory that their operating systems see.
	MemoryBytes int64
	// Allocatable is what their kubelets leave to pods.
	Allocatable catalog.Resources
	// Seen says that such a machine is there now, and that Karpenter has seen it too.
	Seen bool
}

// Kind is what machines have in common that are made alike: another image or another spec of the node class may leave them more or less.
type Kind struct {
	NodeClass    v1alpha1.NodeClassReference
	Hash, Image  string
	InstanceType string
}

// Learned is what machines of each kind were found to have. Those that have less than was promised are remembered after they have gone, or the next one would be
// launched for pods that it has no room for.
type Learned map[Kind]Observed

// Learn returns what was known before and what the machines of a cluster show. What was learnt of images that a node class does not have any more, or of a
// former spec, is forgotten.
func Learn(c *snapshot.Cluster, before Learned) Learned {
	now := Learned{}
	for kind, known := range before {
		if state := c.NodeClasses[kind.NodeClass]; !state.Ready || launches(&state, kind) {
			known.Seen = false
			now[kind] = known
		}
	}
	nodes := map[string]*corev1.Node{}
	for i := range c.Nodes {
		nodes[c.Nodes[i].Spec.ProviderID] = &c.Nodes[i]
	}
	for i := range c.NodeClaims {
		claim := &c.NodeClaims[i]
		node := nodes[claim.Status.ProviderID]
		if node == nil || claim.Status.ProviderID == "" || claim.Spec.NodeClassRef == nil {
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

// observe returns what one machine has; false when it tells nothing of others. It counts from the moment on at which its Node is there: from then on its room is
// what the Node says, and pods that find none there are planned for anew.
func observe(c *snapshot.Cluster, claim *karpv1.NodeClaim, node *corev1.Node) (Kind, Observed, bool) {
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
	a := snapshot.ResourcesOf(node.Status.Allocatable, "")
	seen := Observed{
		MemoryBytes: snapshot.ResourcesOf(node.Status.Capacity, "").MemoryBytes, Seen: node.Labels[karpv1.NodeRegisteredLabelKey] == "true",
		Allocatable: catalog.Resources{MilliCPU: a.MilliCPU, MemoryBytes: a.MemoryBytes, EphemeralBytes: a.EphemeralBytes, Pods: a.Pods},
	}
	// A node that has lost half of what it should have is broken, and says nothing of others.
	half := catalog.Resources{
		MilliCPU: promised.Allocatable.MilliCPU / 2, MemoryBytes: promised.Allocatable.MemoryBytes / 2,
		EphemeralBytes: promised.Allocatable.EphemeralBytes / 2, Pods: promised.Allocatable.Pods / 2,
	}
	if seen.MemoryBytes <= 0 || least(seen.Allocatable, half) != half {
		return Kind{}, Observed{}, false
	}
	return kind, seen, true
}

// launches says whether the node class launches machines with the image of the kind and the hash of its spec.
func launches(s *snapshot.NodeClassState, kind Kind) bool {
	return kind.Image != "" && kind.Hash == hashOf(s.Hash, s.HashVersion) && slices.ContainsFunc(s.Images, func(i snapshot.Image) bool { return i.ID == kind.Image })
}

// hashOf tells hashes of different versions apart.
func hashOf(hash, version string) string { return version + "/" + hash }

func least(a, b catalog.Resources) catalog.Resources {
	return catalog.Resources{
		MilliCPU: min(a.MilliCPU, b.MilliCPU), MemoryBytes: min(a.MemoryBytes, b.MemoryBytes),
		EphemeralBytes: min(a.EphemeralBytes, b.EphemeralBytes), Pods: min(a.Pods, b.Pods),
	}
}

// and returns the least of both.
func (o Observed) and(other Observed) Observed {
	return Observed{min(o.MemoryBytes, other.MemoryBytes), least(o.Allocatable, other.Allocatable), o.Seen || other.Seen}
}

// Correct has the node classes of a cluster promise of their machines what was learnt.
func (l Learned) Correct(c *snapshot.Cluster) {
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

// correct sets what a type has by what was learnt. Karpenter's AWS provider takes the memory that a machine sees for that of all of its kind as well, be it less or
// more; more only counts while the machine is there, since Karpenter forgets it when it restarts, and refuses what it does not know a machine for.
func (o Observed) correct(t *catalog.InstanceType) {
	if o.Seen || o.MemoryBytes < t.Capacity.MemoryBytes {
		t.Allocatable.MemoryBytes = max(0, t.Allocatable.MemoryBytes+o.MemoryBytes-t.Capacity.MemoryBytes)
		t.Capacity.MemoryBytes = o.MemoryBytes
	}
	t.Allocatable = least(t.Allocatable, o.Allocatable)
}
