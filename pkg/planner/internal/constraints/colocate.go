package constraints

import (
	"cmp"
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/alternatives"
	"karve.sh/karve/pkg/planner/internal/amount"
)

// colocation is a plan for colocated pods on one machine.
type colocation struct {
	plan planner.Plan
	pods int
	all  bool
	on   candidate
}

// candidate is a machine that may hold colocated pods: a node, or an offering with its alternatives.
type candidate struct {
	node         int
	offering     int
	alternatives []int
	has          planner.Node
	admits       []int
	weight       int32
	price        planner.MicroUSD
	// others is the number of other classes that could be on the node.
	others int
	// admits are the classes that the machine admits. maxPods is an upper bound on the number of colocated pods that fit, by their resources.
	maxPods int64
}

// choose finds the machine for colocated pods.
func (a *arranger) choose(pr *problem, p *colocated, sparing bool) colocation {
	var best colocation
	total := 0
	for _, n := range p.pods {
		total += n
	}
	candidates := a.favoredFirst(pr, pr.candidates(p, sparing))
	tried := 0
	for _, x := range candidates {
		if x.maxPods < int64(total) {
			continue
		}
		if tried++; tried > maxFits {
			break
		}
		found := a.try(pr, p, x)
		if found.pods == total {
			found.all = true
			return found
		}
		if found.pods > best.pods {
			best = found
		}
	}
	roomiest := slices.SortedStableFunc(slices.Values(candidates), func(x, y candidate) int { return cmp.Compare(y.maxPods, x.maxPods) })
	for _, x := range roomiest[:min(len(roomiest), maxParts)] {
		if x.maxPods > int64(best.pods) && x.maxPods < int64(total) {
			if found := a.try(pr, p, x); found.pods > best.pods {
				best = found
			}
		}
	}
	return a.chooseAsMany(pr, p, candidates, best, total)
}

// chooseAsMany finds the first machine that holds as many of the pods as the best one does. Rules may also keep most of the pods off a large machine.
func (a *arranger) chooseAsMany(pr *problem, p *colocated, candidates []candidate, best colocation, total int) colocation {
	tried := 0
	for _, x := range candidates {
		if best.pods == 0 || x.node == best.on.node && x.offering == best.on.offering || tried == maxParts {
			break
		}
		if x.maxPods < int64(best.pods) || x.maxPods >= int64(total) {
			continue
		}
		tried++
		if found := a.try(pr, p, x); found.pods >= best.pods {
			return found
		}
	}
	return best
}

// candidates returns the machines that admit some of the pods. Nodes come before launches, unless sparing is true, and machines that the fewest other classes
// could be on come first. Then come pools with higher weights, then cheaper machines.
func (pr *problem) candidates(p *colocated, sparing bool) []candidate {
	var offerings, nodes []int
	offeringsOf, nodesOf := map[int][]int{}, map[int][]int{}
	for c := range p.pods {
		offeringsOf[c], nodesOf[c] = pr.granting(c, p.given)
		offerings, nodes = append(offerings, offeringsOf[c]...), append(nodes, nodesOf[c]...)
	}
	admits := func(sets map[int][]int, i int) []int {
		var out []int
		for _, c := range pr.order {
			if slices.Contains(sets[c], i) {
				out = append(out, c)
			}
		}
		return out
	}
	var out []candidate
	for _, v := range slices.Compact(slices.Sorted(slices.Values(nodes))) {
		out = append(out, candidate{node: v, offering: -1, has: pr.Nodes[v], weight: math.MaxInt32, admits: admits(nodesOf, v)})
	}
	for _, i := range slices.Compact(slices.Sorted(slices.Values(offerings))) {
		if x, ok := pr.candidateOf(i, admits(offeringsOf, i), offeringsOf); ok {
			out = append(out, x)
		}
	}
	out = slices.DeleteFunc(out, func(x candidate) bool {
		return slices.ContainsFunc(pr.order, func(c int) bool { return p.leads[c] && !slices.Contains(x.admits, c) })
	})
	for k := range out {
		for c, class := range pr.Classes {
			if len(class.Pods) > 0 && p.pods[c] == 0 && slices.Contains(class.Nodes, out[k].node) {
				out[k].others++
			}
		}
		for _, c := range out[k].admits {
			out[k].maxPods += min(int64(p.pods[c]), TimesOnNode(pr.Snapshot, pr.Classes[c], out[k].has))
		}
	}
	pr.rank(out, sparing)
	return out
}

