package consolidate_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/internal/properties"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/consolidate"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
)

var (
	layouts      = plantest.Layouts(plantest.Snapshots(plantest.Limits{Pods: 10, Classes: 4, Nodes: 6}), 10)
	tinyLayouts  = plantest.Layouts(plantest.Snapshots(plantest.Limits{Pods: 6, Classes: 3, Nodes: 4}), 6)
	ruledLayouts = plantest.Layouts(plantest.RuledSnapshots(plantest.RuleLimits{
		Limits: plantest.Limits{Pods: 8, Classes: 4, Nodes: 5}, Rules: 2, Priorities: true, Weights: true, MinValues: true,
	}), 8)
)

func TestStepsKeepEveryRuleAndSaveMoreThanMovesCost(t *testing.T) { properties.Check(everyStep)(t) }
func TestStepsKeepRulesWeightsAndMinValues(t *testing.T)          { properties.Check(ruledStep)(t) }
func TestStepsSaveAtMostTheOptimum(t *testing.T)                  { properties.Check(noBetterThanTheBest)(t) }

func TestStepsDoNotDependOnOrderOfLayout(t *testing.T) { properties.Check(orderFreeLayout)(t) }

func TestStoppedSearchReturnsValidSteps(t *testing.T) { properties.Check(stoppedLayout)(t) }

func TestPendingPodsArePlacedBeforeMovedPods(t *testing.T) { properties.Check(waitingFirst)(t) }

// FuzzCheaper runs everyStep with fuzzed inputs.
func FuzzCheaper(f *testing.F) { f.Fuzz(rapid.MakeFuzz(everyStep)) }

func seated(l consolidate.Layout) consolidate.Layout {
	return plantest.Seated(l, solve.Plan(l.Snapshot))
}

// everyStep checks that each step keeps every rule of a plan, and saves what it claims, if the steps are taken one after the other.
func everyStep(t *rapid.T) {
	l := layouts.Draw(t, "layout")
	takeSteps(t, l, consolidate.Plan(solve.Solver{}, l))
}

// ruledStep is everyStep for layouts with rules that concern several machines, and pools with weights and minValues.
func ruledStep(t *rapid.T) {
	l := ruledLayouts.Draw(t, "layout")
	takeSteps(t, l, consolidate.Plan(solve.Solver{}, l))
}

// takeSteps takes and checks the steps of an outlook. It returns the resulting layout, and the savings minus the cost of the moves.
func takeSteps(t rapid.TB, l consolidate.Layout, o consolidate.Outlook) (consolidate.Layout, planner.MicroUSD) {
	t.Helper()
	if o.Price != plantest.Price(l) || o.Bound < 0 || o.Bound > o.Price || !slices.IsSorted(o.Surplus) {
		t.Fatalf("the machines cost %d; outlook %+v", plantest.Price(l), o)
	}
	now := seated(l)
	price, net := o.Price, planner.MicroUSD(0)
	counts := map[string]int{}
	for _, m := range now.Machines {
		counts[now.Snapshot.Nodes[m.Node].Name] = len(m.Pods)
	}
	for _, step := range o.Steps {
		if !slices.IsSorted(step.Leave) || len(step.Leave) == 0 {
			t.Fatalf("the leaving machines %v are empty or not sorted", step.Leave)
		}
		here, leaving := relative(t, l, now, step)
		for _, name := range leaving {
			if !slices.Contains(o.Surplus, slices.IndexFunc(l.Snapshot.Nodes, func(n planner.Node) bool { return n.Name == name })) {
				t.Fatalf("%s leaves but is not surplus", name)
			}
			i := slices.IndexFunc(now.Machines, func(m consolidate.Machine) bool { return now.Snapshot.Nodes[m.Node].Name == name })
			if got := len(now.Machines[i].Pods); got != counts[name] {
				t.Fatalf("%s leaves after pods were moved there", name)
			}
		}
		pools := make([]int, len(l.Snapshot.Pools))
		saving, moves := planner.MicroUSD(0), planner.MicroUSD(0)
		for _, i := range step.Leave {
			pools[l.Machines[i].Pool]++
			saving += l.Machines[i].Price
			for _, pod := range l.Machines[i].Pods {
				moves += pod.Move
			}
		}
		for pool, n := range pools {
			if l.Most != nil && n > l.Most[pool] {
				t.Fatalf("%d machines of pool %d leave, %d may", n, pool, l.Most[pool])
			}
		}
		plan := planner.Plan{Placements: here.Placements, Launches: step.Launches}
		for _, x := range step.Launches {
			plan.Price += l.Snapshot.Offerings[x.Offering].Price
		}
		if saving -= plan.Price; step.Saving != saving || step.Moves != moves || saving <= moves {
			t.Fatalf("saves %d for %d, says %d for %d", saving, moves, step.Saving, step.Moves)
		}
		free := now.Freed(here.Leave)
		free.Rules = slices.DeleteFunc(free.Rules, func(r planner.Rule) bool { return r.Kind != planner.Apart || r.Topology != planner.PerNode })
		if err := check.Plan(free, plan); err != nil {
			t.Fatal(err)
		}
		now = plantest.After(now, here)
		price, net = price-step.Saving, net+step.Saving-step.Moves
	}
	if price < o.Bound {
		t.Fatalf("the layout costs %d in the end, the bound is %d", price, o.Bound)
	}
	return now, net
}

