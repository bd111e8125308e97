package quote

import (
	"cmp"
	"fmt"
	"slices"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Unserved is a resource that pending pods request and that nothing serves.
type Unserved struct {
	Resource string   `json:"resource"`
	Pods     []string `json:"pods"`
	// Nearest is the served resource with the most similar name. It is "" if none is similar.
	Nearest string `json:"nearest,omitempty"`

	// workloads names the workloads of the pods, and advice is what to request instead.
	workloads, advice string
}

// String describes the resource in a sentence.
func (u Unserved) String() string {
	return fmt.Sprintf("nothing serves %s, which %s requests%s", u.Resource, u.workloads, u.advice)
}

// unservedOf returns the resources that nothing serves, sorted by name. It leaves out shared GPUs, which the planner explains.
func unservedOf(c *facts.Cluster) []Unserved {
	q := Quote{pods: map[string]pod{}}
	var all []Unserved
	for u, pods := range snapshot.UnservedPods(c) {
		if u.Resource == v1alpha1.ResourceGPUShared {
			continue
		}
		var names []string
		for _, p := range pods {
			names = append(names, facts.PodName(p))
			q.pods[facts.PodName(p)] = pod{workload: workloadOf(p)}
		}
		all = append(all, Unserved{Resource: u.Resource, Pods: names, Nearest: u.Nearest, workloads: q.workloads(names), advice: u.Advice()})
	}
	slices.SortFunc(all, func(a, b Unserved) int { return cmp.Compare(a.Resource, b.Resource) })
	return all
}
