package facts

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/nodecontract"
)

// maxKeyLength is the length of the longest key that is written out. Each term of a pod affinity refers to a selection with the selectors of all of them, so
// the keys of a long affinity would be many times its size.
const maxKeyLength = 512

// ShortText returns a key, or its checksum if the key is long.
func ShortText(key string) string {
	if len(key) <= maxKeyLength {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// Content returns the text of a pod on which decisions depend, except for its labels and its place. It is equal for the pods of a Deployment, and only for pods
// of the same shape.
func Content(pod *corev1.Pod) string {
	spec := Placement(&pod.Spec)
	spec.Volumes = nil
	b, err := spec.Marshal()
	if err != nil {
		return "pod " + PodName(pod) // A pod that cannot be encoded has its own shape.
	}
	text := string(b) + "\x00" + pod.Annotations[v1alpha1.GPUMemoryAnnotation] + "\x00" + pod.Annotations[nodecontract.GPUThreadsAnnotation] + "\x00" + claims.Text(pod) + "\x00" + SetAsideWhy(pod) + "\x00" + pod.Annotations[CutAnnotation] + "\x00" + throughputText(pod)
	if HasTerms(pod) {
		text += fmt.Sprintf("\x00%s%q", pod.Namespace, termLabels(pod))
	}
	return text
}

// HasTerms reports whether the pod has any terms about other pods.
func HasTerms(pod *corev1.Pod) bool {
	affinity := pod.Spec.Affinity
	return len(pod.Spec.TopologySpreadConstraints) > 0 || affinity != nil && (affinity.PodAffinity != nil || affinity.PodAntiAffinity != nil)
}

// termLabels returns the pod's labels that its own terms use in matchLabelKeys and mismatchLabelKeys.
func termLabels(pod *corev1.Pod) map[string]string {
	asked := map[string]string{}
	note := func(keys ...string) {
		for _, key := range keys {
			if value, ok := pod.Labels[key]; ok {
				asked[key] = value
			}
		}
	}
	for i := range pod.Spec.TopologySpreadConstraints {
		note(pod.Spec.TopologySpreadConstraints[i].MatchLabelKeys...)
	}
	for t := range affinityTerms(&pod.Spec) {
		note(t.MatchLabelKeys...)
		note(t.MismatchLabelKeys...)
	}
	return asked
}
