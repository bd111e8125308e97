package claims

import (
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/nodecontract"
)

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
