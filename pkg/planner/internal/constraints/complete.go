package constraints

import (
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// complete makes a plan for all pods from the plan for the portions. Pods that the rules allowed only because of others that were not placed are also
// dropped. Every unplaced pod gets a reason.
func (r *rounds) complete(cohorts []*cohort, parts []assigned, plan planner.Plan) (planner.Plan, []int64) {
	part := partOf(r.problem, parts)
	placed := make([]int64, len(parts))
	for k, p := range parts {
		placed[k] = int64(p.portion.pods)
	}
	missing := false
	for _, x := range plan.Unplaced {
		placed[part[x.Pod]]--
		missing = missing || parts[part[x.Pod]].cell != nil
	}
	var dropped []planner.Unplaced
	census, surplus := newCensus(r.problem), make([]int64, len(parts))
	if missing {
		census, surplus = r.replay(parts, placed)
		dropped = drop(&plan, r.problem.Snapshot, part, surplus)
	} else {
		for k, p := range parts {
			if p.cell != nil {
				census.add(p.portion.class, p.cell.domains, placed[k])
			}
		}
	}
	cohortOf := map[[2]int]*cohort{}
	for _, q := range cohorts {
		cohortOf[[2]int{q.class, q.stage}] = q
	}
	unplaced := plan.Unplaced
	plan.Unplaced = nil
	why := map[[2]int]planner.Refusal{}
	refuse := func(pod string, q *cohort) {
		key := [2]int{q.class, q.stage}
		if _, ok := why[key]; !ok {
			why[key] = r.refusal(census, q)
		}
		plan.Unplaced = append(plan.Unplaced, planner.Unplaced{Pod: pod, Refusal: why[key]})
	}
	for _, x := range append(unplaced, dropped...) {
		p := parts[part[x.Pod]]
		if p.cell != nil {
			refuse(x.Pod, cohortOf[[2]int{p.portion.class, p.stage}])
			continue
		}
		plan.Unplaced = append(plan.Unplaced, planner.Unplaced{Pod: x.Pod, Refusal: r.alone(p.portion, x.Refusal)})
	}
	taken := map[int]int{}
	for _, p := range parts {
		taken[p.portion.class] += p.portion.pods
	}
	for _, q := range cohorts {
		for range q.left {
			refuse(r.problem.Classes[q.class].Pods[taken[q.class]], q)
			taken[q.class]++
		}
	}
	return plan, surplus
}

// replay admits the placed pods in the order that a scheduler might, and returns how many of each portion the rules do not allow.
func (r *rounds) replay(parts []assigned, placed []int64) (*census, []int64) {
	var best *census
	var surplus []int64
	fewest := int64(math.MaxInt64)
	for _, m := range heuristics() {
		var cohorts []*cohort
		left := make([]int64, len(parts))
		at := map[*cohort]int{}
		for k, p := range parts {
			if p.cell == nil {
				continue
			}
			hinted := placed[k]
			x := &cell{domains: p.cell.domains, maxPods: placed[k], hinted: &hinted, price: p.cell.price}
			q := &cohort{class: p.portion.class, stage: p.stage, given: math.MaxInt - 1, left: placed[k], cells: []*cell{x}, late: p.stage > 0}
			cohorts = append(cohorts, q)
			at[q] = k
		}
		c := newCensus(r.problem)
		c.spread(cohorts, m)
		var sum int64
		for _, q := range cohorts {
			left[at[q]] = q.left
			sum += q.left
		}
		if sum < fewest {
			best, surplus, fewest = c, left, sum
		}
		if fewest == 0 {
			break
		}
	}
	return best, surplus
}

// drop removes a number of pods of each portion from a plan, starting with its last machines, and returns them.
func drop(plan *planner.Plan, s planner.Snapshot, part map[string]int, surplus []int64) []planner.Unplaced {
	var out []planner.Unplaced
	left := slices.Clone(surplus)
	from := func(pods []string, gpus []int) ([]string, []int) {
		var keptPods []string
		var keptGPUs []int
		for i, pod := range pods {
			if k := part[pod]; left[k] > 0 {
				left[k]--
				out = append(out, planner.Unplaced{Pod: pod})
				continue
			}
			keptPods = append(keptPods, pod)
			if gpus != nil {
				keptGPUs = append(keptGPUs, gpus[i])
			}
		}
		return keptPods, keptGPUs
	}
	for i := range slices.Backward(plan.Launches) {
		l := &plan.Launches[i]
		if l.Pods, l.GPUs = from(l.Pods, l.GPUs); len(l.Pods) == 0 {
			plan.Price -= s.Offerings[l.Offering].Price
		}
	}
	for i := range slices.Backward(plan.Placements) {
		x := &plan.Placements[i]
		x.Pods, x.GPUs = from(x.Pods, x.GPUs)
	}
	plan.Launches = slices.DeleteFunc(plan.Launches, func(l planner.Launch) bool { return len(l.Pods) == 0 })
	plan.Placements = slices.DeleteFunc(plan.Placements, func(x planner.Placement) bool { return len(x.Pods) == 0 })
	return out
}
