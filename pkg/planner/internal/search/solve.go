package search

import (
	"karve.sh/karve/pkg/planner/internal/effort"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// Solve returns the best solution found, and a lower bound on the price of any plan for the pods that it places. If first is not nil, it is called with the first
// solution.
func Solve(p *pack.Problem, e *effort.Budget, first func(*Solution)) (best *Solution, bound int64) {
	switch {
	case len(p.Shapes) == 0:
		return report(p, newSolution(p), first)
	case len(p.Shapes) == 1:
		if s, ok := coverOnly(p); ok {
			return report(p, s, first)
		}
	}
	return PriceAndBranch(p, e, first)
}

// report calls first for an optimal solution that is both the first and the last.
func report(p *pack.Problem, s *Solution, first func(*Solution)) (*Solution, int64) {
	if first != nil {
		first(s)
	}
	return s, s.cost(p).Price
}
