package planner

// rest plans for the pods that a plan leaves out, as long as any of them finds a place on what the plan launches and on what may still be launched. They
// were left out when others had not decided yet: a limit that nobody uses up in the end, a machine that came for others.
func (a *arranger) rest(s Snapshot, plan Plan) Plan {
	for len(plan.Unplaced) > 0 && !a.stopped() {
		g := newGround(s)
		g.bind(plan)
		more := (&arranger{solver: a.solver, given: g.Snapshot}).settle(g.Snapshot)
		if len(more.Unplaced) >= len(plan.Unplaced) {
			break
		}
		g.bind(more)
		left := map[string]bool{}
		for _, x := range more.Unplaced {
			left[x.Pod] = true
		}
		for _, x := range plan.Unplaced {
			if left[x.Pod] {
				g.plan.Unplaced = append(g.plan.Unplaced, x)
			}
		}
		plan = g.plan
	}
	return plan
}
