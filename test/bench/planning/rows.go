package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/plantest/workload"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/quote"
	"karve.sh/karve/test/harness/karpenter"
)

// row is a line of the table: a workload, drawn once or from several seeds, and the goals for its plans.
type row struct {
	name string
	// budget is the time limit of a search.
	budget time.Duration
	// patient is whether the limit is multiplied by [solve.Patience], as the controller does.
	patient bool
	// goal is the wanted gap in percent, on average and at worst.
	goal      goal
	snapshots func(yield func(planner.Snapshot) bool)
	// owned is whether there are reservations and a savings plan. The figures of peers are then bills of [workload.Bill].
	owned bool
	// exact is the name of the row whose plan knows the device memory of pods exactly, where this row's plan rounds it up to slots. "" for others.
	exact string
	// skipped is why there is nothing to measure. snapshots is nil then.
	skipped string
}

// limit returns the time limit of the search for a plan of a snapshot.
func (r row) limit(s planner.Snapshot) time.Duration {
	if !r.patient {
		return r.budget
	}
	return r.budget * time.Duration(solve.Patience(s))
}

// goal is in percent. proved requires that every plan is proven optimal. overBest is how much more than the best known plans all plans together may cost, or 0.
type goal struct {
	mean, worst float64
	proved      bool
	overBest    float64
}

// rows returns the workloads of the table. tracePath is the file of the trace for the openb rows.
func rows(tracePath string) []row {
	var (
		g4  = workload.Types(workload.G4dn, 10)
		g46 = workload.Types(workload.G4to6, 10)
		g47 = workload.Types(workload.G4to7, 10)
		all = workload.Types(nil, 10)
	)
	out := []row{
		sweep("1 to 200 identical, g4dn, 10 replicas", g4),
		sweep("1 to 200 identical, g4dn without metal, 10 replicas", workload.WithoutMetal(g4)),
		sweep("1 to 200 identical, g4dn, 4 replicas", workload.Types(workload.G4dn, 4)),
		sweep("1 to 200 identical, g4dn without metal, 4 replicas", workload.WithoutMetal(workload.Types(workload.G4dn, 4))),
		mixed("50 in 5 shapes, g4dn", 10*time.Millisecond, goal{mean: 0.1, worst: 1}, 10, workload.Mix{Pods: 50, Shapes: 5}, g4),
		mixed("100 in 10 shapes, GPU memory, g4dn-g6e", 100*time.Millisecond, goal{mean: 1, worst: 1.5}, 10,
			workload.Mix{Pods: 100, Shapes: 10, GPUMemory: true}, g46),
		mixed("300 in 20 shapes, GPU memory, pinned, g4dn-g6e", 200*time.Millisecond, goal{mean: 0.7, worst: 1.5}, 10,
			workload.Mix{Pods: 300, Shapes: 20, GPUMemory: true, Pinned: true}, g46),
		mixed("1,000 in 20 shapes, g4dn-g6e", 200*time.Millisecond, goal{mean: 0.7, worst: 1.5}, 10,
			workload.Mix{Pods: 1000, Shapes: 20}, g46),
		mixed("1,000 in 20 shapes, GPU memory, pinned, g4dn-g6e", 200*time.Millisecond, goal{mean: 0.7, worst: 1.5}, 10,
			workload.Mix{Pods: 1000, Shapes: 20, GPUMemory: true, Pinned: true}, g46),
	}
	existing := workload.Mix{Pods: 300, Shapes: 20, GPUMemory: true, Pinned: true}
	for _, nodes := range []int{10, 30} {
		out = append(out, beside(nodes, mixed(fmt.Sprintf("300 in 20 shapes, GPU memory, pinned, g4dn-g6e, %d nodes", nodes), 200*time.Millisecond, goal{mean: 5, worst: 10}, 10,
			existing, g46)))
	}
	out = append(out, manyShapes(g46)...)
	large := workload.Mix{Pods: 10_000, Shapes: 50, GPUMemory: true, Pinned: true}
	huge := large
	huge.Pods = 100_000
	out = append(out,
		mixed("10,000 in 50 shapes, GPU memory, pinned, g4dn-g6e", time.Second, goal{mean: 0.8, worst: 1.5}, 10, large, g46),
		mixed("10,000 in 50 shapes, GPU memory, pinned, all families", time.Second, goal{mean: 2, worst: 2}, 10, large, all),
		mixed("10,000 in 50 shapes, GPU memory, pinned, g4dn-g7e, 8 zones, spot", time.Second, goal{mean: 2, worst: 2}, 5, large, workload.Spread(g47, 8, 7)),
		mixed("10,000 in 50 shapes, GPU memory, pinned, all families, 3 zones, spot", time.Second, goal{mean: 2, worst: 2}, 5, large,
			append(workload.Spread(all, 3, 7), workload.Spread(all, 3, 8)...)),
		mixed("100,000 in 50 shapes, GPU memory, pinned, g4dn-g6e", 2*time.Second, goal{mean: 1, worst: 1}, 3, huge, g46),
	)
	return append(out, openb(tracePath)...)
}

