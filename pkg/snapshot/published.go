package snapshot

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/nodecontract"
)

// Published has the replicas that the agents of nodes publish as DRA drivers.
type Published map[Offer]int64

// Offer is an extended resource of a node.
type Offer struct{ Node, Resource string }

// PublishedOf returns the replicas of ResourceSlices. As for the scheduler, only the newest generation of a pool counts, and only devices without taints.
func PublishedOf(all []resourcev1.ResourceSlice) Published {
	newest := map[string]int64{}
	for i := range all {
		if spec := &all[i].Spec; fromAgent(spec) {
			newest[*spec.NodeName] = max(newest[*spec.NodeName], spec.Pool.Generation)
		}
	}
	p := Published{}
	for i := range all {
		spec := &all[i].Spec
		if !fromAgent(spec) || spec.Pool.Generation < newest[*spec.NodeName] {
			continue
		}
		for j := range spec.Devices {
			if d := &spec.Devices[j]; len(d.Taints) == 0 {
				offer := Offer{*spec.NodeName, servedBy(d)}
				p[offer] = amount.Add(p[offer], amount.Value(d.Capacity[nodecontract.DRAReplicas].Value))
			}
		}
	}
	return p
}

// servedBy returns the extended resource that serves a device.
func servedBy(d *resourcev1.Device) string {
	if name := d.Attributes[nodecontract.DRAResource].StringValue; name != nil {
		return *name
	}
	return nodecontract.ResourceGPUShared // Older agents publish no other.
}

// fromAgent reports whether a slice is that of a node's agent.
func fromAgent(spec *resourcev1.ResourceSliceSpec) bool {
	return spec.Driver == nodecontract.DRADriver && spec.NodeName != nil && spec.Pool.Name == *spec.NodeName
}

// On returns a node with the replicas of the promised resource that its agent publishes among its allocatable resources, as if it were a device plugin. The node itself
// is not changed, and it is returned if it was not promised for DRA.
func (p Published) On(node *corev1.Node) *corev1.Node {
	if node == nil || node.Annotations[nodecontract.BackendAnnotation] != nodecontract.BackendDRA {
		return node
	}
	name := corev1.ResourceName(node.Annotations[nodecontract.ResourceAnnotation])
	with := *node
	with.Status.Allocatable = maps.Clone(node.Status.Allocatable)
	if with.Status.Allocatable == nil {
		with.Status.Allocatable = corev1.ResourceList{}
	}
	delete(with.Status.Allocatable, name)
	if n := p[Offer{node.Name, string(name)}]; n > 0 && nodecontract.IsGPUResource(string(name)) {
		with.Status.Allocatable[name] = *resource.NewQuantity(n, resource.DecimalSI)
	}
	return &with
}

// DRA says what the cluster has for Dynamic Resource Allocation.
type DRA struct {
	// Known reports whether that was looked at. Enabled reports whether the controller may use it, and the API server serves it.
	Known, Enabled bool
	Classes        []resourcev1.DeviceClass
}

// Problem returns why pods that request a resource of a GPUNodeClass get no replicas by DRA. The reason is "" if they do, or if that is not known.
func (d DRA) Problem(class *v1alpha1.GPUNodeClass) (reason, message string) {
	if !class.Spec.Sharing.UsesDRA() || !d.Known {
		return "", ""
	}
	if !d.Enabled {
		return "DRANotEnabled", "spec.sharing.backend is DRA, which needs Kubernetes 1.36 and node.dra.enabled=true in the chart's values: set it, or use backend DevicePlugin"
	}
	var taken, missing []string
	for _, name := range class.Spec.Sharing.Resources() {
		ours, others := d.classesOf(name)
		switch {
		case len(others) > 0:
			taken = append(taken, fmt.Sprintf("DeviceClass %s has the extendedResourceName %s too", strings.Join(others, ", "), name))
		case !ours:
			missing = append(missing, name)
		}
	}
	switch {
	case len(taken) > 0:
		return "ExtendedResourceTaken", strings.Join(taken, "; ") + ", and the scheduler knows one class of a name: take the name from it, or use backend DevicePlugin"
	case len(missing) > 0:
		return "DeviceClassNotFound", fmt.Sprintf("no DeviceClass of driver %s has the extendedResourceName %s: set node.dra.enabled=true in the chart's values and name it in node.dra.resources, which creates the DeviceClass",
			nodecontract.DRADriver, strings.Join(missing, ", "))
	}
	return "", ""
}

// classesOf reports whether a DeviceClass of the agents' driver has an extendedResourceName, and returns the other classes that have it, sorted.
func (d DRA) classesOf(resource string) (ours bool, others []string) {
	for i := range d.Classes {
		c := &d.Classes[i]
		switch {
		case c.Spec.ExtendedResourceName == nil || *c.Spec.ExtendedResourceName != resource:
		case claims.SelectsAgents(c):
			ours = true
		default:
			others = append(others, c.Name)
		}
	}
	slices.Sort(others)
	return ours, others
}
