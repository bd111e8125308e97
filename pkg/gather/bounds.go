package gather

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	volumehelper "k8s.io/component-helpers/storage/volume"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/provreq"
	"karve.sh/karve/pkg/snapshot/facts"
)

// What the caches keep of an object must not depend on what a user adds to it: etcd stores 1.5 MiB, and there may be thousands of such objects. Pods with more than
// these limits or [facts.MaxBytes] are kept without the parts that are too large, and with [facts.CutAnnotation], so that decisions leave them alone.
const (
	// labelsBytes limits the memory of the labels of an object.
	labelsBytes = 8 << 10
	// nameBytes limits names that the API server does not limit, such as those of owners.
	nameBytes = 253
	// maxOwners limits the owners of an object.
	maxOwners = 4
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

// boundedOwners returns the first owner references of an object, with the controller.
func boundedOwners(all []metav1.OwnerReference) []metav1.OwnerReference {
	isController := func(o metav1.OwnerReference) bool { return o.Controller != nil && *o.Controller }
	if i := slices.IndexFunc(all, isController); i >= maxOwners {
		all = slices.Clone(all)
		all[0], all[i] = all[i], all[0]
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
		size += len(key) + len(value) + facts.EntryBytes
	}
	if size <= labelsBytes {
		return all, true
	}
	kept, size := map[string]string{}, 0
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if size += len(key) + len(all[key]) + facts.EntryBytes; size > labelsBytes {
			break
		}
		kept[key] = all[key]
	}
	return kept, false
}
