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
	return rapid.Custom(func(t *rapid.T) planner.Snapshot {
		s := Snapshots(limits.Limits).Draw(t, "plain")
		n := numbers(t)
		s.Topologies = []planner.Topology{{Key: "topology.kubernetes.io/zone", Domains: []string{"zone-a", "zone-b", "zone-c"}}}
		locate(t, &s)
		s.Rules = nil
		for range n("rules", min(1, limits.Rules), limits.Rules) {
			r := drawRule(n, s, limits)
			if r.Kind == planner.Spread && r.Topology != planner.PerNode && n("eligible", 0, 3) == 0 {
				r.Eligible = slices.DeleteFunc([]int{0, 1, 2}, func(int) bool { return n("not eligible", 0, 2) == 0 })
				if len(r.Eligible) == 0 {
					r.Eligible = nil
				}
			}
			s.Rules = append(s.Rules, r)
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
	n := numbers(t)
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

// drawRule draws a rule about most classes. n draws a number of a range.
func drawRule(n func(name string, low, high int) int, s planner.Snapshot, limits RuleLimits) planner.Rule {
	if limits.Kinds == nil {
		limits.Kinds = []planner.RuleKind{planner.Spread, planner.Together, planner.Apart}
	}
	if limits.Topologies == nil {
		limits.Topologies = []int{planner.PerNode, 0}
	}
	r := planner.Rule{Kind: limits.Kinds[n("kind", 0, len(limits.Kinds)-1)], Topology: limits.Topologies[n("topology", 0, len(limits.Topologies)-1)]}
	r.Name = fmt.Sprintf("%s %d", r.Kind, r.Topology)
	for c := range s.Classes {
		part := n("part", 0, 5)
		if limits.Mutual && part%4 == 0 {
			continue
		}
		if part < 4 {
			r.Classes = append(r.Classes, c)
		}
		if part > 0 && part < 5 {
			r.Counted = append(r.Counted, c)
		}
	}
	if r.Kind == planner.Apart {
		return r
	}
	places := len(s.Nodes)
	if r.Topology != planner.PerNode {
		places = len(s.Topologies[0].Domains)
	}
	for range places {
		r.Present = append(r.Present, int64(max(0, n("present", -4, 2))))
	}
	r.Elsewhere = int64(max(0, n("elsewhere", -6, 1)))
	if r.Kind == planner.Spread {
		r.MaxSkew = int64(n("maxSkew", 1, 2))
		if r.Topology != planner.PerNode {
			r.MinDomains = int64(max(0, n("minDomains", -6, 3)))
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
		s.Rules = append(s.Rules, drawRule(func(_ string, low, high int) int { return n(low, high) }, s, RuleLimits{}))
	}
	return s
}
