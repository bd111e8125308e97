package facts

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/claims"
)

// MaxBytes bounds the memory of what decisions read of a pod's spec. The API server bounds only the size of an object, 1.5 MiB, so a single pod could delay the
// plans for all others, and thousands of them could fill the memory. A pod that needs more is kept without the parts that are too large, and waits alone: see
// [TooLarge].
const MaxBytes = 16 << 10

// smallBytes is the encoded size up to which a spec is not measured. Decoded, a spec has up to twenty times its encoded size.
const smallBytes = 512

// Bounded returns the pod without the parts of its spec that do not fit into MaxBytes, and with CutAnnotation. It is the pod itself if all of them fit.
func Bounded(pod *corev1.Pod) *corev1.Pod {
	if TooLarge(pod) != "" || WithBoundedAmounts(&pod.Spec).Size() <= smallBytes {
		return pod
	}
	spec := Placement(&pod.Spec)
	if MemoryOf(spec) <= MaxBytes {
		return pod
	}
	within := *pod
	kept := &within.Spec
	one := corev1.Container{Ports: portsOf(&spec), Resources: corev1.ResourceRequirements{Requests: PodRequests(&corev1.Pod{Spec: spec})}}
	if len(spec.ResourceClaims) == 0 && !claims.RequestsGPU(&spec) { // Of pods without GPUs, decisions read only the sum.
		spec.InitContainers, spec.Containers, spec.Overhead, spec.Resources = nil, []corev1.Container{one}, nil, nil
		if MemoryOf(spec) <= MaxBytes {
			kept.InitContainers, kept.Containers, kept.Overhead, kept.Resources = nil, spec.Containers, nil, nil
			return &within
		}
	}
	gpu, _ := GPUResource(&corev1.Pod{Spec: spec})
	one.Resources.Requests = mainRequests(one.Resources.Requests, gpu)
	left := MaxBytes - MemoryOf(one.Resources)
	keepIfFits(&left, &one.Ports)
	kept.InitContainers, kept.Containers, kept.Overhead, kept.Resources = nil, []corev1.Container{one}, nil, nil
	kept.Volumes = spec.Volumes
	keepIfFits(&left, &kept.ResourceClaims)
	keepIfFits(&left, &kept.Tolerations)
	keepIfFits(&left, &kept.NodeSelector)
	keepIfFits(&left, &kept.Volumes)
	if a := spec.Affinity; a != nil {
		kept.Affinity = &corev1.Affinity{NodeAffinity: a.NodeAffinity}
		keepIfFits(&left, &kept.Affinity.NodeAffinity)
	}
	if terms := requiredAntiAffinity(pod); len(terms) > 0 {
		if MemoryOf(terms) > left {
			terms = widened(terms)
		}
		left -= MemoryOf(terms)
		kept.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}
	}
	keepIfFits(&left, &kept.TopologySpreadConstraints)
	within.Annotations = maps.Clone(pod.Annotations)
	metav1.SetMetaDataAnnotation(&within.ObjectMeta, CutAnnotation, fmt.Sprintf("containers, selectors, affinity, tolerations, claims or volumes of more than %d KiB", MaxBytes>>10))
	return &within
}

// keepIfFits removes a part that does not fit into the memory that is left.
func keepIfFits[T any](left *int, part *T) {
	n := MemoryOf(*part)
	if n > *left {
		var none T
		*part, n = none, 0
	}
	*left -= n
}

// Placement returns the parts of a spec that affect a pod's placement, with amounts that can be added in bounded time, and without those that differ between
// the pods of one template. Templates ask for the same as their pods: a limit without a request is one.
func Placement(s *corev1.PodSpec) corev1.PodSpec {
	bare := corev1.PodSpec{
		Containers: placementOf(s.Containers), InitContainers: placementOf(s.InitContainers), Resources: s.Resources, Overhead: s.Overhead,
		NodeSelector: s.NodeSelector, Affinity: s.Affinity, Tolerations: s.Tolerations, TopologySpreadConstraints: s.TopologySpreadConstraints,
		Priority: s.Priority, ResourceClaims: s.ResourceClaims,
	}
	for i := range s.Volumes {
		switch v := &s.Volumes[i]; {
		case v.PersistentVolumeClaim != nil:
			bare.Volumes = append(bare.Volumes, corev1.Volume{Name: v.Name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: v.PersistentVolumeClaim}})
		case v.Ephemeral != nil:
			bare.Volumes = append(bare.Volumes, corev1.Volume{Name: v.Name, VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}})
		}
	}
	return *WithBoundedAmounts(&bare)
}

