package facts

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

// Published has what DRA drivers publish for nodes.
type Published map[Offer]Offered

// Offered has the replicas of an offer that pods can get. TaintRule is the name of a DeviceTaintRule that keeps pods off other replicas of it, if there is
// one.
type Offered struct {
	Replicas  int64
	TaintRule string
}

// Offer is an extended resource that a DRA driver provides on a node. Whole reports whether its GPUs serve one claim at a time, as NVIDIA's driver
// publishes GPUs that are not shared.
type Offer struct {
	Node, Driver, Resource string
	Whole                  bool
}

// slicePool is a pool of ResourceSlices: those of a driver for a node.
type slicePool struct{ node, driver string }

// PublishedOf returns the replicas of ResourceSlices. As in the scheduler, only the newest generation of a pool counts, only if all of its slices
// exist, and only devices without taints that keep pods away, of the driver or of a rule.
func PublishedOf(all []resourcev1.ResourceSlice, rules []resourcev1.DeviceTaintRule) Published {
	newest, count := map[slicePool]int64{}, map[slicePool]int64{}
	for i := range all {
		spec := &all[i].Spec
		of, ok := slicePoolOf(spec)
		if !ok {
			continue
		}
		switch at := spec.Pool.Generation; {
		case count[of] == 0 || at > newest[of]:
			newest[of], count[of] = at, 1
		case at == newest[of]:
			count[of]++
		}
	}
	p := Published{}
	for i := range all {
		spec := &all[i].Spec
		of, ok := slicePoolOf(spec)
		if !ok || spec.Pool.Generation < newest[of] || count[of] < spec.Pool.ResourceSliceCount {
			continue
		}
		for j := range spec.Devices {
			d := &spec.Devices[j]
			name, whole, replicas := claims.Publishes(spec.Driver, d)
			if replicas <= 0 || slices.ContainsFunc(d.Taints, refusesPods) {
				continue
			}
			offer := Offer{*spec.NodeName, spec.Driver, name, whole}
			offered := p[offer]
			if rule := taintRule(rules, spec.Driver, spec.Pool.Name, d.Name); rule != "" {
				offered.TaintRule = rule
			} else {
				offered.Replicas = amount.Add(offered.Replicas, replicas)
			}
			p[offer] = offered
		}
	}
	return p
}

func refusesPods(t resourcev1.DeviceTaint) bool { return t.Effect != resourcev1.DeviceTaintEffectNone }

// taintRule returns the name of a rule that keeps pods off a device. It is "" if there is none. Only a rule for all devices of the driver matches a pool and a
// device without names, like those of machines that come later.
func taintRule(rules []resourcev1.DeviceTaintRule, driver, pool, device string) string {
	for i := range rules {
		by := rules[i].Spec.DeviceSelector
		selects := func(selector *string, value string) bool { return selector == nil || *selector == value }
		if by != nil && refusesPods(rules[i].Spec.Taint) && selects(by.Driver, driver) && selects(by.Pool, pool) && selects(by.Device, device) {
			return rules[i].Name
		}
	}
	return ""
}

// slicePoolOf returns the pool of a slice. It returns false if the slice is not from a driver for which Karve plans.
func slicePoolOf(spec *resourcev1.ResourceSliceSpec) (slicePool, bool) {
	if _, ours := claims.Reads(spec.Driver); !ours || spec.NodeName == nil || spec.Pool.Name != *spec.NodeName {
		return slicePool{}, false
	}
	return slicePool{*spec.NodeName, spec.Driver}, true
}

