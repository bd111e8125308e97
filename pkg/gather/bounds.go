package gather

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	volumehelper "k8s.io/component-helpers/storage/volume"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/provreq"
	"karve.sh/karve/pkg/snapshot/facts"
)

// What the caches keep of an object must not depend on what a user adds to it: etcd stores 1.5 MiB, and there may be thousands of such objects. A pod that
// needs more than these limits is kept without the parts that are too large, and with [snapshot.CutAnnotation], so that decisions leave it alone.
const (
	// specBytes limits the memory of what a spec requires, and largeBytes is the encoded size from which it is measured. Decoded, a spec has up to
	// twenty times its encoded size.
	specBytes, largeBytes = 16 << 10, 256
	// labelsBytes limits the memory of the labels of an object.
	labelsBytes = 8 << 10
	// nameBytes limits names that the API server does not limit, such as those of owners.
	nameBytes = 253
	// maxOwners, maxVolumes, maxPorts and maxResources limit the lists of a pod.
	maxOwners, maxVolumes, maxPorts, maxResources = 4, 32, 32, 32
	// maxClaims is one more than the claims for which pkg/claims plans.
	maxClaims = 33
	// messageBytes limits the reasons and messages of conditions.
	messageBytes = 1 << 10
	// valueBytes limits the value of an annotation of a pod, such as the name of a group.
	valueBytes = nameBytes
)

// selectorBytes limits the encoded size of the selector of a PodDisruptionBudget, which each pass parses.
const selectorBytes = 4 << 10

// boundBudget keeps what decisions read of a PodDisruptionBudget. One whose selector is too large or cannot be read selects all pods of its namespace and
// allows no eviction, so that it harms nobody else.
func boundBudget(o *policyv1.PodDisruptionBudget) {
	o.Spec = policyv1.PodDisruptionBudgetSpec{
		Selector: o.Spec.Selector, MinAvailable: o.Spec.MinAvailable, MaxUnavailable: o.Spec.MaxUnavailable, UnhealthyPodEvictionPolicy: o.Spec.UnhealthyPodEvictionPolicy,
	}
	o.Status = policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: o.Status.DisruptionsAllowed}
	within := o.Spec.Selector.Size() <= selectorBytes
	if within {
		_, err := metav1.LabelSelectorAsSelector(o.Spec.Selector)
		within = err == nil
	}
	if !within {
		o.Spec = policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}, MaxUnavailable: new(intstr.FromInt32(0))}
		o.Status.DisruptionsAllowed = 0
	}
}

// podAnnotations are the annotations that decisions read of pods, PersistentVolumeClaims and pod templates, with the package that reads them.
var podAnnotations = map[string]string{
	nodecontract.GPUMemoryAnnotation:   "pkg/snapshot/facts",
	nodecontract.GPUThreadsAnnotation:  "pkg/snapshot/facts",
	v1alpha1.EvictWhenUnusedAnnotation: "pkg/controllers/usage",
	v1alpha1.ThroughputAnnotation:      "pkg/snapshot/facts",
	v1alpha1.FollowsLoadAnnotation:     "pkg/snapshot/facts",
	v1alpha1.GroupAnnotation:           "pkg/snapshot/facts",
	v1alpha1.GroupMinMembersAnnotation: "pkg/snapshot/facts",
	facts.VolcanoGroupAnnotation:       "pkg/snapshot/facts",
	facts.VolcanoOtherGroupAnnotation:  "pkg/snapshot/facts",
	facts.KAIGroupAnnotation:           "pkg/snapshot/facts",
	facts.KueueTotalAnnotation:         "pkg/snapshot/facts",
	facts.KueueFastAnnotation:          "pkg/snapshot/facts",
	facts.KueueServingAnnotation:       "pkg/snapshot/facts",
	karpv1.DoNotDisruptAnnotationKey:   "pkg/karpenter",
	corev1.PodDeletionCost:             "pkg/karpenter",
	provreq.ConsumeAnnotation:          "pkg/snapshot/facts",
	volumehelper.AnnBindCompleted:      "pkg/snapshot/records",
	corev1.BetaStorageClassAnnotation:  "pkg/snapshot/records",
}

// userAnnotations returns the annotations of an object of a user that decisions read, or nil if there are none. It cuts long values, which are invalid.
func userAnnotations(all map[string]string) map[string]string {
	var kept map[string]string
	for key := range podAnnotations {
		value, has := all[key]
		if !has {
			continue
		}
		if kept == nil {
			kept = map[string]string{}
		}
		if len(value) > valueBytes {
			value = fmt.Sprintf("%.32s... (more than %d bytes)", value, valueBytes)
		}
		kept[key] = value
	}
	return kept
}

// boundedOwners returns the owner references of an object, the controller first.
func boundedOwners(all []metav1.OwnerReference) []metav1.OwnerReference {
	isController := func(o metav1.OwnerReference) bool { return o.Controller != nil && *o.Controller }
	if len(all) > maxOwners {
		all = slices.Clone(all)
		slices.SortStableFunc(all, func(a, b metav1.OwnerReference) int {
			return cmp.Compare(firstIf(isController(a)), firstIf(isController(b)))
		})
	}
	all = prefix(all, maxOwners)
	for i := range all {
		o := &all[i]
		if len(o.APIVersion)+len(o.Kind)+len(o.Name)+len(o.UID) > 4*nameBytes {
			all = slices.Clone(all)
			o = &all[i]
			o.APIVersion, o.Kind, o.Name, o.UID = clip(o.APIVersion, nameBytes), clip(o.Kind, nameBytes), clip(o.Name, nameBytes), o.UID[:min(len(o.UID), nameBytes)]
		}
	}
	return all
}

