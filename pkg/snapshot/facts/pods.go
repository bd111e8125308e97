package facts

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/nodecontract"
)

// ofDaemonSet reports whether a DaemonSet created a pod. It returns false for mirror pods, because no DaemonSet represents them.
func ofDaemonSet(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	return owner != nil && owner.Kind == "DaemonSet"
}

// IsExclusive reports whether only one pod at a time may use a PersistentVolumeClaim.
func IsExclusive(claim *corev1.PersistentVolumeClaim) bool {
	return slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod)
}

// IsCounted reports whether rules of other pods count a pod if its node exists. As in Karpenter, a pod that is being deleted does not count, because
// its place will become free.
func IsCounted(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.DeletionTimestamp.IsZero() && !karpenter.IsTerminal(pod)
}

// completes reports whether a pod shows how long the pods of its Job take.
func completes(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded && JobOf(pod) != nil
}

// JobOf returns the reference to the Job that controls a pod, or nil for other pods. In manifests, it may be to the CronJob whose Job it would be.
func JobOf(pod *corev1.Pod) *metav1.OwnerReference {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || owner.APIVersion != "batch/v1" || owner.Kind != "Job" && owner.Kind != "CronJob" {
		return nil
	}
	return owner
}

func requiredAntiAffinity(pod *corev1.Pod) []corev1.PodAffinityTerm {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return nil
	}
	return pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

func Moves(pod *corev1.Pod) bool {
	return claims.RequestsGPU(&pod.Spec) && karpenter.IsReschedulable(pod)
}

// IsWorkload reports whether a pod is not tied to its node, unlike pods of DaemonSets and static pods.
func IsWorkload(pod *corev1.Pod) bool { return !karpenter.IsDaemon(pod) }

// OwnerOf returns the kind and the name of the workload that created a pod, or those of the pod if nothing did. For a ReplicaSet with a template hash in its name,
// it is the Deployment, and for a Job with the scheduled minute in its name, the CronJob.
func OwnerOf(pod *corev1.Pod) (kind, name string) {
	controller := metav1.GetControllerOfNoCopy(pod)
	if controller == nil {
		return "Pod", pod.Name
	}
	switch controller.Kind {
	case "ReplicaSet":
		if hash := pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; hash != "" {
			if name, ok := strings.CutSuffix(controller.Name, "-"+hash); ok {
				return "Deployment", name
			}
		}
	case "Job":
		if name := scheduled.FindStringSubmatch(controller.Name); name != nil {
			return "CronJob", name[1]
		}
	}
	return controller.Kind, controller.Name
}

// scheduled matches the names of Jobs that a CronJob creates: its own name, and the scheduled time in minutes since 1970.
var scheduled = regexp.MustCompile(`^(.+)-\d{8}$`)

// PodName returns the name of a pod in the planner.
func PodName(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// ComparePods orders pods by their names in the planner.
func ComparePods(a, b *corev1.Pod) int {
	if a.Namespace == b.Namespace {
		return strings.Compare(a.Name, b.Name)
	}
	return strings.Compare(PodName(a), PodName(b))
}

// Unsupported returns a scheduling rule of the pod that Karve does not support yet, or "" if there is none.
func Unsupported(pod *corev1.Pod) string {
	if len(pod.Spec.ResourceClaims) > 0 && claims.Text(pod) == "" {
		return "resource claims"
	}
	return ""
}

// CutAnnotation says which parts of a pod are too large to be kept, and were left out. Only objects in memory have it.
const CutAnnotation = v1alpha1.Group + "/too-large"

// TooLarge returns why Karve does not plan for a pod of which parts were left out, or "" if the pod is complete.
func TooLarge(pod *corev1.Pod) string {
	cut, is := pod.Annotations[CutAnnotation]
	if !is {
		return ""
	}
	return "has " + cut + ", which Karve does not read: make them smaller"
}

// StartTime returns when the kubelet started a pod. If that is unknown, it returns when the pod was created.
func StartTime(pod *corev1.Pod) time.Time {
	if pod.Status.StartTime != nil {
		return pod.Status.StartTime.Time
	}
	return pod.CreationTimestamp.Time
}

// IsForeign reports whether a pod requests no GPU and would be recreated elsewhere if its node were deleted.
func IsForeign(pod *corev1.Pod) bool {
	return !claims.RequestsGPU(&pod.Spec) && karpenter.IsReschedulable(pod)
}

// HostPort is a port of the node that a pod uses. It ignores the host IP: two pods with the same port on different addresses could share a node, but get
// two.
type HostPort struct {
	Number   int32
	Protocol corev1.Protocol
}

func compareHostPorts(a, b HostPort) int {
	return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.Protocol, b.Protocol))
}

