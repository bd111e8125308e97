package disruption

import (
	"reflect"
	"slices"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/fleet/disruption/reason"
	"karve.sh/karve/pkg/fleet/layout"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/planner/consolidate"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

const (
	// layoutEvery is the shortest interval between two searches for a cheaper layout, and between two checks of the marks from earlier searches.
	layoutEvery = lifecycle.LayoutLook
	// layoutFor is the time limit of a search. A search that runs out of time returns its best result.
	layoutFor = time.Second
)

// judge checks which marks still save cost, unless the same marks were checked very recently.
func (s layoutSearch) judge(f *fleet, sim simulator, limits Limits) layoutSearch {
	marked := markedForCost(f.machines)
	if len(marked) > 0 && slices.Equal(marked, s.marked) && f.now.Before(s.judged.Add(layoutEvery)) {
		return s
	}
	x := &interruptible{limits: limits}
	s.marked, s.judged = marked, f.now
	s.verdicts = f.standing(sim, s.verdicts, x.within(layoutFor))
	return s
}

// proposals returns the steps that the searches have found among machines that still exist.
func (s layoutSearch) proposals(f *fleet) []Proposal {
	return slices.DeleteFunc(slices.Clone(s.found.Proposals), func(p Proposal) bool {
		return slices.ContainsFunc(p.Claims, func(name string) bool { return f.named(name) == nil })
	})
}

// applyFound records on the machines what the searches have found.
func (m *Memory) applyFound(f *fleet) {
	proposed, surplus := map[string]bool{}, map[string]bool{}
	for _, p := range m.search.proposals(f) {
		for _, name := range p.Claims {
			proposed[name] = true
		}
	}
	for _, name := range m.search.found.Surplus {
		surplus[name] = true
	}
	for _, machine := range f.machines {
		r := m.of(machine)
		machine.KeptInLayout = r.keptInLayout
		machine.Proposed = r.proposed.note(proposed[machine.Claim.Name], f.now, f.settle)
		// Pods are not steered away from machines that are wanted for pending pods, or that are full.
		surplus := surplus[machine.Claim.Name] && machine.Node != nil && !machine.Wanted && machine.Exposed() > machine.ReplicasInUse()
		machine.Surplus = r.surplus.note(surplus, f.now, f.settle)
		// A machine with the surplus taint stays surplus until it has been needed for the settle time, unless its pool does not allow moving pods.
		tainted := HasSurplusTaint(machine.Machine)
		if used := r.used.note(tainted && !surplus, f.now, f.settle); tainted && machine.NodePool.MovesPods && !used {
			machine.Surplus = true
		}
	}
}

// Search is what a search for a cheaper layout did in a round.
type Search struct {
	// Ran reports whether machines were searched. It is false if the input was the same as in the last search, or if it was too early.
	Ran bool
	// Ended has the price of all machines and a lower bound on it, if the search was the last of its round through the fleet. It is nil otherwise.
	Ended *Found
}

// searcher is the input of a search for a cheaper layout.
type searcher struct {
	*fleet
	view   *snapshot.View
	placed map[string]string
	tally  tally
	limits Limits
}

// part is a slice of the machines that is searched, as a layout.
type part struct {
	names []string
	*layout.Part
	input layout.Layout
	// rounds is the state of the rounds after this slice. ends reports whether it is the last one of its round.
	rounds rounds
	ends   bool
}

// next returns the next slice of the machines that is searched, and whether it has to be: not if it is the whole fleet as in the last search.
func (x *searcher) next(m *Memory) (part, bool) {
	p := part{rounds: m.search.rounds}
	p.names, p.ends = p.rounds.next(claimsOf(x.machines))
	p.Part = x.part(p.names)
	keeps := func(machine *records.Machine) string {
		if facts.IsSetAside(machine.Claim) {
			return "a decision about it took too long"
		}
		x.limits.visit(machine)
		return x.keepsInLayout(x.named(machine.Claim.Name), m.machines[machine.Claim.UID].unprofitable)
	}
	p.input = x.lay(p.Part, keeps)
	before := m.search.offered
	m.search.offered = offersOf(p.input.View.Snapshot)
	if !m.settled(x.now) && m.search.offered.improves(before) {
		m.retry() // What did not save before may save now.
		p.input = x.lay(p.Part, keeps)
	}
	return p, p.Part != nil || !reflect.DeepEqual(p.input.Layout, m.search.layout)
}

// run searches the next slice of the machines. It returns the latest time of the next search. If more urgent work interrupts it, it discards its results,
// and the next search considers the same machines.
func (x *searcher) run(m *Memory) (Search, time.Duration) {
	m.search.searched = x.now
	run := &interruptible{limits: x.limits}
	half, whole := run.within(layoutFor/2), run.within(layoutFor)
	begins := m.search.rounds.last == nil
	p, changed := x.next(m)
	if !changed {
		return Search{}, maxWait
	}
	if begins {
		m.search.price, m.search.bound, m.search.finds = 0, 0, false
		m.search.asking = !x.now.Before(m.search.asked.Add(unprofitableFor))
	}
	limit := whole
	if m.search.asking {
		limit = half
	}
	found := propose(&p.input, run.solver(limit))
	cut := run.cut.Load()
	if !run.yield.Load() {
		x.searchKept(m, p, run, whole)
	}
	if run.yield.Load() {
		m.search.searched = time.Time{}
		return Search{Ran: true}, soon
	}
	ended, again := m.search.add(p, found, cut, x.now)
	return Search{Ran: true, Ended: ended}, again
}

// add adds what a search has found. It returns when the next search is due, and the sums of the round if it ends.
func (s *layoutSearch) add(p part, found Found, cut bool, now time.Time) (ended *Found, again time.Duration) {
	s.rounds, s.layout = p.rounds, consolidate.Layout{}
	if p.Part == nil && !cut {
		s.layout = p.input.Layout // A search that was cut off runs again, because the processor may have been busy.
	}
	s.found = s.found.with(p.names, found)
	s.price, s.bound, s.finds = s.price+found.Price, s.bound+found.Bound, s.finds || len(found.Proposals) > 0
	if p.ends {
		s.before, s.complete = s.finds, true
		if s.asking {
			s.asked = now
		}
		return &Found{Price: s.price, Bound: s.bound}, maxWait
	}
	if s.finds || s.before {
		return nil, layoutEvery // If some slices had steps, the rest of the fleet probably has some too. Otherwise the round continues as nodes and pods change.
	}
	return nil, maxWait
}

// part returns the part of the fleet with these machines, or nil if they are all.
func (x *searcher) part(claims []string) *layout.Part {
	if len(claims) == len(x.machines) {
		return nil
	}
	part := &layout.Part{Machines: map[string]bool{}, Placed: x.placed}
	for _, claim := range claims {
		part.Machines[claim] = true
	}
	return part
}

// keepsInLayout returns what keeps a machine that a layout might remove, or "" if nothing does. The most expensive check comes last.
func (f *fleet) keepsInLayout(m *reason.Machine, unprofitable refusal) string {
	if m.Health != nil {
		return "it is unhealthy: " + m.Health.Message
	}
	if why := unprofitable.at(f.now); why != "" {
		return why
	}
	if why := reason.Protected(m, m.Pods, f.pods); why != "" {
		return why
	}
	return f.pods.Keeps(m.Machine)
}

// searchKept searches, from time to time, for a layout as if nothing kept machines. It records what keeps the machines that such a layout would remove,
// for events.
func (x *searcher) searchKept(m *Memory, p part, run *interruptible, stop func() bool) {
	kept := p.input.Kept
	if len(kept) > 0 && !m.search.asking {
		return
	}
	for _, name := range p.names {
		m.of(x.named(name)).keptInLayout = ""
	}
	if len(kept) == 0 {
		return
	}
	layout := x.lay(p.Part, func(*records.Machine) string { return "" })
	for _, proposed := range propose(&layout, run.solver(stop)).Proposals {
		for _, name := range proposed.Claims {
			if why := kept[name]; why != "" {
				m.of(x.named(name)).keptInLayout = why
			}
		}
	}
}

// lay returns the layout of a part of the fleet, or of the whole fleet if part is nil. Machines may be removed from it unless keeps returns a reason.
func (x *searcher) lay(part *layout.Part, keeps func(*records.Machine) string) layout.Layout {
	layout := layout.Build(x.view, part, keeps)
	for i := range layout.View.Pools {
		// A pool with used-up budgets may still remove one machine in the search, so that an event can say that the budgets keep it.
		name := layout.View.Pools[i].NodePool.Name
		allowed := reason.Of(karpv1.DisruptionReasonUnderutilized).Allowed(x.pools[name])
		layout.Layout.Most = append(layout.Layout.Most, max(1, allowed-x.tally.of(name).all.leaving))
	}
	return layout
}
