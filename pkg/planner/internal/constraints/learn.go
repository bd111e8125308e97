package constraints

import "karve.sh/karve/pkg/planner"

// missing returns how many pods of each portion the plan does not place, and records why at their cells.
func (r *rounds) missing(parts []assigned, plan planner.Plan) []int {
	short := make([]int, len(parts))
	part := partOf(r.problem, parts)
	for _, x := range plan.Unplaced {
		k := part[x.Pod]
		short[k]++
		if parts[k].cell != nil {
			why := x.Refusal
			parts[k].cell.why = &why
		}
	}
	return short
}

// learn records how many pods cells hold. Pods that were dropped because the pods that they follow are missing had taken the room of the missing pods.
// They get less room in the next round, and the missing pods are tried again.
func (r *rounds) learn(parts []assigned, short []int, surplus []int64) {
	excused := map[int]bool{}
	for k, p := range parts {
		if surplus[k] == 0 {
			continue
		}
		for _, i := range r.problem.about[p.portion.class] {
			rule := &r.problem.rules[i]
			if rule.Kind == planner.Together && rule.Topology != planner.PerNode && rule.binds(p.portion.class, p.portion.given) && !rule.counts(p.portion.class) {
				p.cell.maxPods = int64(p.portion.pods-short[k]) - surplus[k]
				for _, c := range rule.Counted {
					excused[c] = true
				}
			}
		}
	}
	for k, p := range parts {
		if p.cell != nil && short[k] > 0 && !excused[p.portion.class] {
			p.cell.maxPods = min(p.cell.maxPods, int64(p.portion.pods-short[k]))
		}
	}
}

// partOf returns the portion of each pod.
func partOf(pr *problem, parts []assigned) map[string]int {
	part := map[string]int{}
	for k, p := range parts {
		for _, pod := range pr.Classes[p.portion.class].Pods[p.portion.first : p.portion.first+p.portion.pods] {
			part[pod] = k
		}
	}
	return part
}

// giveUp makes the unplaced pods give up a preference or a pool, and reports whether another round can be better. If domains turn out to be full, their
// pods first try other domains.
func (r *rounds) giveUp(cohorts []*cohort, parts []assigned, short []int) bool {
	again, learned := false, false
	move := func(class, st int, n int64) {
		if n > 0 && st+1 < len(r.stages[class]) {
			r.waiting[class][st] -= n
			r.waiting[class][st+1] += n
			r.moved++
			again = true
		}
	}
	for k, p := range parts {
		if p.cell == nil {
			move(p.portion.class, p.stage, int64(short[k]))
		} else if short[k] > 0 {
			learned = true
		}
	}
	if !learned {
		for _, q := range cohorts {
			move(q.class, q.stage, q.left)
		}
	}
	return again || learned
}
