package constraints

import (
	"encoding/binary"
	"maps"
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
)

// Limits on moves of pods between domains.
const (
	maxPodMoves     = 1500 // plans for all pods, multiplied by the number of pods
	maxMoves        = 300  // plans for all pods
	maxMovedPods    = 300  // pods: with more, the last one of a domain matters little
	maxMovedClasses = 20   // classes
	shareOfMoves    = 64   // each plan gets 1/shareOfMoves of the effort
)

// newMoves returns how many plans may be made for moves.
func newMoves(s planner.Snapshot) *int {
	pods := 1
	for _, c := range s.Classes {
		pods += len(c.Pods)
	}
	n := 0
	if pods <= maxMovedPods {
		n = min(maxMoves, maxPodMoves/pods)
	}
	return &n
}

// improve moves pods of the best plan between domains as long as that makes it better (local search). The plan without the rules shows where pods are
// cheap, but not where the last pod of a domain costs a machine. It also continues from a plan that is equally good. shares are the pods of each cell
// of the best plan.
func (r *rounds) improve(best planner.Plan, shares map[*cell]int64) planner.Plan {
	a := *r.arranger
	a.solver.Plain = func(s planner.Snapshot, share int64) planner.Plan {
		return r.arranger.solver.Plain(s, share*shareOfMoves)
	}
	if n := len(r.cohorts()); *r.arranger.moves == 0 || n == 0 || n > maxMovedClasses {
		return best
	}
	until := *a.moves / 2
	seen := map[string]bool{r.keyOf(shares): true}
	for open := []map[*cell]int64{shares}; len(open) > 0; open = open[1:] {
		for _, change := range r.changes(open[0]) {
			if *a.moves <= until || best.Price == 0 && len(best.Unplaced) == 0 || a.optimal(best) || a.stopped() {
				return best
			}
			next := change(open[0])
			if next == nil || !r.spreads(next) || seen[r.keyOf(next)] {
				continue
			}
			seen[r.keyOf(next)] = true
			*a.moves--
			plan, ok := r.planFor(&a, next)
			switch {
			case !ok || IsBetter(r.problem.Snapshot, best, plan):
			case IsBetter(r.problem.Snapshot, plan, best):
				best, open = plan, []map[*cell]int64{nil, next}
			default:
				open = append(open, next) // It may lead to a better plan.
			}
			if open[0] == nil {
				break
			}
		}
	}
	return best
}

// keyOf returns a string that identifies numbers of pods at cells.
func (r *rounds) keyOf(shares map[*cell]int64) string {
	var key []byte
	for _, q := range r.cohorts() {
		for _, x := range q.cells {
			key = binary.AppendVarint(key, shares[x])
		}
	}
	return string(key)
}

// planFor returns a plan with the given pods at each cell, and whether it keeps the rules.
func (r *rounds) planFor(a *arranger, shares map[*cell]int64) (planner.Plan, bool) {
	cohorts := r.cohorts()
	for _, q := range cohorts {
		q.left = r.waiting[q.class][q.stage]
		for _, x := range q.cells {
			x.pods = shares[x]
			q.left -= x.pods
		}
	}
	parts := r.portions()
	plan, _ := r.complete(cohorts, parts, a.solve(r.lowered(parts, false)))
	return plan, check.Plan(r.problem.Snapshot, plan) == nil
}

func (r *rounds) shares() map[*cell]int64 {
	out := map[*cell]int64{}
	for _, q := range r.cohorts() {
		for _, x := range q.cells {
			if x.pods > 0 {
				out[x] = x.pods
			}
		}
	}
	return out
}

// change returns other numbers of pods for cells, or nil if it is not possible.
type change func(shares map[*cell]int64) map[*cell]int64

// changes returns the changes that a local search tries: one pod or all pods of a class go to another cell, pods without
// a cell get one or replace others, or all pods of two domains change places.
func (r *rounds) changes(shares map[*cell]int64) []change {
	cohorts := r.cohorts()
	out := moves(cohorts, shares, func(pods int64) int64 { return min(pods, 1) })
	for _, q := range cohorts {
		for _, y := range q.cells {
			if y.reachable {
				out = append(out, r.adding(q, y))
			}
		}
	}
	for _, q := range cohorts {
		for _, other := range cohorts {
			for _, x := range q.cells {
				if q != other && shares[x] > 0 {
					out = append(out, r.replacing(x, other))
				}
			}
		}
	}
	for t, topology := range r.problem.Topologies {
		for a := range topology.Domains {
			for b := range a {
				out = append(out, exchanging(cohorts, t, a, b))
			}
		}
	}
	return append(out, moves(cohorts, shares, func(pods int64) int64 {
		if pods == 1 {
			return 0 // One pod is moved above.
		}
		return pods
	})...)
}

