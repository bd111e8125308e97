package snapshot

import (
	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/nodelabels"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// NodeFilter finds the existing nodes that admit a pod. It applies the scheduler's filters for single nodes: taints, node selectors, node affinity and
// volumes. It ignores free capacity and other pods.
type NodeFilter struct{ storage *records.Storage }

// NewNodeFilter returns the filter with the volumes of the cluster.
func NewNodeFilter(c *facts.Cluster) *NodeFilter { return &NodeFilter{records.StorageOf(c)} }

// NodeDemand is what a pod requires of a node.
type NodeDemand struct {
	// Key is equal only for pods that require the same of nodes.
	Key     string
	pod     *corev1.Pod
	volumes *records.Volumes
}

// Demand returns what a pod requires of a node. If Karve does not plan for such demands, why is the reason. Otherwise why is "".
func (f *NodeFilter) Demand(pod *corev1.Pod) (demand NodeDemand, why string) {
	if facts.HasTerms(pod) || len(facts.HostPorts(pod)) > 0 || facts.Unsupported(pod) != "" {
		return NodeDemand{}, "it asks for places by other pods, ports or devices, which is not planned for"
	}
	v := f.storage.Of(pod)
	if v != nil && v.Problem != "" {
		return NodeDemand{}, v.Problem
	}
	return NodeDemand{Key: facts.Content(pod) + "\x00" + v.Key(), pod: pod, volumes: v}, ""
}

// Admits returns a function that reports whether a node admits the pod.
func (d NodeDemand) Admits() func(*corev1.Node) bool {
	demand := records.DemandOf(d.pod)
	if d.volumes != nil {
		demand.Places = d.volumes.Places
	}
	return func(node *corev1.Node) bool {
		return demand.Refusal(node.Spec.Taints, node.Name, nodelabels.Labels{Known: node.Labels}) == nil
	}
}