// relative translates a step to a layout in which earlier steps were taken. It also returns the names of the nodes that leave.
func relative(t rapid.TB, l, now consolidate.Layout, step consolidate.Step) (consolidate.Step, []string) {
	t.Helper()
	node := func(i int) int {
		at := slices.IndexFunc(now.Snapshot.Nodes, func(n planner.Node) bool { return n.Name == l.Snapshot.Nodes[i].Name })
		if at < 0 {
			t.Fatalf("%s is used after it has left", l.Snapshot.Nodes[i].Name)
		}
		return at
	}
	var leaving []string
	out := consolidate.Step{Launches: step.Launches}
	for _, i := range step.Leave {
		at := node(l.Machines[i].Node)
		leaving = append(leaving, now.Snapshot.Nodes[at].Name)
		out.Leave = append(out.Leave, slices.IndexFunc(now.Machines, func(m consolidate.Machine) bool { return m.Node == at }))
	}
	for _, p := range step.Placements {
		p.Node = node(p.Node)
		out.Placements = append(out.Placements, p)
	}
	return out, leaving
}

// noBetterThanTheBest compares with all sets of machines that could leave: the steps save at most as much as the best set, net of the moves, and there is no
// step if no set saves anything.
func noBetterThanTheBest(t *rapid.T) {
	l := tinyLayouts.Draw(t, "layout")
	l.Most = nil
	_, net := takeSteps(t, l, consolidate.Plan(solve.Solver{}, l))
	if best := bestNet(seated(l)); net > best {
		t.Fatalf("the steps save %d, the best is %d", net, best)
	}
}

// TestStepsOfSmallLayoutsSaveAlmostTheOptimum checks that the heuristic finds at least 99 % of the possible savings in small layouts.
func TestStepsOfSmallLayoutsSaveAlmostTheOptimum(t *testing.T) {
	t.Parallel()
	var found, there planner.MicroUSD
	for seed := range 1000 {
		l := tinyLayouts.Example(seed)
		l.Most = nil
		there += bestNet(seated(l))
		for _, step := range consolidate.Plan((solve.Solver{}), l).Steps {
			found += step.Saving - step.Moves
		}
	}
	if there == 0 || found*100 < there*99 {
		t.Errorf("the steps save %d of %d", found, there)
	}
}

// bestNet returns the savings of the best set of machines to remove, minus the cost of the moves.
func bestNet(l consolidate.Layout) planner.MicroUSD {
	var best planner.MicroUSD
	for set := 1; set < 1<<len(l.Machines); set++ {
		var leave []int
		var pods []string
		var net planner.MicroUSD
		for i, m := range l.Machines {
			if set&(1<<i) == 0 {
				continue
			}
			leave = append(leave, i)
			net += m.Price
			for _, pod := range m.Pods {
				pods = append(pods, pod.Name)
				net -= pod.Move
			}
		}
		free := l.Freed(leave)
		if slices.ContainsFunc(free.Classes, func(c planner.Class) bool { return len(c.Pods) > 0 && c.Blocked != nil }) {
			continue
		}
		if price, ok := plantest.Optimum(free, pods); ok {
			best = max(best, net-price)
		}
	}
	return best
}

// orderFreeLayout checks that the order of a layout does not affect the result.
func orderFreeLayout(t *rapid.T) {
	l := layouts.Draw(t, "layout")
	shuffled := plantest.ShuffledLayout(l, func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") })
	if diff := cmp.Diff(outlookLines(l, consolidate.Plan(solve.Solver{}, l)), outlookLines(shuffled, consolidate.Plan(solve.Solver{}, shuffled))); diff != "" {
		t.Fatal(diff)
	}
}

// outlookLines formats an outlook with names instead of indices.
func outlookLines(l consolidate.Layout, o consolidate.Outlook) []string {
	out := []string{fmt.Sprint(o.Price, " ", o.Bound)}
	var surplus []string
	for _, n := range o.Surplus {
		surplus = append(surplus, l.Snapshot.Nodes[n].Name)
	}
	slices.Sort(surplus)
	out = append(out, strings.Join(surplus, " "))
	for _, s := range o.Steps {
		var leave []string
		for _, i := range s.Leave {
			leave = append(leave, l.Snapshot.Nodes[l.Machines[i].Node].Name)
		}
		slices.Sort(leave)
		plan := plantest.Names(l.Snapshot, planner.Plan{Placements: s.Placements, Launches: s.Launches})
		out = append(out, fmt.Sprint(leave, " ", s.Saving, " ", s.Moves, " ", plan.Placements, " ", plan.Launches))
	}
	return out
}

// stoppedLayout checks that the steps keep every rule whenever the search is stopped. No pods wait: a search that is stopped may place them elsewhere.
func stoppedLayout(t *rapid.T) {
	l := seated(layouts.Draw(t, "layout"))
	asked, most := 0, rapid.IntRange(0, 40).Draw(t, "until")
	stop := func() bool { asked++; return asked > most }
	takeSteps(t, l, consolidate.Plan(solve.Solver{Stop: stop}, l))
}

// waitingFirst checks that pending pods are placed first: the steps are those of the layout in which these pods already run.
func waitingFirst(t *rapid.T) {
	l := layouts.Draw(t, "layout")
	sat := seated(l)
	a, b := consolidate.Plan(solve.Solver{}, l), consolidate.Plan(solve.Solver{}, sat)
	a.Bound, b.Bound = 0, 0
	if diff := cmp.Diff(outlookLines(l, a), outlookLines(sat, b)); diff != "" {
		t.Fatal(diff)
	}
}
