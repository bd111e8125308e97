package disruption

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planning"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// halfEmpty returns a simulation with two machines that have been half empty for an hour.
func halfEmpty(t *testing.T) *simulation {
	t.Helper()
	s := newSimulation(t, 0, 4, true, true)
	s.on("g4dn.xlarge", 5)
	s.on("g4dn.xlarge", 5)
	s.cluster.Now = s.cluster.Now.Add(time.Hour)
	return s
}

// seen returns a pass over the cluster in which every pod may be evicted.
func (s *simulation) seen() *pass {
	state := passOf(s.cluster)
	state.fakePods().blocker = nothingBlocks
	return state
}

// searchesLayout runs the controller's search for a cheaper layout.
func (s *simulation) searchesLayout(c *Controller) {
	state := s.seen()
	c.memory.keep(state)
	c.searchLayout(state)
}

// unprofitable returns the NodeClaims that the controller remembers as not worth removing.
func (s *simulation) unprofitable(c *Controller) (names []string) {
	for uid, r := range c.memory.machines {
		if r.unprofitable.at(s.cluster.Now) != "" {
			names = append(names, string(uid))
		}
	}
	return names
}

func controllerWith(clk clock.Clock, registry prometheus.Registerer) *Controller {
	return New(Config{Client: &statusWriter{}, Clock: clk, Metrics: metrics.New(registry), Planner: &planning.Planner{}})
}

func TestUnprofitableMachineIsReconsideredWhenOffersImprove(t *testing.T) {
	t.Parallel()
	s := halfEmpty(t)
	c := controllerWith(clocktesting.NewFakeClock(s.cluster.Now), prometheus.NewRegistry())
	s.searchesLayout(c)
	if len(c.search.found.proposals) == 0 {
		t.Fatal("nothing is proposed")
	}
	for _, claim := range s.cluster.NodeClaims {
		c.memory.machines[claim.UID].unprofitable = refusal{"it did not save enough", s.cluster.Now.Add(unprofitableFor)}
	}
	s.searchesLayout(c)
	if len(c.search.found.proposals) > 0 || len(s.unprofitable(c)) != 2 {
		t.Fatalf("proposed: %v, remembered as unprofitable: %v", c.search.found.proposals, s.unprofitable(c))
	}
	types := snapshottest.Types()
	for i := range types {
		for j := range types[i].Offerings {
			types[i].Offerings[j].MicroUSDPerHour--
		}
	}
	s.cluster.UseInstanceTypes(types)
	s.searchesLayout(c)
	if len(c.search.found.proposals) == 0 || len(s.unprofitable(c)) > 0 {
		t.Errorf("proposed: %v, remembered as unprofitable: %v", c.search.found.proposals, s.unprofitable(c))
	}
}

func TestOffersImproved(t *testing.T) {
	t.Parallel()
	a, b := offer{instanceType: "a"}, offer{instanceType: "b"}
	for name, c := range map[string]struct {
		before, now offers
		want        bool
	}{
		"the same":               {offers{a: 2}, offers{a: 2}, false},
		"a more expensive offer": {offers{a: 2}, offers{a: 3}, false},
		"an offer is gone":       {offers{a: 2, b: 2}, offers{a: 2}, false},
		"a cheaper offer":        {offers{a: 2, b: 2}, offers{a: 3, b: 1}, true},
		"a new offer":            {offers{a: 2}, offers{a: 2, b: 9}, true},
		"the first offers":       {nil, offers{a: 2}, true},
		"no offers left":         {offers{a: 2}, offers{}, false},
	} {
		if got := c.now.improves(c.before); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

// slow is a clock on which everything takes an hour.
type slow struct{ clock.Clock }

func (slow) Since(time.Time) time.Duration { return time.Hour }

func TestInterruptedLayoutSearchIsRepeated(t *testing.T) {
	t.Parallel()
	s := halfEmpty(t)
	now := clocktesting.NewFakeClock(s.cluster.Now)
	for want, clk := range map[uint64]clock.Clock{1: now, 2: slow{now}} {
		registry := prometheus.NewRegistry()
		c := controllerWith(clk, registry)
		s.searchesLayout(c)
		s.searchesLayout(c)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			if family.GetName() == "karve_layout_duration_seconds" && family.GetMetric()[0].GetHistogram().GetSampleCount() != want {
				t.Errorf("the same machines were looked at %d times, want %d", family.GetMetric()[0].GetHistogram().GetSampleCount(), want)
			}
		}
	}
}

func TestLayoutSearchYieldsToUrgentWorkAndResumes(t *testing.T) {
	t.Parallel()
	s := halfEmpty(t)
	c := controllerWith(clocktesting.NewFakeClock(s.cluster.Now), prometheus.NewRegistry())
	looks := func(again time.Duration) time.Duration {
		state := s.seen()
		c.memory.keep(state)
		_, next, err := c.cheaper(t.Context(), state, again)
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	c.urgent.Store(true)
	if next := looks(longestWait); next != soon || len(c.search.found.proposals) > 0 {
		t.Errorf("the next search is in %s, found: %v", next, c.search.found.proposals)
	}
	if n := searches(t, c); n != 0 {
		t.Errorf("%d searches have begun although there was more urgent work", n)
	}
	state := s.seen()
	c.memory.keep(state)
	if next := c.searchLayout(state); next != soon || len(c.search.found.proposals) > 0 {
		t.Errorf("a search that has begun: the next one is in %s, found: %v", next, c.search.found.proposals)
	}
	c.urgent.Store(false)
	if next := looks(soon / 2); next != soon || len(c.search.found.proposals) > 0 {
		t.Errorf("a drain is due in half a second, the next search in %s, found: %v", next, c.search.found.proposals)
	}
	if looks(longestWait); len(c.search.found.proposals) == 0 {
		t.Error("nothing is found once there is nothing more urgent")
	}
	if n := searches(t, c); n != 2 {
		t.Errorf("%d searches, want 2", n)
	}
}

// searches returns how many searches for a cheaper layout have ended, also those that gave way.
func searches(t *testing.T, c *Controller) uint64 {
	t.Helper()
	var m dto.Metric
	if err := c.Metrics.LayoutSeconds.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetHistogram().GetSampleCount()
}

func TestLargeFleetIsSearchedInSlices(t *testing.T) {
	t.Parallel()
	s := newSimulation(t, 0, 1000, true, true)
	for range slice + 10 {
		s.on("g4dn.xlarge", 5)
	}
	s.cluster.Now = s.cluster.Now.Add(time.Hour)
	c := controllerWith(clocktesting.NewFakeClock(s.cluster.Now), prometheus.NewRegistry())
	state := s.seen()
	c.memory.keep(state)
	for look, want := range []int{(slice + 10) / 2 * 4 / 5, (slice + 10) * 4 / 5} {
		c.searchLayout(state)
		leaving := map[string]bool{}
		for _, p := range c.search.found.proposals {
			for _, name := range p.claims {
				if leaving[name] {
					t.Fatalf("%s is in two steps", name)
				}
				leaving[name] = true
			}
		}
		// Half of the machines leave. Some stay because the price is close enough to the bound.
		if n := len(leaving); n < want/2*9/10 || n > want*7/10 {
			t.Errorf("after look %d, %d of %d machines leave", look, n, len(s.cluster.NodeClaims))
		}
	}
	if p := c.search.found.proposals[0]; len(p.claims) > 0 {
		if _, why := state.whatIf.saves(nil, p); why != "" {
			t.Errorf("a step of a slice is refused: %s", why)
		}
	}
}
