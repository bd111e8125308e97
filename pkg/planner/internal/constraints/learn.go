package constraints

import (
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// missing returns how many pods of each portion the plan does not place, and records why at their sites.
func (r *rounds) missing(parts []assigned, plan planner.Plan) []int {
	short := make([]int, len(parts))
	part := partOf(r.problem, parts)
	for _, x := range plan.Unplaced {
		k := part[x.Pod]
		short[k]++
		if parts[k].site != nil {
			why := x.Refusal
			parts[k].site.why = &why
		}
	}
	return short
}

// learn records how many pods sites hold. Pods that were dropped because the pods that they follow are missing had taken the room of the missing pods.
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
				p.site.holds = int64(p.portion.pods-short[k]) - surplus[k]
				for _, c := range rule.Counted {
					excused[c] = true
				}
			}
		}
	}
	for k, p := range parts {
		if p.site != nil && short[k] > 0 && !excused[p.portion.class] {
			p.site.holds = min(p.site.holds, int64(p.portion.pods-short[k]))
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

// next makes the unplaced pods give up a preference or a pool, and reports whether another round can be better. If domains turn out to be full, their
// pods first try other domains.
func (r *rounds) next(demands []*demand, parts []assigned, short []int) bool {
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
		if p.site == nil {
			move(p.portion.class, p.stage, int64(short[k]))
		} else if short[k] > 0 {
			learned = true
		}
	}
	if !learned {
		for _, q := range demands {
			move(q.class, q.stage, q.left)
		}
	}
	return again || learned
}

// complete makes a plan for all pods from the plan for the portions. Pods that the rules allowed only because of others that were not placed are also
// dropped. Every unplaced pod gets a reason.
func (r *rounds) complete(demands []*demand, parts []assigned, plan planner.Plan) (planner.Plan, []int64) {
	part := partOf(r.problem, parts)
	placed := make([]int64, len(parts))
	for k, p := range parts {
		placed[k] = int64(p.portion.pods)
	}
	missing := false
	for _, x := range plan.Unplaced {
		placed[part[x.Pod]]--
		missing = missing || parts[part[x.Pod]].site != nil
	}
	var dropped []planner.Unplaced
	census, surplus := newCensus(r.problem), make([]int64, len(parts))
	if missing {
		census, surplus = r.replay(parts, placed)
		dropped = drop(&plan, r.problem.Snapshot, part, surplus)
	} else {
		for k, p := range parts {
			if p.site != nil {
				census.add(p.portion.class, p.site.domains, placed[k])
			}
		}
	}
	claimOf := map[[2]int]*demand{}
	for _, q := range demands {
		claimOf[[2]int{q.class, q.stage}] = q
	}
	unplaced := plan.Unplaced
	plan.Unplaced = nil
	why := map[[2]int]planner.Refusal{}
	refuse := func(pod string, q *demand) {
		key := [2]int{q.class, q.stage}
		if _, ok := why[key]; !ok {
			why[key] = r.refusal(census, q)
		}
		plan.Unplaced = append(plan.Unplaced, planner.Unplaced{Pod: pod, Refusal: why[key]})
	}
	for _, x := range append(unplaced, dropped...) {
		p := parts[part[x.Pod]]
		if p.site != nil {
			refuse(x.Pod, claimOf[[2]int{p.portion.class, p.stage}])
			continue
		}
		plan.Unplaced = append(plan.Unplaced, planner.Unplaced{Pod: x.Pod, Refusal: r.alone(p.portion, x.Refusal)})
	}
	taken := map[int]int{}
	for _, p := range parts {
		taken[p.portion.class] += p.portion.pods
	}
	for _, q := range demands {
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
	for _, m := range manners() {
		var demands []*demand
		left := make([]int64, len(parts))
		at := map[*demand]int{}
		for k, p := range parts {
			if p.site == nil {
				continue
			}
			cheap := placed[k]
			x := &site{domains: p.site.domains, holds: placed[k], cheap: &cheap, price: p.site.price}
			q := &demand{class: p.portion.class, stage: p.stage, given: math.MaxInt - 1, left: placed[k], sites: []*site{x}, late: p.stage > 0}
			demands = append(demands, q)
			at[q] = k
		}
		c := newCensus(r.problem)
		c.spread(demands, m)
		var sum int64
		for _, q := range demands {
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
