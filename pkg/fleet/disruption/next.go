package disruption

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/fleet/disruption/reason"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/records"
)

// Commands are what to do after a round.
type Commands struct {
	// Accounts are to be written before the steps that they pay for begin: if one of them cannot be written, none of the steps may begin.
	Accounts []AccountWrite
	// Steps are the next steps of machines, at most one for each.
	Steps []Command
	// Steer has the machines that get or lose the surplus taint.
	Steer []Steer
	// Again is when the next round is due.
	Again time.Duration
	// Wasted has the accounts by GPUNodeClass. Refused and Begun have the NodePools of the steps to a cheaper layout that were refused or begin. They are for
	// metrics.
	Wasted         map[string]planner.MicroUSD
	Refused, Begun []string
}

// Steer is a machine from which new pods should be steered away, or no longer.
type Steer struct {
	Machine *reason.Machine
	Away    bool
}

// Next returns what to do now about the machines of a fleet, and what to remember for the next round. It is the whole round at once, for those who have nothing to
// do between its parts: see [Begin].
func Next(seen *Seen, memory Memory, limits Limits) (Commands, Memory) {
	round, commands := Begin(seen, memory, limits)
	again, _ := round.Search(commands.Again, limits)
	more := round.Cheapen(again)
	more.Steps, more.Again = slices.Concat(commands.Steps, more.Steps), min(commands.Again, more.Again)
	more.Refused = slices.Concat(commands.Refused, more.Refused)
	return more, round.Memory()
}

// Round is a round of decisions about one look at a cluster. Repairs, drains and idle machines come first, and are carried out before the search for a cheaper
// layout, which takes a second. So a round has three parts: Begin, Search and Cheapen.
type Round struct {
	seen    *Seen
	decider *decider
	// decided is what the first part has decided.
	decided decisions
	memory  *Memory
	refused *[]string
}

// Begin decides the next steps of the machines, without new steps to a cheaper layout.
func Begin(seen *Seen, memory Memory, limits Limits) (*Round, Commands) {
	m := memory.at(seen)
	d := &decider{fleet: seen.copied(), handed: m.handed(), waiting: seen.waiting}
	sim := m.remember(&d.fleet, newWhatIf(seen.view, seen.others, seen.unhealthy(), not(limits.timer(questionsFor))))
	d.whatIf = sim
	m.recall(&d.fleet, sim, limits)
	r := &Round{seen: seen, decider: d, memory: m, refused: sim.refused}
	r.decided = d.decide(limits.visit)
	m.tell(r.decided.commands)
	return r, Commands{Steps: r.decided.commands, Again: r.decided.again, Refused: r.takeRefused()}
}

func not(f func() bool) func() bool { return func() bool { return !f() } }

// recall sets what is remembered about the machines of a round, and their candidates.
func (m *Memory) recall(f *fleet, sim simulator, limits Limits) {
	m.search = m.search.judge(f, sim, limits)
	for _, machine := range f.machines {
		machine.Saving = m.search.verdicts.stand[machine.Claim.Name]
	}
	for name, p := range m.pools {
		if p.attempt.times > 0 && p.attempt.worked(f.residents(name)) {
			p.attempt = attempt{}
		}
	}
	m.applyFound(f)
	f.choose()
	for _, machine := range f.machines {
		machine.Steady = m.of(machine).candidate.note(machine.Candidate != nil, f.now, f.settle)
	}
}

// Search searches for a cheaper layout, unless the last search was very recent, other steps are due before a search would end, or there is more urgent work.
// Even preparing the search of a large fleet takes a good part of the search time. again is when the other steps are due. It returns when the next search is due.
func (r *Round) Search(again time.Duration, limits Limits) (time.Duration, Search) {
	var did Search
	switch wait := r.memory.search.searched.Add(layoutEvery).Sub(r.seen.now); {
	case wait > 0:
		again = max(soon, wait)
	case again < layoutFor, limits.urgent():
		again = soon
	default:
		x := searcher{&r.decider.fleet, r.seen.view, r.seen.placed, r.decided.tally, limits}
		did, again = x.run(r.memory)
	}
	r.memory.applyFound(&r.decider.fleet)
	return again, did
}

