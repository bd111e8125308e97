package disruption

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"karve.sh/karve/pkg/controllers/disruption/reason"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planner"
)

// memory is what the controller remembers of machines and pools from one pass to the next. After a restart it is empty: what lasts is seen to last a little later, pods are
// handed over a little early, and what was refused, or tried in vain, is asked and tried once more.
type memory struct {
	machines map[types.UID]*machineMemory
	pools    map[string]*poolMemory
}

// machineMemory is what is remembered of a machine as long as its NodeClaim is there.
type machineMemory struct {
	// reported is why it was last reported to stay, so that an event is sent once; "" once it takes another step.
	reported string
	// candidate, proposed and surplus are since when it has been a candidate, part of a proposal and surplus. used is since when it has not been surplus while new
	// pods are still steered away from it.
	candidate, proposed, surplus, used lasting
	// noPlace is why its pods have no place, unprofitable why it does not pay that it leaves. Both are answers of plans, which take time, and are asked again later.
	noPlace, unprofitable refusal
	// keptInLayout is what keeps it, when it was last asked which machines a layout would do without if nothing kept them; "" for others.
	keptInLayout string
}

// poolMemory is what is remembered of a pool as long as it has machines.
type poolMemory struct {
	// handed is when pods of its machines were last handed over.
	handed handed
	// attempt is the last step to a cheaper layout.
	attempt attempt
}

// refusal is an answer that counts for a time.
type refusal struct {
	why   string
	until time.Time
}

// at returns why; "" once its time is over.
func (r refusal) at(now time.Time) string {
	if !now.Before(r.until) {
		return ""
	}
	return r.why
}

// lasting is since when something is so; zero while it is not.
type lasting struct{ since time.Time }

// note notes whether it is so now, and returns whether it has been for the settle time.
func (l *lasting) note(is bool, s *pass) bool {
	switch {
	case !is:
		*l = lasting{}
		return false
	case l.since.IsZero():
		l.since = s.now
	}
	return !s.now.Before(l.since.Add(s.settle))
}

func newMemory() memory {
	return memory{map[types.UID]*machineMemory{}, map[string]*poolMemory{}}
}

// keep forgets what is not there any more, and has a record of each machine and pool that is.
func (m *memory) keep(s *pass) {
	there := map[types.UID]bool{}
	for _, machine := range s.machines {
		uid := machine.Claim.UID
		there[uid] = true
		if m.machines[uid] == nil {
			m.machines[uid] = &machineMemory{}
		}
		if machine.Node == nil {
			m.machines[uid].reported = ""
		}
	}
	maps.DeleteFunc(m.machines, func(uid types.UID, _ *machineMemory) bool { return !there[uid] })
	for name := range s.pools {
		if m.pools[name] == nil {
			m.pools[name] = &poolMemory{}
		}
	}
	maps.DeleteFunc(m.pools, func(name string, _ *poolMemory) bool { return s.pools[name] == nil })
}

// of returns the record of a machine.
func (m *memory) of(machine *reason.Machine) *machineMemory { return m.machines[machine.Claim.UID] }

// settled reports whether nothing is remembered of steps that were refused or taken.
func (m *memory) settled(now time.Time) bool {
	for _, r := range m.machines {
		if r.unprofitable.at(now) != "" {
			return false
		}
	}
	for _, p := range m.pools {
		if p.attempt.times > 0 {
			return false
		}
	}
	return true
}

// retry forgets steps that were refused or taken.
func (m *memory) retry() {
	for _, r := range m.machines {
		r.unprofitable = refusal{}
	}
	for _, p := range m.pools {
		p.attempt = attempt{}
	}
}

// remembering is a simulator that asks another one only after a while about what was refused, and that notes which proposals are taken.
type remembering struct {
	simulator
	s       *pass
	memory  *memory
	metrics *metrics.Metrics
}

func (r remembering) planned(claims []string) string {
	m := r.memory.of(r.s.named(claims[len(claims)-1]))
	if why := m.noPlace.at(r.s.now); why != "" {
		return why
	}
	why := r.simulator.planned(claims)
	if why != "" {
		m.noPlace = refusal{why, r.s.now.Add(longestWait)}
	}
	return why
}

func (r remembering) saves(marked []string, p proposal) (planner.MicroUSD, string) {
	pools := r.s.poolsOf(p)
	for _, pool := range pools {
		if why := r.memory.pools[pool].attempt.inVain(r.s, pool); why != "" {
			return 0, why
		}
	}
	saving, why := r.simulator.saves(marked, p)
	result := metrics.StepBegun
	if why != "" {
		result = metrics.StepRefused
		for _, name := range p.claims {
			r.memory.of(r.s.named(name)).unprofitable = refusal{why, r.s.now.Add(unprofitableFor)}
		}
	} else {
		for _, pool := range pools {
			r.memory.pools[pool].attempt = r.memory.pools[pool].attempt.again(r.s, pool)
		}
	}
	r.metrics.LayoutSteps.WithLabelValues(pools[0], string(result)).Inc()
	return saving, why
}

// poolsOf returns those of a proposal's machines, that of the first one first.
func (s *pass) poolsOf(p proposal) []string {
	var pools []string
	for _, name := range p.claims {
		if pool := s.named(name).Pool(); !slices.Contains(pools, pool) {
			pools = append(pools, pool)
		}
	}
	return pools
}