// HostPorts returns the host ports that the pod uses while it runs, without duplicates.
func HostPorts(pod *corev1.Pod) []HostPort {
	var ports []HostPort
	note := func(ctr *corev1.Container) {
		for _, p := range ctr.Ports {
			if p.HostPort > 0 {
				ports = append(ports, HostPort{p.HostPort, cmp.Or(p.Protocol, corev1.ProtocolTCP)})
			}
		}
	}
	for i := range pod.Spec.InitContainers {
		if policy := pod.Spec.InitContainers[i].RestartPolicy; policy != nil && *policy == corev1.ContainerRestartPolicyAlways {
			note(&pod.Spec.InitContainers[i])
		}
	}
	for i := range pod.Spec.Containers {
		note(&pod.Spec.Containers[i])
	}
	slices.SortFunc(ports, compareHostPorts)
	return slices.Compact(ports)
}

// Older orders pods from oldest to newest.
func Older(a, b *corev1.Pod) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), ComparePods(a, b))
}

// maxKey is the length of the longest key that is written out. Each term of a pod affinity refers to a selection with the selectors of all of them, so the keys of
// an affinity of hundreds of terms would be megabytes.
const maxKey = 512

// ShortText returns a key, or its checksum if the key is long.
func ShortText(key string) string {
	if len(key) <= maxKey {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// Content returns the text of a pod on which decisions depend, except for its labels and its place. It is equal for the pods of a Deployment, and only for pods
// of the same shape.
func Content(pod *corev1.Pod) string {
	spec := corev1.PodSpec{
		NodeSelector: pod.Spec.NodeSelector, Affinity: pod.Spec.Affinity, Tolerations: pod.Spec.Tolerations,
		TopologySpreadConstraints: pod.Spec.TopologySpreadConstraints, Overhead: pod.Spec.Overhead, Resources: pod.Spec.Resources,
		Priority: pod.Spec.Priority, ResourceClaims: pod.Spec.ResourceClaims,
		Containers: bare(pod.Spec.Containers), InitContainers: bare(pod.Spec.InitContainers),
	}
	b, err := WithBoundedAmounts(&spec).Marshal()
	if err != nil {
		return "pod " + PodName(pod) // A pod that cannot be encoded has its own shape.
	}
	text := string(b) + "\x00" + pod.Annotations[v1alpha1.GPUMemoryAnnotation] + "\x00" + pod.Annotations[nodecontract.GPUThreadsAnnotation] + "\x00" + claims.Text(pod) + "\x00" + SetAsideWhy(pod) + ExcessWhy(pod) + "\x00" + pod.Annotations[CutAnnotation] + "\x00" + throughputText(pod)
	if HasTerms(pod) {
		text += fmt.Sprintf("\x00%s%q", pod.Namespace, termLabels(pod))
	}
	return text
}

// bare returns the containers with only the fields that matter to the scheduler.
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

// affinityTerms returns all terms of a pod's affinity and anti-affinity, required and preferred.
func affinityTerms(spec *corev1.PodSpec) iter.Seq[*corev1.PodAffinityTerm] {
	return func(yield func(*corev1.PodAffinityTerm) bool) {
		if spec.Affinity == nil {
			return
		}
		each := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) bool {
			for i := range required {
				if !yield(&required[i]) {
					return false
				}
			}
			for i := range preferred {
				if !yield(&preferred[i].PodAffinityTerm) {
					return false
				}
			}
			return true
		}
		if a := spec.Affinity.PodAffinity; a != nil && !each(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution) {
			return
		}
		if a := spec.Affinity.PodAntiAffinity; a != nil {
			each(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution)
		}
	}
}

// ClaimName returns the name of the PersistentVolumeClaim of a pod's volume. It returns false if the volume has none. For an ephemeral volume it
// consists of the names of the pod and the volume.
func ClaimName(pod *corev1.Pod, v *corev1.Volume) (string, bool) {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName, true
	case v.Ephemeral != nil:
		return pod.Name + "-" + v.Name, true
	}
	return "", false
}
