package quote

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
)

// oneName returns a common name for the resources of MIG instances that are on the machines of the same GPUNodeClasses: with another strategy, a machine has
// one resource, and the pods of all of them share it. It has no name for a resource that no class has besides another.
func oneName(classes []v1alpha1.GPUNodeClass) map[string]string {
	names := map[string]string{}
	for i := range classes {
		s := &classes[i].Spec.Sharing
		all := s.Resources()
		if s.Strategy != v1alpha1.StrategyMIG || len(all) < 2 {
			continue
		}
		var former []string // The common names of classes before.
		for _, name := range all {
			if one, ok := names[name]; ok {
				former = append(former, one)
			}
		}
		one := slices.Min(slices.Concat(all, former))
		for name, was := range names {
			if slices.Contains(former, was) {
				names[name] = one
			}
		}
		for _, name := range all {
			names[name] = one
		}
	}
	return names
}

// inOneResource returns the pods with the common names of the resources that they request. A pod that requests several requests their sum. Pods that are
// bound to a node stay as they are.
func inOneResource(pods []corev1.Pod, names map[string]string) []corev1.Pod {
	out := slices.Clone(pods)
	for i := range out {
		if out[i].Spec.NodeName != "" {
			continue
		}
		pod := out[i].DeepCopy()
		for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for j := range containers {
				for _, list := range []corev1.ResourceList{containers[j].Resources.Requests, containers[j].Resources.Limits} {
					countCommon(list, names)
				}
			}
		}
		out[i] = *pod
	}
	return out
}

func countCommon(list corev1.ResourceList, names map[string]string) {
	for name, one := range names {
		q, ok := list[corev1.ResourceName(name)]
		if !ok || name == one {
			continue
		}
		delete(list, corev1.ResourceName(name))
		sum := amount.Add(amount.Value(list[corev1.ResourceName(one)]), amount.Value(q))
		list[corev1.ResourceName(one)] = *resource.NewQuantity(sum, resource.DecimalSI)
	}
}
