package manifests

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/nodecontract"
)

// readClaims replaces pods that have ResourceClaims for a GPU, as the controller does. The DeviceClass of the chart exists unless the files have one of that name.
func (r *reader) readClaims() {
	if !slices.ContainsFunc(r.deviceClasses, func(c resourcev1.DeviceClass) bool { return c.Name == nodecontract.DRADriver }) {
		r.deviceClasses = append(r.deviceClasses, resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: nodecontract.DRADriver}, Spec: resourcev1.DeviceClassSpec{
			Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: "device.driver == '" + nodecontract.DRADriver + "'"}}},
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
