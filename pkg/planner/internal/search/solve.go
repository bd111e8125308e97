package search

import (
	"karve.sh/karve/pkg/planner/internal/effort"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// Solve returns the best solution found, and a price that no plan for the pods that it places can go below. It tells first, when not nil, of the first
// solution, and returns what the bound rests on as well.
func Solve(p *pack.Problem, e *effort.Budget, first func(*Solution)) (*Solution, int64, *branch) {
	demand := p.Demand()
	switch {
	case len(p.Shapes) == 0:
		return report(p, newSolution(p), 0, nil, first)
	case len(p.Shapes) == 1:
		if s, ok := coverOnly(p); ok {
			return report(p, s, s.cost(p).Price, &branch{covers: coverAlone(p, 0, s)}, first)
		}
	case isSmall(p, demand):
		if s, c, ok := enumerate(p); ok {
			return report(p, s, c.Price, nil, first)
		}
	}
	return PriceAndBranch(p, e, first)
}

// report tells first of a solution that is the last as well.
func report(p *pack.Problem, s *Solution, bound int64, shown *branch, first func(*Solution)) (*Solution, int64, *branch) {
	if first != nil {
		first(s)
	}
	return s, bound, shown
}
