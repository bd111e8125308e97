package disruption

import (
	"context"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/controllers/disruption/reason"
	"karve.sh/karve/pkg/fleet/layout"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/consolidate"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
)

const (
	// layoutEvery is the shortest interval between two searches for a cheaper layout, and between two checks of the marks from earlier searches.
	layoutEvery = lifecycle.LayoutLook
	// layoutFor is the time limit of a search. A search that runs out of time returns its best result.
	layoutFor = time.Second
	// unprofitableFor is how long machines are left out of layouts after a plan with all constraints of their pods has refused the step.
	unprofitableFor = 5 * time.Minute
)

// layoutSearch is the controller's memory of the search for cheaper layouts. After a restart, a new search finds all of it again.
type layoutSearch struct {
	// searched is when the last search began, and found what the searches have found. layout is the input of the last search if it considered all machines
	// and was not cut off.
	searched time.Time
	layout   consolidate.Layout
	found    searchResult
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

// consider adds to the pass what the controller knows about cheaper layouts, before decisions.
func (c *Controller) consider(s *pass) {
	c.judgeMarks(s)
	for name, p := range c.memory.pools {
		if p.attempt.times > 0 && p.attempt.worked(s, name) {
			p.attempt = attempt{}
		}
	}
	c.applyFound(s)
}

// applyFound adds the results of the searches to the pass.
func (c *Controller) applyFound(s *pass) {
	proposed, surplus := map[string]bool{}, map[string]bool{}
	s.searched = c.search.complete
	s.proposals = slices.DeleteFunc(slices.Clone(c.search.found.proposals), func(p proposal) bool {
		return slices.ContainsFunc(p.claims, func(name string) bool { return s.named(name) == nil })
	})
	for _, p := range s.proposals {
		for _, name := range p.claims {
			proposed[name] = true
		}
	}
	for _, name := range c.search.found.surplus {
		surplus[name] = true
	}
	for _, m := range s.machines {
		r := c.memory.of(m)
		m.KeptInLayout = r.keptInLayout
		m.Proposed = r.proposed.note(proposed[m.Claim.Name], s)
		// Pods are not steered away from machines that are wanted for pending pods, or that are full.
		surplus := surplus[m.Claim.Name] && m.Node != nil && !m.Wanted && m.Exposed() > m.ReplicasInUse()
		m.Surplus = r.surplus.note(surplus, s)
		// A machine with the surplus taint stays surplus until it has been needed for the settle time, unless its pool does not allow moving pods.
		if used := r.used.note(hasSurplusTaint(m.Machine) && !surplus, s); hasSurplusTaint(m.Machine) && m.NodePool.MovesPods && !used {
			m.Surplus = true
		}
	}
}

// judgeMarks checks which marks still save cost.
func (c *Controller) judgeMarks(s *pass) {
	if marked := markedForCost(s.machines); len(marked) == 0 || !slices.Equal(marked, c.search.marked) || !s.now.Before(c.search.judged.Add(layoutEvery)) {
		c.search.marked, c.search.judged = marked, s.now
		c.search.verdicts = s.standing(c.search.verdicts, c.startSearch().over(layoutFor))
	}
	for _, m := range s.machines {
		m.Saving = c.search.verdicts.stand[m.Claim.Name]
	}
}

// searching is a search that ends when its time is up or when the controller has more urgent work.
type searching struct {
	c          *Controller
	began      time.Time
	cut, yield atomic.Bool
}

func (c *Controller) startSearch() *searching { return &searching{c: c, began: c.Clock.Now()} }

// over returns a function that reports whether the search must end. It may be called concurrently.
func (x *searching) over(limit time.Duration) func() bool {
	return func() bool {
		if x.c.moreUrgent() {
			x.yield.Store(true)
		}
		over := x.yield.Load() || x.c.Clock.Since(x.began) >= limit
		if over {
			x.cut.Store(true)
		}
		return over
	}
}

// moreUrgent reports whether there is more urgent work than a search.
func (c *Controller) moreUrgent() bool { return c.urgent.Load() || c.Planner.Busy() }

// cheaper returns the commands for steps to a cheaper layout, and when the next pass is due for them. It searches for steps first, unless the last
// search was very recent, other steps are due before a search would end, or there is more urgent work. Even preparing the search of a large fleet takes
// a good part of the search time. again is when the other steps are due.
func (c *Controller) cheaper(ctx context.Context, s *pass, again time.Duration) ([]command, time.Duration, error) {
	switch wait := c.search.searched.Add(layoutEvery).Sub(s.now); {
	case wait > 0:
		again = max(soon, wait)
	case again < layoutFor, c.moreUrgent():
		again = soon
	default:
		if err := c.bounded(ctx, s, func() { again = c.searchLayout(s) }); err != nil {
			return nil, soon, err
		}
	}
	c.applyFound(s)
	commands := s.consolidate()
	if err := c.keepAccounts(ctx, s); err != nil {
		return nil, soon, err
	}
	for _, p := range s.begun {
		c.begin(s, p)
	}
	return commands, min(again, s.untilProposed(), s.untilCovered()), nil
}

// searchLayout searches for a cheaper layout of the next slice of the machines, unless the input is the same as in the last search. It returns the
// latest time of the next search. If more urgent work interrupts it, it discards its results, and the next search considers the same machines.
func (c *Controller) searchLayout(s *pass) time.Duration {
	c.search.searched = s.now
	rounds := c.search.rounds
	begins := rounds.last == nil
	names, ends := rounds.next(claimsOf(s.machines))
	part := s.part(names)
	keeps := func(m *snapshot.Machine) string {
		if snapshot.IsSetAside(m.Claim) {
			return "a decision about it took too long"
		}
		s.visit(m)
		return s.keepsInLayout(s.named(m.Claim.Name), c.memory.machines[m.Claim.UID].unprofitable)
	}
	x := c.startSearch()
	input := s.lay(part, keeps)
	before := c.search.offered
	c.search.offered = offersOf(input.View.Snapshot)
	if !c.memory.settled(s.now) && c.search.offered.improves(before) {
		c.memory.retry() // What did not save before may save now.
		input = s.lay(part, keeps)
	}
	if part == nil && reflect.DeepEqual(input.Layout, c.search.layout) {
		return longestWait
	}
	if begins {
		c.search.price, c.search.bound, c.search.finds = 0, 0, false
		c.search.asking = !s.now.Before(c.search.asked.Add(unprofitableFor))
	}
	limit := layoutFor
	if c.search.asking {
		limit /= 2
	}
	found := propose(&input, solve.Solver{Stop: x.over(limit)})
	cut := x.cut.Load()
	if !x.yield.Load() {
		c.searchKept(s, names, part, input.Kept, x.over(layoutFor))
	}
	c.Metrics.LayoutSeconds.Observe(c.Clock.Since(x.began).Seconds())
	if x.yield.Load() {
		c.search.searched = time.Time{}
		return soon
	}
	c.search.rounds, c.search.layout = rounds, consolidate.Layout{}
	if part == nil && !cut {
		c.search.layout = input.Layout // A search that was cut off runs again, because the processor may have been busy.
	}
	c.search.found = c.search.found.with(names, found)
	c.search.price, c.search.bound, c.search.finds = c.search.price+found.price, c.search.bound+found.bound, c.search.finds || len(found.proposals) > 0
	if !ends && (c.search.finds || c.search.before) {
		return layoutEvery // If some slices had steps, the rest of the fleet probably has some too. Otherwise the round continues as nodes and pods change.
	}
	if ends {
		c.search.before, c.search.complete = c.search.finds, true
		if c.search.asking {
			c.search.asked = s.now
		}
		c.Metrics.LayoutPrice.Set(metrics.USD(int64(c.search.price)))
		c.Metrics.LayoutBound.Set(metrics.USD(int64(c.search.bound)))
	}
	return longestWait
}

// part returns the part of the fleet with these machines, or nil if they are all.
func (s *pass) part(claims []string) *layout.Part {
	if len(claims) == len(s.machines) {
		return nil
	}
	part := &layout.Part{Machines: map[string]bool{}, Placed: s.placed}
	for _, claim := range claims {
		part.Machines[claim] = true
	}
	return part
}

// keepsInLayout returns what keeps a machine that a layout might remove, or "" if nothing does. The most expensive check comes last.
func (s *pass) keepsInLayout(m *reason.Machine, unprofitable refusal) string {
	if m.Health != nil {
		return "it is unhealthy: " + m.Health.Message
	}
	if why := unprofitable.at(s.now); why != "" {
		return why
	}
	if why := reason.Protected(m, m.Pods, s.pods); why != "" {
		return why
	}
	return s.pods.Keeps(m.Machine)
}

// offers has the prices of the offerings that may be launched.
type offers map[offer]planner.MicroUSD

// offer identifies an offering in a pool.
type offer struct {
	pool, instanceType, zone, capacityType string
}

func offersOf(s planner.Snapshot) offers {
	all := offers{}
	for _, o := range s.Offerings {
		if pool := &s.Pools[o.Pool]; o.Unavailable == nil && pool.Closed == nil {
			all[offer{pool.Name, o.InstanceType, o.Zone, o.CapacityType}] = o.Price
		}
	}
	return all
}

// improves reports whether an offering is new or cheaper than before.
func (o offers) improves(before offers) bool {
	for key, price := range o {
		if was, ok := before[key]; !ok || price < was {
			return true
		}
	}
	return false
}

// searchKept searches, from time to time, for a layout as if nothing kept machines. It records what keeps the machines that such a layout would remove,
// for events.
func (c *Controller) searchKept(s *pass, names []string, part *layout.Part, kept map[string]string, stop func() bool) {
	if len(kept) > 0 && !c.search.asking {
		return
	}
	for _, name := range names {
		c.memory.of(s.named(name)).keptInLayout = ""
	}
	if len(kept) == 0 {
		return
	}
	layout := s.lay(part, func(*snapshot.Machine) string { return "" })
	for _, p := range propose(&layout, solve.Solver{Stop: stop}).proposals {
		for _, name := range p.claims {
			if why := kept[name]; why != "" {
				c.memory.of(s.named(name)).keptInLayout = why
			}
		}
	}
}

// lay returns the layout of a part of the fleet, or of the whole fleet if part is nil. Machines may be removed from it unless keeps returns a reason.
func (s *pass) lay(part *layout.Part, keeps func(*snapshot.Machine) string) layout.Layout {
	s.count()
	layout := layout.Build(s.view, part, keeps)
	for i := range layout.View.Pools {
		// A pool with used-up budgets may still remove one machine in the search, so that an event can say that the budgets keep it.
		p := s.pools[layout.View.Pools[i].NodePool.Name]
		allowed := reason.Of(karpv1.DisruptionReasonUnderutilized).Allowed(&p.Pool)
		layout.Layout.Most = append(layout.Layout.Most, max(1, allowed-p.leaving))
	}
	return layout
}
