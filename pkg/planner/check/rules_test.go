package check_test

import (
	"slices"
	"strings"
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/plantest"
)

// threePlaces returns a snapshot with a node and with offerings in two of three zones, and a plan for it: web-0 on the node in zone-a, web-1 and db-0 on a
// machine in zone-a, and web-2 on a machine in zone-b. Class 0 is web, class 1 is db.
func threePlaces(rules ...planner.Rule) (planner.Snapshot, planner.Plan) {
	s := planner.Snapshot{Pools: []planner.Pool{plantest.Pool("a"), plantest.Pool("b")}, Rules: rules}
	for z, zone := range []string{"zone-a", "zone-b"} {
		for _, m := range plantest.G4dn()[:2] {
			o := m.Offering(0, zone, "on-demand", m.Price, 10)
			o.Domains = []int{z}
			s.Offerings = append(s.Offerings, o)
		}
	}
	s.Topologies = []planner.Topology{{Key: "zone", Domains: []string{"zone-a", "zone-b", "zone-c"}}}
	s.Nodes = []planner.Node{{Name: "node-1", Free: planner.Resources{MilliCPU: 2000, MemoryBytes: 4 * plantest.Gi, Pods: 5, Replicas: 2}, Domains: []int{0}}}
	s.Classes = []planner.Class{
		plantest.Class(s, "web", 3, plantest.Request(1000, 1024, 1)),
		plantest.Class(s, "db", 1, plantest.Request(1000, 1024, 1)),
	}
	return s, planner.Plan{
		Placements: []planner.Placement{{Node: 0, Pods: []string{"default/web-00000"}}},
		Launches: []planner.Launch{
			{Offering: 0, Pods: []string{"default/db-00000", "default/web-00001"}},
			{Offering: 2, Pods: []string{"default/web-00002"}},
		},
		Price: 1_052_000,
	}
}

func rule(kind planner.RuleKind, topology int, change func(*planner.Rule)) planner.Rule {
	r := planner.Rule{Kind: kind, Name: "the rule", Topology: topology, Classes: []int{0}, Counted: []int{0}, Eligible: []int{0, 1}}
	switch {
	case kind == planner.Spread && topology == planner.PerNode:
		r.MaxSkew, r.Eligible = 1, nil
	case kind == planner.Spread:
		r.MaxSkew = 1
	default:
		r.Eligible = nil
	}
	if change != nil {
		change(&r)
	}
	return r
}

