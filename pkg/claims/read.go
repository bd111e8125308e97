package claims

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/nodecontract"
)

// ask returns the request in the claims of a pod and the resource that serves it, or nil if none is for a GPU.
func (o *Objects) ask(pod *corev1.Pod) (ask *Ask, gpu corev1.ResourceName) {
	var all []*podClaim
	var of *driver
	var class *resourcev1.DeviceClass
	other := ""
	for _, ref := range pod.Spec.ResourceClaims[:min(len(pod.Spec.ResourceClaims), maxClaims)] {
		f := o.findClaim(pod, ref)
		if f == nil {
			other = ref.Name
			continue
		}
		d, c := o.driver(f)
		if d == nil {
			other = ref.Name
			continue
		}
		all = append(all, f)
		if of == nil {
			of, class = d, c
		}
	}
	tooMany := tooManyClaims(pod)
	if of == nil && tooMany != "" { // One of the others may be for a GPU.
		of = drivers[0]
	}
	if of == nil {
		return nil, ""
	}
	ask = &Ask{Refusal: tooMany}
	if of.name != nodecontract.DRADriver {
		ask.Driver = of.name
	}
	if ask.Refusal == "" {
		ask.Refusal = o.whyUnusable(pod, all, other)
	}
	if ask.Refusal == "" {
		ask.Refusal = o.readClaims(pod, all, of, ask)
	}
	if ask.Refusal != "" {
		ask.Sets, ask.Selectors = []Set{allocatedSet(all)}, nil
	}
	ask.sort()
	return ask, of.resource(class)
}

// whyUnusable returns why Karve cannot plan for the way in which a pod uses its claims, or "" if it can. other is the name of a claim that is not for a GPU.
func (o *Objects) whyUnusable(pod *corev1.Pod, all []*podClaim, other string) string {
	switch {
	case RequestsGPU(&pod.Spec):
		return "has " + all[0].name + " and requests a GPU resource too: use one of them"
	case other != "":
		return fmt.Sprintf("has %s and the claim %s, which does not exist or is not for a GPU of Karve's nodes, and Karve plans for no other devices: remove it", all[0].name, other)
	}
	for _, f := range all {
		if f.claim == nil {
			continue
		}
		if n := o.users[f.key]; n > 1 {
			return fmt.Sprintf("%s is used by %d pods, and Karve does not plan for pods that share a claim: use a ResourceClaimTemplate", f.name, n)
		}
		for _, by := range f.claim.Status.ReservedFor {
			if by.UID != pod.UID {
				return fmt.Sprintf("%s is reserved for %s %s: use a ResourceClaimTemplate", f.name, by.Resource, by.Name)
			}
		}
		if allocation := f.claim.Status.Allocation; allocation != nil && pod.Spec.NodeName == "" {
			for _, r := range allocation.Devices.Results {
				if driverNamed(r.Driver) != nil {
					return fmt.Sprintf("%s is allocated on node %s, and the pod can start only there: wait, or delete the pod if the node cannot take it", f.name, r.Pool)
				}
			}
		}
	}
	return ""
}

// RequestsGPU reports whether a container requests a GPU resource. It is the only answer to that question: a request of zero, which many charts have,
// requests none. As in the API server, a limit without a request is one.
func RequestsGPU(spec *corev1.PodSpec) bool {
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			r := &containers[i].Resources
			for name, q := range r.Requests {
				if q.Sign() > 0 && nodecontract.IsGPUResource(string(name)) {
					return true
				}
			}
			for name, q := range r.Limits {
				if _, requested := r.Requests[name]; !requested && q.Sign() > 0 && nodecontract.IsGPUResource(string(name)) {
					return true
				}
			}
		}
	}
	return false
}

