package disruption

import (
	"reflect"
	"slices"
	"strings"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/controllers/disruption/reason"
	"karve.sh/karve/pkg/controllers/wording"
	"karve.sh/karve/pkg/fleet/layout"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
)

// A cheaper layout is reached in steps. A step is a set of machines without which the others, and those that are launched for their pods, cost less an hour by more than
// moving the pods counts. All that is done about it is to mark them together: what follows is as for all machines that are replaced, and each machine keeps its mark
// as long as the others cost less without it.

const (
	// layoutEvery is how close together two searches for a cheaper layout may be, and two judgements of whether the marks that one has led to still pay.
	layoutEvery = lifecycle.LayoutLook
	// layoutFor is how long one may take; the best that is found until then counts.
	layoutFor = time.Second
	// vainFor is how long machines are no part of layouts that could not go when their pods were planned for with all that they ask.
	vainFor = 5 * time.Minute
)

// consolidation is what the controller remembers of layouts beside what it remembers of each machine and pool. After a restart all of it is found again.
type consolidation struct {
	// searched is when a cheaper layout was searched, layout what it was searched in, outlook what was found. missed says that this pass was too early for a search.
	searched time.Time
	layout   planner.Layout
	outlook  outlook
	missed   bool
	// judged is when the marks were last judged, marked the NodeClaims that had them, verdicts what came of it.
	judged   time.Time
	marked   []string
	verdicts verdicts
	// offered is what could be launched at the last search.
	offered offers
	// asked is when it was last asked which machines a layout would do without if nothing kept them.
	asked time.Time
}

// proposal is such a step.
type proposal struct {
	// claims are the NodeClaims of the machines, sorted.
	claims []string
	// moves is what moving their pods counts.
	moves planner.MicroUSD
}

func (p proposal) String() string { return strings.Join(p.claims, " ") }

// outlook is how the machines could cost less.
type outlook struct {
	// proposals are steps in the order in which they are best taken, as far as the planner knows: what pods ask of each other is looked at before one is taken.
	proposals []proposal
	// surplus are the NodeClaims of the machines that the cheapest layout does without.
	surplus []string
	// price is what the machines of the layout cost an hour, bound what others for the same pods cost at least.
	price, bound planner.MicroUSD
}

// propose looks for a cheaper layout.
func propose(l *layout.Layout, search planner.Search) outlook {
	found := search.Cheaper(l.Layout)
	out := outlook{price: found.Price, bound: found.Bound}
	nodes := map[int]string{}
	for i, m := range l.Machines {
		nodes[l.Layout.Machines[i].Node] = m.Claim.Name
	}
	for _, node := range found.Surplus {
		if claim, ok := nodes[node]; ok && found.Price > found.Bound { // Else nothing can be cheaper.
			out.surplus = append(out.surplus, claim)
		}
	}
	if !slices.ContainsFunc(l.Machines, func(m *snapshot.Machine) bool {
		return !slices.Contains(out.surplus, m.Claim.Name) && m.Exposed() > m.ReplicasInUse()
	}) {
		out.surplus = nil // There is nowhere to steer to.
	}
	for _, step := range found.Steps {
		p := proposal{moves: step.Moves}
		for _, i := range step.Leave {
			if m := l.Machines[i]; !m.Unused() {
				p.claims = append(p.claims, m.Claim.Name) // Others go by themselves once they have been idle for their time.
			}
		}
		if len(p.claims) > 0 {
			slices.Sort(p.claims)
			out.proposals = append(out.proposals, p)
		}
	}
	return out
}

// consider adds to the pass what a cheaper layout asks for.
func (c *Controller) consider(cluster *snapshot.Cluster, s *pass) {
	c.judgeMarks(s)
	c.missed = s.now.Before(c.searched.Add(layoutEvery))
	if !c.missed {
		c.searchLayout(cluster, s)
	}
	for name, p := range c.memory.pools {
		if p.attempt.worked(s, name) {
			p.attempt = attempt{}
		}
	}
	s.proposals = c.outlook.proposals
	for _, m := range s.machines {
		r := c.memory.of(m)
		m.KeptInLayout = r.keptInLayout
		m.Proposed = r.proposed.note(slices.ContainsFunc(s.proposals, func(p proposal) bool { return slices.Contains(p.claims, m.Claim.Name) }), s)
		// Pods are not steered away from where they are to go, nor from where they cannot.
		surplus := slices.Contains(c.outlook.surplus, m.Claim.Name) && m.Node != nil && !m.Wanted && m.Exposed() > m.ReplicasInUse()
		m.Surplus = r.surplus.note(surplus, s)
		// What has been surplus stays so until it has not been for a while, unless its pods are not to be moved at all.
		if used := r.used.note(steeredAway(m.Machine) && !surplus, s); steeredAway(m.Machine) && m.NodePool.MovesPods && !used {
			m.Surplus = true
		}
	}
}

