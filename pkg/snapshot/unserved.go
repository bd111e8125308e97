package snapshot

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/memoryalias"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Unserved is a resource that a pod requests and that nothing in the cluster has or would have: no node, no instance type and no GPUNodeClass that a NodePool
// names. Usually it is misspelled.
type Unserved struct {
	Resource string
	// Nearest is the served resource with the most similar name. It is "" if none is similar.
	Nearest string
}

// String completes a sentence that begins with a pod.
func (u Unserved) String() string {
	return fmt.Sprintf("requests %s, which nothing in the cluster serves%s", u.Resource, u.Advice())
}

// Advice ends a sentence about the resource with what to request instead. It may be "".
func (u Unserved) Advice() string {
	switch {
	case memoryalias.Is(u.Resource):
		return fmt.Sprintf(": slots of a %s with strategy %s do, see docs/memory-slots.md#manifests-of-gpushare-and-hami", v1alpha1.Kind, v1alpha1.StrategyMemorySlots)
	case u.Nearest != "":
		return fmt.Sprintf("; did you mean %s?", u.Nearest)
	}
	return ""
}

// UnservedPods returns the pending pods that request a resource that nothing serves, by the resource.
func UnservedPods(c *facts.Cluster) map[Unserved][]*corev1.Pod {
	pods := map[Unserved][]*corev1.Pod{}
	var served *served
	for _, p := range c.Indexed().Pending() {
		if !karpenter.IsProvisionable(p) || !slices.ContainsFunc(extendedOf(p), isForeign) {
			continue
		}
		if served == nil {
			served = servedBy(c)
		}
		for _, u := range served.unservedOf(p) {
			pods[u] = append(pods[u], p)
		}
	}
	return pods
}

// UnservedOf returns the resources of a pod that nothing serves, sorted by name.
func UnservedOf(c *facts.Cluster, pod *corev1.Pod) []Unserved { return servedBy(c).unservedOf(pod) }

// ServedBy returns the resources that pools serve, sorted.
func ServedBy(pools []Pool) []string {
	names := map[string]bool{}
	for i := range pools {
		if p := &pools[i]; p.Class != nil {
			for _, name := range p.Resources() {
				names[string(name)] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// IsExtended reports whether a resource is an extended one, which a device plugin serves. It has whole numbers and no overcommitment.
func IsExtended(name corev1.ResourceName) bool {
	domain, _, qualified := strings.Cut(string(name), "/")
	return qualified && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io")
}

// isForeign reports whether a resource is not a whole GPU. Every pool of GPUs may have those.
func isForeign(name corev1.ResourceName) bool { return name != v1alpha1.ResourceGPU }

// extendedOf returns the extended resources that a pod requests, sorted.
func extendedOf(pod *corev1.Pod) []corev1.ResourceName {
	var names []corev1.ResourceName
	for name := range facts.PodRequests(pod) {
		if IsExtended(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// served has the resources that nodes have or would have.
type served struct {
	names map[string]bool
	// unknown reports whether there may be other ones: Karpenter's own pools may have unknown instance types.
	unknown bool
}

func servedBy(c *facts.Cluster) *served {
	s := &served{names: map[string]bool{}, unknown: slices.ContainsFunc(c.NodePools, func(np karpv1.NodePool) bool { return !facts.IsOurs(&np) })}
	for node := range c.Indexed().AllNodes() {
		for name := range node.Status.Allocatable {
			s.names[string(name)] = true
		}
	}
	for i := range c.NodeOverlays {
		for name := range c.NodeOverlays[i].Spec.Capacity {
			s.names[string(name)] = true
		}
	}
	for _, t := range c.InstanceTypes() {
		for name := range t.Extended {
			s.names[name] = true
		}
	}
	classes := map[string][]string{}
	for i := range c.GPUNodeClasses {
		classes[c.GPUNodeClasses[i].Name] = c.GPUNodeClasses[i].Spec.Sharing.Resources()
	}
	for i := range c.NodePools {
		if np := &c.NodePools[i]; facts.IsOurs(np) {
			for _, name := range classes[np.Spec.Template.Spec.NodeClassRef.Name] {
				s.names[name] = true
			}
		} else {
			s.names[v1alpha1.ResourceGPU] = true
		}
	}
	return s
}

// unservedOf returns the resources of a pod that are not served. If others than the known ones may be served, a resource counts only if its name is similar to that
// of a served one, or if it is one of Karve's or an alias of those.
func (s *served) unservedOf(pod *corev1.Pod) []Unserved {
	var all []Unserved
	for _, name := range extendedOf(pod) {
		switch {
		case s.names[string(name)] || !isForeign(name):
		case name == memoryalias.HAMiCores && memoryalias.In(&pod.Spec): // Where its memory is served, the cores are dropped.
		case name == v1alpha1.ResourceGPUShared:
			all = append(all, Unserved{Resource: string(name)})
		default:
			u := Unserved{Resource: string(name), Nearest: s.nearest(string(name))}
			if u.Nearest != "" || !s.unknown || memoryalias.Is(u.Resource) {
				all = append(all, u)
			}
		}
	}
	return all
}

// nearest returns the extended resource with the smallest edit distance from a name, or "" if the distance is a third of the name's letters or more.
func (s *served) nearest(name string) string {
	best, least := "", (len(name)+2)/3
	for other := range s.names {
		if n := editDistance(name, other); IsExtended(corev1.ResourceName(other)) && (n < least || n == least && best != "" && other < best) {
			best, least = other, n
		}
	}
	return best
}

// editDistance returns the number of letters to insert, remove or replace to turn a into b (the Levenshtein distance).
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal, row[j+1] = row[j+1], min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
