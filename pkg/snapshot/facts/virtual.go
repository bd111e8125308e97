package facts

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/provreq"
)

// VirtualPod returns the pod with an index that stands for a pod of a request. It has a name that no pod can have, and is pending like a pod that the
// scheduler has tried.
func VirtualPod(r *provreq.Request, set, index int) *corev1.Pod {
	template := &r.Sets[set].Template
	pod := PodOfTemplate(r.Namespace, fmt.Sprintf("request:%s:%02d:%05d", r.Name, set, index), template)
	pod.UID, pod.Labels, pod.CreationTimestamp.Time = types.UID(fmt.Sprintf("%s/%d/%d", r.UID, set, index)), maps.Clone(template.Labels), r.Created
	delete(pod.Labels, PluginGroupLabel) // The request is its group.
	delete(pod.Labels, KueueGroupLabel)
	kept := pod.Annotations
	pod.Annotations = map[string]string{requestAnnotation: r.Name}
	for _, key := range []string{nodecontract.GPUMemoryAnnotation, nodecontract.GPUThreadsAnnotation, v1alpha1.ThroughputAnnotation, CutAnnotation, setAsideAnnotation} {
		if value, has := kept[key]; has {
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
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: template.Annotations}
	pod := Bounded(&corev1.Pod{ObjectMeta: meta, Spec: template.Spec}).DeepCopy() // Bounded as in the caches, which keep the parts that are removed here.
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
		containers[i].Resources.Requests = containerRequests(&containers[i].Resources)
	}
	return containers
}
