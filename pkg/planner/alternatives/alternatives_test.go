package alternatives_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/internal/properties"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/alternatives"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
)

// flexible draws a snapshot with few types in few zones, so that several offerings have the same type, and with pools that accept a premium for more choice.
func flexible(t *rapid.T, limits plantest.RuleLimits) planner.Snapshot {
	s := plantest.RuledSnapshots(limits).Draw(t, "snapshot")
	for p := range s.Pools {
		s.Pools[p].MaxPremium = rapid.SampledFrom([]int64{0, 15, 100, 1000}).Draw(t, "premium")
	}
	for i := range s.Offerings {
		o := &s.Offerings[i]
		o.InstanceType = rapid.SampledFrom([]string{"small", "large", "metal"}).Draw(t, "type")
		o.Zone = rapid.SampledFrom([]string{"zone-a", "zone-b", "zone-c"}).Draw(t, "zone")
		o.CapacityType = rapid.SampledFrom([]string{"spot", "spot", "spot", "on-demand"}).Draw(t, "capacity type")
		o.ListPrice = o.Price * planner.MicroUSD(rapid.SampledFrom([]int{0, 1, 1, 2}).Draw(t, "list price"))
		o.Choice = rapid.SampledFrom([]string{"", "", "", "team=a"}).Draw(t, "choice")
	}
	return s
}

var ruledFlexibly = plantest.RuleLimits{Limits: plantest.Limits{Pods: 12, Classes: 4, Nodes: 2}, Rules: 2, Preferences: true, Priorities: true, MinValues: true}

// servedByAll checks that Add leaves the launches unchanged, and that every machine that a launch admits holds its pods in a domain that the rules permit,
// within the premium and the limits, as Check verifies.
func servedByAll(t *rapid.T) {
	s := flexible(t, ruledFlexibly)
	before := solve.Plan(s)
	after := alternatives.Add(s, before)
	if err := check.Plan(s, after); err != nil {
		t.Fatalf("%v: %v%s", err, after, plantest.Outline(s))
	}
	for i := range after.Launches {
		if len(s.Pools[s.Offerings[after.Launches[i].Offering].Pool].MinValues) == 0 {
			after.Launches[i].Alternatives = nil
		}
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Fatalf("more than alternatives changed (-before +after):\n%s", diff)
	}
}

// widestChoice checks that no other set of types and zones that passes Check has more pairs. Pools have no limits, because launches would compete for them.
func widestChoice(t *rapid.T) {
	s := flexible(t, plantest.RuleLimits{Limits: plantest.Limits{Pods: 4, Classes: 2, Nodes: 1, Free: true}, Rules: 1, Preferences: true})
	plan := alternatives.Add(s, solve.Plan(s))
	for i, l := range plan.Launches {
		for types := range 1 << 3 {
			for zones := range 1 << 3 {
				other := plan
				other.Launches = slices.Clone(plan.Launches)
				other.Launches[i].Alternatives = product(s, l, types, zones)
				if pairs(s, other.Launches[i]) > pairs(s, l) && check.Plan(s, other) == nil {
					t.Fatalf("launch %d has alternatives %v, where %v are sound%s", i, l.Alternatives, other.Launches[i].Alternatives, plantest.Outline(s))
				}
			}
		}
	}
}

// product returns the offerings of the types and zones, given as bit sets, except that of the launch.
func product(s planner.Snapshot, l planner.Launch, types, zones int) []int {
	var out []int
	o := s.Offerings[l.Offering]
	for i, x := range s.Offerings {
		t, z := slices.Index([]string{"small", "large", "metal"}, x.InstanceType), slices.Index([]string{"zone-a", "zone-b", "zone-c"}, x.Zone)
		if i != l.Offering && x.Pool == o.Pool && x.CapacityType == o.CapacityType && x.Choice == o.Choice && types>>t&1 == 1 && zones>>z&1 == 1 {
			out = append(out, i)
		}
	}
	return out
}

// pairs counts the pairs of type and zone that a launch admits.
func pairs(s planner.Snapshot, l planner.Launch) int {
	seen := map[string]bool{}
	for _, i := range append([]int{l.Offering}, l.Alternatives...) {
		seen[s.Offerings[i].InstanceType+" "+s.Offerings[i].Zone] = true
	}
	return len(seen)
}

