package solve_test

import (
	"cmp"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"karve.sh/karve/pkg/internal/properties"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
)

// spareKeepsEveryRule checks that headroom, which is planned on what a plan leaves, keeps every rule together with that plan, and uses free room before it
// launches anything.
func spareKeepsEveryRule(snapshots *rapid.Generator[planner.Snapshot]) func(*rapid.T) {
	return func(t *rapid.T) {
		s := snapshots.Draw(t, "snapshot")
		var headroom []planner.Class
		for _, c := range s.Classes {
			if len(c.Pods) == 0 || rapid.Bool().Draw(t, "not asked for") {
				continue
			}
			c.Preferences, c.Priority = nil, math.MinInt32
			c.Pods = slices.Clone(c.Pods)
			for i := range c.Pods {
				c.Pods[i] = "headroom/" + c.Pods[i]
			}
			headroom = append(headroom, c)
		}
		var turns [][]int
		for v := range s.Nodes {
			if last := len(turns) - 1; last >= 0 && rapid.Bool().Draw(t, "together") {
				turns[last] = append(turns[last], v)
			} else {
				turns = append(turns, []int{v})
			}
		}
		served := solve.Plan(s)
		left, spare := solve.Solver{}.Headroom(s, served, headroom, turns)
		if err := check.Plan(left, spare); err != nil {
			t.Fatal(err)
		}
		namesEachPodOnce(t, left, spare)
		both := s
		both.Classes = append(slices.Clone(s.Classes), headroom...)
		if err := check.Plan(both, together(s, served, spare)); err != nil {
			t.Fatalf("together with what was planned for the pods: %v", err)
		}
		for c := range left.Classes {
			later := len(left.Classes[c].Pods)
			for _, p := range spare.Placements {
				later -= of(left.Classes[c], p.Pods)
			}
			if left.Classes[c].Blocked != nil || later == 0 {
				continue
			}
			for v, spot := range roomAfter(left, spare) {
				if slices.Contains(left.Classes[c].Nodes, v) && len(spot.With(left, c)) > 0 {
					t.Fatalf("%d pods of class %d have no place on the nodes, and there is one on %s", later, c, left.Nodes[v].Name)
				}
			}
		}
	}
}

func TestHeadroomKeepsPlanForPods(t *testing.T) {
	t.Parallel()
	t.Run("plain", properties.Check(spareKeepsEveryRule(anything)))
	t.Run("ruled", properties.Check(spareKeepsEveryRule(plantest.RuledSnapshots(plantest.RuleLimits{
		Limits: plantest.Limits{Pods: 8, Classes: 4, Nodes: 3}, Rules: 2, Preferences: true, Priorities: true, Weights: true, MinValues: true,
	}))))
}

// roomAfter returns what a plan leaves of the nodes.
func roomAfter(s planner.Snapshot, p planner.Plan) []plantest.Spot {
	nodes, _ := plantest.Room(s, p)
	return nodes
}

func of(c planner.Class, pods []string) int {
	n := 0
	for _, pod := range pods {
		if slices.Contains(c.Pods, pod) {
			n++
		}
	}
	return n
}

// together merges a plan for pods and the plan for headroom on what it leaves.
func together(s planner.Snapshot, served, spare planner.Plan) planner.Plan {
	all := planner.Plan{
		Placements: slices.Clone(served.Placements), Launches: slices.Concat(served.Launches, spare.Launches),
		Unplaced: slices.Concat(served.Unplaced, spare.Unplaced), Price: served.Price + spare.Price,
	}
	for _, p := range spare.Placements {
		if i := p.Node - len(s.Nodes); i >= 0 {
			l := &all.Launches[i]
			l.Pods, l.GPUs = both(l.Pods, l.GPUs, p.Pods, p.GPUs)
			continue
		}
		if i := slices.IndexFunc(all.Placements, func(x planner.Placement) bool { return x.Node == p.Node }); i >= 0 {
			x := &all.Placements[i]
			x.Pods, x.GPUs = both(x.Pods, x.GPUs, p.Pods, p.GPUs)
			continue
		}
		all.Placements = append(all.Placements, p)
	}
	return all
}

func both(pods []string, gpus []int, more []string, moreGPUs []int) ([]string, []int) {
	type place struct {
		pod string
		gpu int
	}
	var places []place
	note := func(pods []string, gpus []int) {
		for i, pod := range pods {
			gpu := -1
			if gpus != nil {
				gpu = gpus[i]
			}
			places = append(places, place{pod, gpu})
		}
	}
	note(pods, gpus)
	note(more, moreGPUs)
	slices.SortFunc(places, func(a, b place) int { return cmp.Compare(a.pod, b.pod) })
	var names []string
	var on []int
	for _, p := range places {
		names = append(names, p.pod)
		if gpus != nil || moreGPUs != nil {
			on = append(on, p.gpu)
		}
	}
	return names, on
}
