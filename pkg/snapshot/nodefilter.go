package snapshot

import (
	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/nodelabels"
)

// NodeFilter finds the existing nodes that admit a pod. It applies the scheduler's filters for single nodes: taints, node selectors, node affinity and
// volumes. It ignores free capacity and other pods.
type NodeFilter struct{ storage *storage }

// NodeFilter returns the filter with the volumes of the cluster.
func (c *Cluster) NodeFilter() *NodeFilter { return &NodeFilter{c.storage()} }

// NodeDemand is what a pod requires of a node.
type NodeDemand struct {
	// Key is equal only for pods that require the same of nodes.
	Key     string
	pod     *corev1.Pod
	volumes *volumes
}

// Demand returns what a pod requires of a node. If Karve does not plan for such demands, why is the reason. Otherwise why is "".
func (f *NodeFilter) Demand(pod *corev1.Pod) (demand NodeDemand, why string) {
	if pod = withinBounds(pod); excessWhy(pod) != "" {
		return NodeDemand{}, "it " + excessWhy(pod)
	}
	if hasTerms(pod) || len(hostPorts(pod)) > 0 || unsupported(pod) != "" {
		return NodeDemand{}, "it asks for places by other pods, ports or devices, which is not planned for"
	}
	v := f.storage.of(pod)
	if v != nil && v.problem != "" {
		return NodeDemand{}, v.problem
	}
	return NodeDemand{Key: Content(pod) + "\x00" + v.key(), pod: pod, volumes: v}, ""
}

// Admits returns a function that reports whether a node admits the pod.
func (d NodeDemand) Admits() func(*corev1.Node) bool {
	demand := demandOf(d.pod)
	if d.volumes != nil {
		demand.places = d.volumes.places
	}
	return func(node *corev1.Node) bool {
		return demand.refusal(node.Spec.Taints, node.Name, nodelabels.Labels{Known: node.Labels}) == nil
	}
}
