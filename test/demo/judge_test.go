package main

import (
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// expectedState returns a side with two pods on one machine, and the remains of the other side, which ran before.
func expectedState() (side, seen) {
	s := side{name: "Karve", pool: "shared", deployment: "inference", began: noon}
	return s, seen{
		pods: []pod{
			{name: "p1", app: "inference", node: "n1", seen: noon, running: noon},
			{name: "p2", app: "inference", node: "n1", seen: noon, running: noon},
			{name: "other", app: "other", node: "n0", seen: noon.Add(-time.Hour), running: noon.Add(-time.Hour), gone: noon.Add(-time.Minute)},
		},
		claims: []claim{
			{name: "c0", pool: "stock", node: "n0", seen: noon.Add(-time.Hour), gone: noon.Add(-time.Minute)},
			{name: "c1", pool: "shared", node: "n1", seen: noon},
		},
		nodes: []node{
			{name: "n0", pool: "stock", seen: noon.Add(-time.Hour), gone: noon.Add(-time.Minute)},
			{name: "n1", pool: "shared", seen: noon},
		},
	}
}

func TestSurprises(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*seen)
		want   string // "" means no surprise
	}{
		"nothing":                              {func(*seen) {}, ""},
		"a pod that is not running":            {func(s *seen) { s.pods[0].running = time.Time{} }, "pod p1 is not Running"},
		"a deleted pod":                        {func(s *seen) { s.pods[0].gone = noon }, "pod p1 is not Running"},
		"a pod that was replaced":              {func(s *seen) { s.pods = append(s.pods, pod{app: "inference", running: noon, node: "n1"}) }, "3 pods of Deployment"},
		"a pod on a node of the other side":    {func(s *seen) { s.pods[0].node = "n0" }, "p1 runs on Node n0, which is not of"},
		"a claim without a node":               {func(s *seen) { s.claims = append(s.claims, claim{name: "c2", pool: "shared", seen: noon}) }, "NodeClaim c2 was launched for nothing"},
		"a deleted claim":                      {func(s *seen) { s.claims[1].gone = noon }, "NodeClaim c1 was launched for nothing"},
		"a node without a claim":               {func(s *seen) { s.claims[1].node = "n7" }, "no NodeClaim is behind Node n1"},
		"an unused node":                       {func(s *seen) { s.addMachine("shared", "n2") }, "none of the pods is on Node n2"},
		"a machine of the other side":          {func(s *seen) { s.addMachine("stock", "n2") }, `Node n2 of NodePool "stock" is there while only Karve`},
		"a leftover machine of the other side": {func(s *seen) { s.claims[0].gone, s.nodes[0].gone = time.Time{}, time.Time{} }, `NodeClaim c0 of NodePool "stock" is there`},
		"a machine without a pool":             {func(s *seen) { s.nodes = append(s.nodes, node{name: "n3", seen: noon.Add(-time.Hour)}) }, `Node n3 of NodePool ""`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, now := expectedState()
			c.change(&now)
			matches(t, surprises(s, 2, now), c.want)
		})
	}
}

func (s *seen) addMachine(pool, name string) {
	s.claims = append(s.claims, claim{name: "c-" + name, pool: pool, node: name, seen: noon.Add(time.Second)})
	s.nodes = append(s.nodes, node{name: name, pool: pool, seen: noon.Add(time.Second)})
}

func TestCompare(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		karve, karpenter figures
		left             seen
		want             string
	}{
		"cheaper":        {figures{pods: 2, microUSD: 1}, figures{pods: 2, microUSD: 2}, seen{}, ""},
		"equally cheap":  {figures{pods: 2, microUSD: 2}, figures{pods: 2, microUSD: 2}, seen{}, ""},
		"dearer":         {figures{pods: 2, microUSD: 2_000_000}, figures{pods: 2, microUSD: 1_000_000}, seen{}, "$2.000 an hour, is above that of Karpenter alone, $1.000"},
		"different pods": {figures{pods: 2}, figures{pods: 3}, seen{}, "2 pods with Karve and 3 with"},
		"leftovers":      {figures{}, figures{}, seen{nodes: []node{{}}}, "0 NodeClaims and 1 Node are left"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			matches(t, compared(c.karve, c.karpenter, c.left), c.want)
		})
	}
}

func TestMachineWithoutPriceIsAnError(t *testing.T) {
	t.Parallel()
	p := prices{{"g4dn.xlarge", "a", "on-demand"}: 526_000}
	one := claim{name: "c1", instanceType: "g4dn.xlarge", zone: "a", capacityType: "on-demand"}
	if sum, err := p.of([]claim{one, one}); err != nil || sum != 1_052_000 {
		t.Errorf("two cost %d, %v", sum, err)
	}
	one.capacityType = "spot"
	_, err := p.of([]claim{one})
	matches(t, err, `c1 is a spot "g4dn.xlarge" in zone "a", which has no price`)
}

func TestNodesAreReportedOnceTheyStayReady(t *testing.T) {
	t.Parallel()
	ready := seen{claims: []claim{{}}, nodes: []node{{ready: true, replicas: 10}}}
	bare := seen{claims: []claim{{}}, nodes: []node{{ready: true}}}
	var r readiness
	if r.look(bare, false) || r.look(ready, false) {
		t.Error("reported ready at once")
	}
	r.since = r.since.Add(-nodesQuiet)
	if r.look(bare, false) || r.look(ready, false) {
		t.Error("reported ready although the replicas disappeared a moment ago")
	}
	if !r.look(ready, true) {
		t.Error("not reported ready although the pods run")
	}
	if r.look(ready, true) {
		t.Error("reported ready twice")
	}
}

func TestProgressPrintsWholeLines(t *testing.T) {
	t.Parallel()
	said := &strings.Builder{}
	p := &progress{story: newStory(said)}
	for _, part := range []string{"building etcd (1 of 2), ab", "out a minute\n  built in", " 2s\nrest"} {
		if n, err := p.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatal(n, err)
		}
	}
	if want := "   0.0s  building etcd (1 of 2), about a minute\n   0.0s    built in 2s\n"; said.String() != want {
		t.Errorf("printed %q, want %q", said, want)
	}
	if got := p.doing(); got != "building etcd" {
		t.Errorf("doing %q", got)
	}
}

func matches(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("surprised by %v", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("error %v, want %q in it", err, want)
	}
}
