package facts

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/provreq"
)

// requestAnnotation is the annotation of the pods that stand for a ProvisioningRequest, with its name. They exist only in memory.
const requestAnnotation = "memory." + provreq.ConsumeAnnotation

// IsVirtual reports whether a pod stands for a ProvisioningRequest.
func IsVirtual(pod *corev1.Pod) bool { return pod.Annotations[requestAnnotation] != "" }

// VirtualPod returns the pod with an index that stands for a pod of a request. It has a name that no pod can have, and is pending like a pod that the
// scheduler has tried.
func VirtualPod(r *provreq.Request, set, index int) *corev1.Pod {
	template := &r.Sets[set].Template
	pod := PodOfTemplate(r.Namespace, fmt.Sprintf("request:%s:%02d:%05d", r.Name, set, index), template)
	pod.UID, pod.Labels, pod.CreationTimestamp.Time = types.UID(fmt.Sprintf("%s/%d/%d", r.UID, set, index)), maps.Clone(template.Labels), r.Created
	delete(pod.Labels, PluginGroupLabel) // The request is its group.
	delete(pod.Labels, KueueGroupLabel)
	pod.Annotations = map[string]string{requestAnnotation: r.Name}
	for _, key := range []string{nodecontract.GPUMemoryAnnotation, nodecontract.GPUThreadsAnnotation, v1alpha1.ThroughputAnnotation, CutAnnotation, setAsideAnnotation} {
		if value, has := template.Annotations[key]; has {
			pod.Annotations[key] = value
		}
	}
	var volumes []corev1.Volume
	for _, volume := range pod.Spec.Volumes {
		if volume.PersistentVolumeClaim != nil { // The claim of an ephemeral volume comes with its pod.
			volumes = append(volumes, volume)
		}
	}
	pod.Spec.Volumes, pod.Spec.NodeName, pod.Spec.SchedulingGroup, pod.Spec.SchedulingGates = volumes, "", nil, nil
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable},
	}}
	return pod
}

// PodOfTemplate returns a pod that a template describes, without topology spread constraints and affinity to other pods: the pods for which they count do not
// exist.
func PodOfTemplate(namespace, name string, template *corev1.PodTemplateSpec) *corev1.Pod {
	pod := &corev1.Pod{Spec: *template.Spec.DeepCopy()}
	pod.Namespace, pod.Name, pod.Annotations = namespace, name, template.Annotations
	spec := &pod.Spec
	spec.TopologySpreadConstraints = nil
	if spec.Affinity != nil {
		spec.Affinity.PodAffinity, spec.Affinity.PodAntiAffinity = nil, nil
	}
	spec.InitContainers, spec.Containers = WithDefaultRequests(spec.InitContainers), WithDefaultRequests(spec.Containers)
	return pod
}

// WithDefaultRequests returns the containers of a template with requests that default to limits. The API server does that for pods, but not for templates.
func WithDefaultRequests(containers []corev1.Container) []corev1.Container {
	containers = slices.Clone(containers)
	for i := range containers {
		requests := corev1.ResourceList{}
		maps.Copy(requests, containers[i].Resources.Limits)
		maps.Copy(requests, containers[i].Resources.Requests)
		containers[i].Resources.Requests = requests
	}
	return containers
}

// Consumers returns the pods that take the room of ProvisioningRequests, whatever has become of them, by the namespace and the name of the request.
func (c *Cluster) Consumers() map[string][]*corev1.Pod {
	pods := map[string][]*corev1.Pod{}
	if len(c.Requests) == 0 {
		return pods // Looking at all pods takes time.
	}
	for _, pod := range c.Indexed().pods.all() {
		if name := pod.Annotations[provreq.ConsumeAnnotation]; name != "" {
			pods[pod.Namespace+"/"+name] = append(pods[pod.Namespace+"/"+name], pod)
		}
	}
	return pods
}