// choiceOrderFree checks that the choice does not depend on the order of the snapshot.
func choiceOrderFree(t *rapid.T) {
	s := flexible(t, plantest.RuleLimits{Limits: plantest.Limits{Pods: 8, Classes: 3, Nodes: 2}})
	for i := range s.Offerings {
		s.Offerings[i].InstanceType += fmt.Sprint(i % 2) // Otherwise some offerings differ only in their index.
		s.Offerings[i].Price = s.Offerings[i].Price*10 + planner.MicroUSD(i)
	}
	shuffled := plantest.Shuffled(s, func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") })
	if diff := cmp.Diff(choices(s), choices(shuffled)); diff != "" {
		t.Fatal(diff)
	}
}

func choices(s planner.Snapshot) []string {
	var out []string
	for _, l := range alternatives.Add(s, solve.Plan(s)).Launches {
		var names []string
		for _, i := range append([]int{l.Offering}, l.Alternatives...) {
			o := s.Offerings[i]
			names = append(names, fmt.Sprint(o.InstanceType, o.Zone, o.CapacityType, o.Choice, o.Price))
		}
		out = append(out, strings.Join(names, " "))
	}
	slices.Sort(out)
	return out
}

// chosenByTheCloud checks that the same pods need no further machines if the cloud launches alternatives of the chosen offerings.
func chosenByTheCloud(t *rapid.T) {
	s := flexible(t, plantest.RuleLimits{Limits: plantest.Limits{Pods: 16, Classes: 3, Nodes: 2, Free: true}})
	first := alternatives.Add(s, solve.Plan(s))
	came := first
	came.Launches = slices.Clone(first.Launches)
	for i := range came.Launches {
		l := &came.Launches[i]
		l.Offering = rapid.SampledFrom(append([]int{l.Offering}, l.Alternatives...)).Draw(t, "came")
	}
	if again := solve.Plan(plantest.Applied(s, came)); len(again.Launches) > 0 || len(again.Unplaced) > len(first.Unplaced) {
		t.Fatalf("launches again: %v after %v%s", again, first, plantest.Outline(s))
	}
}

func TestEveryAlternativeHoldsPodsOfLaunch(t *testing.T)  { properties.Check(servedByAll)(t) }
func TestAlternativesCoverMostTypeZonePairs(t *testing.T) { properties.Check(widestChoice)(t) }
func TestAlternativesDoNotDependOnOrder(t *testing.T)     { properties.Check(choiceOrderFree)(t) }
func TestPodsFitOnAnyAlternativeMachines(t *testing.T) {
	properties.Check(chosenByTheCloud)(t)
}
func FuzzAlternatives(f *testing.F) { f.Fuzz(rapid.MakeFuzz(servedByAll)) }

// spotPrices are the prices of one day in us-east-1, in micro-dollars per hour, by type and zone.
var spotPrices = map[string]map[string]planner.MicroUSD{
	"g4dn.xlarge":  {"zone-a": 200_000, "zone-b": 210_000, "zone-c": 260_000},
	"g4dn.2xlarge": {"zone-a": 225_000, "zone-b": 228_000},
	"g4dn.4xlarge": {"zone-a": 229_000, "zone-b": 400_000, "zone-c": 229_000},
}

func onSpot(premium int64) planner.Snapshot {
	s := planner.Snapshot{Pools: []planner.Pool{plantest.Pool("gpu")}, Topologies: []planner.Topology{{Key: "zone", Domains: []string{"zone-a", "zone-b", "zone-c"}}}}
	s.Pools[0].MaxPremium = premium
	for _, m := range plantest.G4dn() {
		for z, zone := range s.Topologies[0].Domains {
			if price, ok := spotPrices[m.Type][zone]; ok {
				o := m.Offering(0, zone, "spot", price, 10)
				o.Domains = []int{z}
				s.Offerings = append(s.Offerings, o)
			}
		}
	}
	s.Classes = []planner.Class{plantest.Class(s, "web", 8, plantest.Request(300, 1024, 1))}
	return s
}

func TestAlternatives(t *testing.T) {
	t.Parallel()
	refused := &planner.Refusal{Reason: planner.ReasonUnavailable, Message: "refused"}
	for name, c := range map[string]struct {
		premium int64
		edit    func(*planner.Snapshot)
		want    string
	}{
		"offerings within the premium": {15, nil, "xlarge/a xlarge/b 2xlarge/a 2xlarge/b"},
		"a type that the list has for less": {15, func(s *planner.Snapshot) {
			for i, list := range []planner.MicroUSD{300_000, 300_000, 300_000, 299_000, 301_000} {
				s.Offerings[i].ListPrice = list
			}
		}, "xlarge/a xlarge/b"},
		"a type that the list has for more": {15, func(s *planner.Snapshot) {
			for i, list := range []planner.MicroUSD{300_000, 300_000, 300_000, 301_000, 301_000} {
				s.Offerings[i].ListPrice = list
			}
		}, "xlarge/a xlarge/b 2xlarge/a 2xlarge/b"},
		"a smaller premium":              {5, nil, "xlarge/a xlarge/b"},
		"no premium":                     {0, nil, "xlarge/a"},
		"everything for a large premium": {100, nil, "xlarge/a xlarge/b 2xlarge/a 2xlarge/b 4xlarge/a 4xlarge/c xlarge/c 4xlarge/b"},
		"a refused offering excludes its type": {100, func(s *planner.Snapshot) {
			s.Offerings[6].Unavailable, s.Offerings[7].Unavailable = refused, refused
		}, "xlarge/a xlarge/b 2xlarge/a 2xlarge/b xlarge/c"},
		"a refused offering excludes its zone if that leaves more": {15, func(s *planner.Snapshot) { s.Offerings[1].Unavailable = refused }, "xlarge/a 2xlarge/a 4xlarge/a"},
		"a rule about zones keeps the zone": {15, func(s *planner.Snapshot) {
			s.Rules = []planner.Rule{{Kind: planner.Together, Name: "together", Classes: []int{0}, Counted: []int{0}}}
		}, "xlarge/a 2xlarge/a 4xlarge/a"},
		"a rule about hosts does not keep the zone": {15, func(s *planner.Snapshot) {
			s.Rules = []planner.Rule{{Kind: planner.Together, Name: "together", Topology: planner.PerNode, Classes: []int{0}, Counted: []int{0}}}
		}, "xlarge/a xlarge/b 2xlarge/a 2xlarge/b"},
		"a preference for a zone keeps the zone": {15, func(s *planner.Snapshot) {
			s.Classes[0].Preferences = []planner.Preference{{Rule: -1, Offerings: []int{0, 3, 5}}}
		}, "xlarge/a 2xlarge/a 4xlarge/a"},
		"pods restricted to one zone": {15, func(s *planner.Snapshot) { s.Classes[0].Offerings = []int{1, 4, 6} }, "xlarge/b 2xlarge/b"},
		"a limit that leaves no room for more": {15, func(s *planner.Snapshot) {
			s.Pools[0].Remaining.MilliCPU = 7000
		}, "xlarge/a xlarge/b"},
		"a type with fewer replicas per GPU": {15, func(s *planner.Snapshot) {
			for i := 3; i < 8; i++ {
				s.Offerings[i].GPUs, s.Offerings[i].Free.Replicas = []planner.GPU{{Replicas: 8}}, 8
			}
		}, "xlarge/a xlarge/b"},
		"a type that is smaller in one resource": {15, func(s *planner.Snapshot) {
			s.Classes[0].Requests.EphemeralBytes = 1
			for i := 3; i < 8; i++ {
				s.Offerings[i].Free.EphemeralBytes = 7
			}
		}, "xlarge/a xlarge/b"},
		"an offering with other labels": {15, func(s *planner.Snapshot) {
			for i := 3; i < 8; i++ {
				s.Offerings[i].Choice = "team=b"
			}
		}, "xlarge/a xlarge/b"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := onSpot(c.premium)
			if c.edit != nil {
				c.edit(&s)
			}
			plan := alternatives.Add(s, solve.Plan(s))
			if err := check.Plan(s, plan); err != nil {
				t.Error(err)
			}
			var got []string
			for _, i := range append([]int{plan.Launches[0].Offering}, plan.Launches[0].Alternatives...) {
				got = append(got, strings.TrimPrefix(s.Offerings[i].InstanceType, "g4dn.")+"/"+strings.TrimPrefix(s.Offerings[i].Zone, "zone-"))
			}
			if len(plan.Launches) != 1 || strings.Join(got, " ") != c.want {
				t.Errorf("%d launches, the first %v; want one of %s", len(plan.Launches), got, c.want)
			}
		})
	}
}

