package facts

import (
	"cmp"
	"iter"
	"regexp"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/karpenter"
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

// showsDuration reports whether a pod shows how long the pods of its Job take.
func showsDuration(pod *corev1.Pod) bool {
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
		if name := cronJobName.FindStringSubmatch(controller.Name); name != nil {
			return "CronJob", name[1]
		}
	}
	return controller.Kind, controller.Name
}

// cronJobName matches the names of Jobs that a CronJob creates: its own name, and the scheduled time in minutes since 1970.
var cronJobName = regexp.MustCompile(`^(.+)-\d{8}$`)

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
