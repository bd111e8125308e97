package constraints

import "karve.sh/karve/pkg/planner"

// rounds decides which pods go where, makes a plan, learns which domains and pools have no room, and decides again.
type rounds struct {
	arranger *arranger
	problem  *problem
	// local reports, by class, whether a rule whose domains are not machines concerns it.
	local  []bool
	stages [][]stage
	// waiting is the number of pods that each class has at each stage.
	waiting [][]int64
	// cells are by class and stage, and hinted is by class and domains.
	cells  map[[2]int][]*cell
	hinted map[int]map[string]*int64
	// moved is the number of pods that have gone to another stage so far.
	moved int
}

// assigned is a portion at a cell of a cohort, or of a class for which domains do not matter.
type assigned struct {
	portion portion
	stage   int
	cell    *cell
}

// portions returns the pods of each class at each stage, by cell if they need domains.
func (r *rounds) portions() []assigned {
	var parts []assigned
	for _, c := range r.problem.order {
		first := 0
		add := func(st int, n int64, offerings, nodes []int, x *cell) {
			if n > 0 {
				p := portion{class: c, given: r.stages[c][st].given, offerings: offerings, nodes: nodes, pods: int(n), first: first}
				parts = append(parts, assigned{p, st, x})
				first += int(n)
			}
		}
		for st, n := range r.waiting[c] {
			if !r.local[c] {
				add(st, n, r.stages[c][st].offerings, r.stages[c][st].nodes, nil)
				continue
			}
			for _, x := range r.cells[[2]int{c, st}] {
				if n > 0 {
					add(st, x.pods, x.offerings, x.nodes, x)
				}
			}
		}
	}
	return parts
}

// lowered is problem.lowered for assigned portions.
func (r *rounds) lowered(parts []assigned, relaxed bool) planner.Snapshot {
	plain := make([]portion, len(parts))
	for k, p := range parts {
		plain[k] = p.portion
	}
	return r.problem.lowered(plain, relaxed)
}
