package planning

import (
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
)

const (
	// silence is how long after its last answer the scheduler counts as alive. It is longer than a batch of pods is gathered. For as long after a start, it is
	// unknown whether the scheduler is alive.
	silence = 15 * time.Second
	// plannedFor is how long a pod keeps its place in plans without being tried.
	plannedFor = 5 * time.Minute
	// maxPriorities limits the number of priorities that are distinguished.
	maxPriorities = 64
)

// ReadAhead remembers what the scheduler has tried, and which pods were planned before. It is safe for concurrent use.
type ReadAhead struct {
	mu sync.Mutex
	// began is when the first view was made, and tried when the scheduler last tried a pod.
	began, tried time.Time
	// newest has, by priority, when the newest pod was created that the scheduler has tried.
	newest map[int32]time.Time
	// planned has the untried pods with a place in the plan, with the time at which they got it first. It is nil before the first plan.
	planned map[types.UID]time.Time
}

// Saw records a change of a pod.
func (r *ReadAhead) Saw(before, after *corev1.Pod, now time.Time) {
	if name := after.Spec.SchedulerName; name != "" && name != corev1.DefaultSchedulerName || verdictOf(before) == verdictOf(after) && before.Spec.NodeName == after.Spec.NodeName {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tried = now
	if verdictOf(before) != "" {
		return // It is not the first try, so it says nothing about other pods that were not tried.
	}
	if r.newest == nil {
		r.newest = map[int32]time.Time{}
	}
	priority := schedulinghelper.PodPriority(after)
	if _, known := r.newest[priority]; !known && len(r.newest) >= maxPriorities {
		return
	}
	if at := after.CreationTimestamp.Time; at.After(r.newest[priority]) {
		r.newest[priority] = at
	}
}

// verdictOf returns the reason of the scheduler's condition of a pod, or "" if it has none.
func verdictOf(pod *corev1.Pod) string {
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled })
	if i < 0 {
		return ""
	}
	return string(pod.Status.Conditions[i].Status) + pod.Status.Conditions[i].Reason
}

// of returns what a view that is made now includes.
func (r *ReadAhead) of(now time.Time) facts.ReadAhead {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.began.IsZero() {
		r.began = now
	}
	maps.DeleteFunc(r.planned, func(_ types.UID, since time.Time) bool { return now.Sub(since) > plannedFor })
	alive := !r.tried.IsZero() && now.Sub(r.tried) <= silence
	return facts.ReadAhead{Open: alive || r.tried.IsZero() && now.Sub(r.began) <= silence, Alive: alive, Planned: sets.KeySet(r.planned), Tried: maps.Clone(r.newest)}
}

// keep remembers the untried pods to which a plan gives a place.
func (r *ReadAhead) keep(view *snapshot.View, plan planner.Plan, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	planned := map[types.UID]time.Time{}
	note := func(pod *corev1.Pod) {
		if pod == nil || !facts.Untried(pod) {
			return
		}
		if planned[pod.UID] = now; !r.planned[pod.UID].IsZero() {
			planned[pod.UID] = r.planned[pod.UID]
		}
	}
	for _, p := range plan.Placements {
		for _, name := range p.Pods {
			note(view.Pods[name])
		}
	}
	for _, l := range plan.Launches {
		for _, name := range l.Pods {
			note(view.Pods[name])
		}
	}
	for _, pod := range view.Postponed {
		if !r.planned[pod.UID].IsZero() {
			note(pod)
		}
	}
	r.planned = planned
}

// Planned reports whether an untried pod has a place in the plan in progress, and nothing shows that the scheduler does not try it. Before the first plan, any
// may have one: machines that a former controller launched for such pods become ready meanwhile, and without their nominations, others take the places. Without a
// ReadAhead, none has.
func (r *ReadAhead) Planned(pod *corev1.Pod) bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.planned != nil && r.planned[pod.UID].IsZero() {
		return false
	}
	return !(&facts.ReadAhead{Tried: r.newest}).Overtaken(pod)
}
