package disruption

import (
	"context"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/layout"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
)

const (
	// lookEvery is how close together two looks for a cheaper layout may be, and two looks at whether the marks that one has led to still pay.
	lookEvery = lifecycle.LayoutLook
	// lookFor is how long one may take; the best that is found until then counts.
	lookFor = time.Second
	// vainFor is how long machines are no part of layouts that could not go when their pods were planned for with all that they ask.
	vainFor = 5 * time.Minute
)

// consolidation is what the controller remembers of layouts. All of it but tried is found again after a restart, a little later.
type consolidation struct {
	// looked is when a cheaper layout was looked for, layout what was looked at, outlook what was found, missed says that there was a wish to look again before it was time.
	looked  time.Time
	layout  planner.Layout
	outlook outlook
	missed  bool
	// ripening, gaining and losing are since when machines are proposed to leave, are surplus, and are not any more.
	ripening, gaining, losing lasting
	// stood is when the marks were last judged, marked which they were.
	stood  time.Time
	marked []string
	verdicts
	// vain are the claims that could not leave, though the planner would have them leave; offered is what could be launched in their stead when they were looked at last.
	vain    map[string]refusal
	offered offers
	// tried are the last steps: one in vain is not begun again at once.
	tried attempts
	// kept says what keeps machines without which a layout would do that nothing kept, asked when such a one was looked for.
	kept  map[string]string
	asked time.Time
}

func newConsolidation() consolidation {
	return consolidation{ripening: lasting{}, gaining: lasting{}, losing: lasting{}, vain: map[string]refusal{}, tried: attempts{}}
}

// consider adds to the state what a cheaper layout asks for.
func (c *Controller) consider(cluster *snapshot.Cluster, s *state) {
	c.judge(s)
	for name, r := range c.vain {
		if !s.now.Before(r.until) {
			delete(c.vain, name)
		}
	}
	c.missed = s.now.Before(c.looked.Add(lookEvery))
	if !c.missed {
		c.look(cluster, s)
	}
	s.proposals, s.kept = c.outlook.proposals, c.kept
	s.ripe = c.ripening.note(s, func(m *snapshot.Machine) bool {
		return slices.ContainsFunc(s.proposals, func(p proposal) bool { return slices.Contains(p.claims, m.Claim.Name) })
	})
	surplus := func(m *snapshot.Machine) bool {
		// Pods are not steered away from where they are to go, nor from where they cannot.
		return c.outlook.surplus[m.Claim.Name] && m.Node != nil && !s.wanted[m.Node.Name] && m.Exposed() > m.ReplicasInUse()
	}
	s.surplus = c.gaining.note(s, surplus)
	lost := c.losing.note(s, func(m *snapshot.Machine) bool { return steeredAway(m) && !surplus(m) })
	for i := range s.machines {
		// What has been surplus stays so until it has not been for a while, unless its pods are not to be moved at all.
		if m := &s.machines[i]; steeredAway(m) && s.moves[m.Pool()] && !lost[m.Claim.Name] {
			s.surplus[m.Claim.Name] = true
		}
	}
	c.tried.forget(s)
	saves := s.saves
	s.saves = func(marked []string, p proposal) (planner.MicroUSD, string) {
		pools := s.pools(p)
		if why := c.tried.inVain(s, pools); why != "" {
			return 0, why
		}
		saving, why := saves(marked, p)
		result := metrics.StepBegun
		if why != "" {
			result = metrics.StepRefused
			for _, name := range p.claims {
				c.vain[name] = refusal{why, s.now.Add(vainFor)}
			}
		} else {
			c.tried.begin(s, pools)
		}
		c.Metrics.LayoutSteps.WithLabelValues(pools[0], string(result)).Inc()
		return saving, why
	}
}

// judge has the marks stand that still pay.
func (c *Controller) judge(s *state) {
	if marked := marking(s.machines); len(marked) == 0 || !slices.Equal(marked, c.marked) || !s.now.Before(c.stood.Add(lookEvery)) {
		started := c.Clock.Now()
		c.marked, c.stood = marked, s.now
		c.verdicts = s.standing(c.verdicts, func() bool { return c.Clock.Since(started) >= lookFor })
	}
	for name, cause := range c.stand {
		if _, ok := s.causes[name]; !ok {
			s.causes[name] = cause
		}
	}
}

