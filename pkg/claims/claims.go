// Package claims translates the ResourceClaims of pods into requests for GPUs. It has no client, no clock and no log.
//
// A pod that has claims for GPUs is read as a pod that requests replicas and device memory, so that all decisions about pods treat both alike: see
// [Objects.On]. Requirements of claims on the GPU itself are evaluated against the attributes that the driver of a machine will publish: see
// [Ask.Fits]. Each driver for which Karve plans is an entry of a table: see driver.
package claims

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"unique"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
)

// annotation has the Ask of a pod that On has rewritten. It is never on an object of the API server: On removes it from pods that have it there.
const annotation = "claims.karve.sh/ask"

// Ask is the request for GPUs in the claims of a pod.
type Ask struct {
	// Driver is the DRA driver of the GPUs, or "" for that of Karve's agents.
	Driver string `json:"driver,omitempty"`
	// Sets are the sets of GPUs or MIG instances of one machine that the claims request, sorted. Different sets may share GPUs.
	Sets []Set `json:"sets"`
	// Selectors are the CEL expressions of DeviceClasses and requests, sorted and unique. Every GPU must satisfy all of them.
	Selectors []string `json:"selectors,omitempty"`
	// Mixes is a container that refers to several claims or requests, or "" if those of each container are certain to be on one GPU.
	Mixes string `json:"mixes,omitempty"`
	// ByIndex reports whether a constraint is on the index of GPUs. MIG instances have the index of their GPU.
	ByIndex bool `json:"byIndex,omitempty"`
	// NamesReplicas reports whether a request names the replicas capacity, which not all devices of the driver have.
	NamesReplicas bool `json:"namesReplicas,omitempty"`
	// MPS reports whether the driver should share the GPUs with MPS among the containers that have the claim.
	MPS bool `json:"mps,omitempty"`
	// Refusal is why nothing is launched for the pod, or "" if something can be.
	Refusal string `json:"refusal,omitempty"`
}

// DriverName returns the name of the DRA driver of the GPUs.
func (a *Ask) DriverName() string { return cmp.Or(a.Driver, nodecontract.DRADriver) }

// Of returns the request in a pod's claims, or nil if On has not rewritten the pod.
func Of(pod *corev1.Pod) *Ask {
	text := Text(pod)
	if text == "" {
		return nil
	}
	ask := &Ask{}
	if err := json.Unmarshal([]byte(text), ask); err != nil {
		return &Ask{Refusal: "what its ResourceClaim asks cannot be read: " + err.Error()}
	}
	return ask
}

// Text returns a text that is equal only for pods whose claims request the same from GPUs, or "" for pods without a claim for a GPU.
func Text(pod *corev1.Pod) string { return pod.Annotations[annotation] }

// Objects are the objects of a cluster that determine the requests of claims.
type Objects struct {
	// claims and templates are by namespace/name, and classes by name.
	claims    map[string]*resourcev1.ResourceClaim
	templates map[string]*resourcev1.ResourceClaimTemplate
	classes   map[string]*resourcev1.DeviceClass
	// drivers has the drivers of the classes for which Karve plans.
	drivers map[string]*driver
	// users counts the pods that name a claim.
	users map[string]int
}

// New returns the objects. pods are all pods that have claims.
func New(claims []resourcev1.ResourceClaim, templates []resourcev1.ResourceClaimTemplate, classes []resourcev1.DeviceClass, pods []*corev1.Pod) *Objects {
	o := &Objects{
		claims: map[string]*resourcev1.ResourceClaim{}, templates: map[string]*resourcev1.ResourceClaimTemplate{}, classes: map[string]*resourcev1.DeviceClass{},
		drivers: map[string]*driver{}, users: map[string]int{},
	}
	for i := range claims {
		o.claims[claims[i].Namespace+"/"+claims[i].Name] = &claims[i]
	}
	for i := range templates {
		o.templates[templates[i].Namespace+"/"+templates[i].Name] = &templates[i]
	}
	for i := range classes {
		o.classes[classes[i].Name] = &classes[i]
		if d := driverOf(&classes[i]); d != nil {
			o.drivers[classes[i].Name] = d
		}
	}
	for _, pod := range pods {
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		for _, ref := range pod.Spec.ResourceClaims {
			if ref.ResourceClaimName != nil {
				o.users[pod.Namespace+"/"+*ref.ResourceClaimName]++
			}
		}
	}
	return o
}

