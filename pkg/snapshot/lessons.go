package snapshot

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
)

// Lesson is what machines of one kind were found to have, the least of them.
type Lesson struct {
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

// Lessons are what machines of each kind were found to have. Those that have less than was promised are remembered after they have gone, or the next one would be
// launched for pods that it has no room for.
type Lessons map[Kind]Lesson

// Lessons are those known before with what the machines that are there teach. What was learnt of images that a node class has no more, or of a former spec, is
// forgotten.
func (c *Cluster) Lessons(before Lessons) Lessons {
	now := Lessons{}
	for kind, lesson := range before {
		if state := c.NodeClasses[kind.NodeClass]; !state.Ready || state.makes(kind.Image, kind.Hash) {
			lesson.Seen = false
			now[kind] = lesson
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
		kind, lesson, ok := c.lesson(claim, node)
		if !ok {
			continue
		}
		if known, ok := now[kind]; ok {
			lesson = lesson.and(known)
		}
		now[kind] = lesson
	}
	return now
}

// lesson is what one machine teaches; false when nothing can be learnt of it. It teaches from the moment on at which its Node is there: from then on its room is
// what the Node says, and pods that find none there are planned for anew.
func (c *Cluster) lesson(claim *karpv1.NodeClaim, node *corev1.Node) (Kind, Lesson, bool) {
	ref := claim.Spec.NodeClassRef
	kind := Kind{
		NodeClass: v1alpha1.NodeClassReference{Group: ref.Group, Kind: ref.Kind, Name: ref.Name},
		Hash:      hashOf(claim.Annotations[NodeClassHashAnnotation], claim.Annotations[NodeClassHashVersionAnnotation]), Image: claim.Status.ImageID,
		InstanceType: claim.Labels[corev1.LabelInstanceTypeStable],
	}
	state := c.NodeClasses[kind.NodeClass]
	promised := catalog.Named(state.InstanceTypes, kind.InstanceType)
	if promised == nil || !state.Ready || !state.makes(kind.Image, kind.Hash) {
		return Kind{}, Lesson{}, false
	}
	a := amounts(node.Status.Allocatable, "")
	lesson := Lesson{
		MemoryBytes: valueOf(node.Status.Capacity, corev1.ResourceMemory), Seen: node.Labels[karpv1.NodeRegisteredLabelKey] == "true",
		Allocatable: catalog.Resources{MilliCPU: a.MilliCPU, MemoryBytes: a.MemoryBytes, EphemeralBytes: a.EphemeralBytes, Pods: a.Pods},
	}
	// A node that has lost half of what it should have is broken, and says nothing of others.
	half := catalog.Resources{
		MilliCPU: promised.Allocatable.MilliCPU / 2, MemoryBytes: promised.Allocatable.MemoryBytes / 2,
		EphemeralBytes: promised.Allocatable.EphemeralBytes / 2, Pods: promised.Allocatable.Pods / 2,
	}
	if lesson.MemoryBytes <= 0 || least(lesson.Allocatable, half) != half {
		return Kind{}, Lesson{}, false
	}
	return kind, lesson, true
}

// makes says whether the node class launches machines with the image and the hash of its spec.
func (s *NodeClassState) makes(image, hash string) bool {
	return image != "" && hash == hashOf(s.Hash, s.HashVersion) && slices.ContainsFunc(s.Images, func(i Image) bool { return i.ID == image })
}

// hashOf tells hashes of different versions apart.
func hashOf(hash, version string) string { return version + "/" + hash }

func least(a, b catalog.Resources) catalog.Resources {
	return catalog.Resources{
		MilliCPU: min(a.MilliCPU, b.MilliCPU), MemoryBytes: min(a.MemoryBytes, b.MemoryBytes),
		EphemeralBytes: min(a.EphemeralBytes, b.EphemeralBytes), Pods: min(a.Pods, b.Pods),
	}
}

// and is what both teach.
func (l Lesson) and(other Lesson) Lesson {
	return Lesson{min(l.MemoryBytes, other.MemoryBytes), least(l.Allocatable, other.Allocatable), l.Seen || other.Seen}
}

// Heed has the node classes promise of their machines what was learnt.
func (c *Cluster) Heed(lessons Lessons) {
	for ref, state := range c.NodeClasses {
		taught := map[string]Lesson{}
		for kind, lesson := range lessons {
			if kind.NodeClass != ref || !state.makes(kind.Image, kind.Hash) {
				continue
			}
			if known, ok := taught[kind.InstanceType]; ok {
				lesson = lesson.and(known)
			}
			taught[kind.InstanceType] = lesson
		}
		if len(taught) == 0 {
			continue
		}
		state.InstanceTypes = slices.Clone(state.InstanceTypes)
		for i := range state.InstanceTypes {
			if lesson, ok := taught[state.InstanceTypes[i].Name]; ok {
				lesson.correct(&state.InstanceTypes[i])
			}
		}
		c.NodeClasses[ref] = state
	}
}

// correct sets what a type has by what was learnt. Karpenter's AWS provider takes the memory that a machine sees for that of all of its kind as well, be it less or
// more; more only counts while the machine is there, since Karpenter forgets it when it restarts, and refuses what it does not know a machine for.
func (l Lesson) correct(t *catalog.InstanceType) {
	if l.Seen || l.MemoryBytes < t.Capacity.MemoryBytes {
		t.Allocatable.MemoryBytes = max(0, t.Allocatable.MemoryBytes+l.MemoryBytes-t.Capacity.MemoryBytes)
		t.Capacity.MemoryBytes = l.MemoryBytes
	}
	t.Allocatable = least(t.Allocatable, l.Allocatable)
}
