package plantest

import (
	"fmt"
	"math/rand"
	"slices"

	"pgregory.net/rapid"

	"karve.sh/karve/pkg/planner"
)

// RuleLimits bound the contents of a generated snapshot with rules.
type RuleLimits struct {
	Limits
	// Rules is the maximum number of rules.
	Rules int
	// Kinds are the kinds that are drawn, or all if it is nil. Topologies are PerNode and 0 (zones), or both if it is nil.
	Kinds      []planner.RuleKind
	Topologies []int
	// Mutual makes rules both constrain and count each of their classes, as for workloads with rules about their own pods.
	Mutual bool
	// Preferences, Priorities, Weights and MinValues are true if the snapshot has them in addition to rules.
	Preferences, Priorities, Weights, MinValues bool
}

// RuledSnapshots generates small valid snapshots with rules. Machines are in three zones, some of which have none.
func RuledSnapshots(limits RuleLimits) *rapid.Generator[planner.Snapshot] {
	if limits.Kinds == nil {
		limits.Kinds = []planner.RuleKind{planner.Spread, planner.Together, planner.Apart}
	}
	if limits.Topologies == nil {
		limits.Topologies = []int{planner.PerNode, 0}
	}
	return rapid.Custom(func(t *rapid.T) planner.Snapshot {
		s := Snapshots(limits.Limits).Draw(t, "plain")
		n := func(name string, low, high int) int { return rapid.IntRange(low, high).Draw(t, name) }
		s.Topologies = []planner.Topology{{Key: "topology.kubernetes.io/zone", Domains: []string{"zone-a", "zone-b", "zone-c"}}}
		locate(t, &s)
		s.Rules = nil
		for range n("rules", min(1, limits.Rules), limits.Rules) {
			s.Rules = append(s.Rules, drawRule(t, s, limits))
		}
		for c := range s.Classes {
			if limits.Priorities {
				s.Classes[c].Priority = int32(n("priority", 0, 2))
			}
			for limits.Preferences && n("preference", 0, 2) == 0 && len(s.Classes[c].Preferences) < 3 {
				s.Classes[c].Preferences = append(s.Classes[c].Preferences, drawPreference(t, s))
			}
		}
		for p := range s.Pools {
			drawPool(t, s, limits, &s.Pools[p])
		}
		return s
	})
}

// locate puts each machine in one of three zones, and a few in none.
func locate(t *rapid.T, s *planner.Snapshot) {
	zone := rapid.IntRange(0, 9)
	located := func() []int { return []int{zone.Draw(t, "zone")/3 - 3*(zone.Draw(t, "no zone")/9)} }
	for i := range s.Offerings {
		o := &s.Offerings[i]
		o.Domains = []int{min(2, max(-1, located()[0]))}
		o.Free.Pods = max(1, o.Free.Pods)
		if o.Domains[0] >= 0 {
			o.Zone = s.Topologies[0].Domains[o.Domains[0]]
		}
	}
	for i := range s.Nodes {
		s.Nodes[i].Domains = []int{min(2, max(-1, located()[0]))}
	}
}

// drawPool draws the fields of a pool other than its limits.
func drawPool(t *rapid.T, s planner.Snapshot, limits RuleLimits, p *planner.Pool) {
	n := func(name string, low, high int) int { return rapid.IntRange(low, high).Draw(t, name) }
	if limits.Weights {
		p.Weight = int32(n("weight", 0, 2))
	}
	if limits.MinValues && n("minValues", 0, 1) == 0 {
		m := planner.MinValues{Key: "family", Min: n("min", 1, 2)}
		for range s.Offerings {
			m.Values = append(m.Values, []string{"", "f", "g", "h"}[n("family", 0, 3)])
		}
		p.MinValues = append(p.MinValues, m)
	}
}

