package snapshot

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// shape is what a pod itself asks of the scheduler, but for its volumes: the same for the pods of one Deployment.
type shape struct {
	key string
	// short stands for the key in annotations.
	short string
	// gpu is the GPU resource that the pod asks for; "" when it asks for none.
	gpu    corev1.ResourceName
	demand demand
	terms  terms
	// gpuMemory is the device memory that the pod states, in bytes; wrong says what is wrong with it.
	gpuMemory int64
	wrong     error
	ports     []hostPort
	// onNodes is the same for shapes that ask the same of nodes' names, labels and taints, asks for those that also ask for the same amounts.
	onNodes, asks string
}

// pod is one of the shape.
func (s *shape) pod() *corev1.Pod { return s.demand.pod }

// shapes are those of the pods that were looked at.
type shapes struct {
	cluster    *Cluster
	selections selections
	// byText are by a quick way of writing a pod down, that may write two ways of saying the same differently. A thousand pods of one Deployment
	// are thought about once.
	byText map[string]*shape
}

func (c *Cluster) shapes() *shapes { return &shapes{cluster: c, byText: map[string]*shape{}} }

func (s *shapes) of(pod *corev1.Pod) *shape {
	text := textOf(pod)
	if known := s.byText[text]; known != nil {
		return known
	}
	made := &shape{demand: demandOf(pod), ports: hostPorts(pod)}
	made.gpu, _ = gpuResource(pod)
	made.gpuMemory, made.wrong = gpuMemory(pod)
	if made.gpu != "" {
		made.terms = s.cluster.termsOf(pod, &s.selections)
	}
	made.key = made.written()
	made.short = shortened(made.key)
	s.byText[text] = made
	return made
}

// textOf is the same only for pods of the same shape.
func textOf(pod *corev1.Pod) string {
	spec := corev1.PodSpec{
		NodeSelector: pod.Spec.NodeSelector, Affinity: pod.Spec.Affinity, Tolerations: pod.Spec.Tolerations,
		TopologySpreadConstraints: pod.Spec.TopologySpreadConstraints, Overhead: pod.Spec.Overhead, Resources: pod.Spec.Resources,
		Priority: pod.Spec.Priority, ResourceClaims: pod.Spec.ResourceClaims,
		Containers: bare(pod.Spec.Containers), InitContainers: bare(pod.Spec.InitContainers),
	}
	b, err := spec.Marshal()
	if err != nil {
		return "pod " + PodName(pod) // A pod that cannot be written down has a shape of its own.
	}
	text := string(b) + "\x00" + pod.Annotations[v1alpha1.GPUMemoryAnnotation]
	if hasTerms(pod) {
		text += fmt.Sprintf("\x00%s%q", pod.Namespace, termLabels(pod))
	}
	return text
}

// bare are the containers with nothing but what the scheduler looks at.
func bare(containers []corev1.Container) []corev1.Container {
	all := make([]corev1.Container, len(containers))
	for i := range containers {
		all[i] = corev1.Container{
			Resources: containers[i].Resources, RestartPolicy: containers[i].RestartPolicy,
			Ports: slices.DeleteFunc(slices.Clone(containers[i].Ports), func(p corev1.ContainerPort) bool { return p.HostPort == 0 }),
		}
	}
	return all
}

// written is the same for pods that ask the same, in whatever words.
func (s *shape) written() string {
	pod := s.pod()
	key := struct {
		NodeSelector map[string]string
		NodeAffinity *corev1.NodeAffinity
		Tolerations  []corev1.Toleration
		Requests     map[corev1.ResourceName]int64
		GPUMemory    int64
		Wrong        string
		Ports        []hostPort
		Priority     int32
		Unsupported  string
		Terms        []string
	}{
		pod.Spec.NodeSelector, nil, pod.Spec.Tolerations,
		map[corev1.ResourceName]int64{},
		s.gpuMemory, "", s.ports,
		schedulinghelper.PodPriority(pod), unsupported(pod), nil,
	}
	if s.wrong != nil {
		key.Wrong = s.wrong.Error()
	}
	if affinity := pod.Spec.Affinity; affinity != nil {
		key.NodeAffinity = affinity.NodeAffinity
	}
	for name := range s.demand.requests {
		if n := amountOf(s.demand.requests, name); n != 0 {
			key.Requests[name] = n
		}
	}
	s.onNodes = written(pod, struct {
		NodeSelector map[string]string
		NodeAffinity *corev1.NodeAffinity
		Tolerations  []corev1.Toleration
	}{key.NodeSelector, key.NodeAffinity, key.Tolerations})
	s.asks = written(pod, key)
	for _, part := range [][]term{s.terms.required, s.terms.affinity, s.terms.spread} {
		for i := range part {
			key.Terms = append(key.Terms, part[i].id())
		}
		key.Terms = append(key.Terms, "") // Between what is required and what is preferred.
	}
	return written(pod, key)
}

// written is the same for things of pods that are the same.
func written(pod *corev1.Pod, thing any) string {
	b, err := json.Marshal(thing)
	if err != nil {
		return PodName(pod) // As in textOf.
	}
	return string(b)
}
