package facts

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
)

// The bounds of what a pod may demand of the scheduler. The API server has none but the size of an object, so a single pod could delay the plans for all
// others. A pod beyond a bound waits alone. They are far above what pods need: a pod that lists all instance types has a thousand values.
const (
	// maxNodeTerms bounds the required and preferred terms of node affinity. maxExpressions bounds the expressions in one of them: parsing takes time
	// proportional to their square.
	maxNodeTerms, maxExpressions = 100, 50
	// maxNodeValues bounds the values and expressions of node affinity, and the entries of the node selector.
	maxNodeValues = 2_000
	// maxPodTerms bounds the required and preferred terms of affinity to other pods, and of topology spread.
	maxPodTerms = 400
	// maxPodValues bounds the labels, expressions, values and namespaces in these terms.
	maxPodValues = 2_000
	// maxTolerations, maxContainers, maxPorts and maxVolumes bound the tolerations, the containers, their host ports, and the volumes with a
	// PersistentVolumeClaim.
	maxTolerations, maxContainers, maxPorts, maxVolumes = 200, 200, 200, 200
	// maxAmounts bounds the requests and limits of all containers.
	maxAmounts = 2_000
	// maxText bounds the bytes of all these, in which names of nodes and labels are long.
	maxText = 64 << 10
)

// Size is the number of each thing that a pod may have too much of.
type Size struct {
	nodeTerms, preferred, longestTerm, expressions, nodeValues int
	podTerms, podValues                                        int
	tolerations, containers, amounts, ports, volumes, text     int
}

// Excess returns which bound a pod exceeds, with the way out, or "" if it exceeds none. It takes time proportional to the pod.
func (s *Size) Excess() string {
	for _, b := range []struct {
		has, most int
		of, do    string
	}{
		{s.nodeTerms, maxNodeTerms, "terms of node affinity", "list the values of a label in one expression"},
		{s.longestTerm, maxExpressions, "expressions in a term of node affinity", "list the values of a label in one expression"},
		{s.nodeValues, maxNodeValues, "expressions and values in its node selector and node affinity", "select nodes by a label that they share"},
		{s.podTerms, maxPodTerms, "terms of pod affinity, pod anti-affinity and topology spread", "select pods by a label that they share"},
		{s.podValues, maxPodValues, "labels, expressions, values and namespaces in its pod affinity, pod anti-affinity and topology spread", "select pods and namespaces by a label that they share"},
		{s.tolerations, maxTolerations, "tolerations", "tolerate taints with operator Exists"},
		{s.containers, maxContainers, "containers", "divide it into several pods"},
		{s.amounts, maxAmounts, "requests and limits", "divide it into several pods"},
		{s.ports, maxPorts, "host ports", "use fewer"},
		{s.volumes, maxVolumes, "volumes with a PersistentVolumeClaim", "use fewer"},
		{s.text, maxText, "bytes of node selector, affinity, topology spread, tolerations and annotations of Karve", "select nodes and pods by labels that they share"},
	} {
		if b.has > b.most {
			return fmt.Sprintf("has %d %s, and Karve plans for pods with at most %d: %s", b.has, b.of, b.most, b.do)
		}
	}
	return ""
}

// Load returns the part of the work of a plan that pods of this size cause: terms in units of maxTerms. Most node selectors and required terms of node
// affinity count as none.
func (s *Size) Load() int {
	return s.podTerms + s.preferred + s.NodeLoad() + s.podValues/100
}

func (s *Size) NodeLoad() int { return (5*(s.nodeTerms+s.expressions) + s.nodeValues) / 100 }

func SizeOf(pod *corev1.Pod) Size {
	var s Size
	spec := &pod.Spec
	s.tolerations, s.containers = len(spec.Tolerations), len(spec.Containers)+len(spec.InitContainers)
	for list := range amountsIn(spec) {
		s.amounts += len(list)
	}
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			for j := range containers[i].Ports {
				if containers[i].Ports[j].HostPort > 0 {
					s.ports++
				}
			}
		}
	}
	for i := range spec.Volumes {
		if _, claimed := ClaimName(pod, &spec.Volumes[i]); claimed {
			s.volumes++
		}
	}
	s.nodes(spec)
	s.pods(spec)
	for i := range spec.Tolerations {
		s.text += len(spec.Tolerations[i].Key) + len(spec.Tolerations[i].Value)
	}
	s.text += len(pod.Annotations[v1alpha1.GPUMemoryAnnotation]) + len(pod.Annotations[nodecontract.GPUThreadsAnnotation]) + len(throughputText(pod))
	return s
}

// nodes counts what selects nodes.
func (s *Size) nodes(spec *corev1.PodSpec) {
	for key, value := range spec.NodeSelector {
		s.nodeValues++
		s.text += len(key) + len(value)
	}
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil {
		return
	}
	affinity := spec.Affinity.NodeAffinity
	if required := affinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		for i := range required.NodeSelectorTerms {
			s.NodeTerm(&required.NodeSelectorTerms[i])
		}
	}
	s.preferred = len(affinity.PreferredDuringSchedulingIgnoredDuringExecution)
	for i := range affinity.PreferredDuringSchedulingIgnoredDuringExecution {
		s.NodeTerm(&affinity.PreferredDuringSchedulingIgnoredDuringExecution[i].Preference)
	}
}