func drawRule(t *rapid.T, s planner.Snapshot, limits RuleLimits) planner.Rule {
	n := func(name string, low, high int) int { return rapid.IntRange(low, high).Draw(t, name) }
	r := planner.Rule{
		Kind:     rapid.SampledFrom(limits.Kinds).Draw(t, "kind"),
		Topology: rapid.SampledFrom(limits.Topologies).Draw(t, "topology"),
	}
	r.Name = fmt.Sprintf("%s %d", r.Kind, r.Topology)
	for c := range s.Classes {
		part := n("part", 0, 5)
		if limits.Mutual && part < 2 {
			continue
		}
		switch part {
		case 0:
			r.Classes = append(r.Classes, c)
		case 1:
			r.Counted = append(r.Counted, c)
		case 2, 3, 4:
			r.Classes, r.Counted = append(r.Classes, c), append(r.Counted, c)
		}
	}
	places := len(s.Nodes)
	if r.Topology != planner.PerNode {
		places = len(s.Topologies[0].Domains)
	}
	if r.Kind != planner.Apart {
		for range places {
			r.Present = append(r.Present, int64(max(0, n("present", -4, 2))))
		}
		r.Elsewhere = int64(max(0, n("elsewhere", -6, 1)))
	}
	if r.Kind == planner.Spread {
		r.MaxSkew = int64(n("maxSkew", 1, 2))
		if r.Topology != planner.PerNode {
			r.MinDomains = int64(max(0, n("minDomains", -6, 4)))
			if n("eligible", 0, 3) == 0 {
				r.Eligible = slices.DeleteFunc([]int{0, 1, 2}, func(int) bool { return n("not eligible", 0, 2) == 0 })
				if len(r.Eligible) == 0 {
					r.Eligible = nil
				}
			}
		}
	}
	return r
}

func drawPreference(t *rapid.T, s planner.Snapshot) planner.Preference {
	n := func(name string, most int) int { return rapid.IntRange(0, most).Draw(t, name) }
	if len(s.Rules) > 0 && n("prefer a rule", 1) == 0 {
		return planner.Preference{Rule: n("preferred rule", len(s.Rules)-1)}
	}
	w := planner.Preference{Rule: -1}
	for i := range s.Offerings {
		if n("grants", 1) == 0 {
			w.Offerings = append(w.Offerings, i)
		}
	}
	for i := range s.Nodes {
		if n("grants", 1) == 0 {
			w.Nodes = append(w.Nodes, i)
		}
	}
	return w
}

// RuledNonsense generates snapshots that need not be valid, with rules that need not be valid either.
func RuledNonsense() *rapid.Generator[planner.Snapshot] {
	amount := rapid.OneOf(rapid.Int64Range(-1, 4), rapid.Int64(), rapid.Just(planner.Unlimited))
	index := rapid.IntRange(-2, 4)
	list := rapid.SliceOfN(index, 0, 4)
	return rapid.Custom(func(t *rapid.T) planner.Snapshot {
		s := Nonsense().Draw(t, "plain")
		for range rapid.IntRange(0, 2).Draw(t, "topologies") {
			s.Topologies = append(s.Topologies, planner.Topology{Domains: rapid.SliceOfN(rapid.SampledFrom([]string{"", "a", "b"}), 0, 3).Draw(t, "domains")})
		}
		for i := range s.Offerings {
			s.Offerings[i].Domains = list.Draw(t, "located")
		}
		for i := range s.Nodes {
			s.Nodes[i].Domains = list.Draw(t, "located")
		}
		for range rapid.IntRange(0, 3).Draw(t, "rules") {
			s.Rules = append(s.Rules, planner.Rule{
				Kind:     rapid.SampledFrom([]planner.RuleKind{"", planner.Spread, planner.Together, planner.Apart}).Draw(t, "kind"),
				Topology: index.Draw(t, "topology"), Classes: list.Draw(t, "classes"), Counted: list.Draw(t, "counted"),
				Present: rapid.SliceOfN(amount, 0, 4).Draw(t, "present"), Elsewhere: amount.Draw(t, "elsewhere"),
				MaxSkew: amount.Draw(t, "maxSkew"), MinDomains: amount.Draw(t, "minDomains"), Eligible: list.Draw(t, "eligible"),
			})
		}
		for c := range s.Classes {
			s.Classes[c].Priority = int32(rapid.IntRange(-1, 1).Draw(t, "priority"))
			for range rapid.IntRange(0, 2).Draw(t, "preferences") {
				s.Classes[c].Preferences = append(s.Classes[c].Preferences, planner.Preference{
					Rule: index.Draw(t, "preferred"), Offerings: list.Draw(t, "grants"), Nodes: list.Draw(t, "grants"),
				})
			}
		}
		for p := range s.Pools {
			s.Pools[p].Weight = rapid.Int32().Draw(t, "weight")
			if rapid.Bool().Draw(t, "minValues") {
				s.Pools[p].MinValues = []planner.MinValues{{
					Key: "k", Min: rapid.IntRange(-1, 3).Draw(t, "min"), Values: rapid.SliceOfN(rapid.SampledFrom([]string{"", "a", "b"}), 0, 5).Draw(t, "values"),
				}}
			}
		}
		return s
	})
}

