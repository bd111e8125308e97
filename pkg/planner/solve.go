package planner

// solve returns the best solution found, and a price that no plan for the pods that it places can go below. It tells first, when not nil, of the first
// solution, and returns what the bound rests on as well.
func solve(p *problem, e *effort, first func(*solution)) (*solution, int64, *branch) {
	demand := p.demand()
	switch {
	case len(p.shapes) == 0:
		return told(p, newSolution(p), 0, nil, first)
	case len(p.shapes) == 1:
		if s, ok := coverOnly(p); ok {
			return told(p, s, s.cost(p).price, &branch{covers: coverAlone(p, 0, s)}, first)
		}
	case isSmall(p, demand):
		if s, c, ok := enumerate(p); ok {
			return told(p, s, c.price, nil, first)
		}
	}
	return priceAndBranch(p, e, first)
}

// told tells first of a solution that is the last as well.
func told(p *problem, s *solution, bound int64, shown *branch, first func(*solution)) (*solution, int64, *branch) {
	if first != nil {
		first(s)
	}
	return s, bound, shown
}