func TestCheckEnforcesSchedulingRules(t *testing.T) {
	t.Parallel()
	const zone, machine = 0, planner.PerNode
	for _, c := range []struct {
		name string
		rule planner.Rule
		want string // the error, or "" for none
	}{
		{"two in one zone and one in the other have skew one", rule(planner.Spread, zone, nil), ""},
		{"an empty third zone makes the skew two", rule(planner.Spread, zone, func(r *planner.Rule) { r.Eligible = nil }), "more than 1 apart"},
		{"a max skew of two", rule(planner.Spread, zone, func(r *planner.Rule) { r.Eligible, r.MaxSkew = nil, 2 }), ""},
		{"running pods count", rule(planner.Spread, zone, func(r *planner.Rule) { r.Present = []int64{1} }), "have 3 pods that the rule counts, another one 1"},
		{"running pods even out the skew", rule(planner.Spread, zone, func(r *planner.Rule) { r.Present = []int64{3, 3} }), ""},
		{"too few domains count as an empty one", rule(planner.Spread, zone, func(r *planner.Rule) { r.MinDomains = 3 }), "another one 0"},
		{"an ineligible domain gets no pods", rule(planner.Spread, zone, func(r *planner.Rule) { r.Eligible = []int{0} }), "its domain does not count"},
		{"pods that are only counted may be anywhere", rule(planner.Spread, zone, func(r *planner.Rule) { r.Classes, r.Eligible = nil, nil }), ""},
		{"one on each machine", rule(planner.Spread, machine, nil), ""},
		{"two on one machine", rule(planner.Spread, machine, func(r *planner.Rule) { r.Counted = []int{0, 1} }), "more than 1 apart"},
		{"one on a machine that already has one", rule(planner.Spread, machine, func(r *planner.Rule) { r.Present = []int64{1} }), "more than 1 apart"},

		{"affinity split over two zones", rule(planner.Together, zone, nil), "without any that they have to be together with"},
		{"affinity to running pods in each zone", rule(planner.Together, zone, func(r *planner.Rule) { r.Present = []int64{1, 1} }), ""},
		{"affinity to running pods in one zone", rule(planner.Together, zone, func(r *planner.Rule) { r.Present = []int64{0, 1} }), "without any"},
		{"db follows web", rule(planner.Together, machine, func(r *planner.Rule) { r.Classes = []int{1} }), ""},
		{"web does not follow db everywhere", rule(planner.Together, machine, func(r *planner.Rule) { r.Counted = []int{1} }), "without any"},
		{"a pod that matches itself may start", rule(planner.Together, zone, func(r *planner.Rule) { r.Classes, r.Counted = []int{1}, []int{1} }), ""},
		{"a pod that does not match itself may not start", rule(planner.Together, zone, func(r *planner.Rule) { r.Classes, r.Counted = []int{1}, nil }), "without any"},
		{"no pod starts while a match runs elsewhere", rule(planner.Together, zone, func(r *planner.Rule) {
			r.Classes, r.Counted, r.Elsewhere = []int{1}, []int{1}, 1
		}), "without any"},
		{"a pod starts before others that it would have to follow", rule(planner.Together, machine, func(r *planner.Rule) {
			r.Classes, r.Counted = []int{1}, []int{0, 1}
		}), ""},

		{"two in one zone break anti-affinity", rule(planner.Apart, zone, nil), "share domain 0"},
		{"one on each machine satisfies anti-affinity", rule(planner.Apart, machine, nil), ""},
		{"db breaks anti-affinity to web", rule(planner.Apart, machine, func(r *planner.Rule) { r.Classes = []int{1} }), "share"},
		{"web breaks anti-affinity to db", rule(planner.Apart, machine, func(r *planner.Rule) { r.Counted = []int{1} }), "share"},
		{"db keeps anti-affinity to itself", rule(planner.Apart, zone, func(r *planner.Rule) { r.Classes, r.Counted = []int{1}, []int{1} }), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			switch err := check.Plan(threePlaces(c.rule)); {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestCheckFindsSchedulingOrderForPodAffinity(t *testing.T) {
	t.Parallel()
	together := func(topology int, classes, counted []int, present ...int64) planner.Rule {
		return rule(planner.Together, topology, func(r *planner.Rule) { r.Classes, r.Counted, r.Present = classes, counted, present })
	}
	for _, c := range []struct {
		name  string
		rules []planner.Rule
		pods  [2][]string // of the two launches; all other pods are unplaced
	}{
		{
			"unplaced pods are not waited for",
			[]planner.Rule{together(planner.PerNode, []int{1, 2}, []int{0, 1}), together(planner.PerNode, []int{2}, []int{1, 2})},
			[2][]string{{"default/web-00000"}, {"default/db-00000"}},
		},
		{
			"a pod with a running match may start under another rule",
			[]planner.Rule{together(0, []int{0}, []int{1}, 1, 1), together(planner.PerNode, []int{0}, []int{0, 1})},
			[2][]string{{"default/db-00000", "default/web-00000"}, {"default/web-00001"}},
		},
		{
			"of two that wait for each other the one begins whom nobody joins later",
			[]planner.Rule{together(0, []int{1}, []int{0, 1}), together(planner.PerNode, []int{0}, []int{0, 1})},
			[2][]string{{"default/db-00000", "default/web-00000"}, {"default/web-00001"}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, p := threePlaces(c.rules...)
			s.Classes = append(s.Classes, plantest.Class(s, "cache", 1, plantest.Request(1000, 1024, 1)))
			p.Placements = nil
			p.Launches = []planner.Launch{{Offering: 0, Pods: c.pods[0]}, {Offering: 0, Pods: c.pods[1]}}
			for _, class := range s.Classes {
				for _, pod := range class.Pods {
					if !slices.Contains(c.pods[0], pod) && !slices.Contains(c.pods[1], pod) {
						p.Unplaced = append(p.Unplaced, planner.Unplaced{Pod: pod, Refusal: planner.Refusal{Reason: planner.ReasonRule, Message: "full"}})
					}
				}
			}
			if err := check.Plan(s, p); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestCheckIgnoresPreferences(t *testing.T) {
	t.Parallel()
	s, p := threePlaces(rule(planner.Apart, 0, nil))
	s.Classes[0].Preferences = []planner.Preference{{Rule: 0}}
	if err := check.Plan(s, p); err != nil {
		t.Error(err)
	}
}

func TestCheckEnforcesMinValues(t *testing.T) {
	t.Parallel()
	sound := func() (planner.Snapshot, planner.Plan) {
		s, p := threePlaces()
		s.Pools[0].MinValues = []planner.MinValues{{Key: "type", Min: 2, Values: []string{"x", "y", "x", "y"}}}
		p.Launches[0].Alternatives, p.Launches[1].Alternatives = []int{1}, []int{3}
		return s, p
	}
	if err := check.Plan(sound()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		spoil func(s *planner.Snapshot, p *planner.Plan)
		want  string
	}{
		{"no alternatives are left", func(_ *planner.Snapshot, p *planner.Plan) { p.Launches[0].Alternatives = nil }, "launch 0 leaves 1 values of type, pool a asks for 2"},
		{"a value is missing", func(s *planner.Snapshot, _ *planner.Plan) { s.Pools[0].MinValues[0].Values[1] = "" }, "leaves 1 values"},
		{"an alternative does not exist", func(_ *planner.Snapshot, p *planner.Plan) { p.Launches[0].Alternatives = []int{9} }, "there is no offering 9"},
		{"an alternative is the offering", func(_ *planner.Snapshot, p *planner.Plan) { p.Launches[0].Alternatives = []int{1, 0} }, "offering 0 is named twice"},
		{"an alternative is of another pool", func(s *planner.Snapshot, _ *planner.Plan) { s.Offerings[1].Pool = 1 }, "alternative 1 is of another pool"},
		{"an alternative is unavailable", func(s *planner.Snapshot, _ *planner.Plan) {
			s.Offerings[1].Unavailable = &planner.Refusal{Reason: planner.ReasonUnavailable, Message: "no capacity"}
		}, "alternative 1 is unavailable"},
		{"an alternative does not admit a pod", func(s *planner.Snapshot, _ *planner.Plan) { s.Classes[1].Offerings = []int{0} }, "alternative 1 does not admit pod default/db-00000"},
		{"an alternative is too small", func(s *planner.Snapshot, _ *planner.Plan) { s.Offerings[1].Free.MilliCPU = 1999 }, "alternative 1 does not hold its pods"},
		{"an alternative exceeds a quota", func(s *planner.Snapshot, _ *planner.Plan) {
			s.Quotas = []planner.Quota{{Name: "q", Each: 1}}
			s.Classes[1].Quotas = []planner.Amount{{Quota: 0, Count: 1}}
			s.Offerings[1].Quotas = []planner.Amount{{Quota: 0, Count: 0}}
		}, "alternative 1 does not hold its pods"},
		{"an alternative is in another domain of a rule", func(s *planner.Snapshot, p *planner.Plan) {
			s.Rules = []planner.Rule{rule(planner.Spread, 0, nil)}
			p.Launches[0].Alternatives = []int{3}
		}, "alternative 3 is in another domain of zone"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, p := sound()
			c.spoil(&s, &p)
			if err := check.Plan(s, p); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestValidateReportsInvalidRules(t *testing.T) {
	t.Parallel()
	s, _ := threePlaces(rule(planner.Spread, 0, nil), rule(planner.Together, planner.PerNode, nil), rule(planner.Apart, 0, nil))
	if err := planner.Validate(s); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		spoil func(s *planner.Snapshot)
		want  string
	}{
		{"domains repeat", func(s *planner.Snapshot) { s.Topologies[0].Domains[1] = "zone-a" }, "topology 0: domains are not sorted or repeat"},
		{"an offering has an unknown domain", func(s *planner.Snapshot) { s.Offerings[0].Domains = []int{3} }, "offering 0: topology zone has no domain 3"},
		{"a node has an unknown domain", func(s *planner.Snapshot) { s.Nodes[0].Domains = []int{0, 0} }, "node 0: has domains of 2 topologies"},
		{"a kind is unknown", func(s *planner.Snapshot) { s.Rules[0].Kind = "Near" }, `rule 0: there is no kind "Near"`},
		{"a topology is unknown", func(s *planner.Snapshot) { s.Rules[0].Topology = 1 }, "rule 0: there is no topology 1"},
		{"classes are unsorted", func(s *planner.Snapshot) { s.Rules[0].Classes = []int{1, 0} }, "rule 0: classes are not sorted"},
		{"a negative number of pods is present", func(s *planner.Snapshot) { s.Rules[1].Present = []int64{-1} }, "rule 1: pods that are present are fewer than none"},
		{"pods are present on too many nodes", func(s *planner.Snapshot) { s.Rules[1].Present = []int64{0, 1} }, "rule 1: pods that are present"},
		{"the skew is zero", func(s *planner.Snapshot) { s.Rules[0].MaxSkew = 0 }, "rule 0: maxSkew is less than 1"},
		{"a domain that counts is unknown", func(s *planner.Snapshot) { s.Rules[0].Eligible = []int{3} }, "rule 0: maxSkew is less than 1"},
		{"an anti-affinity rule has present pods", func(s *planner.Snapshot) { s.Rules[2].Present = []int64{1} }, "rule 2: pods to be apart from are present"},
		{"a preference for an unknown rule", func(s *planner.Snapshot) { s.Classes[0].Preferences = []planner.Preference{{Rule: 3}} }, "class 0: preference 0"},
		{"a preference for an unknown offering", func(s *planner.Snapshot) {
			s.Classes[0].Preferences = []planner.Preference{{Rule: -1, Offerings: []int{4}}}
		}, "class 0: preference 0"},
		{"a minValues without a key", func(s *planner.Snapshot) { s.Pools[0].MinValues = []planner.MinValues{{Key: "type"}} }, "pool 0: minValues of type"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, _ := threePlaces(rule(planner.Spread, 0, nil), rule(planner.Together, planner.PerNode, nil), rule(planner.Apart, 0, nil))
			c.spoil(&s)
			if err := planner.Validate(s); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
