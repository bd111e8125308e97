package solve_test

import (
	"fmt"
	"math/rand"
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
)

// ruledPods draws a few pods of up to three workloads with rules, beside up to two nodes in three zones.
func ruledPods(seed int64) planner.Snapshot {
	r := rand.New(rand.NewSource(seed))
	zones := plantest.Zones()
	s := planner.Snapshot{
		Pools:      []planner.Pool{plantest.Pool("gpu-shared")},
		Topologies: []planner.Topology{{Key: "topology.kubernetes.io/zone", Domains: zones}},
	}
	types := plantest.G4dn()
	for _, m := range []plantest.Machine{types[0], types[1+r.Intn(2)]} {
		for z, zone := range zones {
			if z > 0 && r.Intn(6) == 0 {
				continue // The cloud has none there.
			}
			o := m.Offering(0, zone, "spot", m.Price*planner.MicroUSD(30+r.Intn(20))/100, 4)
			o.Domains = []int{z}
			s.Offerings = append(s.Offerings, o)
		}
	}
	for v := range r.Intn(3) {
		s.Nodes = append(s.Nodes, partlyUsed(r, fmt.Sprint("node-", v), s.Offerings[r.Intn(len(s.Offerings))]))
	}
	left := 3 + r.Intn(6)
	for k := 0; k < 3 && left > 0; k++ {
		n := 1 + r.Intn(left)
		left -= n
		cpu := []int64{500, 1000, 1500, 2000, 3000}[r.Intn(5)]
		c := plantest.Class(s, fmt.Sprint("workload-", k), n, plantest.Request(cpu, cpu*int64(1+r.Intn(4)), 1))
		s.Classes = append(s.Classes, c)
	}
	for c := range s.Classes {
		if c == 0 || r.Intn(3) > 0 {
			s.Rules = append(s.Rules, ruleFor(r, s, c))
		}
	}
	return s
}

// ruleFor draws a rule of a class: most often about its own pods.
func ruleFor(r *rand.Rand, s planner.Snapshot, class int) planner.Rule {
	own := []int{class}
	rule := planner.Rule{Kind: planner.Spread, Topology: 0, Classes: own, Counted: own, MaxSkew: int64(1 + r.Intn(2))}
	switch r.Intn(12) {
	case 0, 1:
		rule.Kind = planner.Together
	case 2, 3:
		rule.Kind = planner.Apart
	case 4:
		rule.Topology = planner.PerNode
	case 5:
		rule.Kind, rule.Topology = planner.Apart, planner.PerNode
	case 6:
		rule.Kind, rule.Topology = planner.Together, planner.PerNode
	case 7:
		rule.Kind = []planner.RuleKind{planner.Together, planner.Apart, planner.Spread}[r.Intn(3)]
		rule.Counted = []int{r.Intn(len(s.Classes))}
	}
	rule.Name = fmt.Sprintf("%s of %d", rule.Kind, class)
	// Where such pods have no place, brute force takes long.
	most := 8
	switch {
	case rule.Kind == planner.Together && rule.Topology == planner.PerNode:
		for c := range s.Classes {
			s.Classes[c].Pods = s.Classes[c].Pods[:min(2, len(s.Classes[c].Pods))]
		}
	case rule.Kind == planner.Apart && rule.Topology == 0:
		most = 4
	}
	s.Classes[class].Pods = s.Classes[class].Pods[:min(most, len(s.Classes[class].Pods))]
	if rule.Kind != planner.Apart && r.Intn(3) == 0 && len(s.Nodes) > 0 {
		v := r.Intn(len(s.Nodes)) // A pod of the workload runs on a node.
		if rule.Topology == planner.PerNode {
			rule.Present = make([]int64, len(s.Nodes))
			rule.Present[v] = 1
		} else {
			rule.Present = make([]int64, len(s.Topologies[0].Domains))
			rule.Present[s.Nodes[v].Domains[0]] = 1
		}
	}
	return rule
}

// limited returns a snapshot with a limit of its pool that a few machines use up, in two of three cases.
func limited(s planner.Snapshot, seed int64) planner.Snapshot {
	r := rand.New(rand.NewSource(-1 - seed))
	switch left := &s.Pools[0].Remaining; r.Intn(3) {
	case 0:
		left.Nodes = int64(1 + r.Intn(4))
	case 1:
		left.MilliCPU = int64(1+r.Intn(6)) * 4000
	}
	return s
}

func TestPlansUnderRulesAreAsGoodAsBruteForceFinds(t *testing.T) {
	t.Parallel()
	judge(t, judged(100, 1500), 0.96, 0.25, judgeRules(ruledPods))
}

func TestPlansUnderRulesAndLimitsAreAsGoodAsBruteForceFinds(t *testing.T) {
	t.Parallel()
	judge(t, judged(80, 1200), 0.96, 0.25, judgeRules(func(seed int64) planner.Snapshot { return limited(ruledPods(10_000+seed), seed) }))
}

// judgeRules compares the plan of a case with what brute force finds.
func judgeRules(draw func(seed int64) planner.Snapshot) func(t *testing.T, seed int64) verdict {
	return func(t *testing.T, seed int64) verdict {
		s := draw(seed)
		p := solve.Plan(s)
		if err := check.Plan(s, p); err != nil {
			t.Error(err)
		}
		most, price := plantest.CheaperUnderRules(s, p)
		v := verdict{leftOut: most - len(plantest.PlacedPods(p))}
		if v.leftOut == 0 && price > 0 {
			v.over = float64(p.Price-price) / float64(price)
		} else if v.leftOut == 0 && p.Price > 0 {
			v.over = 1
		}
		if v.leftOut == 0 && p.Bound > price {
			t.Errorf("case %d: the bound %d is above the least price %d", seed, p.Bound, price)
		}
		if p.Price > 0 {
			v.gap = float64(p.Price-p.Bound) / float64(p.Price)
		}
		return v
	}
}