func firstIf(first bool) int {
	if first {
		return 0
	}
	return 1
}

// prefix returns the first n values, without the memory of the others.
func prefix[T any](all []T, n int) []T {
	if len(all) <= n {
		return all
	}
	return slices.Clone(all[:n])
}

// clip returns the beginning of a text, without the memory of the rest.
func clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return string([]byte(text[:n]))
}

// boundedLabels returns the labels that fit into the limit, in the order of their keys. It returns false if it leaves out any: selectors of others may then
// not match the object.
func boundedLabels(all map[string]string) (map[string]string, bool) {
	size := 0
	for key, value := range all {
		size += len(key) + len(value) + entryBytes
	}
	if size <= labelsBytes {
		return all, true
	}
	kept, size := map[string]string{}, 0
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if size += len(key) + len(all[key]) + entryBytes; size > labelsBytes {
			break
		}
		kept[key] = all[key]
	}
	return kept, false
}

// entryBytes is about the memory that an entry of a map takes besides its key and value.
const entryBytes = 48

// boundedSpec returns a spec without the parts that do not fit into the limit. It returns false if it leaves out any.
func boundedSpec(s corev1.PodSpec, encoded int) (corev1.PodSpec, bool) {
	if encoded <= largeBytes || memoryOf(s) <= specBytes {
		return s, true
	}
	if len(s.ResourceClaims) == 0 && !claims.RequestsGPU(&s) {
		s = withOneContainer(s) // Of pods without GPUs, decisions read only the sum.
		if memoryOf(s) <= specBytes {
			return s, true
		}
	}
	left := specBytes
	fits := func(part any) bool {
		n := memoryOf(part)
		if n > left {
			return false
		}
		left -= n
		return true
	}
	kept := corev1.PodSpec{Priority: s.Priority, SchedulingGroup: s.SchedulingGroup, Containers: withOneContainer(s).Containers}
	kept.Containers[0].Resources.Requests, kept.Containers[0].Ports = boundedRequests(kept.Containers[0].Resources.Requests), prefix(kept.Containers[0].Ports, maxPorts)
	left -= memoryOf(kept.Containers)
	if claims := prefix(s.ResourceClaims, maxClaims); fits(claims) {
		kept.ResourceClaims = claims
	}
	if fits(s.Tolerations) {
		kept.Tolerations = s.Tolerations
	}
	if fits(s.NodeSelector) {
		kept.NodeSelector = s.NodeSelector
	}
	if a := s.Affinity; a != nil {
		kept.Affinity = &corev1.Affinity{}
		if fits(a.NodeAffinity) {
			kept.Affinity.NodeAffinity = a.NodeAffinity
		}
		if a.PodAntiAffinity != nil && len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
			terms := a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
			if !fits(terms) {
				terms = widened(terms)
			}
			kept.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}
		}
	}
	if fits(s.TopologySpreadConstraints) {
		kept.TopologySpreadConstraints = s.TopologySpreadConstraints
	}
	return kept, false
}

// widened returns anti-affinity with a term for each topology that is at least as strict: the scheduler keeps other pods away from a running pod by its
// terms, so those must not be lost.
func widened(terms []corev1.PodAffinityTerm) []corev1.PodAffinityTerm {
	const mostTopologies = 8
	var all []corev1.PodAffinityTerm
	for i := range terms {
		key := clip(terms[i].TopologyKey, 2*nameBytes)
		if len(all) < mostTopologies && !slices.ContainsFunc(all, func(t corev1.PodAffinityTerm) bool { return t.TopologyKey == key }) {
			all = append(all, corev1.PodAffinityTerm{TopologyKey: key, LabelSelector: &metav1.LabelSelector{}, NamespaceSelector: &metav1.LabelSelector{}})
		}
	}
	return all
}

// withOneContainer returns a spec with one container that has the requests and host ports of all.
func withOneContainer(s corev1.PodSpec) corev1.PodSpec {
	one := corev1.Container{}
	for _, containers := range []*[]corev1.Container{&s.InitContainers, &s.Containers} {
		*containers = slices.Clone(*containers)
		for i := range *containers {
			c := &(*containers)[i]
			one.Ports = append(one.Ports, c.Ports...)
			if len(c.Resources.Limits) > 0 { // The API server defaults the requests of a pod to its limits, but not those of a template.
				requests := maps.Clone(c.Resources.Limits)
				maps.Copy(requests, c.Resources.Requests)
				c.Resources.Requests = requests
			}
		}
	}
	one.Resources.Requests = facts.PodRequests(&corev1.Pod{Spec: s})
	s.Containers, s.InitContainers, s.Overhead, s.Resources = []corev1.Container{one}, nil, nil, nil
	return s
}

// boundedRequests returns the requests for the usual resources and for GPUs, and as many others as the limit allows.
func boundedRequests(all corev1.ResourceList) corev1.ResourceList {
	important := func(name corev1.ResourceName) bool {
		return name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage || nodecontract.IsGPUResource(string(name))
	}
	names := slices.SortedFunc(maps.Keys(all), func(a, b corev1.ResourceName) int {
		return cmp.Or(cmp.Compare(firstIf(important(a)), firstIf(important(b))), cmp.Compare(a, b))
	})
	kept := corev1.ResourceList{}
	for _, name := range names[:min(len(names), maxResources)] {
		kept[name] = all[name]
	}
	return kept
}

// memoryOf returns about how much memory a value takes.
func memoryOf(value any) int { return reflectedMemory(reflect.ValueOf(value)) }

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
			sum += entryBytes + int(key.Type().Size()) + int(value.Type().Size()) + reflectedMemory(key) + reflectedMemory(value)
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