// moves returns the changes that move pods of a cell to another one of the cohort. n returns how many of the pods of a cell move.
func moves(cohorts []*cohort, shares map[*cell]int64, n func(pods int64) int64) []change {
	var out []change
	for _, q := range cohorts {
		for _, x := range q.cells {
			for _, y := range q.cells {
				if n := n(shares[x]); x != y && n > 0 && y.reachable {
					out = append(out, moving(x, y, n))
				}
			}
		}
	}
	return out
}

// moving moves a number of pods from one cell to another.
func moving(x, y *cell, n int64) change {
	return func(shares map[*cell]int64) map[*cell]int64 {
		if shares[x] < n {
			return nil
		}
		next := maps.Clone(shares)
		next[x] -= n
		next[y] += n
		return next
	}
}

// adding puts a pod without a cell on one.
func (r *rounds) adding(q *cohort, y *cell) change {
	return func(shares map[*cell]int64) map[*cell]int64 {
		left := r.waiting[q.class][q.stage]
		for _, x := range q.cells {
			left -= shares[x]
		}
		if left <= 0 {
			return nil
		}
		next := maps.Clone(shares)
		next[y]++
		return next
	}
}

// replacing leaves out the pods of a cell, so that all pods of another class that have no cell can go to its domains.
func (r *rounds) replacing(x *cell, q *cohort) change {
	return func(shares map[*cell]int64) map[*cell]int64 {
		left := r.waiting[q.class][q.stage]
		for _, y := range q.cells {
			left -= shares[y]
		}
		i := slices.IndexFunc(q.cells, func(y *cell) bool { return y.reachable && slices.Equal(y.domains, x.domains) })
		if left <= shares[x] || i < 0 {
			return nil
		}
		next := maps.Clone(shares)
		next[x] = 0
		next[q.cells[i]] += left
		return next
	}
}

// exchanging exchanges the pods of two domains.
func exchanging(cohorts []*cohort, topology, a, b int) change {
	return func(shares map[*cell]int64) map[*cell]int64 {
		next, changed := maps.Clone(shares), false
		for _, q := range cohorts {
			for _, x := range q.cells {
				if x.domains[topology] != a {
					continue
				}
				other := slices.Clone(x.domains)
				other[topology] = b
				i := slices.IndexFunc(q.cells, func(y *cell) bool { return slices.Equal(y.domains, other) })
				if i < 0 || shares[x] == shares[q.cells[i]] {
					continue
				}
				next[x], next[q.cells[i]], changed = shares[q.cells[i]], shares[x], true
			}
		}
		if !changed {
			return nil
		}
		return next
	}
}

// spreads reports whether numbers of pods at cells keep the rules that spread pods over domains or keep them apart. It is a quick check before a plan is made.
func (r *rounds) spreads(shares map[*cell]int64) bool {
	c := newCensus(r.problem)
	cohorts := r.cohorts()
	asking := map[[2]int]bool{} // by rule and domain
	for _, q := range cohorts {
		for _, x := range q.cells {
			if n := shares[x]; n > 0 {
				c.add(q.class, x.domains, n)
				for _, i := range r.problem.about[q.class] {
					if rule := &r.problem.rules[i]; rule.Topology != planner.PerNode && rule.binds(q.class, q.given) {
						asking[[2]int{i, x.domains[rule.Topology]}] = true
					}
				}
			}
		}
	}
	for at := range asking {
		i, d := at[0], at[1]
		rule := &r.problem.rules[i]
		switch {
		case rule.Kind == planner.Spread && (d < 0 || !rule.eligible[d] || c.counted[i][d]-c.fewest(i) > rule.MaxSkew):
			return false
		case rule.Kind == planner.Together && (d < 0 || c.counted[i][d] == 0):
			return false
		}
	}
	return true
}