// On returns a pod as decisions see it. If the pod has claims for GPUs, it is a copy with a container that requests the replicas and with the
// annotation for the device memory. Otherwise it is the pod itself. On does not change the pod.
func (o *Objects) On(pod *corev1.Pod) *corev1.Pod {
	if pod == nil || len(pod.Spec.ResourceClaims) == 0 && Text(pod) == "" {
		return pod
	}
	ask, gpu := o.ask(pod)
	if ask == nil && Text(pod) == "" {
		return pod
	}
	with := *pod
	with.Annotations = maps.Clone(pod.Annotations)
	delete(with.Annotations, annotation)
	if ask == nil {
		return &with
	}
	if with.Annotations == nil {
		with.Annotations = map[string]string{}
	}
	text, err := json.Marshal(ask)
	if err != nil {
		return pod // Strings and booleans can always be encoded.
	}
	with.Annotations[annotation] = unique.Make(string(text)).Value() // Pods of a template share the memory.
	delete(with.Annotations, v1alpha1.GPUMemoryAnnotation)
	total := ask.Total()
	if total.MemoryBytes > 0 && ask.Distinct() == 1 { // The annotation is for pods that find room on one GPU.
		with.Annotations[v1alpha1.GPUMemoryAnnotation] = resource.NewQuantity(total.MemoryBytes, resource.BinarySI).String()
	}
	if !RequestsGPU(&pod.Spec) {
		with.Spec.Containers = append(slices.Clone(pod.Spec.Containers), corev1.Container{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{gpu: *resource.NewQuantity(total.Replicas, resource.DecimalSI)},
		}})
	}
	return &with
}

// Requesting returns a pod that On has rewritten, without its claims, as one that requests a number of replicas of a resource, on any GPUs with the
// memory that the pod requests.
func Requesting(pod *corev1.Pod, gpu corev1.ResourceName, replicas int64) *corev1.Pod {
	with := *pod
	with.Annotations = maps.Clone(pod.Annotations)
	delete(with.Annotations, annotation)
	with.Spec.ResourceClaims = nil
	with.Spec.Containers = slices.Clone(pod.Spec.Containers)
	with.Spec.Containers[len(with.Spec.Containers)-1].Resources.Requests = corev1.ResourceList{gpu: *resource.NewQuantity(replicas, resource.DecimalSI)}
	return &with
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

// podClaim is a claim of a pod.
type podClaim struct {
	// ref is the pod's name for the claim. name is the object's name for messages.
	ref, name string
	// key is the namespace/name of claim. claim is nil if there is only the template.
	key   string
	claim *resourcev1.ResourceClaim
	spec  *resourcev1.ResourceClaimSpec
}

// findClaim returns the claim to which a reference of a pod refers, or nil if there is none.
func (o *Objects) findClaim(pod *corev1.Pod, ref corev1.PodResourceClaim) *podClaim {
	name := ref.ResourceClaimName
	if name == nil {
		for _, s := range pod.Status.ResourceClaimStatuses {
			if s.Name == ref.Name {
				name = s.ResourceClaimName
			}
		}
	}
	if name != nil {
		key := pod.Namespace + "/" + *name
		if claim := o.claims[key]; claim != nil {
			return &podClaim{ref.Name, "ResourceClaim " + key, key, claim, &claim.Spec}
		}
	}
	if ref.ResourceClaimTemplateName == nil {
		return nil
	}
	key := pod.Namespace + "/" + *ref.ResourceClaimTemplateName
	if template := o.templates[key]; template != nil {
		return &podClaim{ref.Name, "ResourceClaimTemplate " + key, "", nil, &template.Spec.Spec}
	}
	return nil
}

// driver returns the driver of a claim's first request for a GPU, with its DeviceClass, or nil if there is none. A claim with more requests than Karve
// reads counts as one for a GPU, because one of the others may be.
func (o *Objects) driver(f *podClaim) (*driver, *resourcev1.DeviceClass) {
	if requestsIn(f.spec) > maxRequests {
		return drivers[0], nil
	}
	for _, r := range f.spec.Devices.Requests {
		var names []string
		if r.Exactly != nil {
			names = append(names, r.Exactly.DeviceClassName)
		}
		for i := range r.FirstAvailable {
			names = append(names, r.FirstAvailable[i].DeviceClassName)
		}
		for _, name := range names {
			if d := o.drivers[name]; d != nil {
				return d, o.classes[name]
			}
		}
	}
	return nil, nil
}

// DeviceClass returns the chart's DeviceClass for an extended resource.
func DeviceClass(extended string) resourcev1.DeviceClass {
	name, selector := nodecontract.DeviceClass(extended)
	return resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.DeviceClassSpec{
		ExtendedResourceName: &extended, Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: selector}}},
	}}
}

// NVIDIADeviceClass returns the DeviceClass of whole GPUs from the chart of NVIDIA's driver.
func NVIDIADeviceClass() resourcev1.DeviceClass {
	const name = nodecontract.NVIDIADRADriver
	return resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.DeviceClassSpec{
		ExtendedResourceName: new(nodecontract.ResourceGPU),
		Selectors:            []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: "device.driver == '" + name + "' && device.attributes['" + name + "'].type == 'gpu'"}}},
	}}
}

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

// readClaims sets the request of claims. It returns why nothing is launched for the pod, or "" if something can be.
func (o *Objects) readClaims(pod *corev1.Pod, all []*podClaim, of *driver, ask *Ask) string {
	// on has the claims and requests to which containers refer, with equal values for those that are certain to be on one GPU.
	on := map[corev1.ResourceClaim]string{}
	used := &budget{}
	for _, f := range all {
		if why := used.countClaim(f); why != "" {
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
