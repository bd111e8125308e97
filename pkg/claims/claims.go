// Package claims translates the ResourceClaims of pods into what the pods ask of a GPU. It has no client, no clock and no log.
//
// A pod that has a claim for a GPU of Karve's agents is read as a pod that requests replicas and states device memory, so that all that decides about pods treats
// both alike: see [Objects.On]. What a claim asks of the GPU itself is evaluated against what the agents will publish: see [Ask.Fits].
package claims

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
)

// annotation has the Ask of a pod that On has rewritten. It is never on an object of the API server: On removes it from pods that have it there.
const annotation = "claims.karve.sh/ask"

// Ask is what a pod's claim asks of GPUs.
type Ask struct {
	// GPUs is how many GPUs of one machine the claim asks for, at least 1. Replicas and MemoryBytes are what it asks of each of them.
	GPUs        int64 `json:"gpus"`
	Replicas    int64 `json:"replicas"`
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
	// Selectors are the CEL expressions of the DeviceClass and of the request, sorted and unique.
	Selectors []string `json:"selectors,omitempty"`
	// Refusal is why nothing is launched for the pod, and "" if something can be.
	Refusal string `json:"refusal,omitempty"`
}

// Of returns what the claim of a pod asks, and nil if the pod is not one that On has rewritten.
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

// Text returns a text that is equal only for pods whose claims ask the same of GPUs, and "" for those that have no claim for a GPU.
func Text(pod *corev1.Pod) string { return pod.Annotations[annotation] }

// Objects are the objects of a cluster that claims consist of.
type Objects struct {
	// claims and templates are by namespace/name, and classes by name.
	claims    map[string]*resourcev1.ResourceClaim
	templates map[string]*resourcev1.ResourceClaimTemplate
	classes   map[string]*resourcev1.DeviceClass
	// users counts the pods that name a claim.
	users map[string]int
}

// New returns the objects. pods are all pods that have claims.
func New(claims []resourcev1.ResourceClaim, templates []resourcev1.ResourceClaimTemplate, classes []resourcev1.DeviceClass, pods []*corev1.Pod) *Objects {
	o := &Objects{
		claims: map[string]*resourcev1.ResourceClaim{}, templates: map[string]*resourcev1.ResourceClaimTemplate{}, classes: map[string]*resourcev1.DeviceClass{},
		users: map[string]int{},
	}
	for i := range claims {
		o.claims[claims[i].Namespace+"/"+claims[i].Name] = &claims[i]
	}
	for i := range templates {
		o.templates[templates[i].Namespace+"/"+templates[i].Name] = &templates[i]
	}
	for i := range classes {
		o.classes[classes[i].Name] = &classes[i]
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

// On returns a pod as decisions see it: if it has a claim for a GPU, a copy with a container that requests the replicas, and with the annotation that states the
// device memory. Any other pod is returned as it is. The pod itself is not changed.
func (o *Objects) On(pod *corev1.Pod) *corev1.Pod {
	if pod == nil || len(pod.Spec.ResourceClaims) == 0 && Text(pod) == "" {
		return pod
	}
	ask := o.ask(pod)
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
	with.Annotations[annotation] = string(text)
	delete(with.Annotations, v1alpha1.GPUMemoryAnnotation)
	if ask.MemoryBytes > 0 && ask.GPUs == 1 { // The annotation is for pods with one GPU.
		with.Annotations[v1alpha1.GPUMemoryAnnotation] = resource.NewQuantity(ask.MemoryBytes, resource.BinarySI).String()
	}
	if !requestsGPU(pod) {
		with.Spec.Containers = append(slices.Clone(pod.Spec.Containers), corev1.Container{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{v1alpha1.ResourceGPUShared: *resource.NewQuantity(amount.Times(ask.GPUs, ask.Replicas), resource.DecimalSI)},
		}})
	}
	return &with
}

// Requesting returns a pod that On has rewritten without its claim, as one that requests a number of replicas of any GPUs that have the memory that the pod states.
func Requesting(pod *corev1.Pod, replicas int64) *corev1.Pod {
	with := *pod
	with.Annotations = maps.Clone(pod.Annotations)
	delete(with.Annotations, annotation)
	with.Spec.ResourceClaims = nil
	with.Spec.Containers = slices.Clone(pod.Spec.Containers)
	with.Spec.Containers[len(with.Spec.Containers)-1].Resources.Requests = corev1.ResourceList{v1alpha1.ResourceGPUShared: *resource.NewQuantity(replicas, resource.DecimalSI)}
	return &with
}

func requestsGPU(pod *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(c corev1.Container) bool {
		return slices.ContainsFunc(slices.Collect(maps.Keys(c.Resources.Requests)), func(name corev1.ResourceName) bool { return nodecontract.IsGPUResource(string(name)) })
	})
}

