package constraints

import (
	"cmp"
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// maxArrangements limits how often domains, preferences and pools are decided again. Each round makes one plan.
const maxArrangements = 24

// rounds decides which pods go where, makes a plan, learns which domains and pools have no room, and decides again.
type rounds struct {
	arranger *arranger
	problem  *problem
	// local reports, by class, whether a rule whose domains are not machines concerns it.
	local  []bool
	stages [][]stage
	// waiting is the number of pods that each class has at each stage.
	waiting [][]int64
	// sites are by class and stage, and cheap is by class and domains.
	sites map[[2]int][]*site
	cheap map[int]map[string]*int64
	// moved is the number of pods that have gone to another stage so far.
	moved int
}

// rounds plans for a snapshot whose groups that share a machine are planned already.
func (a *arranger) rounds(s planner.Snapshot) planner.Plan {
	r := &rounds{arranger: a, problem: newProblem(s)}
	r.local = make([]bool, len(s.Classes))
	for c := range s.Classes {
		r.local[c] = slices.ContainsFunc(r.problem.about[c], func(i int) bool { return r.problem.rules[i].Topology != planner.PerNode })
	}
	for c, class := range s.Classes {
		r.stages = append(r.stages, r.problem.stages(c))
		r.waiting = append(r.waiting, make([]int64, len(r.stages[c])))
		r.waiting[c][0] = int64(len(class.Pods))
	}
	best, ok := r.run()
	last := 0
	for c := range r.stages {
		last = max(last, len(r.stages[c])-1)
	}
	// The preference or the pool of other pods may be what keeps the last ones out.
	for from := 1; !ok && from <= last && len(best.Unplaced) > 0 && !r.arranger.stopped(); from++ {
		for c := range r.waiting {
			clear(r.waiting[c])
			r.waiting[c][min(from, len(r.waiting[c])-1)] = int64(len(s.Classes[c].Pods))
		}
		again, _ := r.run()
		if len(again.Unplaced) < len(best.Unplaced) {
			best = again
		}
	}
	return best
}

// canGiveUp reports whether any pods wait at a stage before their last one.
func (r *rounds) canGiveUp() bool {
	for c := range r.waiting {
		for _, n := range r.waiting[c][:len(r.waiting[c])-1] {
			if n > 0 {
				return true
			}
		}
	}
	return false
}

// run returns the best plan of its rounds. It also reports whether the plan is final: it places all pods, or no pods could give up more.
func (r *rounds) run() (planner.Plan, bool) {
	r.sites = map[[2]int][]*site{}
	var best planner.Plan
	var shares map[*site]int64
	bestMoved := 0
	for round := range maxArrangements {
		demands, parts := r.decide()
		plan := r.arranger.solve(r.lowered(parts, false))
		short := r.missing(parts, plan)
		whole, surplus := r.complete(demands, parts, plan)
		r.learn(parts, short, surplus)
		if round == 0 || len(whole.Unplaced) < len(best.Unplaced) ||
			len(whole.Unplaced) == len(best.Unplaced) && r.moved == bestMoved && whole.Price < best.Price {
			best, bestMoved, shares = whole, r.moved, r.shares()
		}
		if len(whole.Unplaced) == 0 || r.arranger.stopped() || !r.next(demands, parts, short) {
			break
		}
	}
	if OnlyPrice(r.problem.Snapshot) {
		best = r.improve(best, shares)
	}
	return best, len(best.Unplaced) == 0 || !r.canGiveUp()
}

// assigned is a portion at a site of a demand, or of a class for which domains do not matter.
type assigned struct {
	portion portion
	stage   int
	site    *site
}

// decide returns the demands with their sites, and the portions to plan for.
func (r *rounds) decide() ([]*demand, []assigned) {
	demands := r.demands()
	if len(demands) > 0 {
		r.assign(demands)
	}
	return demands, r.portions()
}

// demands returns the pods that need domains.
func (r *rounds) demands() []*demand {
	var out []*demand
	for _, c := range r.problem.order {
		for st := range r.stages[c] {
			if n := r.waiting[c][st]; n > 0 && r.local[c] {
				out = append(out, r.demand(c, st, n))
			}
		}
	}
	return out
}

// portions returns the pods of each class at each stage, by site if they need domains.
func (r *rounds) portions() []assigned {
	var parts []assigned
	for _, c := range r.problem.order {
		first := 0
		add := func(st int, n int64, offerings, nodes []int, x *site) {
			if n > 0 {
				p := portion{class: c, given: r.stages[c][st].given, offerings: offerings, nodes: nodes, pods: int(n), first: first}
				parts = append(parts, assigned{p, st, x})
				first += int(n)
			}
		}
		for st, n := range r.waiting[c] {
			if !r.local[c] {
				add(st, n, r.stages[c][st].offerings, r.stages[c][st].nodes, nil)
				continue
			}
			for _, x := range r.sites[[2]int{c, st}] {
				if n > 0 {
					add(st, x.pods, x.offerings, x.nodes, x)
				}
			}
		}
	}
	return parts
}

// assign gives the demands their sites, in the first manner that leaves the fewest pods without one.
func (r *rounds) assign(demands []*demand) {
	spread := func(m manner) int64 {
		r.reset(demands)
		newCensus(r.problem).spread(demands, m)
		var left int64
		for _, q := range demands {
			left += q.left
		}
		return left
	}
	tried := manners()
	best, fewest := 0, int64(math.MaxInt64)
	for i, m := range tried {
		if left := spread(m); left < fewest {
			best, fewest = i, left
		}
		if fewest == 0 || len(demands) == 1 {
			break
		}
		if i == len(tried)-1 {
			spread(tried[best])
		}
	}
}

// reset removes the pods that were assigned to sites.
func (r *rounds) reset(demands []*demand) {
	r.note()
	for _, q := range demands {
		q.left = r.waiting[q.class][q.stage]
		for _, x := range q.sites {
			x.pods = 0
			x.cheap = r.cheapAt(q.class, x.domains)
		}
	}
}

// note counts the pods of the plan without the rules, by site.
func (r *rounds) note() {
	r.cheap = map[int]map[string]*int64{}
	if r.arranger.hint == nil {
		plan, binds := r.arranger.relax(r.arranger.given, shareOfHint)
		r.arranger.hint, r.arranger.hintBinds = &plan, binds
	}
	class := map[string]int{}
	for c := range r.problem.Classes {
		if r.local[c] {
			for _, pod := range r.problem.Classes[c].Pods {
				class[pod] = c
			}
		}
	}
	cheap := func(pods []string, domains []int) {
		for _, pod := range pods {
			if c, ok := class[pod]; ok {
				*r.cheapAt(c, r.domainsOf(c, domains))++
			}
		}
	}
	for _, x := range r.arranger.hint.Placements {
		cheap(x.Pods, r.problem.Nodes[x.Node].Domains)
	}
	for _, l := range r.arranger.hint.Launches {
		cheap(l.Pods, r.problem.Offerings[l.Offering].Domains)
	}
}

func (r *rounds) cheapAt(class int, domains []int) *int64 {
	if r.cheap[class] == nil {
		r.cheap[class] = map[string]*int64{}
	}
	key := keyOf(domains)
	if r.cheap[class][key] == nil {
		r.cheap[class][key] = new(int64)
	}
	return r.cheap[class][key]
}

func keyOf(domains []int) string {
	key := make([]byte, 0, 4*len(domains))
	for _, d := range domains {
		key = append(key, byte(d), byte(d>>8), byte(d>>16), byte(d>>24))
	}
	return string(key)
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

// demand returns the pods of a class at a stage as a demand for the sites of that stage.
func (r *rounds) demand(class, st int, n int64) *demand {
	given := r.stages[class][st].given
	key := [2]int{class, st}
	if r.sites[key] == nil {
		r.sites[key] = r.sitesOf(class, st)
	}
	q := &demand{class: class, stage: st, given: given, left: n, sites: r.sites[key], free: true, late: st > 0}
	for _, i := range r.problem.about[class] {
		q.free = q.free && (r.problem.rules[i].Topology == planner.PerNode || !r.problem.rules[i].binds(class, given))
	}
	return q
}

// sitesOf groups the machines of a stage by their domains, in the order of the domains' names.
func (r *rounds) sitesOf(class, st int) []*site {
	at := map[string]*site{}
	out := []*site{}
	place := func(domains []int) *site {
		d := r.domainsOf(class, domains)
		key := keyOf(d)
		if at[key] == nil {
			at[key] = &site{domains: d, price: math.MaxInt64, favored: r.arranger.favored != nil && d[r.arranger.favored.topology] == r.arranger.favored.index}
			out = append(out, at[key])
		}
		return at[key]
	}
	for _, i := range r.stages[class][st].offerings {
		x := place(r.problem.Offerings[i].Domains)
		x.offerings = append(x.offerings, i)
		if n := offeredTimes(r.problem.Snapshot, r.problem.Classes[class], i); r.problem.usable[i] && n > 0 {
			x.holds = planner.Unlimited
			x.price = min(x.price, int64(r.problem.Offerings[i].Price)*1000/min(n, 1000))
		}
	}
	for _, i := range r.stages[class][st].nodes {
		x := place(r.problem.Nodes[i].Domains)
		x.nodes = append(x.nodes, i)
		if n := TimesOnNode(r.problem.Snapshot, r.problem.Classes[class], r.problem.Nodes[i]); x.holds < mostPods {
			x.holds += min(n, mostPods)
		}
	}
	for _, x := range out {
		x.reach = x.holds > 0
	}
	slices.SortFunc(out, func(x, y *site) int {
		for _, t := range r.problem.topologies {
			if x.domains[t] != y.domains[t] {
				return cmp.Compare(x.domains[t], y.domains[t])
			}
		}
		return 0
	})
	return out
}

// lowered is problem.lowered for assigned portions.
func (r *rounds) lowered(parts []assigned, relaxed bool) planner.Snapshot {
	plain := make([]portion, len(parts))
	for k, p := range parts {
		plain[k] = p.portion
	}
	return r.problem.lowered(plain, relaxed)
}