// manyShapes returns the rows with so many shapes that no method plans them to the end. Their goals are relative to the best known plans.
func manyShapes(types []workload.Type) []row {
	var out []row
	for _, x := range []struct {
		shapes   int
		gap, top float64
	}{{120, 4, 1}, {200, 8, 1}, {300, 12, 1.5}} {
		r := mixed(fmt.Sprintf("3,000 in %d shapes, GPU memory, pinned, g4dn-g6e", x.shapes), defaultBudget, goal{mean: x.gap, worst: x.gap}, 3,
			workload.Mix{Pods: 3000, Shapes: x.shapes, GPUMemory: true, Pinned: true}, types)
		r.goal.overBest = x.top
		out = append(out, r)
	}
	drawn := func(name string, draw func(seed int64) planner.Snapshot) row {
		return row{
			name: name, budget: defaultBudget, goal: goal{mean: 6, worst: 6, overBest: 3},
			snapshots: func(yield func(planner.Snapshot) bool) {
				for seed := int64(1); seed <= 3; seed++ {
					if !yield(draw(seed)) {
						return
					}
				}
			},
		}
	}
	for _, n := range []int{1000, 3000} {
		out = append(out, drawn(fmt.Sprintf("%d,000 Deployments, GPU memory, pinned, g4dn-g6e", n/1000), func(seed int64) planner.Snapshot {
			return workload.Snapshot(workload.Deployments(seed, n, types), types)
		}))
	}
	out = append(out, drawn("7,386 of 150 services with quotas, GPU memory, g4dn-g6e", func(seed int64) planner.Snapshot { return workload.Services(seed, 7386, types) }))
	for i := range out {
		out[i].patient = true
	}
	return out
}

// defaultBudget is the controller's time limit of a plan.
const defaultBudget = 200 * time.Millisecond

// sweep returns a row with a snapshot for each number of identical pods from 1 to 200.
func sweep(name string, types []workload.Type) row {
	return row{name: name, budget: 5 * time.Millisecond, goal: goal{proved: true}, snapshots: func(yield func(planner.Snapshot) bool) {
		for n := 1; n <= 200; n++ {
			if !yield(workload.Snapshot(workload.Identical(n), types)) {
				return
			}
		}
	}}
}

// mixed returns a row with a snapshot of the mix for each seed from 1 to seeds.
func mixed(name string, budget time.Duration, g goal, seeds int64, m workload.Mix, types []workload.Type) row {
	return row{name: name, budget: budget, goal: g, snapshots: func(yield func(planner.Snapshot) bool) {
		for seed := int64(1); seed <= seeds; seed++ {
			if !yield(workload.Snapshot(workload.Mixed(seed, m, types), types)) {
				return
			}
		}
	}}
}

// beside returns a row with the same pods beside existing nodes, some of whose room is left.
func beside(nodes int, r row) row {
	alone := r.snapshots
	r.snapshots = func(yield func(planner.Snapshot) bool) {
		seed := int64(0)
		for s := range alone {
			if seed++; !yield(workload.Beside(s, nodes, seed)) {
				return
			}
		}
	}
	return r
}

