package disruption

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/disruption/reason"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/consolidate"
)

// Memory is what is remembered about machines and pools between rounds. It is a value: a round returns another one and leaves this one as it is. The zero
// Memory is that of a controller that has just started: durations then count from the start, pods may be handed over slightly early, and refused or failed
// steps are tried once more. Everything else is stored on the objects, and accounts are read from the GPUNodeClasses.
type Memory struct {
	machines map[types.UID]*machineMemory
	pools    map[string]*poolMemory
	// accounts holds the account of each GPUNodeClass, and saved the known savings of proposals, both by name.
	accounts map[string]keptAccount
	saved    map[string]saved
	// late reports whether the last round ran out of time for questions. The next rounds first ask those that were not answered.
	late   bool
	search layoutSearch
}

// layoutSearch is what is remembered of the search for cheaper layouts. After a restart, a new search finds all of it again.
type layoutSearch struct {
	// searched is when the last search began, and found what the searches have found. layout is the input of the last search if it considered all machines
	// and was not cut off.
	searched time.Time
	layout   consolidate.Layout
	found    Found
	// rounds selects the machines of the next search. price and bound are the sums of this round so far. finds reports whether this round has found a
	// step, and before whether the previous round did.
	rounds        rounds
	price, bound  planner.MicroUSD
	finds, before bool
	// complete reports whether any round has ended.
	complete bool
	// offered has the offerings that could be launched at the last search.
	offered offers
	// asked is when the last round with a searchKept search began, and asking reports whether this round has one.
	asked  time.Time
	asking bool
	// judged is when the marks were last checked. marked are the NodeClaims that had them. verdicts is the result.
	judged   time.Time
	marked   []string
	verdicts verdicts
}

// unprofitableFor is how long machines are left out of layouts after a plan with all constraints of their pods has refused the step.
const unprofitableFor = 5 * time.Minute

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
	// noRoom is why its pods had no room on machines that have started. It is kept only while rounds are late.
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

// keptAccount is an account, the amount in the status of its GPUNodeClass, and when that was written.
type keptAccount struct {
	Account
	stored  *v1alpha1.Waste
	written time.Time
}

