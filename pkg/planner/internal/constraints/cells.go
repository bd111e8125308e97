package constraints

import (
	"cmp"
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// cell is the machines for a stage of a class that are equal as far as rules are concerned.
type cell struct {
	// domains are by topology of the snapshot. An entry is -1 if the machines have no domain, or if no rule of the class needs it.
	domains          []int
	offerings, nodes []int
	// price is the lowest price per pod, and math.MaxInt64 if nothing can be launched.
	price int64
	// maxPods is the known upper limit on the number of pods that fit here, and why explains why no more fit.
	maxPods int64
	why     *planner.Refusal
	// reachable reports whether any pods fit here, ignoring what was learned.
	reachable bool
	// pods is the number of pods that are assigned here now. hinted is the number of pods of the class that the plan without the rules places here.
	pods   int64
	hinted *int64
	// favored reports whether pods go here first, at any price.
	favored bool
}

// cohort is the pods of one class at one stage that need domains.
type cohort struct {
	class, stage, given int
	left                int64
	cells               []*cell
	// unbound reports whether no rule binds the pods, and late whether they are beyond the first stage.
	unbound, late bool
	// noRoomSince is the change of a census up to which no cell had room for the pods. It is 0 if there was none.
	noRoomSince int
}

// open returns the number of cells that would have room for pods of the cohort if it were alone.
func (q *cohort) open() int {
	n := 0
	for _, x := range q.cells {
		if x.maxPods > 0 {
			n++
		}
	}
	return n
}

// cohorts returns the pods that need domains.
func (r *rounds) cohorts() []*cohort {
	var out []*cohort
	for _, c := range r.problem.order {
		for st := range r.stages[c] {
			if n := r.waiting[c][st]; n > 0 && r.local[c] {
				out = append(out, r.cohort(c, st, n))
			}
		}
	}
	return out
}

// cohort returns the pods of a class at a stage as a cohort for the cells of that stage.
func (r *rounds) cohort(class, st int, n int64) *cohort {
	given := r.stages[class][st].given
	key := [2]int{class, st}
	if r.cells[key] == nil {
		r.cells[key] = r.cellsOf(class, st)
	}
	q := &cohort{class: class, stage: st, given: given, left: n, cells: r.cells[key], unbound: true, late: st > 0}
	for _, i := range r.problem.about[class] {
		q.unbound = q.unbound && (r.problem.rules[i].Topology == planner.PerNode || !r.problem.rules[i].binds(class, given))
	}
	return q
}

// cellsOf groups the machines of a stage by their domains, in the order of the domains' names.
func (r *rounds) cellsOf(class, st int) []*cell {
	at := map[string]*cell{}
	out := []*cell{}
	place := func(domains []int) *cell {
		d := r.domainsOf(class, domains)
		key := keyOf(d)
		if at[key] == nil {
			at[key] = &cell{domains: d, price: math.MaxInt64, favored: r.arranger.favored != nil && d[r.arranger.favored.topology] == r.arranger.favored.index}
			out = append(out, at[key])
		}
		return at[key]
	}
	for _, i := range r.stages[class][st].offerings {
		x := place(r.problem.Offerings[i].Domains)
		x.offerings = append(x.offerings, i)
		if n := offeredTimes(r.problem.Snapshot, r.problem.Classes[class], i); r.problem.usable[i] && n > 0 {
			x.maxPods = planner.Unlimited
			x.price = min(x.price, int64(r.problem.Offerings[i].Price)*1000/min(n, 1000))
		}
	}
	for _, i := range r.stages[class][st].nodes {
		x := place(r.problem.Nodes[i].Domains)
		x.nodes = append(x.nodes, i)
		if n := TimesOnNode(r.problem.Snapshot, r.problem.Classes[class], r.problem.Nodes[i]); x.maxPods < maxCount {
			x.maxPods += min(n, maxCount)
		}
	}
	for _, x := range out {
		x.reachable = x.maxPods > 0
	}
	slices.SortFunc(out, func(x, y *cell) int {
		for _, t := range r.problem.topologies {
			if x.domains[t] != y.domains[t] {
				return cmp.Compare(x.domains[t], y.domains[t])
			}
		}
		return 0
	})
	return out
}

// domainsOf returns the domains of a machine in the topologies of the rules that concern a class, and -1 for other topologies.
func (r *rounds) domainsOf(class int, domains []int) []int {
	out := make([]int, len(r.problem.Topologies))
	for t := range out {
		out[t] = -1
	}
	for _, i := range r.problem.about[class] {
		if x := &r.problem.rules[i]; x.Topology != planner.PerNode {
			out[x.Topology] = r.problem.domain(domains, x.Topology)
		}
	}
	return out
}

func keyOf(domains []int) string {
	key := make([]byte, 0, 4*len(domains))
	for _, d := range domains {
		key = append(key, byte(d), byte(d>>8), byte(d>>16), byte(d>>24))
	}
	return string(key)
}
