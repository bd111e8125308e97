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

// The scheduler places the pods of a step, not the plan. Where it leaves no room for the last of them, another machine is launched, all is as dear as before, and the
// same step pays again. So a step is not taken again among the same pods for a while, twice as long each time, unless the last one has made the machines cheaper.

// attempt is the last step to a cheaper layout of a NodePool that was begun; zero where none was, or where it has made the machines cheaper.
type attempt struct {
	fleet fleet
	began time.Time
	// times is how often in a row steps were begun among the same pods that made nothing cheaper.
	times int
}

// fleet is what the machines of a NodePool hold, and what those cost an hour that are not marked or on their way out.
type fleet struct {
	// pods are how many there are of each owner.
	pods  map[types.UID]int
	price planner.MicroUSD
	// still is whether none of them is marked or on its way out.
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

// worked reports whether the step has made the machines cheaper.
func (a attempt) worked(s *pass, pool string) bool {
	f := s.fleet(pool)
	return f.still && maps.Equal(f.pods, a.fleet.pods) && f.price < a.fleet.price
}

// inVain returns why another step of the pool is not to be begun: this one among the same pods has led nowhere.
func (a attempt) inVain(s *pass, pool string) string {
	until := a.began.Add(retention.Backoff(a.times))
	if a.repeats(s.fleet(pool), s.now) && s.now.Before(until) {
		return fmt.Sprintf("the last step among the same pods did not make the machines of NodePool %s cheaper, since the scheduler placed them otherwise; it is tried again at %s",
			pool, until.UTC().Format(time.RFC3339))
	}
	return ""
}

// again returns the attempt after this one, which begins now.
func (a attempt) again(s *pass, pool string) attempt {
	next := attempt{s.fleet(pool), s.now, 1}
	if a.repeats(next.fleet, s.now) {
		next.times += a.times
	}
	return next
}

// repeats reports whether a step would begin where this one did. Steps of one pass are all begun from there.
func (a attempt) repeats(f fleet, now time.Time) bool {
	return a.began.Before(now) && maps.Equal(f.pods, a.fleet.pods) && f.price >= a.fleet.price
}
