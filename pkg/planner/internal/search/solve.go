package search

import (
	"karve.sh/karve/pkg/planner/internal/effort"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// Solve returns the best solution found, a lower bound on the price of any plan for the pods that it places, and the proof of the bound. If first is not nil,
// it is called with the first solution.
func Solve(p *pack.Problem, e *effort.Budget, first func(*Solution)) (*Solution, int64, *branch) {
	switch {
	case len(p.Shapes) == 0:
		return report(newSolution(p), 0, nil, first)
	case len(p.Shapes) == 1:
		if s, ok := coverOnly(p); ok {
			return report(s, s.cost(p).Price, &branch{covers: coverAlone(p, 0, s)}, first)
		}
	}
	return PriceAndBranch(p, e, first)
}

// report calls first for a solution that is both the first and the last.
func report(s *Solution, bound int64, shown *branch, first func(*Solution)) (*Solution, int64, *branch) {
	if first != nil {
		first(s)
	}
	return s, bound, shown
}