func (s *Size) NodeTerm(t *corev1.NodeSelectorTerm) {
	s.nodeTerms++
	s.longestTerm = max(s.longestTerm, len(t.MatchExpressions), len(t.MatchFields))
	for _, expressions := range [][]corev1.NodeSelectorRequirement{t.MatchExpressions, t.MatchFields} {
		for i := range expressions {
			s.expressions++
			s.nodeValues += 1 + len(expressions[i].Values)
			s.text += len(expressions[i].Key) + lengthOf(expressions[i].Values)
		}
	}
}

// pods counts what selects other pods.
func (s *Size) pods(spec *corev1.PodSpec) {
	for i := range spec.TopologySpreadConstraints {
		c := &spec.TopologySpreadConstraints[i]
		s.term(c.TopologyKey, c.MatchLabelKeys)
		s.selector(c.LabelSelector)
	}
	term := func(t *corev1.PodAffinityTerm) {
		s.term(t.TopologyKey, t.MatchLabelKeys, t.MismatchLabelKeys, t.Namespaces)
		s.selector(t.LabelSelector)
		s.selector(t.NamespaceSelector)
	}
	for t := range affinityTerms(spec) {
		term(t)
	}
}

func (s *Size) term(topology string, lists ...[]string) {
	s.podTerms++
	s.text += len(topology)
	for _, list := range lists {
		s.podValues += len(list)
		s.text += lengthOf(list)
	}
}

func lengthOf(values []string) int {
	n := 0
	for _, value := range values {
		n += len(value)
	}
	return n
}

func (s *Size) selector(selector *metav1.LabelSelector) {
	if selector == nil {
		return
	}
	for key, value := range selector.MatchLabels {
		s.podValues++
		s.text += len(key) + len(value)
	}
	for i := range selector.MatchExpressions {
		e := &selector.MatchExpressions[i]
		s.podValues += 1 + len(e.Values)
		s.text += len(e.Key) + lengthOf(e.Values)
	}
}

// WithinBounds returns the pod without what is beyond the bounds, and with the reason as an annotation. It is the pod itself if it is within the bounds.
func WithinBounds(pod *corev1.Pod) *corev1.Pod {
	s := SizeOf(pod)
	why := s.Excess()
	if why == "" {
		return pod
	}
	within := *pod
	within.Annotations = map[string]string{excessAnnotation: why}
	for key, value := range pod.Annotations {
		if len(value) <= amount.MaxText || !slices.Contains(shapeAnnotations, key) {
			within.Annotations[key] = value
		}
	}
	spec := &within.Spec
	spec.Affinity, spec.TopologySpreadConstraints = nil, nil
	if pod.Spec.NodeName != "" && len(requiredAntiAffinity(pod)) > 0 && !ofDaemonSet(pod) {
		spec.Affinity = widened(requiredAntiAffinity(pod))
	}
	if s.text > maxText || s.nodeValues > maxNodeValues {
		spec.NodeSelector = nil
	}
	if s.text > maxText || s.tolerations > maxTolerations {
		spec.Tolerations = nil
	}
	if s.volumes > maxVolumes {
		spec.Volumes = nil
	}
	if s.containers > maxContainers || s.amounts > maxAmounts || s.ports > maxPorts {
		spec.InitContainers, spec.Containers, spec.Overhead, spec.Resources = nil, []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: mainRequests(pod)}}}, nil, nil
	}
	return &within
}

// shapeAnnotations are the annotations of users that shapes have.
var shapeAnnotations = []string{v1alpha1.GPUMemoryAnnotation, nodecontract.GPUThreadsAnnotation, v1alpha1.ThroughputAnnotation, v1alpha1.FollowsLoadAnnotation}

// widened returns the affinity of a running pod whose required anti-affinity is beyond the bounds: it keeps all pods away in the same topologies, of which it
// has at most mostTopologies.
func widened(terms []corev1.PodAffinityTerm) *corev1.Affinity {
	const mostTopologies = 8
	known, anti := map[string]bool{}, &corev1.PodAntiAffinity{}
	for i := range terms {
		if key := terms[i].TopologyKey; !known[key] && len(known) < mostTopologies {
			known[key] = true
			anti.RequiredDuringSchedulingIgnoredDuringExecution = append(anti.RequiredDuringSchedulingIgnoredDuringExecution, corev1.PodAffinityTerm{
				TopologyKey: key, LabelSelector: &metav1.LabelSelector{}, NamespaceSelector: &metav1.LabelSelector{},
			})
		}
	}
	return &corev1.Affinity{PodAntiAffinity: anti}
}

// mainRequests returns the sum of the requests of a pod's containers for the resources that nodes of all kinds have, and for its GPU resource.
func mainRequests(pod *corev1.Pod) corev1.ResourceList {
	sum, gpu := sumRequests(pod), corev1.ResourceName("")
	for _, name := range slices.Sorted(maps.Keys(sum)) {
		if nodecontract.IsGPUResource(string(name)) && sum[name] > 0 && (gpu == "" || name == v1alpha1.ResourceGPUShared) {
			gpu = name
		}
	}
	maps.DeleteFunc(sum, func(name corev1.ResourceName, _ int64) bool { return IsExtended(name, gpu) })
	return asResourceList(sum)
}
