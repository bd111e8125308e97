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

// attempts are the last steps that were begun, by NodePool. After a restart there are none, and a step in vain is begun once more.
type attempts map[string]attempt

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

func (s *state) fleet(pool string) fleet {
	f := fleet{pods: map[types.UID]int{}, still: true}
	for i := range s.machines {
		m := &s.machines[i]
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
		if m.Replacing() != "" || marked(m) || m.Leaving() {
			f.still = false
			continue
		}
		f.price += planner.MicroUSD(m.MicroUSDPerHour())
	}
	return f
}

// forget leaves out the steps that have made the machines cheaper.
func (a attempts) forget(s *state) {
	maps.DeleteFunc(a, func(pool string, last attempt) bool {
		f := s.fleet(pool)
		return f.still && maps.Equal(f.pods, last.fleet.pods) && f.price < last.fleet.price
	})
}

// inVain says why a step of the pools is not to be begun: the last one among the same pods has led nowhere.
func (a attempts) inVain(s *state, pools []string) string {
	for _, pool := range pools {
		last := a[pool]
		until := last.began.Add(retention.Backoff(last.times))
		if last.repeats(s.fleet(pool), s.now) && s.now.Before(until) {
			return fmt.Sprintf("the last step among the same pods did not make the machines of NodePool %s cheaper, since the scheduler placed them otherwise; it is tried again at %s",
				pool, until.UTC().Format(time.RFC3339))
		}
	}
	return ""
}

// begin notes that a step of the pools is begun.
func (a attempts) begin(s *state, pools []string) {
	for _, pool := range pools {
		next := attempt{s.fleet(pool), s.now, 1}
		if last := a[pool]; last.repeats(next.fleet, s.now) {
			next.times += last.times
		}
		a[pool] = next
	}
}

// repeats reports whether a step would begin where an earlier one did. Steps of one look are all begun from there.
func (a attempt) repeats(f fleet, now time.Time) bool {
	return a.began.Before(now) && maps.Equal(f.pods, a.fleet.pods) && f.price >= a.fleet.price
}