func placementOf(all []corev1.Container) []corev1.Container {
	if all == nil {
		return nil
	}
	bare := make([]corev1.Container, len(all))
	for i := range all {
		c := &all[i]
		bare[i] = corev1.Container{RestartPolicy: c.RestartPolicy, Resources: corev1.ResourceRequirements{Requests: containerRequests(&c.Resources), Claims: c.Resources.Claims}}
		for _, p := range c.Ports {
			if p.HostPort > 0 {
				bare[i].Ports = append(bare[i].Ports, corev1.ContainerPort{HostPort: p.HostPort, Protocol: p.Protocol})
			}
		}
	}
	return bare
}

func portsOf(s *corev1.PodSpec) []corev1.ContainerPort {
	var ports []corev1.ContainerPort
	for _, c := range slices.Concat(s.InitContainers, s.Containers) {
		ports = append(ports, c.Ports...)
	}
	return ports
}

// mainRequests returns a pod's requests for the resources that nodes of all kinds have, and for its GPU resource. Of slots, it returns some sizes.
func mainRequests(requests corev1.ResourceList, gpu corev1.ResourceName) corev1.ResourceList {
	const maxRequests = 32
	main := corev1.ResourceList{} // A map that shrinks keeps its memory.
	first := []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, gpu}
	for _, name := range slices.Concat(first, slices.Sorted(maps.Keys(requests))) {
		if q, has := requests[name]; has && !IsExtended(name, gpu) && len(main) < maxRequests {
			main[name] = q
		}
	}
	return main
}

// widened returns anti-affinity with a term for each topology that is at least as strict: the scheduler keeps other pods away from a running pod by its
// terms, so those must not be lost.
func widened(terms []corev1.PodAffinityTerm) []corev1.PodAffinityTerm {
	const maxTopologies, keyBytes = 8, 512
	var all []corev1.PodAffinityTerm
	for i := range terms {
		key := strings.Clone(terms[i].TopologyKey[:min(len(terms[i].TopologyKey), keyBytes)])
		if len(all) < maxTopologies && !slices.ContainsFunc(all, func(t corev1.PodAffinityTerm) bool { return t.TopologyKey == key }) {
			all = append(all, corev1.PodAffinityTerm{TopologyKey: key, LabelSelector: &metav1.LabelSelector{}, NamespaceSelector: &metav1.LabelSelector{}})
		}
	}
	return all
}

// LoadOf returns the part of the work of a plan that a pod with a spec causes, in terms, and the part of that for its node affinity. Most node selectors and
// required terms of node affinity count as none.
func LoadOf(s *corev1.PodSpec) (load, nodeLoad int) {
	nodes, pods := len(s.NodeSelector), 0
	count := func(t *corev1.NodeSelectorTerm) {
		nodes += 5
		for _, e := range slices.Concat(t.MatchExpressions, t.MatchFields) {
			nodes += 6 + len(e.Values)
		}
	}
	if s.Affinity != nil && s.Affinity.NodeAffinity != nil {
		a := s.Affinity.NodeAffinity
		if required := a.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
			for i := range required.NodeSelectorTerms {
				count(&required.NodeSelectorTerms[i])
			}
		}
		pods += len(a.PreferredDuringSchedulingIgnoredDuringExecution)
		for i := range a.PreferredDuringSchedulingIgnoredDuringExecution {
			count(&a.PreferredDuringSchedulingIgnoredDuringExecution[i].Preference)
		}
	}
	bytes := 0
	for i := range s.TopologySpreadConstraints {
		pods, bytes = pods+1, bytes+s.TopologySpreadConstraints[i].Size()
	}
	for t := range affinityTerms(s) {
		pods, bytes = pods+1, bytes+t.Size()
	}
	return pods + bytes/2048 + nodes/100, nodes / 100
}

// EntryBytes is about the memory that an entry of a map takes besides its key and value.
const EntryBytes = 48

// MemoryOf returns about how much memory a value takes.
func MemoryOf(value any) int { return reflectedMemory(reflect.ValueOf(value)) }

var timeType = reflect.TypeFor[time.Time]()

func reflectedMemory(v reflect.Value) int {
	if !v.IsValid() || v.Type() == timeType {
		return 0
	}
	switch v.Kind() { //nolint:exhaustive // Other kinds have no memory elsewhere.
	case reflect.String:
		return v.Len()
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return 0
		}
		return int(v.Elem().Type().Size()) + reflectedMemory(v.Elem())
	case reflect.Slice:
		sum := v.Len() * int(v.Type().Elem().Size())
		for i := range v.Len() {
			sum += reflectedMemory(v.Index(i))
		}
		return sum
	case reflect.Map:
		sum := 0
		for key, value := range v.Seq2() {
			sum += EntryBytes + int(key.Type().Size()) + int(value.Type().Size()) + reflectedMemory(key) + reflectedMemory(value)
		}
		return sum
	case reflect.Struct:
		sum := 0
		for _, field := range v.Fields() {
			sum += reflectedMemory(field)
		}
		return sum
	}
	return 0
}
