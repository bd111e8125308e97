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
	residents residents
	began     time.Time
	// times counts consecutive steps among the same pods that did not reduce the cost.
	times int
}

// residents has the pods on the machines of a NodePool, and the total price of those machines that are not leaving.
type residents struct {
	// pods is the number of pods by the UID of their controller.
	pods  map[types.UID]int
	price planner.MicroUSD
	// still reports whether none of the machines is marked or leaving.
	still bool
}

func (f *fleet) residents(pool string) residents {
	r := residents{pods: map[types.UID]int{}, still: true}
	for _, m := range f.machines {
		if m.Pool() != pool {
			continue
		}
		for _, pod := range m.Moving() {
			var owner types.UID
			if c := metav1.GetControllerOf(pod); c != nil {
				owner = c.UID
			}
			r.pods[owner]++
		}
		if m.Replacing() != "" || Disrupting(m.Machine) || m.Leaving() {
			r.still = false
			continue
		}
		r.price += planner.MicroUSD(m.MicroUSDPerHour())
	}
	return r
}

// worked reports whether the step has reduced the cost.
func (a attempt) worked(now residents) bool {
	return now.still && maps.Equal(now.pods, a.residents.pods) && now.price < a.residents.price
}

// backsOff returns why the pool must not begin another step now, because the last one among the same pods did not reduce the cost. It returns "" if it may.
func (a attempt) backsOff(pool string, r residents, now time.Time) string {
	until := a.began.Add(retention.Backoff(a.times))
	if a.repeats(r, now) && now.Before(until) {
		return fmt.Sprintf("the last step among the same pods did not make the machines of NodePool %s cheaper, since the scheduler placed them otherwise; it is tried again at %s",
			pool, until.UTC().Format(time.RFC3339))
	}
	return ""
}

// again returns the attempt that follows this one and begins now.
func (a attempt) again(r residents, now time.Time) attempt {
	next := attempt{r, now, 1}
	if a.repeats(r, now) {
		next.times += a.times
	}
	return next
}

// repeats reports whether a step would begin from the same state as this one. It is false for steps of the same round, which all begin from it.
func (a attempt) repeats(r residents, now time.Time) bool {
	return a.began.Before(now) && maps.Equal(r.pods, a.residents.pods) && r.price >= a.residents.price
}
