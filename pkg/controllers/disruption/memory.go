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

// memory is what the controller remembers about machines and pools between passes. It is empty after a restart: durations then count from the restart,
// pods may be handed over slightly early, and refused or failed steps are tried once more. Accounts are read from the GPUNodeClasses.
type memory struct {
	machines map[types.UID]*machineMemory
	pools    map[string]*poolMemory
	// accounts holds the account of each GPUNodeClass, and saved the known savings of proposals, both by name.
	accounts map[string]keptAccount
	saved    map[string]saved
	// late reports whether the last pass ran out of time for questions. The next passes first ask those that were not answered.
	late bool
}

// machineMemory is what is remembered about a machine while its NodeClaim exists.
type machineMemory struct {
	// reported is why the machine was last reported to stay, so that each reason causes one event. It is "" after another step.
	reported string
	// candidate, proposed and surplus record when the machine became a candidate, part of a proposal and surplus. used records when it ceased to be
	// surplus while it still has the surplus taint.
	candidate, proposed, surplus, used lasting
	// noPlace is why its pods would have no room. unprofitable is why removing it does not save enough. Both come from expensive plans, so they are reused
	// for a while.
	noPlace, unprofitable refusal
	// noRoom is why its pods had no room on machines that have started. It is kept only while passes are late.
	noRoom string
	// keptInLayout is what kept the machine at the last check although a cheaper layout would remove it. It is "" for other machines.
	keptInLayout string
}

// poolMemory is what is remembered about a pool while it exists or has machines.
type poolMemory struct {
	// handed records when pods of its machines were last handed over.
	handed handed
	// attempt is the last step to a cheaper layout.
	attempt attempt
}

// refusal is an answer that is valid for a limited time.
type refusal struct {
	why   string
	until time.Time
}

// at returns the answer, or "" if it is no longer valid.
func (r refusal) at(now time.Time) string {
	if !now.Before(r.until) {
		return ""
	}
	return r.why
}

// lasting is the time since which a condition has held. It is zero while the condition does not hold.
type lasting struct{ since time.Time }

// note records whether the condition holds now, and reports whether it has held for the settle time.
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
	return memory{machines: map[types.UID]*machineMemory{}, pools: map[string]*poolMemory{}, accounts: map[string]keptAccount{}, saved: map[string]saved{}}
}

// keep removes machines and pools that no longer exist, and adds new ones.
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
	m.openAccounts(s)
}

// of returns the memory of a machine.
func (m *memory) of(machine *reason.Machine) *machineMemory { return m.machines[machine.Claim.UID] }

// settled reports whether there is no memory of steps that were refused or taken.
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

// retry removes the memory of steps that were refused or taken.
func (m *memory) retry() {
	for _, r := range m.machines {
		r.unprofitable = refusal{}
	}
	for _, p := range m.pools {
		p.attempt = attempt{}
	}
}

// remembering is a simulator that reuses refusals of another simulator for a while.
type remembering struct {
	simulator
	s       *pass
	memory  *memory
	metrics *metrics.Metrics
	// continues reports whether the last pass was late.
	continues bool
}

// remember returns the simulator of a new pass.
func (m *memory) remember(s *pass, all *metrics.Metrics) remembering {
	r := remembering{simulator: s.whatIf, s: s, memory: m, metrics: all, continues: m.late}
	m.late = false
	for _, machine := range m.machines {
		if !r.continues {
			machine.noRoom = ""
		}
	}
	return r
}

func (r remembering) planned(claims []string) string {
	m := r.memory.of(r.s.named(claims[len(claims)-1]))
	if why := m.noPlace.at(r.s.now); why != "" {
		return why
	}
	if r.continues && m.noPlace.why != "" {
		return m.noPlace.why
	}
	why := r.simulator.planned(claims)
	switch why {
	case later:
		r.memory.late = true
	case "":
		m.noPlace = refusal{}
	default:
		m.noPlace = refusal{why, r.s.now.Add(longestWait)}
	}
	return why
}

func (r remembering) place(claims []string) string {
	m := r.memory.of(r.s.named(claims[len(claims)-1]))
	if m.noRoom != "" {
		return m.noRoom
	}
	why := r.simulator.place(claims)
	if why == later {
		r.memory.late = true
	} else {
		m.noRoom = why
	}
	return why
}

func (r remembering) saves(marked []string, p proposal) (planner.MicroUSD, string) {
	pools := r.s.poolsOf(p)
	for _, name := range p.claims {
		if why := r.memory.of(r.s.named(name)).unprofitable.at(r.s.now); why != "" {
			return 0, why
		}
	}
	for _, pool := range pools {
		if why := r.memory.pools[pool].attempt.backsOff(r.s, pool); why != "" {
			return 0, why
		}
	}
	saving, why := r.simulator.saves(marked, p)
	if why == later {
		r.memory.late = true
		return 0, why
	}
	if why != "" {
		for _, name := range p.claims {
			r.memory.of(r.s.named(name)).unprofitable = refusal{why, r.s.now.Add(unprofitableFor)}
		}
		r.metrics.LayoutSteps.WithLabelValues(pools[0], string(metrics.StepRefused)).Inc()
	}
	return saving, why
}

// begin records that a step begins.
func (c *Controller) begin(s *pass, p proposal) {
	pools := s.poolsOf(p)
	for _, pool := range pools {
		c.memory.pools[pool].attempt = c.memory.pools[pool].attempt.again(s, pool)
	}
	c.Metrics.LayoutSteps.WithLabelValues(pools[0], string(metrics.StepBegun)).Inc()
}

// poolsOf returns the pools of a proposal's machines, starting with that of the first machine.
func (s *pass) poolsOf(p proposal) []string {
	var pools []string
	for _, name := range p.claims {
		if pool := s.named(name).Pool(); !slices.Contains(pools, pool) {
			pools = append(pools, pool)
		}
	}
	return pools
}