// judgeMarks has the marks stand that still pay.
func (c *Controller) judgeMarks(s *pass) {
	if marked := marking(s.machines); len(marked) == 0 || !slices.Equal(marked, c.marked) || !s.now.Before(c.judged.Add(layoutEvery)) {
		started := c.Clock.Now()
		c.marked, c.judged = marked, s.now
		c.verdicts = s.standing(c.verdicts, func() bool { return c.Clock.Since(started) >= layoutFor })
	}
	for _, m := range s.machines {
		m.Saving = c.verdicts.stand[m.Claim.Name]
	}
}

// searchLayout searches for a cheaper layout, unless it has been searched for among the same machines before.
func (c *Controller) searchLayout(cluster *snapshot.Cluster, s *pass) {
	c.searched = s.now
	keeps := func(m *snapshot.Machine) string {
		return s.keepsInLayout(s.named(m.Claim.Name), c.memory.machines[m.Claim.UID].unprofitable)
	}
	layout := s.lay(cluster, keeps)
	before := c.offered
	c.offered = offersOf(layout.View.Snapshot)
	if !c.memory.settled(s.now) && c.offered.betters(before) {
		c.memory.retry() // What did not pay may do now.
		layout = s.lay(cluster, keeps)
	}
	if reflect.DeepEqual(layout.Layout, c.layout) {
		return
	}
	started, cut := c.Clock.Now(), false
	c.outlook = propose(&layout, planner.Search{Stop: func() bool {
		cut = c.Clock.Since(started) >= layoutFor
		return cut
	}})
	c.layout = layout.Layout
	if cut {
		c.layout = planner.Layout{} // It is searched again: the processor may have had much else to do.
	}
	c.Metrics.LayoutSeconds.Observe(c.Clock.Since(started).Seconds())
	c.searchKept(cluster, s, layout.Kept)
	c.Metrics.LayoutPrice.Set(metrics.USD(int64(c.outlook.price)))
	c.Metrics.LayoutBound.Set(metrics.USD(int64(c.outlook.bound)))
}

// keepsInLayout returns what keeps a machine that a layout might do without; "" when nothing does. The dearest question comes last.
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

// offers are the prices of what may be launched.
type offers map[offer]planner.MicroUSD

// offer is a kind of machine.
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

// betters says that something may be launched that could not before, or costs less than it did.
func (o offers) betters(before offers) bool {
	for key, price := range o {
		if was, ok := before[key]; !ok || price < was {
			return true
		}
	}
	return false
}

// searchKept asks now and then which of the machines that something keeps would leave otherwise: events tell of those.
func (c *Controller) searchKept(cluster *snapshot.Cluster, s *pass, kept map[string]string) {
	if len(kept) == 0 || !s.now.Before(c.asked.Add(vainFor)) {
		for _, r := range c.memory.machines {
			r.keptInLayout = ""
		}
	}
	if len(kept) == 0 || s.now.Before(c.asked.Add(vainFor)) {
		return
	}
	c.asked = s.now
	started := c.Clock.Now()
	layout := s.lay(cluster, func(*snapshot.Machine) string { return "" })
	for _, p := range propose(&layout, planner.Search{Stop: func() bool { return c.Clock.Since(started) >= layoutFor }}).proposals {
		for _, name := range p.claims {
			if why := kept[name]; why != "" {
				c.memory.of(s.named(name)).keptInLayout = why
			}
		}
	}
}

// lay makes the layout of what may leave: not what keeps says something of.
func (s *pass) lay(cluster *snapshot.Cluster, keeps func(*snapshot.Machine) string) layout.Layout {
	s.count()
	layout := layout.Build(cluster, keeps)
	for i := range layout.View.Pools {
		// A pool whose budgets are used up gets one: that it is them which keep a machine is told when there is a step.
		p := s.pools[layout.View.Pools[i].NodePool.Name]
		allowed := reason.Of(karpv1.DisruptionReasonUnderutilized).Allowed(&p.Pool)
		layout.Layout.Most = append(layout.Layout.Most, max(1, allowed-p.leaving))
	}
	return layout
}

// searchAgain is when to search for a cheaper layout where this pass was too early.
func (c *Controller) searchAgain(now time.Time) time.Duration {
	if !c.missed {
		return longestWait
	}
	return max(soon, c.searched.Add(layoutEvery).Sub(now))
}

func usd(amount planner.MicroUSD) string {
	return "$" + wording.USD(int64(amount))
}

// verdicts are what is known of the machines that are marked because the others cost less without them.
type verdicts struct {
	// stand are why they go of those whose marks stand, by NodeClaim; judged are all that were looked at.
	stand  map[string]*reason.Candidate
	judged []string
	// pending are those that the last look had no time for. The next look begins with them.
	pending []string
}