// Cheapen decides which steps to a cheaper layout begin, and from which machines pods are steered away. again is when the next search is due.
func (r *Round) Cheapen(again time.Duration) Commands {
	f := &r.decider.fleet
	b := beginning{decider: r.decider, acted: actedOn(r.decided.commands), tally: r.decided.tally, saved: r.memory.saved}
	accounts := Accounts{}
	for class, kept := range r.memory.accounts {
		accounts[class] = kept.Account
	}
	begun := b.begin(r.memory.search.proposals(f), accounts, r.memory.search.complete)
	out := Commands{Steps: begun.commands, Again: min(again, f.untilProposed(begun.known), accounts.untilCovered(begun.offered)), Wasted: map[string]planner.MicroUSD{}}
	out.Accounts = r.memory.keep(accounts, begun, f.now)
	for class, account := range accounts {
		out.Wasted[class] = account.Wasted
	}
	for _, p := range begun.paid {
		r.memory.attempt(f, p)
		out.Begun = append(out.Begun, f.poolsOf(p)[0])
	}
	r.memory.tell(out.Steps)
	for _, m := range f.toSteer(r.decided.targets) {
		out.Steer = append(out.Steer, Steer{m, !HasSurplusTaint(m.Machine)})
	}
	out.Refused = r.takeRefused()
	return out
}

// keep remembers the accounts, and returns those that have to be written: immediately if they have paid for steps, so that a restarted controller does not
// spend the same waste again, and otherwise at most once a minute.
func (m *Memory) keep(accounts Accounts, begun begun, now time.Time) (writes []AccountWrite) {
	paying := map[string]bool{}
	for _, p := range begun.paid {
		for class, cost := range p.Restarts {
			paying[class] = paying[class] || cost > 0
		}
	}
	left := slices.DeleteFunc(slices.Clone(begun.offered), func(p Proposal) bool { return slices.ContainsFunc(begun.paid, p.same) })
	for _, class := range slices.Sorted(maps.Keys(accounts)) {
		kept := m.accounts[class]
		kept.Account = accounts[class]
		m.accounts[class] = kept
		waste := accounts.statusOf(class, left)
		if due := paying[class] || !now.Before(kept.written.Add(wasteEvery)); due && !sameWaste(waste, kept.stored) {
			writes = append(writes, AccountWrite{class, waste, now})
		}
	}
	return writes
}

func (r *Round) takeRefused() []string {
	refused := *r.refused
	*r.refused = nil
	return refused
}

// Memory returns what to remember after the parts of the round so far.
func (r *Round) Memory() Memory { return *r.memory.at(r.seen) }

// HandedOver records that some of the pods of a command were evicted.
func (r *Round) HandedOver(c Command, gone []*corev1.Pod) {
	*r.memory = r.memory.HandedOver(c.Machine.Pool(), c.Machine.Claim.Name, gone, r.seen.now)
}

// LastLook returns what keeps a machine that is about to be deleted, according to its Node and pods in the API server. It returns "" if nothing does.
func (r *Round) LastLook(c Command, live *records.Machine) string {
	return r.decider.blockedLive(c.Machine, live, r.decided.idle)
}

// Machines returns the machines of the round.
func (r *Round) Machines() []*reason.Machine { return r.decider.machines }

// Pools returns the NodePools of the round by name, also those that no longer exist and still have machines.
func (r *Round) Pools() map[string]*reason.Pool { return r.decider.pools }

// Surplus returns the NodeClaims of the machines that the cheapest layout does not need.
func (r *Round) Surplus() []string { return r.memory.search.found.Surplus }