// candidateOf returns an offering as a candidate, with the alternatives that its pool requires, out of those that all the classes list. It returns false if the
// offering cannot be one.
func (pr *problem) candidateOf(offering int, admits []int, offeringsOf map[int][]int) (candidate, bool) {
	if !pr.usable[offering] {
		return candidate{}, false
	}
	o := pr.Offerings[offering]
	shared := slices.DeleteFunc(slices.Clone(offeringsOf[admits[0]]), func(i int) bool {
		return !pr.usable[i] || pr.Offerings[i].Pool != o.Pool ||
			slices.ContainsFunc(admits, func(c int) bool { return !slices.Contains(offeringsOf[c], i) })
	})
	others, short := choice(pr.Snapshot, offering, shared)
	has, mixed := alternatives.Least(pr.Snapshot, offering, others)
	x := candidate{node: -1, offering: offering, alternatives: others, has: has, admits: admits, weight: pr.Pools[o.Pool].Weight, price: o.Price}
	return x, short == nil && !mixed
}

// rank sorts candidates by preference.
func (pr *problem) rank(candidates []candidate, sparing bool) {
	name := func(x candidate) []string {
		if x.offering < 0 {
			return []string{x.has.Name}
		}
		o := pr.Offerings[x.offering]
		return []string{pr.Pools[o.Pool].Name, o.InstanceType, o.Zone, o.CapacityType}
	}
	slices.SortStableFunc(candidates, func(x, y candidate) int {
		u, v := amount.VectorOf(x.has.Free), amount.VectorOf(y.has.Free)
		nodesFirst := cmp.Compare(min(y.node, 0), min(x.node, 0))
		if sparing {
			nodesFirst = -nodesFirst
		}
		return cmp.Or(nodesFirst, cmp.Compare(x.others, y.others), cmp.Compare(y.weight, x.weight), cmp.Compare(x.price, y.price), slices.Compare(u[:], v[:]),
			slices.Compare(name(x), name(y)))
	})
}

// try plans for colocated pods on one machine: leads first, then all others at once. If the followers would take the room of the pods that they follow,
// it places one of the latter with the leads.
func (a *arranger) try(pr *problem, p *colocated, x candidate) colocation {
	found, ok := a.place(pr, p, x, -1)
	if ok {
		return found
	}
	led := map[int]int{}
	for c := range p.leads {
		led[c] = 1
	}
	var best colocation
	for _, c := range x.admits {
		if !p.leads[c] && pr.founded(c, p.given, led, nil) {
			if found, ok := a.place(pr, p, x, c); ok && found.pods > best.pods {
				best = found
			}
		}
	}
	return best
}

// placing is the state in which colocated pods are placed on a machine step by step.
type placing struct {
	arranger *arranger
	problem  *problem
	pods     *colocated
	partial  *Partial
	census   *census
	domains  []int
	placed   map[int]int
}

