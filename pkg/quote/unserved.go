package quote

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/memoryalias"
	"karve.sh/karve/pkg/snapshot"
)

// Unserved is a resource that pending pods request and that nothing in the cluster has or would have: no node, no instance type and no GPUNodeClass
// that a NodePool names. Usually it is misspelled.
type Unserved struct {
	Resource string `json:"resource"`
	// Pods are the names of the pods.
	Pods []string `json:"pods"`
	// Nearest is the served resource with the most similar name. It is "" if none is similar.
	Nearest string `json:"nearest,omitempty"`

	// workloads names the workloads of the pods.
	workloads string
}

// String describes the resource in a sentence.
func (u Unserved) String() string {
	s := fmt.Sprintf("nothing serves %s, which %s requests", u.Resource, u.workloads)
	switch {
	case memoryalias.Is(u.Resource):
		s += fmt.Sprintf(": slots of a %s with strategy %s do, see docs/memory-slots.md#manifests-of-gpushare-and-hami", v1alpha1.Kind, v1alpha1.StrategyMemorySlots)
	case u.Nearest != "":
		s += fmt.Sprintf("; did you mean %s?", u.Nearest)
	}
	return s
}

// unservedOf returns the resources that nothing serves, sorted by name. It leaves out GPU resources of Karve, which the planner explains. Karpenter's
// own pools may have unknown instance types, so if there is one, a resource counts only if its name is similar to that of a served one.
func unservedOf(c *snapshot.Cluster) []Unserved {
	pods := map[string][]string{}
	q := Quote{pods: map[string]pod{}}
	var served map[string]bool
	for _, p := range c.Indexed().Pending() {
		if !karpenter.IsProvisionable(p) {
			continue
		}
		for name := range snapshot.PodRequests(p) {
			if !isExtended(name) || name == v1alpha1.ResourceGPU || name == v1alpha1.ResourceGPUShared {
				continue
			}
			if name == memoryalias.HAMiCores && memoryalias.In(&p.Spec) {
				continue // Where its memory is served, the cores are dropped.
			}
			if served == nil {
				served = servedBy(c)
			}
			if !served[string(name)] {
				q.pods[snapshot.PodName(p)] = pod{workload: workloadOf(p)}
				pods[string(name)] = append(pods[string(name)], snapshot.PodName(p))
			}
		}
	}
	var all []Unserved
	stock := slices.ContainsFunc(c.NodePools, func(np karpv1.NodePool) bool { return !snapshot.IsOurs(&np) })
	for name, of := range pods {
		if similar := nearest(name, served); similar != "" || !stock || memoryalias.Is(name) {
			all = append(all, Unserved{Resource: name, Pods: of, Nearest: similar, workloads: q.workloads(of)})
		}
	}
	slices.SortFunc(all, func(a, b Unserved) int { return cmp.Compare(a.Resource, b.Resource) })
	return all
}

// isExtended reports whether a resource is an extended one, which a device plugin serves.
func isExtended(name corev1.ResourceName) bool {
	domain, _, qualified := strings.Cut(string(name), "/")
	return qualified && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io")
}

// servedBy returns the extended resources that nodes have or would have.
func servedBy(c *snapshot.Cluster) map[string]bool {
	served := map[string]bool{}
	for node := range c.Indexed().AllNodes() {
		for name := range node.Status.Allocatable {
			served[string(name)] = true
		}
	}
	for i := range c.NodeOverlays {
		for name := range c.NodeOverlays[i].Spec.Capacity {
			served[string(name)] = true
		}
	}
	for _, t := range c.InstanceTypes() {
		for name := range t.Extended {
			served[name] = true
		}
	}
	classes := map[string][]string{}
	for i := range c.GPUNodeClasses {
		classes[c.GPUNodeClasses[i].Name] = c.GPUNodeClasses[i].Spec.Sharing.Resources()
	}
	for i := range c.NodePools {
		if np := &c.NodePools[i]; snapshot.IsOurs(np) {
			for _, name := range classes[np.Spec.Template.Spec.NodeClassRef.Name] {
				served[name] = true
			}
		} else {
			served[v1alpha1.ResourceGPU] = true
		}
	}
	delete(served, "")
	return served
}

// nearest returns the extended resource with the smallest edit distance from a name, or "" if the distance is a third of the name's letters or more.
func nearest(name string, served map[string]bool) string {
	best, least := "", (len(name)+2)/3
	for other := range served {
		if n := edits(name, other); isExtended(corev1.ResourceName(other)) && (n < least || n == least && best != "" && other < best) {
			best, least = other, n
		}
	}
	return best
}

// edits returns the number of letters to insert, remove or replace to turn a into b (the Levenshtein distance).
func edits(a, b string) int {
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