// On returns a node with the replicas of the promised resource that its DRA driver publishes among its allocatable resources, like those of a device
// plugin. If a DeviceTaintRule keeps pods off some of them, the GPUs count as cordoned. It does not change the node. It returns the node itself if its
// promise is not for DRA.
func (p Published) On(node *corev1.Node) *corev1.Node {
	if node == nil {
		return node
	}
	promise := PromiseOf(node.Annotations)
	driver := nodecontract.DriverOf(promise.Backend)
	if driver == "" {
		return node
	}
	with := *node
	with.Status.Allocatable = maps.Clone(node.Status.Allocatable)
	if with.Status.Allocatable == nil {
		with.Status.Allocatable = corev1.ResourceList{}
	}
	resources := []string{string(promise.Resource)}
	if offers := promise.Offers(); offers != nil {
		resources = nil
		for _, o := range offers {
			resources = append(resources, o.Resource)
		}
	}
	for _, name := range resources {
		delete(with.Status.Allocatable, corev1.ResourceName(name))
		offered := p[Offer{node.Name, driver, name, promise.Whole()}]
		if n := offered.Replicas; n > 0 && nodecontract.IsGPUResource(name) {
			with.Status.Allocatable[corev1.ResourceName(name)] = *resource.NewQuantity(n, resource.DecimalSI)
		}
		if offered.TaintRule != "" && !GPUsCordoned(&with) {
			with.Status.Conditions = slices.DeleteFunc(slices.Clone(with.Status.Conditions), func(c corev1.NodeCondition) bool { return c.Type == nodecontract.CordonCondition })
			with.Status.Conditions = append(with.Status.Conditions, corev1.NodeCondition{
				Type: nodecontract.CordonCondition, Status: corev1.ConditionTrue, Reason: "DeviceTaintRule",
				Message: fmt.Sprintf("DeviceTaintRule %s keeps pods off GPUs of the node", offered.TaintRule),
			})
		}
	}
	return &with
}

// DRA describes the cluster's support for Dynamic Resource Allocation.
type DRA struct {
	// Known reports whether the support is known. Enabled reports whether the controller may use it and the API server serves it.
	Known, Enabled bool
	Classes        []resourcev1.DeviceClass
	TaintRules     []resourcev1.DeviceTaintRule
}

// Problem returns why pods that request a resource of a GPUNodeClass get no replicas from DRA. The reason is "" if they do, or if that is unknown.
func (d DRA) Problem(class *v1alpha1.GPUNodeClass) (reason, message string) {
	if !class.Spec.Sharing.UsesDRA() || !d.Known {
		return "", ""
	}
	if !d.Enabled {
		return "DRANotEnabled", fmt.Sprintf("spec.sharing.backend is %s, which needs Kubernetes 1.36 and node.dra.enabled=true in the chart's values: set it, or use backend DevicePlugin", class.Spec.Sharing.Backend)
	}
	driver := class.Spec.Sharing.DRADriver()
	create := "set node.dra.enabled=true in the chart's values and name it in node.dra.resources, which creates the DeviceClass"
	if driver == nodecontract.NVIDIADRADriver {
		create = "install NVIDIA's DRA driver with resources.gpus.enabled=true, whose chart creates the DeviceClass, or give a DeviceClass of yours the name"
	}
	var taken, missing []string
	for _, name := range class.Spec.Sharing.Resources() {
		ours, others := d.classesOf(name, driver)
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
		return "DeviceClassNotFound", fmt.Sprintf("no DeviceClass of driver %s has the extendedResourceName %s: %s", driver, strings.Join(missing, ", "), create)
	}
	if rule := taintRule(d.TaintRules, driver, "", ""); rule != "" {
		return "DevicesTainted", fmt.Sprintf("DeviceTaintRule %s keeps pods off all devices of driver %s: delete it, or name a pool or a device in its spec.deviceSelector", rule, driver)
	}
	return "", ""
}

// classesOf reports whether a DeviceClass of a driver has an extendedResourceName, and returns the other classes that have it, sorted.
func (d DRA) classesOf(resource, driver string) (ours bool, others []string) {
	for i := range d.Classes {
		c := &d.Classes[i]
		switch {
		case c.Spec.ExtendedResourceName == nil || *c.Spec.ExtendedResourceName != resource:
		case claims.DriverOf(c) == driver:
			ours = true
		default:
			others = append(others, c.Name)
		}
	}
	slices.Sort(others)
	return ours, others
}
