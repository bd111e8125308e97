package disruption

import (
	"fmt"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"karve.sh/karve/pkg/fleet/retention"
	"karve.sh/karve/pkg/planner"
)

// The scheduler places the pods of a step; the plan does not. If its placement leaves no room for the last pod, another machine is launched, the cost
// is the same as before, and the same step would seem to save again. So unless the last step reduced the cost, Karve does not repeat a step among the
// same pods for a while. This time doubles with each step.

// attempt is the last step to a cheaper layout that Karve began for a NodePool. It is zero if there was none, or if the last one reduced the cost.
type attempt struct {
	fleet fleet
	began time.Time
	// times counts consecutive steps among the same pods that did not reduce the cost.
	times int
}

// fleet has the pods on the machines of a NodePool, and the total price of those machines that are not leaving.
type fleet struct {
	// pods is the number of pods by the UID of their controller.
	pods  map[types.UID]int
	price planner.MicroUSD
	// still reports whether none of the machines is marked or leaving.
	still bool
}

func (s *pass) fleet(pool string) fleet {
	f := fleet{pods: map[types.UID]int{}, still: true}
	for _, m := range s.machines {
		if m.Pool() != pool {
			continue
		}
		for _, pod := range m.Moving() {
			var owner types.UID
			if c := metav1.GetControllerOf(pod); c != nil {
				owner = c.UID
			}
			f.pods[owner]++
		}
		if m.Replacing() != "" || disrupting(m.Machine) || m.Leaving() {
			f.still = false
			continue
		}
		f.price += planner.MicroUSD(m.MicroUSDPerHour())
	}
	return f
}

// worked reports whether the step has reduced the cost.
func (a attempt) worked(s *pass, pool string) bool {
	f := s.fleet(pool)
	return f.still && maps.Equal(f.pods, a.fleet.pods) && f.price < a.fleet.price
}

// backsOff returns why the pool must not begin another step now, because the last one among the same pods did not reduce the cost. It returns "" if it may.
func (a attempt) backsOff(s *pass, pool string) string {
	until := a.began.Add(retention.Backoff(a.times))
	if a.repeats(s.fleet(pool), s.now) && s.now.Before(until) {
		return fmt.Sprintf("the last step among the same pods did not make the machines of NodePool %s cheaper, since the scheduler placed them otherwise; it is tried again at %s",
			pool, until.UTC().Format(time.RFC3339))
	}
	return ""
}

// again returns the attempt that follows this one and begins now.
func (a attempt) again(s *pass, pool string) attempt {
	next := attempt{s.fleet(pool), s.now, 1}
	if a.repeats(next.fleet, s.now) {
		next.times += a.times
	}
	return next
}

// repeats reports whether a step would begin from the same state as this one. It is false for steps of the same pass, which all begin from it.
func (a attempt) repeats(f fleet, now time.Time) bool {
	return a.began.Before(now) && maps.Equal(f.pods, a.fleet.pods) && f.price >= a.fleet.price
}
