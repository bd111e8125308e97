package manifests

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/nodecontract"
)

// readClaims replaces pods that have ResourceClaims for a GPU, as the controller does. It adds the charts' DeviceClasses unless the files define
// classes with their names.
func (r *reader) readClaims() {
	installed := []resourcev1.DeviceClass{claims.DeviceClass(nodecontract.ResourceGPUShared), claims.NVIDIADeviceClass()}
	for i := range r.cluster.GPUNodeClasses {
		if s := &r.cluster.GPUNodeClasses[i].Spec.Sharing; s.Backend == v1alpha1.BackendDRA {
			for _, resource := range s.Resources() {
				installed = append(installed, claims.DeviceClass(resource))
			}
		}
	}
	for _, class := range installed {
		if !slices.ContainsFunc(r.deviceClasses, func(c resourcev1.DeviceClass) bool { return c.Name == class.Name }) {
			r.deviceClasses = append(r.deviceClasses, class)
		}
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