// readClaims sets the request of claims. It returns why nothing is launched for the pod, or "" if something can be.
func (o *Objects) readClaims(pod *corev1.Pod, all []*podClaim, of *driver, ask *Ask) string {
	// on has the claims and requests to which containers refer, with equal values for those that are certain to be on one GPU.
	on := map[corev1.ResourceClaim]string{}
	used := &budget{}
	for _, f := range all {
		if why := used.countClaim(f.name, f.spec); why != "" {
			return why
		}
		var shares []Share
		for i := range f.spec.Devices.Requests {
			s, refusal := o.readRequest(f, &f.spec.Devices.Requests[i], of, used, ask)
			if refusal != "" {
				return refusal
			}
			shares = append(shares, s)
		}
		sets, same, refusal := setsOf(f, of, shares)
		if refusal != "" {
			return refusal
		}
		for _, c := range f.spec.Devices.Config {
			if why := used.readConfig(of, c.DeviceConfiguration, len(c.Requests) > 0, false, ask); why != "" {
				return fmt.Sprintf("%s has a config of the driver %s with %s", f.name, of.name, why)
			}
		}
		ask.Sets = append(ask.Sets, sets...)
		ask.ByIndex = ask.ByIndex || slices.ContainsFunc(f.spec.Devices.Constraints, byIndex)
		for i, r := range f.spec.Devices.Requests {
			on[corev1.ResourceClaim{Name: f.ref, Request: r.Name}] = fmt.Sprint(f.ref, "/", same[i])
		}
		on[corev1.ResourceClaim{Name: f.ref}] = f.ref
		if slices.Max(same) == slices.Min(same) {
			on[corev1.ResourceClaim{Name: f.ref}] = fmt.Sprint(f.ref, "/", same[0])
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		refers := map[string]bool{}
		for _, ref := range c.Resources.Claims {
			refers[on[ref]] = true
		}
		if len(refers) > 1 && of.mixes {
			ask.Mixes = c.Name
		}
	}
	return ""
}

// readRequest returns what a request needs on each of its GPUs, and adds its selectors to ask. The refusal is why nothing is launched for it, or "" if
// something can be.
func (o *Objects) readRequest(f *podClaim, r *resourcev1.DeviceRequest, of *driver, used *budget, ask *Ask) (s Share, refusal string) {
	request := r.Exactly
	switch {
	case request == nil:
		return s, f.name + " has firstAvailable, and Karve does not know which of the requests the scheduler takes: use exactly"
	case o.drivers[request.DeviceClassName] == nil:
		return s, fmt.Sprintf("%s has a request for the DeviceClass %s too, and Karve plans for no other devices: remove the request", f.name, request.DeviceClassName)
	case o.drivers[request.DeviceClassName] != of:
		return s, fmt.Sprintf("%s has a request for the DeviceClass %s, and the pod has one for GPUs of the driver %s, which are on other nodes: use one driver", f.name, request.DeviceClassName, of.name)
	case request.AdminAccess != nil && *request.AdminAccess:
		return s, f.name + " has adminAccess, for which no node is launched: start the pod on a node that there is"
	case request.AllocationMode == resourcev1.DeviceAllocationModeAll:
		return s, f.name + " has allocationMode All, and Karve does not plan for all GPUs of a node: use ExactCount"
	}
	s = Share{GPUs: max(1, request.Count), Replicas: 1}
	if request.Capacity != nil {
		for _, name := range slices.Sorted(maps.Keys(request.Capacity.Requests)) {
			q := request.Capacity.Requests[name]
			switch name {
			case of.replicas:
				s.Replicas, ask.NamesReplicas = max(1, amount.Value(q)), of.optional
			case of.memory:
				if why := amount.MeantMemory(q, fmt.Sprint(amount.Value(q))); why != "" {
					return s, fmt.Sprintf("%s requests the capacity %s, and %s", f.name, name, why)
				}
				s.MemoryBytes = wholeMiB(amount.Value(q))
			default:
				return s, fmt.Sprintf("%s requests the capacity %s, which the GPUs do not have: use %s or %s", f.name, name, of.replicas, of.memory)
			}
		}
	}
	class := o.classes[request.DeviceClassName]
	for i := range class.Spec.Config {
		if why := used.readConfig(of, class.Spec.Config[i].DeviceConfiguration, true, true, ask); why != "" {
			return s, fmt.Sprintf("%s has the DeviceClass %s with a config of the driver %s with %s", f.name, class.Name, of.name, why)
		}
	}
	if refusal = used.readSelectors(f, class.Spec.Selectors, "DeviceClass "+class.Name, of, ask); refusal == "" {
		refusal = used.readSelectors(f, request.Selectors, f.name, of, ask)
	}
	return s, refusal
}

// readConfig adds the parameters for a driver to ask, if a config has any. It returns the problem with them, or "" if there is none.
// class reports whether it is that of a DeviceClass.
func (b *budget) readConfig(d *driver, c resourcev1.DeviceConfiguration, named, class bool, ask *Ask) string {
	if c.Opaque == nil || c.Opaque.Driver != d.name {
		return ""
	}
	if !class {
		b.configs++
	}
	switch raw := c.Opaque.Parameters.Raw; {
	case len(raw) > configBytes:
		return fmt.Sprintf("more than %d bytes, which Karve does not read: shorten it", configBytes)
	case b.configs > maxConfigs:
		return fmt.Sprintf("more than %d configs in the claims of the pod, which Karve does not read: remove some", maxConfigs)
	default:
		return d.config(raw, named, ask)
	}
}

// readSelectors adds the selectors of an object to ask. It returns why nothing is launched for the claim, or "" if something can be.
func (b *budget) readSelectors(f *podClaim, all []resourcev1.DeviceSelector, from string, of *driver, ask *Ask) string {
	for i := range all {
		c := all[i].CEL
		if c == nil {
			return f.name + " has a selector of a kind that this version of Karve does not know: use CEL, or upgrade Karve"
		}
		if why := b.countSelector(from, c.Expression); why != "" {
			return why
		}
		if why := of.whyUnknowable(c.Expression); why != "" {
			return fmt.Sprintf("a selector of %s %s", from, why)
		}
		ask.Selectors = append(ask.Selectors, c.Expression)
	}
	return ""
}

// wholeMiB returns an amount in bytes, rounded up to the step of a request for memory.
func wholeMiB(bytes int64) int64 {
	if over := bytes % bytesPerMiB; over > 0 {
		return amount.Add(bytes, bytesPerMiB-over)
	}
	return max(0, bytes)
}
