package disruption

import (
	"reflect"
	"slices"
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
	// layoutFor is the longest time for a search. The best result until then counts.
	layoutFor = time.Second
	// unprofitableFor is how long machines are left out of layouts after a plan with all constraints of their pods refused the step.
	unprofitableFor = 5 * time.Minute
)

// layoutSearch is the controller's memory of the search for cheaper layouts. All of it can be found again after a restart.
type layoutSearch struct {
	// searched is when the last search began, layout its input, and found its result. missed reports whether this pass was too early for a search.
	searched time.Time
	layout   consolidate.Layout
	found    searchResult
	missed   bool
	// judged is when the marks were last checked, marked the NodeClaims that had them, and verdicts the result.
	judged   time.Time
	marked   []string
	verdicts verdicts
	// offered has the offerings that could be launched at the last search.
	offered offers
	// asked is when searchKept last searched.
	asked time.Time
}

// consider adds to the pass the results of the search for a cheaper layout.
func (c *Controller) consider(s *pass) {
	c.judgeMarks(s)
	c.search.missed = s.now.Before(c.search.searched.Add(layoutEvery))
	if !c.search.missed {
		c.searchLayout(s)
	}
	for name, p := range c.memory.pools {
		if p.attempt.worked(s, name) {
			p.attempt = attempt{}
		}
	}
	s.proposals = c.search.found.proposals
	for _, m := range s.machines {
		r := c.memory.of(m)
		m.KeptInLayout = r.keptInLayout
		m.Proposed = r.proposed.note(slices.ContainsFunc(s.proposals, func(p proposal) bool { return slices.Contains(p.claims, m.Claim.Name) }), s)
		// Pods are not steered away from machines that are wanted for pending pods, or that are full.
		surplus := slices.Contains(c.search.found.surplus, m.Claim.Name) && m.Node != nil && !m.Wanted && m.Exposed() > m.ReplicasInUse()
		m.Surplus = r.surplus.note(surplus, s)
		// A surplus machine stays one until it has not been surplus for the settle time, unless its pool does not allow moving pods.
		if used := r.used.note(hasSurplusTaint(m.Machine) && !surplus, s); hasSurplusTaint(m.Machine) && m.NodePool.MovesPods && !used {
			m.Surplus = true
		}
	}
}

// judgeMarks checks which marks still save cost.
func (c *Controller) judgeMarks(s *pass) {
	if marked := markedForCost(s.machines); len(marked) == 0 || !slices.Equal(marked, c.search.marked) || !s.now.Before(c.search.judged.Add(layoutEvery)) {
		started := c.Clock.Now()
		c.search.marked, c.search.judged = marked, s.now
		c.search.verdicts = s.standing(c.search.verdicts, func() bool { return c.Clock.Since(started) >= layoutFor })
	}
	for _, m := range s.machines {
		m.Saving = c.search.verdicts.stand[m.Claim.Name]
	}
}

// searchLayout searches for a cheaper layout, unless the input is the same as in the last search.
func (c *Controller) searchLayout(s *pass) {
	c.search.searched = s.now
	keeps := func(m *snapshot.Machine) string {
		return s.keepsInLayout(s.named(m.Claim.Name), c.memory.machines[m.Claim.UID].unprofitable)
	}
	layout := s.lay(keeps)
	before := c.search.offered
	c.search.offered = offersOf(layout.View.Snapshot)
	if !c.memory.settled(s.now) && c.search.offered.improves(before) {
		c.memory.retry() // What did not save before may save now.
		layout = s.lay(keeps)
	}
	if reflect.DeepEqual(layout.Layout, c.search.layout) {
		return
	}
	started, cut := c.Clock.Now(), false
	c.search.found = propose(&layout, solve.Solver{Stop: func() bool {
		cut = c.Clock.Since(started) >= layoutFor
		return cut
	}})
	c.search.layout = layout.Layout
	if cut {
		c.search.layout = consolidate.Layout{} // The search was cut off, so it runs again: the processor may have been busy.
	}
	c.Metrics.LayoutSeconds.Observe(c.Clock.Since(started).Seconds())
	c.searchKept(s, layout.Kept)
	c.Metrics.LayoutPrice.Set(metrics.USD(int64(c.search.found.price)))
	c.Metrics.LayoutBound.Set(metrics.USD(int64(c.search.found.bound)))
}

// keepsInLayout returns what keeps a machine that a layout might remove, and "" if nothing does. The most expensive check comes last.
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

// offer identifies an offering of a pool.
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

// searchKept searches from time to time for a layout as if nothing kept machines. It records what keeps the machines that would then leave, for events.
func (c *Controller) searchKept(s *pass, kept map[string]string) {
	if len(kept) == 0 || !s.now.Before(c.search.asked.Add(unprofitableFor)) {
		for _, r := range c.memory.machines {
			r.keptInLayout = ""
		}
	}
	if len(kept) == 0 || s.now.Before(c.search.asked.Add(unprofitableFor)) {
		return
	}
	c.search.asked = s.now
	started := c.Clock.Now()
	layout := s.lay(func(*snapshot.Machine) string { return "" })
	for _, p := range propose(&layout, solve.Solver{Stop: func() bool { return c.Clock.Since(started) >= layoutFor }}).proposals {
		for _, name := range p.claims {
			if why := kept[name]; why != "" {
				c.memory.of(s.named(name)).keptInLayout = why
			}
		}
	}
}

// lay returns the layout from which machines may be removed, except those that keeps returns a reason for.
func (s *pass) lay(keeps func(*snapshot.Machine) string) layout.Layout {
	s.count()
	layout := layout.Build(s.view, keeps)
	for i := range layout.View.Pools {
		// A pool with used-up budgets may still remove one machine in the search, so that an event can say that the budgets keep it.
		p := s.pools[layout.View.Pools[i].NodePool.Name]
		allowed := reason.Of(karpv1.DisruptionReasonUnderutilized).Allowed(&p.Pool)
		layout.Layout.Most = append(layout.Layout.Most, max(1, allowed-p.leaving))
	}
	return layout
}

// searchAgain returns when to search next, if this pass was too early.
func (c *Controller) searchAgain(now time.Time) time.Duration {
	if !c.search.missed {
		return longestWait
	}
	return max(soon, c.search.searched.Add(layoutEvery).Sub(now))
}