// look looks for a cheaper layout, unless it has been looked for among the same machines before.
func (c *Controller) look(cluster *snapshot.Cluster, s *state) {
	c.looked = s.now
	vain := func(m *snapshot.Machine) string { return c.vain[m.Claim.Name].why }
	keeps := func(m *snapshot.Machine) string {
		for _, says := range []func(*snapshot.Machine) string{s.ails, vain, s.protects, s.stays} { // The dearest last.
			if why := says(m); why != "" {
				return why
			}
		}
		return ""
	}
	layout := s.lay(cluster, keeps)
	before := c.offered
	c.offered = offersOf(layout.View.Snapshot)
	if (len(c.vain) > 0 || len(c.tried) > 0) && c.offered.betters(before) {
		clear(c.vain) // What did not pay may do now.
		clear(c.tried)
		layout = s.lay(cluster, keeps)
	}
	if reflect.DeepEqual(layout.Layout, c.layout) {
		return
	}
	started, cut := c.Clock.Now(), false
	c.outlook = propose(&layout, planner.Search{Stop: func() bool {
		cut = c.Clock.Since(started) >= lookFor
		return cut
	}})
	c.layout = layout.Layout
	if cut {
		c.layout = planner.Layout{} // It is looked for again: the processor may have had much else to do.
	}
	c.Metrics.LayoutSeconds.Observe(c.Clock.Since(started).Seconds())
	c.ask(cluster, s, layout.Kept)
	c.Metrics.LayoutPrice.Set(metrics.USD(int64(c.outlook.price)))
	c.Metrics.LayoutBound.Set(metrics.USD(int64(c.outlook.bound)))
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

// ask asks now and then which of the machines that something keeps would leave otherwise: it is told of those.
func (c *Controller) ask(cluster *snapshot.Cluster, s *state, kept map[string]string) {
	if len(kept) == 0 || !s.now.Before(c.asked.Add(vainFor)) {
		c.kept = map[string]string{}
	}
	if len(kept) == 0 || s.now.Before(c.asked.Add(vainFor)) {
		return
	}
	c.asked = s.now
	started := c.Clock.Now()
	layout := s.lay(cluster, func(*snapshot.Machine) string { return "" })
	for _, p := range propose(&layout, planner.Search{Stop: func() bool { return c.Clock.Since(started) >= lookFor }}).proposals {
		for _, name := range p.claims {
			if why := kept[name]; why != "" {
				c.kept[name] = why
			}
		}
	}
}

// lay makes the layout of what may leave: not what keeps says something of.
func (s *state) lay(cluster *snapshot.Cluster, keeps func(*snapshot.Machine) string) layout.Layout {
	s.count()
	layout := layout.Build(cluster, keeps)
	for i := range layout.View.Pools {
		// A pool whose budgets are used up gets one: that it is them which keep a machine is told when there is a step.
		pool := layout.View.Pools[i].NodePool.Name
		layout.Layout.Most = append(layout.Layout.Most, max(1, s.allows(pool, cheaper(0, 1))-s.leaving[pool]))
	}
	return layout
}

// lookAgain is when to look for a cheaper layout that was not looked for now.
func (c *Controller) lookAgain(now time.Time) time.Duration {
	if !c.missed {
		return longestWait
	}
	return max(soon, c.looked.Add(lookEvery).Sub(now))
}

// steered are the machines that are to get the taint that steers new pods to others, or to lose it. While pods are on the move, it is on all that have room and that
// the plan has not chosen for them: the scheduler would spread them, and what the step has gained is lost. While they are handed over to one machine after the other
// only that one is chosen.
func (s *state) steered() []*snapshot.Machine {
	moving := map[string]bool{}
	for i := range s.machines {
		if m := &s.machines[i]; m.Replacing() != "" && (m.Deleting() || marked(m)) {
			moving[m.Pool()] = true
		}
	}
	var machines []*snapshot.Machine
	for i := range s.machines {
		m := &s.machines[i]
		if m.Node == nil || m.Deleting() {
			continue
		}
		if steeredAway(m) != s.away(m, moving[m.Pool()]) {
			machines = append(machines, m)
		}
	}
	return machines
}

// away says whether pods are to be steered away from a machine of a pool of which pods are moving or not.
func (s *state) away(m *snapshot.Machine, moving bool) bool {
	target, handing := s.targets[m.Pool()]
	chosen := handing && m.Node.Name == target
	room := m.Started() && m.Replacing() == "" && m.Exposed() > m.ReplicasInUse() && (handing || !s.wanted[m.Node.Name])
	return underutilized(m) || !chosen && (s.surplus[m.Claim.Name] || moving && room)
}

func steeredAway(m *snapshot.Machine) bool {
	return m.Node != nil && slices.ContainsFunc(m.Node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == v1alpha1.SurplusTaintKey })
}

// steer puts the taint on a machine, or takes it off.
func (c *Controller) steer(ctx context.Context, m *snapshot.Machine) error {
	away := steeredAway(m)
	log.FromContext(ctx).V(1).Info("Steering new pods", "node", klog.KObj(m.Node), "away", !away)
	return c.patch(ctx, m.Node, func(n *corev1.Node) { turnAway(n, !away) })
}

// turnAway has the scheduler prefer other Nodes, or not any more.
func turnAway(n *corev1.Node, away bool) {
	n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == v1alpha1.SurplusTaintKey })
	if away {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: v1alpha1.SurplusTaintKey, Effect: corev1.TaintEffectPreferNoSchedule})
	}
}
