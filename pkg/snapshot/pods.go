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
		slices.SortFunc(class.pods, comparePods)
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

// classKey is the same for pods that the scheduler cannot tell apart in what it requires; what it only prefers does not count.
func classKey(pod *corev1.Pod) string {
	key := struct {
		NodeSelector map[string]string
		NodeAffinity *corev1.NodeSelector
		Tolerations  []corev1.Toleration
		Requests     map[corev1.ResourceName]int64
		Unsupported  string
	}{pod.Spec.NodeSelector, nil, pod.Spec.Tolerations, map[corev1.ResourceName]int64{}, unsupported(pod)}
	if affinity := pod.Spec.Affinity; affinity != nil && affinity.NodeAffinity != nil {
		key.NodeAffinity = affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	for name, quantity := range podRequests(pod) {
		amount := quantity.Value()
		if name == corev1.ResourceCPU {
			amount = quantity.MilliValue()
		}
		if amount != 0 {
			key.Requests[name] = amount
		}
	}
	b, err := json.Marshal(key)
	if err != nil {
		return podName(pod) // A pod that cannot be written down is in a class of its own.
	}
	return string(b)
}

func isPersistent(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil }

// hasHostPorts says whether a container takes ports of the node.
func hasHostPorts(ctr corev1.Container) bool {
	return slices.ContainsFunc(ctr.Ports, func(p corev1.ContainerPort) bool { return p.HostPort != 0 })
}

func podName(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

func comparePods(a, b *corev1.Pod) int { return strings.Compare(podName(a), podName(b)) }

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
	case slices.ContainsFunc(spec.Containers, hasHostPorts), slices.ContainsFunc(spec.InitContainers, hasHostPorts):
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

// blocked says why nothing may be planned for a class; nil when it may. admitting are the pools that have offerings for it, stock is the
// NodePool that stock Karpenter would serve it from, nodes says that some node admits it.
func blocked(class *waitingClass, admitting []*Pool, stock string, nodes bool, whyNot []string) *planner.Refusal {
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
	if stock != "" {
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

// Waits says whether a pod waits for a GPU resource that no node has for it.
func Waits(pod *corev1.Pod) bool {
	_, gpu := gpuResource(pod)
	return gpu && karpenter.IsProvisionable(pod)
}