// found is a claim of a pod.
type found struct {
	// name is the object for messages.
	name string
	// key is the namespace/name of claim, which is nil if there is only the template.
	key   string
	claim *resourcev1.ResourceClaim
	spec  *resourcev1.ResourceClaimSpec
}

// find returns the claim of a pod that it refers to, and nil if there is none.
func (o *Objects) find(pod *corev1.Pod, ref corev1.PodResourceClaim) *found {
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
			return &found{"ResourceClaim " + key, key, claim, &claim.Spec}
		}
	}
	if ref.ResourceClaimTemplateName == nil {
		return nil
	}
	key := pod.Namespace + "/" + *ref.ResourceClaimTemplateName
	if template := o.templates[key]; template != nil {
		return &found{"ResourceClaimTemplate " + key, "", nil, &template.Spec.Spec}
	}
	return nil
}

// ours reports whether a claim asks for a GPU of Karve's agents.
func (o *Objects) ours(f *found) bool {
	is := func(class string) bool { return o.classes[class] != nil && SelectsAgents(o.classes[class]) }
	return slices.ContainsFunc(f.spec.Devices.Requests, func(r resourcev1.DeviceRequest) bool {
		return r.Exactly != nil && is(r.Exactly.DeviceClassName) ||
			slices.ContainsFunc(r.FirstAvailable, func(sub resourcev1.DeviceSubRequest) bool { return is(sub.DeviceClassName) })
	})
}

// SelectsAgents reports whether a DeviceClass selects the devices of agents by their driver.
func SelectsAgents(c *resourcev1.DeviceClass) bool {
	return slices.ContainsFunc(c.Spec.Selectors, func(s resourcev1.DeviceSelector) bool {
		return s.CEL != nil && (strings.Contains(s.CEL.Expression, "'"+nodecontract.DRADriver+"'") || strings.Contains(s.CEL.Expression, `"`+nodecontract.DRADriver+`"`))
	})
}

// ask returns what the claims of a pod ask, and nil if none is for a GPU of Karve's agents.
func (o *Objects) ask(pod *corev1.Pod) *Ask {
	for _, ref := range pod.Spec.ResourceClaims {
		f := o.find(pod, ref)
		if f == nil || !o.ours(f) {
			continue
		}
		ask := &Ask{GPUs: 1, Replicas: 1}
		ask.Refusal = o.read(pod, f, ask)
		if f.claim != nil && f.claim.Status.Allocation != nil {
			ask.hold(f.claim.Status.Allocation)
		}
		return ask // use refuses pods with further claims.
	}
	return nil
}

// read sets what a claim asks, and returns why nothing is launched for the pod, and "" if something can be.
func (o *Objects) read(pod *corev1.Pod, f *found, ask *Ask) string {
	if refusal := o.use(pod, f); refusal != "" {
		return refusal
	}
	devices := &f.spec.Devices
	if len(devices.Requests) != 1 {
		return fmt.Sprintf("%s has %d requests, and Karve plans for claims with one: use a claim with one request", f.name, len(devices.Requests))
	}
	request := devices.Requests[0].Exactly
	switch {
	case request == nil:
		return f.name + " has firstAvailable, and Karve does not know which of the requests the scheduler takes: use exactly"
	case request.AdminAccess != nil && *request.AdminAccess:
		return f.name + " has adminAccess, for which no node is launched: start the pod on a node that there is"
	case request.AllocationMode == resourcev1.DeviceAllocationModeAll:
		return f.name + " has allocationMode All, and Karve does not plan for all GPUs of a node: use ExactCount"
	}
	ask.GPUs = max(1, request.Count)
	for _, c := range devices.Constraints {
		if !trivial(c) {
			return fmt.Sprintf("%s has a constraint that Karve does not plan for: use matchAttribute with %s, or distinctAttribute with %s", f.name,
				strings.Join(qualified(alike), ", "), strings.Join(qualified(distinct), " or "))
		}
	}
	if request.Capacity != nil {
		for _, name := range slices.Sorted(maps.Keys(request.Capacity.Requests)) {
			q := request.Capacity.Requests[name]
			switch name {
			case nodecontract.DRAReplicas:
				ask.Replicas = max(1, amount.Value(q))
			case nodecontract.DRAMemory:
				ask.MemoryBytes = wholeMiB(amount.Value(q))
			default:
				return fmt.Sprintf("%s requests the capacity %s, which the GPUs do not have: use %s or %s", f.name, name, nodecontract.DRAReplicas, nodecontract.DRAMemory)
			}
		}
	}
	for _, s := range slices.Concat(o.classes[request.DeviceClassName].Spec.Selectors, request.Selectors) {
		if s.CEL == nil {
			return f.name + " has a selector of a kind that this version of Karve does not know: use CEL, or upgrade Karve"
		}
		ask.Selectors = append(ask.Selectors, s.CEL.Expression)
	}
	slices.Sort(ask.Selectors)
	ask.Selectors = slices.Compact(ask.Selectors)
	for _, expression := range ask.Selectors {
		if why := unknowable(expression); why != "" {
			return fmt.Sprintf("a selector of %s or its DeviceClass %s %s", f.name, request.DeviceClassName, why)
		}
	}
	return ""
}