// standing judges whether the machines that are marked because the others cost less without them still do: prices change, and pods come. One by
// one, a machine without which they do not cost less stays, and the rest is looked at with it. Each judgement costs a plan of the whole cluster, so it ends after
// the first one for which stop returns true. Marks that it had no time for keep their former verdict; new ones stand.
func (s *pass) standing(before verdicts, stop func() bool) verdicts {
	marked := slices.DeleteFunc(marking(s.machines), func(name string) bool { return !s.named(name).NodePool.MovesPods })
	now := verdicts{stand: map[string]*reason.Candidate{}, judged: slices.Clone(marked)}
	if len(before.pending) > 0 { // This look goes on where the last one ended: what fell then stays where it is.
		marked = slices.DeleteFunc(marked, func(name string) bool {
			_, stood := before.stand[name]
			return !stood && slices.Contains(before.judged, name)
		})
	}
	first := slices.DeleteFunc(slices.Clone(before.pending), func(name string) bool { return !slices.Contains(marked, name) })
	order := slices.Concat(first, slices.DeleteFunc(slices.Clone(marked), func(name string) bool { return slices.Contains(first, name) }))
	for _, name := range marked {
		verdict, stood := before.stand[name]
		if !stood {
			verdict = reason.Cheaper(0, 1)
		}
		if stood || !slices.Contains(before.judged, name) {
			now.stand[name] = verdict
		}
	}
	now.pending = order
	for len(now.pending) > 0 {
		name := now.pending[0]
		others := slices.DeleteFunc(slices.Clone(marked), func(other string) bool { return other == name })
		saving, why := s.whatIf.saving(others, []string{name})
		if why == "" && saving > 0 {
			now.stand[name] = reason.Cheaper(saving, 1)
			now.pending = now.pending[1:]
		} else {
			// What was said of those before it was said with it gone.
			delete(now.stand, name)
			order = slices.DeleteFunc(order, func(other string) bool { return other == name })
			marked, now.pending = others, order
		}
		if stop() {
			break
		}
	}
	return now
}

// steps are the machines that are marked from now on so that the rest costs less, and those that should be and stay.
func (s *pass) steps() []command {
	var commands []command
	names := marking(s.machines)
	for _, p := range s.proposals {
		machines := s.ready(p)
		if machines == nil {
			continue
		}
		why := s.holdsUp(machines)
		var saving planner.MicroUSD
		if why == "" {
			saving, why = s.whatIf.saves(names, p)
		}
		for _, m := range machines {
			m.Candidate = reason.Cheaper(saving, len(machines))
			if why != "" {
				commands = append(commands, command{step: stay, machine: m, reason: why})
				continue
			}
			names = append(names, m.Claim.Name)
			s.pool(m).leaving++
			commands = append(commands, command{step: replace, machine: m, reason: string(karpv1.DisruptionReasonUnderutilized)})
		}
	}
	for _, m := range s.machines {
		if m.KeptInLayout == "" || !free(m) {
			continue
		}
		m.Candidate = reason.Cheaper(0, 1)
		commands = append(commands, command{step: stay, machine: m, reason: m.KeptInLayout})
	}
	return commands
}

// marking are the claims of machines that are marked because the rest costs less without them.
func marking(machines []*reason.Machine) []string {
	var names []string
	for _, m := range machines {
		if reason.MarkedUnderutilized(m.Machine) && !m.Deleting() {
			names = append(names, m.Claim.Name)
		}
	}
	return names
}

// ready are the machines of a proposal; nil when one of them goes anyway, is about to be used, or has not been proposed for a while, and while machines of their
// pools are on their way: what they are for is not settled yet.
func (s *pass) ready(p proposal) []*reason.Machine {
	var machines []*reason.Machine
	for _, name := range p.claims {
		m := s.named(name)
		if m == nil || !free(m) || m.Wanted || !m.Proposed || m.NodePool.Launching {
			return nil
		}
		machines = append(machines, m)
	}
	return machines
}

// free says that nothing has been decided about the machine yet.
func free(m *reason.Machine) bool {
	return m.Candidate == nil && !m.Leaving() && m.Started() && !marked(m.Machine)
}

// holdsUp says why machines do not go now though the rest would cost less; "" when they may.
func (s *pass) holdsUp(machines []*reason.Machine) string {
	more := map[string]int{}
	for _, m := range machines {
		more[m.Pool()]++
	}
	for _, m := range machines {
		if allowed := s.allowed(m, reason.Cheaper(0, 1)); s.pool(m).leaving+more[m.Pool()] > allowed {
			return overBudget(m, allowed)
		}
		if why := s.refuses(m, reason.Cheaper(0, 1)); why != "" {
			return why
		}
	}
	return ""
}
