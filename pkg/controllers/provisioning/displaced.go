package provisioning

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// The scheduler does not always bind pods where they are planned. A pod that takes the place of another one leaves its own free, on a machine that is
// starting or has just started. If Karve launched a machine for each displaced pod immediately, the fleet would cost several percent more, and the empty
// machine would attract the pods that the scheduler tries next.

const (
	// displacedFor is how long a displaced pod waits for another place before a machine is launched for it.
	displacedFor = 15 * time.Second
	// fillsFor is how long after its initialization the scheduler may still bind pods to a machine that were planned for others.
	fillsFor = 8 * time.Second
)

// seats remembers which pending pods have a machine that was launched for them, or are displaced. Pods of a class are interchangeable and plans exchange
// them, so only the number of a class's pods matters. After a restart all pods count as new, and their machines are launched immediately.
type seats struct {
	// since has the pods by UID, with the time when a displaced pod lost its place. For a pod that has a place, it is zero.
	since map[types.UID]time.Time
	// machines has the NodeClaims that the pods can count on.
	machines sets.Set[string]
}

// displaced describes the displaced pods of a plan.
type displaced struct {
	// waits reports for each launch whether it waits, and since when its pods are displaced. The time is zero for a launch for new pods.
	waits []bool
	since []time.Time
	// lost has the times at which the pods lost their places, by the names of the pods.
	lost map[string]time.Time
	// next is when the first wait ends, or 0 if nothing waits.
	next time.Duration
}

// of returns the displaced pods of a plan. A launch waits if a machine was launched for each of its pods before, and another machine that admits one of them is
// starting. It waits no longer than displacedFor after the first of them lost its place. If any machine is lost, all pods count as new: they need another
// machine in any case.
func (s *seats) of(view *snapshot.View, plan planner.Plan, now time.Time) displaced {
	machines := countedOn(view)
	if s.machines.Difference(machines).Len() > 0 {
		s.since = nil
	}
	s.machines = machines
	d := displaced{waits: make([]bool, len(plan.Launches)), since: make([]time.Time, len(plan.Launches)), lost: map[string]time.Time{}}
	class, fresh, times := s.classes(view)
	for i, l := range plan.Launches {
		byClass := map[int][]string{}
		for _, pod := range l.Pods {
			if c, ok := class[pod]; ok {
				byClass[c] = append(byClass[c], pod)
			}
		}
		isNew := len(byClass) == 0 // It is headroom.
		for c, pods := range byClass {
			isNew = isNew || fresh[c] > 0
			fresh[c] -= min(fresh[c], len(pods))
		}
		if isNew {
			continue
		}
		first := now
		for c, pods := range byClass {
			for _, pod := range pods {
				lost := now
				if len(times[c]) > 0 {
					lost, times[c] = times[c][0], times[c][1:]
				}
				d.lost[pod] = lost
				if lost.Before(first) {
					first = lost
				}
			}
		}
		d.since[i] = first
		left := first.Add(displacedFor).Sub(now)
		if d.waits[i] = left > 0 && fills(view, byClass, now); d.waits[i] && (d.next == 0 || left < d.next) {
			d.next = left
		}
	}
	return d
}

// classes returns the class of each pending pod, how many pods of each class have never had a machine, and when the others lost their places, the earliest
// first.
func (s *seats) classes(view *snapshot.View) (class map[string]int, fresh []int, times [][]time.Time) {
	class, fresh, times = map[string]int{}, make([]int, len(view.Classes)), make([][]time.Time, len(view.Classes))
	for c := range view.Classes {
		for _, name := range view.Classes[c].Pods {
			pod := view.Pods[name]
			since, known := s.since[pod.UID]
			class[name] = c
			switch {
			case pod.Spec.NodeName != "" || !known: // Pods on machines that are leaving do not wait.
				fresh[c]++
			case !since.IsZero():
				times[c] = append(times[c], since)
			}
		}
		slices.SortFunc(times[c], time.Time.Compare)
	}
	return class, fresh, times
}

// note records the pods that a plan has given a place: on a machine, or in one of the launches that were made. Pods whose launches are held back for other
// reasons stay new.
func (s *seats) note(view *snapshot.View, plan planner.Plan, d displaced, made []int) {
	s.since = map[types.UID]time.Time{}
	has := func(pods []string, lost map[string]time.Time) {
		for _, name := range pods {
			if pod := view.Pods[name]; pod != nil && pod.Spec.NodeName == "" {
				s.since[pod.UID] = lost[name]
			}
		}
	}
	for _, p := range plan.Placements {
		has(p.Pods, nil)
	}
	for i, l := range plan.Launches {
		if slices.Contains(made, i) {
			has(l.Pods, nil)
		} else if !d.since[i].IsZero() {
			has(l.Pods, d.lost)
		}
	}
}

// countedOn returns the names of the NodeClaims whose machines have started or can still start.
func countedOn(view *snapshot.View) sets.Set[string] {
	names := sets.New[string]()
	for i := range view.Machines {
		if m := &view.Machines[i]; m.Started() && !m.Leaving() || !view.Decided(m) {
			names.Insert(m.Claim.Name)
		}
	}
	return names
}

// fills reports whether a machine that admits pods of one of the classes is starting or has just started.
func fills(view *snapshot.View, classes map[int][]string, now time.Time) bool {
	for c := range classes {
		for _, node := range view.Classes[c].Nodes {
			if m := view.MachineOn(node); m != nil && (view.Starting(node) || now.Before(initializedAt(m).Add(fillsFor))) {
				return true
			}
		}
	}
	return false
}

func initializedAt(m *records.Machine) time.Time {
	if c := facts.Condition(m.Claim.Status.Conditions, karpv1.ConditionTypeInitialized); c.IsTrue() {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

// placeTaken is the reason of the event on a displaced pod that waits.
const placeTaken planner.Reason = "PlaceTaken"

var placeTakenMessage = fmt.Sprintf("another pod has taken its place: it waits up to %s for a place on a node that is starting, before another node is launched", displacedFor)