// TightRules returns a valid snapshot in which rules, limits and rooms are close to each other, so that most decisions matter: a number of pods in up to
// eight classes, up to three rules, machines for a few pods each, and pools that may launch a few machines.
func TightRules(r *rand.Rand, pods int) planner.Snapshot {
	n := func(low, high int) int { return low + r.Intn(high-low+1) }
	s := planner.Snapshot{Topologies: []planner.Topology{{Key: "topology.kubernetes.io/zone", Domains: []string{"zone-a", "zone-b", "zone-c"}}}}
	for i := range n(1, 2) {
		p := Pool(fmt.Sprintf("pool-%d", i))
		if n(0, 1) == 0 {
			p.Remaining.Nodes = int64(n(1, 3))
		}
		if n(0, 1) == 0 {
			p.Remaining.GPUs = int64(n(1, 4))
		}
		s.Pools = append(s.Pools, p)
	}
	for i := range n(2, 5) {
		gpus, zone := int64(n(1, 2)), n(0, 2)
		s.Offerings = append(s.Offerings, planner.Offering{
			Pool: n(0, len(s.Pools)-1), InstanceType: fmt.Sprintf("type-%d", i), Zone: s.Topologies[0].Domains[zone], CapacityType: "on-demand", Price: planner.MicroUSD(n(1, 12)),
			Free:     planner.Resources{MilliCPU: int64(n(3, 12)), MemoryBytes: int64(n(3, 12)), Pods: int64(n(2, 6)), Replicas: gpus * int64(n(1, 4))},
			Physical: planner.Physical{MilliCPU: 10, MemoryBytes: 10, GPUs: gpus, Nodes: 1}, Domains: []int{zone},
		})
	}
	for i := range n(0, 2) {
		s.Nodes = append(s.Nodes, planner.Node{
			Name: fmt.Sprintf("node-%d", i), Domains: []int{n(0, 2)},
			Free: planner.Resources{MilliCPU: int64(n(1, 8)), MemoryBytes: int64(n(1, 8)), Pods: int64(n(1, 4)), Replicas: int64(n(0, 4))},
		})
	}
	for i := 0; pods > 0 && i < 8; i++ {
		k := n(1, min(max(3, pods/4), pods))
		pods -= k
		c := Class(s, fmt.Sprintf("class-%d", i), k, planner.Resources{MilliCPU: int64(n(0, 5)), MemoryBytes: int64(n(0, 5)), Pods: 1, Replicas: int64(n(0, 2))})
		out := func(int) bool { return n(0, 4) == 0 }
		c.Offerings, c.Nodes = slices.DeleteFunc(c.Offerings, out), slices.DeleteFunc(c.Nodes, out)
		s.Classes = append(s.Classes, c)
	}
	for range n(1, 3) {
		s.Rules = append(s.Rules, tightRule(n, s))
	}
	return s
}

// tightRule returns a rule about most classes. n draws a number of a range.
func tightRule(n func(low, high int) int, s planner.Snapshot) planner.Rule {
	rule := planner.Rule{Kind: []planner.RuleKind{planner.Spread, planner.Together, planner.Apart}[n(0, 2)], Topology: n(0, 1) - 1}
	rule.Name = fmt.Sprintf("%s %d", rule.Kind, rule.Topology)
	for c := range s.Classes {
		part := n(0, 5)
		if part < 4 {
			rule.Classes = append(rule.Classes, c)
		}
		if part > 0 && part < 5 {
			rule.Counted = append(rule.Counted, c)
		}
	}
	if rule.Kind == planner.Apart {
		return rule
	}
	places := len(s.Nodes)
	if rule.Topology != planner.PerNode {
		places = len(s.Topologies[0].Domains)
	}
	for range places {
		rule.Present = append(rule.Present, int64(max(0, n(-4, 2))))
	}
	rule.Elsewhere = int64(max(0, n(-6, 1)))
	if rule.Kind == planner.Spread {
		rule.MaxSkew = int64(n(1, 2))
		if rule.Topology != planner.PerNode {
			rule.MinDomains = int64(max(0, n(-6, 3)))
		}
	}
	return rule
}
