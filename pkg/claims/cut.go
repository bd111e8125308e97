package claims

import (
	"maps"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Cut removes from a claim or template what Karve does not read, and what is beyond the limits, so that the memory for it is bounded. What remains is over
// the same limit.
func Cut(spec *resourcev1.ResourceClaimSpec) {
	d := &spec.Devices
	left, bytes, alternatives := maxSelectors+1, selectorsBytes+1, maxRequests+1
	for i := range d.Requests {
		r := &d.Requests[i]
		if e := r.Exactly; e != nil {
			e.Tolerations, e.Selectors = nil, cutSelectors(e.Selectors, &left, &bytes)
			if e.Capacity != nil {
				e.Capacity.Requests = cutCapacity(e.Capacity.Requests)
			}
		}
		var kept []resourcev1.DeviceSubRequest
		for j := range r.FirstAvailable[:min(len(r.FirstAvailable), alternatives)] {
			kept = append(kept, resourcev1.DeviceSubRequest{Name: r.FirstAvailable[j].Name, DeviceClassName: r.FirstAvailable[j].DeviceClassName})
			alternatives--
		}
		r.FirstAvailable = kept
	}
	d.Constraints = prefix(d.Constraints, maxConstraints+1)
	named := maxConstrained + 1
	for i := range d.Constraints {
		c := &d.Constraints[i]
		c.Requests = prefix(c.Requests, named)
		named -= len(c.Requests)
	}
	perDriver := map[string]int{}
	d.Config = slices.Clip(slices.DeleteFunc(d.Config, func(c resourcev1.DeviceClaimConfiguration) bool {
		if c.Opaque == nil || !slices.ContainsFunc(drivers, func(d *driver) bool { return d.name == c.Opaque.Driver }) {
			return true
		}
		perDriver[c.Opaque.Driver]++
		return perDriver[c.Opaque.Driver] > maxConfigs+1
	}))
	for i := range d.Config {
		d.Config[i].Opaque.Parameters.Raw = prefix(d.Config[i].Opaque.Parameters.Raw, configBytes+1)
	}
}

// prefix returns the first n values without the memory of the others.
func prefix[T any](all []T, n int) []T {
	if len(all) <= n {
		return all
	}
	return slices.Clone(all[:n])
}

// cutSelectors returns selectors without what is beyond the limits. left and bytes are what the claim has left of them.
func cutSelectors(all []resourcev1.DeviceSelector, left, bytes *int) []resourcev1.DeviceSelector {
	all = prefix(all, *left)
	*left -= len(all)
	for i := range all {
		c := all[i].CEL
		if c == nil {
			continue
		}
		if n := min(selectorBytes+1, *bytes); len(c.Expression) > n {
			c.Expression = strings.Clone(c.Expression[:n])
		}
		*bytes -= len(c.Expression)
	}
	return all
}

// cutCapacity returns the capacities that the devices of any driver have, and at most one that they do not have, for which the claim is refused.
func cutCapacity(all map[resourcev1.QualifiedName]resource.Quantity) map[resourcev1.QualifiedName]resource.Quantity {
	kept := map[resourcev1.QualifiedName]resource.Quantity{}
	others := 0
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !slices.ContainsFunc(drivers, func(d *driver) bool { return name == d.replicas || name == d.memory }) {
			if others++; others > 1 {
				continue
			}
		}
		kept[name] = all[name]
	}
	return kept
}

// CutStatus removes from the status of a claim what Karve does not read.
func CutStatus(status *resourcev1.ResourceClaimStatus) {
	cut := resourcev1.ResourceClaimStatus{}
	if len(status.ReservedFor) > 0 { // If there are two, one of them is not for the pod that has the claim.
		cut.ReservedFor = prefix(status.ReservedFor, 2)
	}
	if a := status.Allocation; a != nil {
		cut.Allocation = &resourcev1.AllocationResult{}
		for i := range a.Devices.Results {
			r := &a.Devices.Results[i]
			if driverNamed(r.Driver) == nil {
				continue
			}
			cut.Allocation.Devices.Results = append(cut.Allocation.Devices.Results, resourcev1.DeviceRequestAllocationResult{
				Driver: r.Driver, Pool: r.Pool, Device: r.Device, AdminAccess: r.AdminAccess, ConsumedCapacity: cutCapacity(r.ConsumedCapacity),
			})
		}
	}
	*status = cut
}

// CutClass removes from a DeviceClass what Karve does not read. Only administrators create DeviceClasses, so it keeps their selectors.
func CutClass(class *resourcev1.DeviceClass) {
	class.ObjectMeta = metav1.ObjectMeta{Name: class.Name, UID: class.UID, ResourceVersion: class.ResourceVersion, DeletionTimestamp: class.DeletionTimestamp}
	if driverOf(class) == nil {
		class.Spec.Selectors = nil
	}
	for i := range class.Spec.Config {
		if o := class.Spec.Config[i].Opaque; o != nil {
			o.Parameters.Raw = prefix(o.Parameters.Raw, configBytes+1)
		}
	}
}
