package manifests

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/nodecontract"
)

// readClaims replaces pods that have ResourceClaims for a GPU, as the controller does. The DeviceClasses of the chart exist unless the files have some of their names.
func (r *reader) readClaims() {
	resources := []string{nodecontract.ResourceGPUShared}
	for i := range r.cluster.GPUNodeClasses {
		if s := &r.cluster.GPUNodeClasses[i].Spec.Sharing; s.UsesDRA() {
			resources = append(resources, s.Resources()...)
		}
	}
	for _, resource := range resources {
		name, selector := nodecontract.DeviceClass(resource)
		if slices.ContainsFunc(r.deviceClasses, func(c resourcev1.DeviceClass) bool { return c.Name == name }) {
			continue
		}
		r.deviceClasses = append(r.deviceClasses, resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.DeviceClassSpec{
			ExtendedResourceName: &resource, Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: selector}}},
		}})
	}
	pods := make([]*corev1.Pod, len(r.cluster.Pods))
	for i := range r.cluster.Pods {
		pods[i] = &r.cluster.Pods[i]
	}
	objects := claims.New(r.resourceClaims, r.claimTemplates, r.deviceClasses, pods)
	for i, pod := range pods {
		r.cluster.Pods[i] = *objects.On(pod)
	}
}
