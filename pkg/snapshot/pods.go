package snapshot

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/planner"
)

// waitingClass is a set of waiting pods that the scheduler cannot tell apart.
type waitingClass struct {
	pods []*corev1.Pod
	gpu  corev1.ResourceName
}

func (w *waitingClass) pod() *corev1.Pod { return w.pods[0] }

// waiting are the pods that wait for a GPU resource, in classes, in a stable order.
func (c *Cluster) waiting() []waitingClass {
	byKey := map[string]*waitingClass{}
	for i := range c.Pods {
		pod := &c.Pods[i]
		if !karpenter.IsProvisionable(pod) {
			continue
		}
		gpu, ok := gpuResource(pod)
		if !ok {
			continue
		}
		key := classKey(pod)
		if byKey[key] == nil {
			byKey[key] = &waitingClass{gpu: gpu}
		}
		byKey[key].pods = append(byKey[key].pods, pod)
	}
	classes := make([]waitingClass, 0, len(byKey))
	for _, key := range sortedKeys(byKey) {
		class := byKey[key]
		slices.SortFunc(class.pods, func(a, b *corev1.Pod) int { return strings.Compare(podName(a), podName(b)) })
		classes = append(classes, *class)
	}
	return classes
}

// gpuResource is the GPU resource that a pod asks for; the renamed one where it asks for both.
func gpuResource(pod *corev1.Pod) (corev1.ResourceName, bool) {
	for _, gpu := range []corev1.ResourceName{v1alpha1.ResourceGPUShared, v1alpha1.ResourceGPU} {
		if requests(pod, gpu).Replicas > 0 {
			return gpu, true
		}
	}
	return "", false
}

// classKey is the same for pods that the scheduler cannot tell apart.
func classKey(pod *corev1.Pod) string {
	spec := &corev1.PodSpec{
		NodeSelector: pod.Spec.NodeSelector, Affinity: pod.Spec.Affinity, Tolerations: pod.Spec.Tolerations,
		TopologySpreadConstraints: pod.Spec.TopologySpreadConstraints, Resources: pod.Spec.Resources, Overhead: pod.Spec.Overhead,
		ResourceClaims: pod.Spec.ResourceClaims,
	}
	for _, v := range pod.Spec.Volumes {
		if isPersistent(v) {
			spec.Volumes = append(spec.Volumes, v)
		}
	}
	reduced := func(from []corev1.Container) (to []corev1.Container) {
		for _, ctr := range from {
			to = append(to, corev1.Container{Resources: ctr.Resources, RestartPolicy: ctr.RestartPolicy, Ports: hostPorts(ctr)})
		}
		return to
	}
	spec.InitContainers, spec.Containers = reduced(pod.Spec.InitContainers), reduced(pod.Spec.Containers)
	key, err := json.Marshal(struct {
		Namespace string
		Spec      *corev1.PodSpec
	}{pod.Namespace, spec})
	if err != nil {
		return podName(pod) // A pod that cannot be written down is in a class of its own.
	}
	return string(key)
}

func isPersistent(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil }

func hostPorts(ctr corev1.Container) []corev1.ContainerPort {
	return slices.DeleteFunc(slices.Clone(ctr.Ports), func(p corev1.ContainerPort) bool { return p.HostPort == 0 })
}

func podName(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// unsupported names the scheduling rule of a pod that is not planned for yet; "" when there is none. Preferences do not count: the
// scheduler places the pod without them.
func unsupported(pod *corev1.Pod) string {
	spec := &pod.Spec
	required := func(c corev1.TopologySpreadConstraint) bool { return c.WhenUnsatisfiable == corev1.DoNotSchedule }
	switch {
	case slices.ContainsFunc(spec.TopologySpreadConstraints, required):
		return "topologySpreadConstraints with DoNotSchedule"
	case spec.Affinity != nil && spec.Affinity.PodAffinity != nil && len(spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0:
		return "required podAffinity"
	case spec.Affinity != nil && spec.Affinity.PodAntiAffinity != nil && len(spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0:
		return "required podAntiAffinity"
	case slices.ContainsFunc(spec.Volumes, isPersistent):
		return "persistent volumes"
	case slices.ContainsFunc(spec.Containers, func(ctr corev1.Container) bool { return len(hostPorts(ctr)) > 0 }):
		return "host ports"
	case len(spec.ResourceClaims) > 0:
		return "resource claims"
	}
	return ""
}

// foreignResource names a resource that the pod asks for and no machine of Karve's has; "" when there is none.
func foreignResource(pod *corev1.Pod, gpu corev1.ResourceName) corev1.ResourceName {
	for _, name := range sortedKeys(podRequests(pod)) {
		switch name {
		case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, gpu:
			continue
		}
		if valueOf(podRequests(pod), name) > 0 {
			return name
		}
	}
	return ""
}

// blocked says why nothing may be planned for a class; nil when it may. admitting are the pools that have offerings for it.
func (c *Cluster) blocked(class *waitingClass, admitting []*Pool, nodes bool, whyNot []string) *planner.Refusal {
	pod := class.pod()
	if len(admitting) == 0 && nodes {
		return nil
	}
	if len(admitting) == 0 {
		message := fmt.Sprintf("asks for %s, and no NodePool with a %s serves it: ", class.gpu, v1alpha1.Kind)
		if len(whyNot) == 0 {
			return &planner.Refusal{Reason: planner.ReasonNoPool, Message: message + "there is none; create one"}
		}
		return &planner.Refusal{Reason: planner.ReasonNoPool, Message: message + strings.Join(whyNot, "; ")}
	}
	if stock := c.stockPool(pod, class.gpu); stock != "" {
		return &planner.Refusal{Reason: planner.ReasonLeftToKarpenter, Message: fmt.Sprintf(
			"NodePool %s, which Karpenter serves, could take it as well as %s, so it is left to Karpenter: "+
				"add a nodeSelector %s: %s to the pod, or a taint to NodePool %s", stock, admitting[0].NodePool.Name,
			karpv1.NodePoolLabelKey, admitting[0].NodePool.Name, stock)}
	}
	if rule := unsupported(pod); rule != "" {
		return &planner.Refusal{Reason: planner.ReasonUnsupported, Message: fmt.Sprintf(
			"uses %s, which Karve does not plan for yet, so nothing is launched for it: remove it, or serve the pod from a NodePool of Karpenter's own", rule)}
	}
	if name := foreignResource(pod, class.gpu); name != "" {
		return &planner.Refusal{Reason: planner.ReasonTooLarge, Message: fmt.Sprintf(
			"asks for %s besides %s, which no machine of NodePool %s has: remove the request", name, class.gpu, admitting[0].NodePool.Name)}
	}
	if requests(pod, class.gpu).Replicas > 1 && !slices.ContainsFunc(admitting, func(p *Pool) bool { return !p.Class.Spec.Sharing.RefusesAboveOne() }) {
		return &planner.Refusal{Reason: planner.ReasonRequestsAboveOne, Message: fmt.Sprintf(
			"asks for %d replicas, and %s %s refuses more than one: ask for one, since more do not give more GPU time, or set spec.sharing.requestsAboveOne to Allow",
			requests(pod, class.gpu).Replicas, v1alpha1.Kind, admitting[0].Class.Name)}
	}
	return nil
}