// alike are attributes that all GPUs of a machine have, with one value, because Karve launches machines whose GPUs are of one model. distinct are those that all GPUs
// have, with different values. So a constraint that says so is met by any GPUs of a machine, which a claim has at most once.
var (
	alike    = []string{nodecontract.DRAProductName, nodecontract.DRAArchitecture, nodecontract.DRAComputeCapability}
	distinct = []string{nodecontract.DRAUUID, nodecontract.DRAIndex}
)

// qualified returns attributes with their domain.
func qualified(names []string) []string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = nodecontract.DRADriver + "/" + name
	}
	return all
}

// trivial reports whether any GPUs of a machine meet a constraint.
func trivial(c resourcev1.DeviceConstraint) bool {
	has := func(all []string, name *resourcev1.FullyQualifiedName) bool {
		return name == nil || slices.Contains(qualified(all), string(*name))
	}
	return (c.MatchAttribute != nil || c.DistinctAttribute != nil) && has(alike, c.MatchAttribute) && has(distinct, c.DistinctAttribute)
}

// use returns why the way in which a pod uses a claim cannot be planned for, and "" if it can.
func (o *Objects) use(pod *corev1.Pod, f *found) string {
	if requestsGPU(pod) {
		return "has " + f.name + " and requests a GPU resource too: use one of them"
	}
	if n := len(pod.Spec.ResourceClaims); n > 1 {
		return fmt.Sprintf("has %d ResourceClaims, of which %s is for a GPU, and Karve plans for pods with one: remove the others", n, f.name)
	}
	if f.claim == nil {
		return ""
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
			if r.Driver == nodecontract.DRADriver {
				return fmt.Sprintf("%s is allocated on node %s, and the pod can start only there: wait, or delete the pod if the node cannot take it", f.name, r.Pool)
			}
		}
	}
	return ""
}

// hold sets the GPUs, and the most replicas and device memory of one of them, to those that were allocated.
func (a *Ask) hold(allocation *resourcev1.AllocationResult) {
	replicas, memory := map[string]int64{}, map[string]int64{}
	for _, r := range allocation.Devices.Results {
		if r.Driver != nodecontract.DRADriver || r.AdminAccess != nil && *r.AdminAccess {
			continue
		}
		replicas[r.Device] = amount.Add(replicas[r.Device], amount.Value(r.ConsumedCapacity[nodecontract.DRAReplicas]))
		memory[r.Device] = amount.Add(memory[r.Device], amount.Value(r.ConsumedCapacity[nodecontract.DRAMemory]))
	}
	a.GPUs, a.Replicas, a.MemoryBytes = max(1, int64(len(replicas))), 1, 0
	for device := range replicas {
		a.Replicas, a.MemoryBytes = max(a.Replicas, replicas[device]), max(a.MemoryBytes, memory[device])
	}
}

const bytesPerMiB = 1 << 20

// wholeMiB returns an amount in bytes, rounded up to the step of a request for memory.
func wholeMiB(bytes int64) int64 {
	if over := bytes % bytesPerMiB; over > 0 {
		return amount.Add(bytes, bytesPerMiB-over)
	}
	return max(0, bytes)
}
