package disruption

import (
	"testing"
	"time"

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

// unprofitable returns the NodeClaims that the controller remembers as not worth removing.
func (s *simulation) unprofitable(k *keeper) (names []string) {
	for uid, r := range k.memory.machines {
		if r.unprofitable.at(s.cluster.Now) != "" {
			names = append(names, string(uid))
		}
	}
	return names
}

func TestUnprofitableMachineIsReconsideredWhenOffersImprove(t *testing.T) {
	t.Parallel()
	s := halfEmpty(t)
	k := &keeper{}
	s.searchesLayout(k)
	if len(k.memory.search.found.Proposals) == 0 {
		t.Fatal("nothing is proposed")
	}
	for _, claim := range s.cluster.NodeClaims {
		k.memory.machines[claim.UID].unprofitable = refusal{"it did not save enough", s.cluster.Now.Add(unprofitableFor)}
	}
	s.searchesLayout(k)
	if len(k.memory.search.found.Proposals) > 0 || len(s.unprofitable(k)) != 2 {
		t.Fatalf("proposed: %v, remembered as unprofitable: %v", k.memory.search.found.Proposals, s.unprofitable(k))
	}
	types := snapshottest.Types()
	for i := range types {
		for j := range types[i].Offerings {
			types[i].Offerings[j].MicroUSDPerHour--
		}
	}
	s.cluster.UseInstanceTypes(types)
	s.searchesLayout(k)
	if len(k.memory.search.found.Proposals) == 0 || len(s.unprofitable(k)) > 0 {
		t.Errorf("proposed: %v, remembered as unprofitable: %v", k.memory.search.found.Proposals, s.unprofitable(k))
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

func TestInterruptedLayoutSearchIsRepeated(t *testing.T) {
	t.Parallel()
	s := halfEmpty(t)
	for want, over := range map[int]bool{1: false, 2: true} {
		k := &keeper{limits: Limits{Timer: func(time.Duration) func() bool { return func() bool { return over } }}}
		s.searchesLayout(k)
		s.searchesLayout(k)
		if k.searches != want {
			t.Errorf("the same machines were searched %d times, want %d", k.searches, want)
		}
	}
}

func TestLayoutSearchYieldsToUrgentWorkAndResumes(t *testing.T) {
	t.Parallel()
	s := halfEmpty(t)
	urgent := true
	k := &keeper{limits: Limits{Urgent: func() bool { return urgent }}}
	looks := func(again time.Duration) time.Duration {
		round, _ := Begin(s.seen(), k.memory, k.limits)
		next, did := round.Search(again, k.limits)
		if did.Ran {
			k.searches++
		}
		k.memory = round.Memory()
		return next
	}
	found := func() int { return len(k.memory.search.found.Proposals) }
	if next := looks(maxWait); next != soon || found() > 0 {
		t.Errorf("the next search is in %s, found: %d", next, found())
	}
	if k.searches != 0 {
		t.Errorf("%d searches have begun although there was more urgent work", k.searches)
	}
	if next := s.searchesLayout(k); next != soon || found() > 0 {
		t.Errorf("a search that has begun: the next one is in %s, found: %d", next, found())
	}
	urgent = false
	if next := looks(soon / 2); next != soon || found() > 0 {
		t.Errorf("a drain is due in half a second, the next search in %s, found: %d", next, found())
	}
	if looks(maxWait); found() == 0 {
		t.Error("nothing is found once there is nothing more urgent")
	}
	if k.searches != 2 {
		t.Errorf("%d searches, want 2", k.searches)
	}
}

func TestLargeFleetIsSearchedInSlices(t *testing.T) {
	t.Parallel()
	s := newSimulation(t, 0, 1000, true, true)
	for range slice + 10 {
		s.on("g4dn.xlarge", 5)
	}
	s.cluster.Now = s.cluster.Now.Add(time.Hour)
	k := &keeper{}
	for look, want := range []int{(slice + 10) / 2 * 4 / 5, (slice + 10) * 4 / 5} {
		s.searchesLayout(k)
		leaving := map[string]bool{}
		for _, p := range k.memory.search.found.Proposals {
			for _, name := range p.Claims {
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
	if p := k.memory.search.found.Proposals[0]; len(p.Claims) > 0 {
		if _, why := over(s.seen()).whatIf.saves(nil, p); why != "" {
			t.Errorf("a step of a slice is refused: %s", why)
		}
	}
}
