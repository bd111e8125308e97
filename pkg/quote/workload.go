package quote

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/words"
)

func workloadOf(p *corev1.Pod) string {
	_, name := facts.OwnerOf(p)
	return p.Namespace + "/" + name
}

// maxWorkloads is the number of workloads that a line names.
const maxWorkloads = 3

// workloads returns the names of the workloads of the pods, those with the most pods first, with the number of pods if it is more than one.
func (q *Quote) workloads(pods []string) string {
	counts := map[string]int{}
	for _, name := range pods {
		counts[q.pods[name].workload]++
	}
	var names []string
	for name := range counts {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b)) })
	for i, name := range names {
		if counts[name] > 1 {
			names[i] += fmt.Sprintf(" (%d)", counts[name])
		}
	}
	return words.Named(names, maxWorkloads)
}