// openb returns the rows of the trace: one batch in each of its mappings, and windows of consecutive arrivals. The goal of a row is half the gap of this
// planner's prototype.
func openb(path string) []row {
	pods, err := workload.Openb(path)
	skipped := ""
	if err != nil {
		skipped = fmt.Sprintf("there is no trace: %v", err)
	}
	one := func(mapping workload.Mapping, families []string, replicas int64, name string, gap float64) row {
		return row{
			name: fmt.Sprintf("openb, %s, %d replicas, %s", mapping, replicas, name), budget: time.Second, skipped: skipped,
			goal: goal{mean: gap, worst: gap},
			snapshots: func(yield func(planner.Snapshot) bool) {
				yield(workload.Snapshot(workload.Shaped(pods, mapping), workload.Types(families, replicas)))
			},
		}
	}
	inSlots := func(families []string, exact row) row {
		return row{
			name: strings.Replace(exact.name, "20 replicas", "in slots of 8 sizes", 1), budget: time.Second, skipped: skipped, exact: exact.name,
			goal: exact.goal,
			snapshots: func(yield func(planner.Snapshot) bool) {
				yield(workload.Snapshot(workload.InSlots(workload.Shaped(pods, workload.Memory), workload.Types(families, 20), sizesFor(pods))))
			},
		}
	}
	small, large := one(workload.Memory, workload.G4dn, 20, "g4dn", 0.85), one(workload.Memory, workload.G4to6, 20, "g4dn-g6e", 1.15)
	return []row{
		small, large, inSlots(workload.G4dn, small), inSlots(workload.G4to6, large),
		one(workload.Slots, workload.G4dn, 20, "g4dn", 1.2),
		one(workload.Slots, workload.G4to6, 20, "g4dn-g6e", 0.95),
		one(workload.Count, workload.G4dn, 4, "g4dn", 0.05),
		one(workload.Count, workload.G4to6, 4, "g4dn-g6e", 0.15),
		one(workload.Count, workload.G4dn, 10, "g4dn", 0.2),
		one(workload.Count, workload.G4to6, 10, "g4dn-g6e", 0.15),
		{
			name: "openb, mem, 20 replicas, g4dn-g6e, 15 windows of 50", budget: 100 * time.Millisecond, skipped: skipped,
			goal: goal{mean: 1, worst: 1.5},
			snapshots: func(yield func(planner.Snapshot) bool) {
				const windows, size = 15, 50
				for i := range windows {
					from := i * (len(pods) / windows)
					window := workload.Shaped(pods[from:from+size], workload.Memory)
					if !yield(workload.Snapshot(window, workload.Types(workload.G4to6, 20))) {
						return
					}
				}
			},
		},
		owning(small, "Karve", solve.Plan), owning(large, "Karve", solve.Plan), owning(small, "Karpenter", karpentersPlan), owning(large, "Karpenter", karpentersPlan),
	}
}

// owning returns a row with reservations and a savings plan. They are what a company owns that planned for the same pods before: with Karve, or with another planner.
func owning(r row, name string, before func(planner.Snapshot) planner.Plan) row {
	plain := r.snapshots
	r.owned, r.goal = true, goal{mean: 2, worst: 2}
	r.name += ", a third reserved as " + name + " plans, a savings plan"
	r.snapshots = func(yield func(planner.Snapshot) bool) {
		for s := range plain {
			if !yield(workload.Owned(s, before(s))) {
				return
			}
		}
	}
	return r
}

// karpentersPlan returns Karpenter's plan, or an empty one if it has none.
func karpentersPlan(s planner.Snapshot) planner.Plan {
	p, _, err := karpenter.Plan(context.Background(), s, nil)
	if err != nil {
		return planner.Plan{}
	}
	return p
}

// sizesFor returns the sizes of slots in MiB that waste least for the pods of the trace.
func sizesFor(pods []workload.TracePod) []int64 {
	counts := map[int64]int64{}
	for _, p := range workload.Shaped(pods, workload.Memory) {
		counts[p.GPUMiB] += int64(p.Count)
	}
	return quote.SlotSizes(counts, 8)
}