// The limits of a pool count the largest machine that each launch admits, for all launches of a plan together.
func TestAlternativesOfAllLaunchesShareLimit(t *testing.T) {
	t.Parallel()
	s := onSpot(15)
	s.Classes = []planner.Class{plantest.Class(s, "web", 20, plantest.Request(300, 1024, 1))}
	s.Pools[0].Remaining.MilliCPU = 12_000 // Enough for two g4dn.xlarge, one of which may become a g4dn.2xlarge.
	plan := alternatives.Add(s, solve.Plan(s))
	if err := check.Plan(s, plan); err != nil {
		t.Fatal(err)
	}
	if len(plan.Launches) != 2 || len(plan.Launches[0].Alternatives) != 3 || len(plan.Launches[1].Alternatives) != 1 {
		t.Errorf("launches are %+v, want two, the first with three alternatives and the second with one", plan.Launches)
	}
}

func TestCheckRejectsInvalidAlternatives(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		spoil func(s *planner.Snapshot, p *planner.Plan)
		want  string
	}{
		{"above the premium", func(_ *planner.Snapshot, p *planner.Plan) { p.Launches[0].Alternatives = []int{1, 2} }, "alternative 2 costs 260000, which is over 15 % above 200000"},
		{"an unintended pair is admitted", func(_ *planner.Snapshot, p *planner.Plan) { p.Launches[0].Alternatives = []int{1, 3} }, "its claim admits offering 4, which is no alternative"},
		{"another capacity type", func(s *planner.Snapshot, _ *planner.Plan) { s.Offerings[1].CapacityType = "on-demand" }, "alternative 1 is of another capacity type"},
		{"other labels", func(s *planner.Snapshot, _ *planner.Plan) { s.Offerings[1].Choice = "team=b" }, "alternative 1 is of another capacity type or has other labels"},
		{"a preference is lost", func(s *planner.Snapshot, _ *planner.Plan) {
			s.Classes[0].Preferences = []planner.Preference{{Rule: -1, Offerings: []int{0}}}
		}, "alternative 1 takes a preference from pod"},
		{"too few replicas", func(s *planner.Snapshot, _ *planner.Plan) {
			s.Offerings[1].GPUs = []planner.GPU{{Replicas: 5}, {Replicas: 5}}
		}, "alternative 1 has GPUs of fewer replicas than the 10 that the claim says"},
		{"too few GPUs", func(s *planner.Snapshot, _ *planner.Plan) {
			s.Offerings[0].GPUs = []planner.GPU{{Replicas: 5}, {Replicas: 5}}
		}, "alternative 1 has 1 GPUs, which hold 5 replicas when shared as the claim says, its pods ask for 8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := onSpot(15)
			plan := solve.Plan(s)
			plan.Launches[0].Alternatives = []int{1}
			if err := check.Plan(s, plan); err != nil {
				t.Fatal(err)
			}
			c.spoil(&s, &plan)
			if err := check.Plan(s, plan); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func BenchmarkWithAlternatives(b *testing.B) {
	s := planner.Snapshot{Pools: []planner.Pool{plantest.Pool("gpu")}}
	s.Pools[0].MaxPremium = 15
	for family := range 10 {
		for _, m := range plantest.G4dn() {
			m.Type = strings.Replace(m.Type, "g4dn", fmt.Sprint("g", family), 1)
			for _, zone := range []string{"a", "b", "c", "d", "e", "f"} {
				s.Offerings = append(s.Offerings, m.Offering(0, zone, "spot", m.Price+planner.MicroUSD(family*1000), 10))
			}
		}
	}
	s.Classes = []planner.Class{plantest.Class(s, "web", 4000, plantest.Request(300, 1024, 1))}
	plan := solve.Plan(s)
	for b.Loop() {
		alternatives.Add(s, plan)
	}
	b.ReportMetric(float64(len(plan.Launches)), "launches")
}
