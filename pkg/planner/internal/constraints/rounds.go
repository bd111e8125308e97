package constraints

import (
	"cmp"
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// maxArrangements bounds how often domains, wishes and pools are decided again. Each round makes one plan.
const maxArrangements = 24

// rounds decides which pods go where, makes a plan, learns which domains and pools have no room, and decides again.
type rounds struct {
	arranger *arranger
	books    *books
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
	r := &rounds{arranger: a, books: newBooks(s)}
	r.local = make([]bool, len(s.Classes))
	for c := range s.Classes {
		r.local[c] = slices.ContainsFunc(r.books.about[c], func(i int) bool { return r.books.rules[i].Topology != planner.PerNode })
	}
	for c, class := range s.Classes {
		r.stages = append(r.stages, r.books.stages(c))
		r.waiting = append(r.waiting, make([]int64, len(r.stages[c])))
		r.waiting[c][0] = int64(len(class.Pods))
	}
	best, ok := r.run()
	last := 0
	for c := range r.stages {
		last = max(last, len(r.stages[c])-1)
	}
	// The wish or the pool of other pods may be what keeps the last ones out.
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

// wishful reports whether any pods wait at a stage before their last one.
func (r *rounds) wishful() bool {
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
	bestMoved := 0
	for round := range maxArrangements {
		claims, parts := r.decide()
		plan := r.arranger.solve(r.lowered(parts, false))
		short := r.missing(parts, plan)
		whole, surplus := r.complete(claims, parts, plan)
		r.learn(parts, short, surplus)
		if round == 0 || len(whole.Unplaced) < len(best.Unplaced) ||
			len(whole.Unplaced) == len(best.Unplaced) && r.moved == bestMoved && whole.Price < best.Price {
			best, bestMoved = whole, r.moved
		}
		if len(whole.Unplaced) == 0 || r.arranger.stopped() || !r.next(claims, parts, short) {
			break
		}
	}
	return best, len(best.Unplaced) == 0 || !r.wishful()
}

// claimed is a portion of a site of a claim, or of a class for which domains do not matter.
type claimed struct {
	portion portion
	stage   int
	site    *site
}

// decide returns the claims with their sites, and the portions to plan for.
func (r *rounds) decide() ([]*claim, []claimed) {
	var claims []*claim
	for _, c := range r.books.order {
		for st := range r.stages[c] {
			if n := r.waiting[c][st]; n > 0 && r.local[c] {
				claims = append(claims, r.claim(c, st, n))
			}
		}
	}
	if len(claims) > 0 {
		r.assign(claims)
	}
	var parts []claimed
	for _, c := range r.books.order {
		first := 0
		add := func(st int, n int64, offerings, nodes []int, x *site) {
			if n > 0 {
				p := portion{class: c, given: r.stages[c][st].given, offerings: offerings, nodes: nodes, pods: int(n), first: first}
				parts = append(parts, claimed{p, st, x})
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
	return claims, parts
}

// assign gives the claims their sites, in the first manner that leaves the fewest pods without one.
func (r *rounds) assign(claims []*claim) {
	spread := func(m manner) int64 {
		r.reset(claims)
		newCensus(r.books).spread(claims, m)
		var left int64
		for _, q := range claims {
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
		if fewest == 0 || len(claims) == 1 {
			break
		}
		if i == len(tried)-1 {
			spread(tried[best])
		}
	}
}

// reset removes the pods that were assigned to sites.
func (r *rounds) reset(claims []*claim) {
	r.note()
	for _, q := range claims {
		q.left = r.waiting[q.class][q.stage]
		for _, x := range q.sites {
			x.pods = 0
			x.cheap = r.cheapAt(q.class, x.domains)
		}
	}
}

// note counts where the plan without the rules has the pods.
func (r *rounds) note() {
	r.cheap = map[int]map[string]*int64{}
	if r.arranger.hint == nil {
		plan := r.arranger.relax(r.arranger.given, shareOfHint)
		r.arranger.hint = &plan
	}
	class := map[string]int{}
	for c := range r.books.Classes {
		if r.local[c] {
			for _, pod := range r.books.Classes[c].Pods {
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
		cheap(x.Pods, r.books.Nodes[x.Node].Domains)
	}
	for _, l := range r.arranger.hint.Launches {
		cheap(l.Pods, r.books.Offerings[l.Offering].Domains)
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
	out := make([]int, len(r.books.Topologies))
	for t := range out {
		out[t] = -1
	}
	for _, i := range r.books.about[class] {
		if x := &r.books.rules[i]; x.Topology != planner.PerNode {
			out[x.Topology] = r.books.domain(domains, x.Topology)
		}
	}
	return out
}

// claim returns the pods of a class at a stage as a claim on the sites of that stage.
func (r *rounds) claim(class, st int, n int64) *claim {
	given := r.stages[class][st].given
	key := [2]int{class, st}
	if r.sites[key] == nil {
		r.sites[key] = r.sitesOf(class, st)
	}
	q := &claim{class: class, stage: st, given: given, left: n, sites: r.sites[key], free: true, late: st > 0}
	for _, i := range r.books.about[class] {
		q.free = q.free && (r.books.rules[i].Topology == planner.PerNode || !r.books.rules[i].stands(class, given))
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
			at[key] = &site{domains: d, price: math.MaxInt64, favoured: r.arranger.favoured != nil && d[r.arranger.favoured.topology] == r.arranger.favoured.index}
			out = append(out, at[key])
		}
		return at[key]
	}
	for _, i := range r.stages[class][st].offerings {
		x := place(r.books.Offerings[i].Domains)
		x.offerings = append(x.offerings, i)
		if n := offeredTimes(r.books.Snapshot, r.books.Classes[class], i); r.books.usable[i] && n > 0 {
			x.holds = planner.Unlimited
			x.price = min(x.price, int64(r.books.Offerings[i].Price)*1000/min(n, 1000))
		}
	}
	for _, i := range r.stages[class][st].nodes {
		x := place(r.books.Nodes[i].Domains)
		x.nodes = append(x.nodes, i)
		if n := TimesOnNode(r.books.Snapshot, r.books.Classes[class], r.books.Nodes[i]); x.holds < mostPods {
			x.holds += min(n, mostPods)
		}
	}
	slices.SortFunc(out, func(x, y *site) int {
		for _, t := range r.books.topologies {
			if x.domains[t] != y.domains[t] {
				return cmp.Compare(x.domains[t], y.domains[t])
			}
		}
		return 0
	})
	return out
}

// lowered is books.lowered for claimed portions.
func (r *rounds) lowered(parts []claimed, relaxed bool) planner.Snapshot {
	plain := make([]portion, len(parts))
	for k, p := range parts {
		plain[k] = p.portion
	}
	return r.books.lowered(plain, relaxed)
}
