package constraints

import (
	"cmp"
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/alternatives"
	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// settled is a plan for a party.
type settled struct {
	plan planner.Plan
	pods int
	all  bool
	on   berth
}

// berth is a machine that a party may use: a node, or an offering with its alternatives.
type berth struct {
	node         int
	offering     int
	alternatives []int
	has          planner.Node
	admits       []int
	weight       int32
	price        planner.MicroUSD
	// others is the number of other classes that could be on the node.
	others int
	// admits are the classes that the machine admits. holds is an upper bound on the number of pods of the party that fit, by their resources.
	holds int64
}

// seat finds the machine for a party.
func (a *arranger) seat(b *books, p *party, sparing bool) settled {
	var best settled
	total := 0
	for _, n := range p.pods {
		total += n
	}
	berths := a.favouredFirst(b, b.berths(p, sparing))
	tried := 0
	for _, x := range berths {
		if x.holds < int64(total) {
			continue
		}
		if tried++; tried > maxFits {
			break
		}
		found := a.try(b, p, x)
		if found.pods == total {
			found.all = true
			return found
		}
		if found.pods > best.pods {
			best = found
		}
	}
	roomiest := slices.SortedStableFunc(slices.Values(berths), func(x, y berth) int { return cmp.Compare(y.holds, x.holds) })
	for _, x := range roomiest[:min(len(roomiest), maxParts)] {
		if x.holds > int64(best.pods) && x.holds < int64(total) {
			if found := a.try(b, p, x); found.pods > best.pods {
				best = found
			}
		}
	}
	return a.seatAsMany(b, p, berths, best, total)
}

// seatAsMany finds the first machine that holds as many pods of a party as the best one does. Rules may keep most of the party from a large machine as well.
func (a *arranger) seatAsMany(b *books, p *party, berths []berth, best settled, total int) settled {
	tried := 0
	for _, x := range berths {
		if best.pods == 0 || x.node == best.on.node && x.offering == best.on.offering || tried == maxParts {
			break
		}
		if x.holds < int64(best.pods) || x.holds >= int64(total) {
			continue
		}
		tried++
		if found := a.try(b, p, x); found.pods >= best.pods {
			return found
		}
	}
	return best
}

// berths returns the machines that admit some pods of a party. Nodes come before launches, unless sparing is true, and machines that the fewest other classes
// could be on come first. Then come pools with higher weights, then cheaper machines.
func (b *books) berths(p *party, sparing bool) []berth {
	var offerings, nodes []int
	offeringsOf, nodesOf := map[int][]int{}, map[int][]int{}
	for c := range p.pods {
		offeringsOf[c], nodesOf[c] = b.granting(c, p.given)
		offerings, nodes = append(offerings, offeringsOf[c]...), append(nodes, nodesOf[c]...)
	}
	admits := func(sets map[int][]int, i int) []int {
		var out []int
		for _, c := range b.order {
			if slices.Contains(sets[c], i) {
				out = append(out, c)
			}
		}
		return out
	}
	var out []berth
	for _, v := range pack.InRange(nodes, len(b.Nodes)) {
		out = append(out, berth{node: v, offering: -1, has: b.Nodes[v], weight: math.MaxInt32, admits: admits(nodesOf, v)})
	}
	for _, i := range pack.InRange(offerings, len(b.Offerings)) {
		if x, ok := b.berthOf(i, admits(offeringsOf, i), offeringsOf); ok {
			out = append(out, x)
		}
	}
	out = slices.DeleteFunc(out, func(x berth) bool {
		return slices.ContainsFunc(b.order, func(c int) bool { return p.leads[c] && !slices.Contains(x.admits, c) })
	})
	for k := range out {
		for c, class := range b.Classes {
			if len(class.Pods) > 0 && p.pods[c] == 0 && slices.Contains(class.Nodes, out[k].node) {
				out[k].others++
			}
		}
		for _, c := range out[k].admits {
			out[k].holds += min(int64(p.pods[c]), TimesOnNode(b.Snapshot, b.Classes[c], out[k].has))
		}
	}
	b.rank(out, sparing)
	return out
}

// berthOf returns an offering as a berth, with the alternatives that its pool requires, out of those that all the classes list. It returns false if the
// offering cannot be one.
func (b *books) berthOf(offering int, admits []int, offeringsOf map[int][]int) (berth, bool) {
	if !b.usable[offering] {
		return berth{}, false
	}
	o := b.Offerings[offering]
	shared := slices.DeleteFunc(slices.Clone(offeringsOf[admits[0]]), func(i int) bool {
		return !b.usable[i] || b.Offerings[i].Pool != o.Pool ||
			slices.ContainsFunc(admits, func(c int) bool { return !slices.Contains(offeringsOf[c], i) })
	})
	others, short := choice(b.Snapshot, offering, shared)
	has, mixed := alternatives.Least(b.Snapshot, offering, others)
	x := berth{node: -1, offering: offering, alternatives: others, has: has, admits: admits, weight: b.Pools[o.Pool].Weight, price: o.Price}
	return x, short == nil && !mixed
}

// rank sorts berths by preference.
func (b *books) rank(berths []berth, sparing bool) {
	name := func(x berth) []string {
		if x.offering < 0 {
			return []string{x.has.Name}
		}
		o := b.Offerings[x.offering]
		return []string{b.Pools[o.Pool].Name, o.InstanceType, o.Zone, o.CapacityType}
	}
	slices.SortStableFunc(berths, func(x, y berth) int {
		u, v := amount.VectorOf(x.has.Free), amount.VectorOf(y.has.Free)
		nodesFirst := cmp.Compare(min(y.node, 0), min(x.node, 0))
		if sparing {
			nodesFirst = -nodesFirst
		}
		return cmp.Or(nodesFirst, cmp.Compare(x.others, y.others), cmp.Compare(y.weight, x.weight), cmp.Compare(x.price, y.price), slices.Compare(u[:], v[:]),
			slices.Compare(name(x), name(y)))
	})
}

// try plans for a party on one machine: leads first, then all others at once. If the followers would take the room of the pods that they follow, it places one
// of these with the leads.
func (a *arranger) try(b *books, p *party, x berth) settled {
	found, ok := a.board(b, p, x, -1)
	if ok {
		return found
	}
	led := map[int]int{}
	for c := range p.leads {
		led[c] = 1
	}
	var best settled
	for _, c := range x.admits {
		if !p.leads[c] && b.founded(c, p.given, led, nil) {
			if found, ok := a.board(b, p, x, c); ok && found.pods > best.pods {
				best = found
			}
		}
	}
	return best
}

// boarding is a party that is placed on a machine step by step.
type boarding struct {
	arranger *arranger
	books    *books
	party    *party
	ground   *Partial
	census   *census
	domains  []int
	placed   map[int]int
}

// board plans for the leads of a party, with one pod of the class first unless first is -1, and then for the rest of the party. It reports whether the pods
// can be placed in some order.
func (a *arranger) board(b *books, p *party, x berth, first int) (settled, bool) {
	on := boarding{a, b, p, NewPartial(b.only(x)), newCensus(b), b.vector(x.has.Domains), map[int]int{}}
	for i := range b.rules {
		if r := &b.rules[i]; r.Kind == planner.Together && r.Topology != planner.PerNode && on.census.somewhere[i] == 0 {
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
			return settled{}, false
		}
	}
	if total <= len(p.leads) || !b.wellFounded(p.given, on.placed, on.domains) {
		return settled{}, false
	}
	return settled{plan: x.planOf(on.ground.Plan), pods: total, on: x}, true
}

// step places the wanted number of pods of each class on the machine.
func (on *boarding) step(wanted func(c int) int) {
	one := newBooks(on.ground.Snapshot)
	one.beginning = true
	var parts []portion
	for _, c := range on.books.order {
		n := int(min(int64(wanted(c)), on.census.room(c, on.party.given, on.domains)))
		if n > 0 && len(one.Classes[c].Nodes) > 0 {
			parts = append(parts, portion{class: c, given: on.party.given, nodes: []int{0}, pods: n})
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
			if _, ok := slices.BinarySearch(on.books.Classes[q.class].Pods, y.Pod); ok {
				on.placed[q.class]--
			}
		}
	}
	on.ground.Fix(plan)
}

// planOf turns a plan for a snapshot whose only node is the berth into a plan for the berth itself.
func (x berth) planOf(one planner.Plan) planner.Plan {
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
func (b *books) only(x berth) planner.Snapshot {
	s := b.Snapshot
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
func (b *books) vector(domains []int) []int {
	out := make([]int, len(b.Topologies))
	for t := range out {
		out[t] = b.domain(domains, t)
	}
	return out
}
