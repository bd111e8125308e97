package doctor

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/leader"
	"karve.sh/karve/pkg/prices"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Facts are data read from a cluster. Data that could not be read is nil, and listed in Unread.
type Facts struct {
	// CLI is the version of kubectl-karve, or "" if it was built without one.
	CLI string
	// Kubernetes is the version of the API server, such as v1.33.1.
	Kubernetes string
	// Controllers, Agents and Karpenters are the installed programs.
	Controllers, Agents, Karpenters []Program
	// Leader says whether a controller works. It is nil if its Lease cannot be read.
	Leader *leader.Leader
	// CRDs has the CustomResourceDefinitions of Karve and Karpenter by name.
	CRDs map[string]CRD
	// Denied are the rights that the controller needs and lacks.
	Denied []Right
	// Lacking are the [UserRights] that the user lacks.
	Lacking  []UserRight
	Monitors Monitors
	// Cluster has the instance types of the controller if they can be read.
	Cluster *facts.Cluster
	Prices  []prices.Rule
	// Quotas are the limits of the cloud's account on vCPUs. They are nil if unknown.
	Quotas []catalog.Quota
	// ResourceQuotas are those of all namespaces.
	ResourceQuotas []corev1.ResourceQuota
	// AgentsOn has the names of the Nodes on which a pod of the agent is ready. It is nil if unknown.
	AgentsOn map[string]bool
	// Visible are the containers on nodes that name GPUs to the container runtime.
	Visible []Visible
	Unread  []Unread

	nodePools []snapshot.Pool
}

// CRD is an installed CustomResourceDefinition.
type CRD struct {
	// Served are the versions that the API server serves.
	Served []string
	// Differs reports whether the schema differs from that of this version of Karve. It is false for Karpenter's.
	Differs bool
}

// Monitors are the objects that make Prometheus scrape Karve.
type Monitors struct {
	// Served reports whether the API server serves the kinds of the Prometheus Operator.
	Served bool
	// Controller and Agent report whether there is a ServiceMonitor of the controller and a PodMonitor of the agent.
	Controller, Agent bool
}

// MonitorSelects reports whether a ServiceMonitor or PodMonitor selects objects with the labels.
func MonitorSelects(o *unstructured.Unstructured, set labels.Set) bool {
	selector, ok, err := unstructured.NestedMap(o.Object, "spec", "selector")
	if !ok || err != nil {
		return false
	}
	var s metav1.LabelSelector
	if runtime.DefaultUnstructuredConverter.FromUnstructured(selector, &s) != nil {
		return false
	}
	selects, err := metav1.LabelSelectorAsSelector(&s)
	return err == nil && selects.Matches(set)
}

// Unread is something that could not be read.
type Unread struct {
	// What names it, and Why is the error. Right is the permission that the user lacks, or "" if the fault is in kubectl-karve itself.
	What, Why, Right string
}

// VisibleDevices is the environment variable with which a container names its GPUs to NVIDIA's container runtime.
const VisibleDevices = "NVIDIA_VISIBLE_DEVICES"

// Visible is a container that names its GPUs to the container runtime itself.
type Visible struct {
	// Pod is the namespace and name of its pod.
	Pod, Container, Node, Value string
}

// VisibleOf returns the containers of a pod that name GPUs to the container runtime. Values from ConfigMaps and from images are not known.
func VisibleOf(pod *corev1.Pod) []Visible {
	var all []Visible
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			if c := containers[i].SecurityContext; c != nil && c.Privileged != nil && *c.Privileged {
				continue // It has all devices of the node anyway.
			}
			for _, e := range containers[i].Env {
				if e.Name == VisibleDevices && !slices.Contains([]string{"", "none", "void"}, e.Value) {
					all = append(all, Visible{pod.Namespace + "/" + pod.Name, containers[i].Name, pod.Spec.NodeName, e.Value})
				}
			}
		}
	}
	return all
}

// pools returns Karve's NodePools. They are computed once.
func (f *Facts) pools() []snapshot.Pool {
	if f.nodePools == nil && f.Cluster != nil {
		f.nodePools = snapshot.Pools(f.Cluster)
	}
	return f.nodePools
}

func (f *Facts) classes() []*v1alpha1.GPUNodeClass {
	if f.Cluster == nil {
		return nil
	}
	var all []*v1alpha1.GPUNodeClass
	for i := range f.Cluster.GPUNodeClasses {
		all = append(all, &f.Cluster.GPUNodeClasses[i])
	}
	slices.SortFunc(all, func(a, b *v1alpha1.GPUNodeClass) int { return cmp.Compare(a.Name, b.Name) })
	return all
}