// saved is the hourly saving of a proposal, according to a plan with all constraints of its pods, and until when it is valid.
type saved struct {
	perHour planner.MicroUSD
	until   time.Time
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
func (l *lasting) note(is bool, now time.Time, settle time.Duration) bool {
	switch {
	case !is:
		*l = lasting{}
		return false
	case l.since.IsZero():
		l.since = now
	}
	return !now.Before(l.since.Add(settle))
}

// at returns the memory for a round: a copy without machines, pools and classes that no longer exist, and with new ones.
func (m Memory) at(seen *Seen) *Memory {
	next := &Memory{machines: map[types.UID]*machineMemory{}, pools: map[string]*poolMemory{}, accounts: map[string]keptAccount{}, saved: map[string]saved{}, late: m.late, search: m.search}
	for _, machine := range seen.machines {
		r := &machineMemory{}
		if before := m.machines[machine.Claim.UID]; before != nil {
			*r = *before
		}
		if machine.Node == nil {
			r.reported = ""
		}
		next.machines[machine.Claim.UID] = r
	}
	for name := range seen.pools {
		r := &poolMemory{}
		if before := m.pools[name]; before != nil {
			*r = *before
		}
		next.pools[name] = r
	}
	for i := range seen.view.Pools {
		if class := seen.view.Pools[i].Class; class != nil {
			next.accounts[class.Name] = m.accountOf(class, seen.now)
		}
	}
	for name, known := range m.saved {
		if seen.now.Before(known.until) {
			next.saved[name] = known
		}
	}
	return next
}

// accountOf returns the account of a GPUNodeClass. An account that is not known yet starts with the amount that an earlier controller has written, without
// the time since then, in which nobody measured.
func (m Memory) accountOf(class *v1alpha1.GPUNodeClass, now time.Time) keptAccount {
	if kept, ok := m.accounts[class.Name]; ok {
		return kept
	}
	kept := keptAccount{Account: Account{At: now}, stored: class.Status.Waste}
	if stored := class.Status.Waste; stored != nil {
		if micro, err := v1alpha1.ParseUSD(stored.USD); err == nil {
			kept.Wasted = planner.MicroUSD(micro)
		}
		kept.written = stored.AsOf.Time
	}
	return kept
}

func (m *Memory) of(machine *reason.Machine) *machineMemory { return m.machines[machine.Claim.UID] }

// handed returns when pods of the machines of each pool were last handed over.
func (m *Memory) handed() map[string]handed {
	all := map[string]handed{}
	for name, p := range m.pools {
		all[name] = p.handed
	}
	return all
}

// settled reports whether there is no memory of steps that were refused or taken.
func (m *Memory) settled(now time.Time) bool {
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
func (m *Memory) retry() {
	for _, r := range m.machines {
		r.unprofitable = refusal{}
	}
	for _, p := range m.pools {
		p.attempt = attempt{}
	}
}

// attempt records that a step begins.
func (m *Memory) attempt(f *fleet, p Proposal) {
	for _, pool := range f.poolsOf(p) {
		record := m.pools[pool]
		record.attempt = record.attempt.again(f.residents(pool), f.now)
	}
}

// tell adds an event to the commands for machines that stay, once for each reason.
func (m *Memory) tell(commands []Command) {
	for i := range commands {
		c := &commands[i]
		if c.Candidate == nil {
			c.Candidate = c.Machine.Candidate
		}
		r := m.of(c.Machine)
		switch {
		case !c.Step.Reports():
			r.reported = ""
		case r.reported != c.Reason:
			r.reported = c.Reason
			c.Event = stays(c)
		}
	}
}

// HandedOver returns the memory after pods of a machine were evicted.
func (m Memory) HandedOver(pool, claim string, pods []*corev1.Pod, now time.Time) Memory {
	next := &poolMemory{}
	if before := m.pools[pool]; before != nil {
		*next = *before
	}
	next.handed = next.handed.note(claim, pods, now)
	m.pools = maps.Clone(m.pools)
	if m.pools == nil {
		m.pools = map[string]*poolMemory{}
	}
	m.pools[pool] = next
	return m
}

// Written returns the memory after an account was written to the status of its GPUNodeClass.
func (m Memory) Written(account AccountWrite) Memory {
	kept := m.accounts[account.Class]
	kept.stored, kept.written = account.Waste, account.At
	m.accounts = maps.Clone(m.accounts)
	m.accounts[account.Class] = kept
	return m
}

// Unpaid returns the memory as if no step had begun since before, because an account could not be written.
func (m Memory) Unpaid(before Memory) Memory {
	accounts, pools := map[string]keptAccount{}, map[string]*poolMemory{}
	for class, kept := range m.accounts {
		kept.Account = before.accounts[class].Account
		accounts[class] = kept
	}
	for name, p := range m.pools {
		kept := *p
		if was := before.pools[name]; was != nil {
			kept.attempt = was.attempt
		}
		pools[name] = &kept
	}
	m.accounts, m.pools = accounts, pools
	return m
}

// remembering is a simulator that reuses refusals of another simulator for a while.
type remembering struct {
	simulator
	fleet  *fleet
	memory *Memory
	// continues reports whether the last round was late.
	continues bool
	// refused has the pools of the proposals that a plan with all constraints refused.
	refused *[]string
}

// remember returns the simulator of a new round.
func (m *Memory) remember(f *fleet, sim simulator) remembering {
	r := remembering{simulator: sim, fleet: f, memory: m, continues: m.late, refused: &[]string{}}
	m.late = false
	for _, machine := range m.machines {
		if !r.continues {
			machine.noRoom = ""
		}
	}
	return r
}

func (r remembering) planned(claims []string) string {
	m := r.memory.of(r.fleet.named(claims[len(claims)-1]))
	if why := m.noPlace.at(r.fleet.now); why != "" {
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
		m.noPlace = refusal{why, r.fleet.now.Add(maxWait)}
	}
	return why
}

func (r remembering) place(claims []string) string {
	m := r.memory.of(r.fleet.named(claims[len(claims)-1]))
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

func (r remembering) saves(marked []string, p Proposal) (planner.MicroUSD, string) {
	pools := r.fleet.poolsOf(p)
	for _, name := range p.Claims {
		if why := r.memory.of(r.fleet.named(name)).unprofitable.at(r.fleet.now); why != "" {
			return 0, why
		}
	}
	for _, pool := range pools {
		if why := r.memory.pools[pool].attempt.backsOff(pool, r.fleet.residents(pool), r.fleet.now); why != "" {
			return 0, why
		}
	}
	saving, why := r.simulator.saves(marked, p)
	if why == later {
		r.memory.late = true
		return 0, why
	}
	if why != "" {
		for _, name := range p.Claims {
			r.memory.of(r.fleet.named(name)).unprofitable = refusal{why, r.fleet.now.Add(unprofitableFor)}
		}
		*r.refused = append(*r.refused, pools[0])
	}
	return saving, why
}
