package hostile

import (
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// draMachine is an initialized machine of the pool with backend DRA.
const draMachine = "dra-machine"

// Stage returns the objects of the sane cluster, and what a tenant can use besides: a pool with backend DRA that has pods with claims, storage, DeviceClasses and
// the tenant's namespace.
func Stage() []client.Object {
	c := Sane()
	class := snapshottest.Class("dra", 10, func(class *v1alpha1.GPUNodeClass) { class.Spec.Sharing.Backend = v1alpha1.BackendDRA })
	np := snapshottest.Pool("dra", "dra", snapshottest.Tainted(v1alpha1.ResourceGPUShared), snapshottest.Tainted("dra"))
	xlarge := snapshottest.TypeNamed("g4dn.xlarge")
	claim := snapshottest.Claim(draMachine, &np, xlarge, snapshottest.Initialized(snapshottest.Now))
	claim.Annotations[nodecontract.BackendAnnotation] = nodecontract.BackendDRA
	node := snapshottest.Node(&claim, xlarge, 0)
	agents, nvidia := claims.DeviceClass(v1alpha1.ResourceGPUShared), claims.NVIDIADeviceClass()
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	objects := []client.Object{
		&class, &np, &claim, &node, sliceOf(draMachine), &agents, &nvidia,
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "disk"}, Provisioner: "ebs.csi.aws.com", VolumeBindingMode: &mode},
		&resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gpu"}, Spec: resourcev1.ResourceClaimTemplateSpec{Spec: resourcev1.ResourceClaimSpec{
			Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: nodecontract.DRADriver, Count: 1}}}},
		}}},
	}
	pods := snapshottest.Pods("sane-claim", 12, snapshottest.Tolerating(v1alpha1.ResourceGPUShared, "dra"), snapshottest.Asking("cpu", "100m"), func(pod *corev1.Pod) {
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("gpu")}}
		pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	})
	for _, name := range []string{"default", Namespace} {
		objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelMetadataName: name}}})
	}
	objects = append(objects, pointers(c.GPUNodeClasses)...)
	objects = append(objects, pointers(c.NodePools)...)
	objects = append(objects, pointers(c.NodeClaims)...)
	objects = append(objects, pointers(c.Nodes)...)
	return append(objects, pointers(append(c.Pods, pods...))...)
}

func pointers[T any, P interface {
	*T
	client.Object
}](all []T) []client.Object {
	objects := make([]client.Object, len(all))
	for i := range all {
		objects[i] = P(&all[i])
	}
	return objects
}

// sliceOf returns the ResourceSlice of a node with one GPU in ten replicas.
func sliceOf(node string) *resourcev1.ResourceSlice {
	return &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: resourcev1.ResourceSliceSpec{
		Driver: nodecontract.DRADriver, NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
		Devices: []resourcev1.Device{{Name: "gpu-0", Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{
			nodecontract.DRAReplicas: {Value: *resource.NewQuantity(10, resource.DecimalSI)}, nodecontract.DRAMemory: {Value: resource.MustParse("16Gi")},
		}}},
	}}
}
