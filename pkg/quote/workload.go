package quote

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// workloadOf is namespace/name of what made a pod: the Deployment rather than its ReplicaSet, told by the hash in the latter's name.
func workloadOf(p *corev1.Pod) string {
	name := p.Name
	if controller := metav1.GetControllerOfNoCopy(p); controller != nil {
		name = controller.Name
		if hash := p.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; hash != "" && controller.Kind == "ReplicaSet" {
			name = strings.TrimSuffix(name, "-"+hash)
		}
	}
	return p.Namespace + "/" + name
}

// maxWorkloads is how many workloads a line names.
const maxWorkloads = 3

// workloads names those that pods are of, the largest first, with the count of their pods where it is not one.
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
	var words []string
	for i, name := range names {
		if i == maxWorkloads && len(names) > maxWorkloads+1 {
			words = append(words, fmt.Sprintf("and %d more", len(names)-i))
			break
		}
		if counts[name] > 1 {
			name += fmt.Sprintf(" (%d)", counts[name])
		}
		words = append(words, name)
	}
	return strings.Join(words, ", ")
}