// place plans for the leads, with one pod of the class first unless first is -1, and then for the other pods. It reports whether the pods
// can be placed in some order.
func (a *arranger) place(pr *problem, p *colocated, x candidate, first int) (colocation, bool) {
	on := placing{a, pr, p, NewPartial(pr.only(x)), newCensus(pr), pr.vector(x.has.Domains), map[int]int{}}
	for i := range pr.rules {
		if r := &pr.rules[i]; r.Kind == planner.Together && r.Topology != planner.PerNode && on.census.somewhere[i] == 0 {
			on.census.begun[i] = on.domains[r.Topology]
		}
	}
	early := func(c int) int { return int(truth(p.leads[c] || c == first)) }
	on.step(early)
	on.step(func(c int) int { return p.pods[c] - early(c) })
	total := 0
	for c, n := range on.placed {
		total += n
		if p.leads[c] && n == 0 {
			return colocation{}, false
		}
	}
	if total <= len(p.leads) || !pr.wellFounded(p.given, on.placed, on.domains) {
		return colocation{}, false
	}
	return colocation{plan: x.planOf(on.partial.Plan), pods: total, on: x}, true
}

// step places the wanted number of pods of each class on the machine.
func (on *placing) step(wanted func(c int) int) {
	one := newProblem(on.partial.Snapshot)
	one.beginning = true
	var parts []portion
	for _, c := range on.problem.order {
		n := int(min(int64(wanted(c)), on.census.room(c, on.pods.given, on.domains)))
		if n > 0 && len(one.Classes[c].Nodes) > 0 {
			parts = append(parts, portion{class: c, given: on.pods.given, nodes: []int{0}, pods: n})
			on.census.add(c, on.domains, int64(n))
		}
	}
	if len(parts) == 0 {
		return
	}
	plan := on.arranger.plain(one.lowered(parts, false))
	for _, q := range parts {
		on.placed[q.class] += q.pods
		for _, y := range plan.Unplaced {
			if _, ok := slices.BinarySearch(on.problem.Classes[q.class].Pods, y.Pod); ok {
				on.placed[q.class]--
			}
		}
	}
	on.partial.Fix(plan)
}

// planOf turns a plan for a snapshot whose only node is the candidate into a plan for the candidate itself.
func (x candidate) planOf(one planner.Plan) planner.Plan {
	var plan planner.Plan
	for _, y := range one.Placements {
		if x.offering < 0 {
			plan.Placements = append(plan.Placements, planner.Placement{Node: x.node, Pods: y.Pods, GPUs: y.GPUs})
		} else {
			plan.Launches = append(plan.Launches, planner.Launch{Offering: x.offering, Pods: y.Pods, GPUs: y.GPUs, Alternatives: x.alternatives})
			plan.Price += x.price
		}
	}
	return plan
}

// only returns the snapshot with one machine as its only node, for the classes that it admits.
func (pr *problem) only(x candidate) planner.Snapshot {
	s := pr.Snapshot
	s.Nodes = []planner.Node{x.has}
	s.Classes, s.Rules = slices.Clone(s.Classes), slices.Clone(s.Rules)
	for c := range s.Classes {
		s.Classes[c].Offerings, s.Classes[c].Nodes = nil, nil
		if slices.Contains(x.admits, c) {
			s.Classes[c].Nodes = []int{0}
		}
	}
	for i := range s.Rules {
		if r := &s.Rules[i]; r.Topology == planner.PerNode {
			here := int64(0)
			if x.node >= 0 && x.node < len(r.Present) {
				here = r.Present[x.node]
			}
			r.Present = []int64{here}
		}
	}
	return s
}

// vector returns the domain of a machine in every topology.
func (pr *problem) vector(domains []int) []int {
	out := make([]int, len(pr.Topologies))
	for t := range out {
		out[t] = pr.domain(domains, t)
	}
	return out
}

// favoredFirst moves launches outside of the favored domain, if there is one, behind all other candidates.
func (a *arranger) favoredFirst(pr *problem, candidates []candidate) []candidate {
	if a.favored != nil {
		elsewhere := func(x candidate) int64 {
			return truth(x.offering >= 0 && pr.domain(x.has.Domains, a.favored.topology) != a.favored.index)
		}
		slices.SortStableFunc(candidates, func(x, y candidate) int { return cmp.Compare(elsewhere(x), elsewhere(y)) })
	}
	return candidates
}
