package facts

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/claims"
)

// SetAside returns a pod without what a user may have made large. Nothing is launched for it, and the reason is why. If it runs, it holds what it
// requests, and its node is kept.
func SetAside(pod *corev1.Pod, why string) *corev1.Pod {
	requests := asResourceList(sumRequests(pod))
	if len(pod.Spec.ResourceClaims) > 0 && !claims.RequestsGPU(&pod.Spec) {
		requests[v1alpha1.ResourceGPUShared] = *resource.NewQuantity(1, resource.DecimalSI) // It may be for a GPU.
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, CreationTimestamp: pod.CreationTimestamp,
			DeletionTimestamp: pod.DeletionTimestamp, OwnerReferences: pod.OwnerReferences,
			Annotations: map[string]string{setAsideAnnotation: why, karpv1.DoNotDisruptAnnotationKey: "true"},
		},
		Spec: corev1.PodSpec{
			NodeName: pod.Spec.NodeName, Priority: pod.Spec.Priority,
			Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: requests}}},
		},
		Status: pod.Status,
	}
}

// sumRequests returns the sum of what the containers of a pod request.
func sumRequests(pod *corev1.Pod) map[corev1.ResourceName]int64 {
	sum := map[corev1.ResourceName]int64{}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for name := range containers[i].Resources.Requests {
				sum[name] = amount.Add(sum[name], AmountOf(containers[i].Resources.Requests, name))
			}
		}
	}
	return sum
}

// asResourceList returns amounts in the planner's units as a list.
func asResourceList(amounts map[corev1.ResourceName]int64) corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, n := range amounts {
		list[name] = *resource.NewQuantity(n, resource.DecimalSI)
		if name == corev1.ResourceCPU {
			list[name] = *resource.NewMilliQuantity(n, resource.DecimalSI)
		}
	}
	return list
}

// maxKeptAnnotation is the length of the longest annotation that a node keeps. The marks of the controllers are shorter.
const maxKeptAnnotation = 256

// SetAsideNode returns a node that takes no more pods and is kept.
func SetAsideNode(node *corev1.Node, why string) *corev1.Node {
	meta := node.ObjectMeta
	meta.Annotations = SetAsideSpec(node.Annotations, why)
	meta.Annotations[karpv1.DoNotDisruptAnnotationKey] = "true"
	maps.DeleteFunc(meta.Annotations, func(key, value string) bool { return key != setAsideAnnotation && len(value) > maxKeptAnnotation })
	return &corev1.Node{
		ObjectMeta: meta, Spec: corev1.NodeSpec{ProviderID: node.Spec.ProviderID, Taints: node.Spec.Taints, Unschedulable: true},
		Status: corev1.NodeStatus{Conditions: node.Status.Conditions, Capacity: asResourceList(AmountsOf(node.Status.Capacity)), Allocatable: asResourceList(AmountsOf(node.Status.Allocatable))},
	}
}

// SetAsideClaim returns a NodeClaim whose machine is kept.
func SetAsideClaim(claim *karpv1.NodeClaim, why string) *karpv1.NodeClaim {
	with := *claim
	with.Annotations = SetAsideSpec(claim.Annotations, why)
	with.Annotations[karpv1.DoNotDisruptAnnotationKey] = "true"
	return &with
}
