package facts

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"

	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/karpenter"
)

// The scheduler tries pods one after the other and says of each that it found no node. In a burst, that takes as long as the machines take to start. Pods
// of a Deployment come together, so the first of them are not like the last, and machines that were bought for the first do not suit the others. Therefore
// plans also include pods that the scheduler has not tried yet.

// ReadAhead says which untried pods a view includes. The zero value includes none.
type ReadAhead struct {
	// Open reports whether a view with other pods to plan for, or with a machine that is starting, includes further untried pods.
	Open bool
	// Alive reports whether the scheduler is known to try pods. Without that, nothing is launched for untried pods.
	Alive bool
	// Planned has the untried pods that have a place in the plan in progress. They stay in every view: without them, their places would look free.
	Planned sets.Set[types.UID]
	// Tried has, by priority, when the newest pod was created that the scheduler has tried.
	Tried map[int32]time.Time
}

// overtakenAfter is how much newer than an untried pod another one must be to show that the scheduler does not try the former. The order in which the scheduler
// sees pods, and the order of its answers, may differ from that of their creation.
const overtakenAfter = 5 * time.Second

// Untried reports whether a pod asks for a GPU and waits for the default scheduler, which has not tried it yet. Pods with scheduling gates have a condition
// from the beginning. The pods of a group are not untried: some schedulers give them no condition, and all of them are planned for together with the first one that was tried.
func Untried(pod *corev1.Pod) bool {
	if pod.Spec.NodeName != "" || !pod.DeletionTimestamp.IsZero() || pod.Status.Phase != corev1.PodPending && pod.Status.Phase != "" {
		return false
	}
	if name := pod.Spec.SchedulerName; name != "" && name != corev1.DefaultSchedulerName || TooLarge(pod) != "" {
		return false
	}
	return pod.Spec.SchedulingGroup == nil && !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled }) &&
		claims.RequestsGPU(&pod.Spec) && !karpenter.IsDaemon(pod) && !isGrouped(pod)
}

// Overtaken reports whether the scheduler has tried a newer pod of the same or a lower priority. It takes pods in this order, so a plugin of the scheduler
// holds the pod back.
func (r *ReadAhead) Overtaken(pod *corev1.Pod) bool {
	priority := schedulinghelper.PodPriority(pod)
	for of, newest := range r.Tried {
		if of <= priority && newest.After(pod.CreationTimestamp.Add(overtakenAfter)) {
			return true
		}
	}
	return false
}
