package planner

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// Limits on the choice of a machine for pods that belong together.
const (
	// maxFits is how many machines are tried for a group that should hold all of it, maxParts how many when none does.
	maxFits  = 64
	maxParts = 12
	// maxHosts is how many machines pods may get that follow others which are not bound to each other.
	maxHosts = 100
)

// gather settles the pods that have to share a machine with others of the plan, each group on one machine.
// Spared are nodes that others may need more than a group that can have a machine of its own.
func (a *arranger) gather(g *ground, sparing bool) {
	b := newBooks(g.Snapshot)
	for _, group := range b.groups() {
		for range maxHosts {
			if !a.host(g, group, sparing) {
				break
			}
		}
	}
}

// groups returns the classes that rules to be together on one machine connect, in the order of their pods.
func (b *books) groups() [][]int {
	of := make([]int, len(b.Classes))
	for c := range of {
		of[c] = c
	}
	join := func(x, y int) {
		for c, at := range of {
			if at == y {
				of[c] = x
			}
		}
	}
	asked := make([]bool, len(b.Classes))
	for i := range b.rules {
		r := &b.rules[i]
		if r.Kind != Together || r.Topology != PerNode {
			continue
		}
		first := -1
		for c := range b.Classes {
			asked[c] = asked[c] || r.asks[c]
			if !r.asks[c] && !r.counts[c] {
				continue
			}
			if first < 0 {
				first = of[c]
			} else if of[c] != first {
				join(first, of[c])
			}
		}
	}
	at := map[int]int{}
	var out [][]int
	for _, c := range b.order {
		if !slices.ContainsFunc(b.order, func(x int) bool { return of[x] == of[c] && asked[x] }) {
			continue
		}
		if _, ok := at[of[c]]; !ok {
			at[of[c]] = len(out)
			out = append(out, nil)
		}
		out[at[of[c]]] = append(out[at[of[c]]], c)
	}
	return out
}

// party is pods that begin together on one machine: so many of each class, those of leads being needed by the others.
type party struct {
	given int
	pods  map[int]int
	leads map[int]bool
}

// host settles pods of a group on one machine, and reports whether it did: the cheapest that holds them all, else the one that holds most.
func (a *arranger) host(g *ground, group []int, sparing bool) bool {
	b := newBooks(g.Snapshot)
	b.beginning = true
	var best settled
	wishes := 0
	for _, c := range group {
		wishes = max(wishes, len(b.Classes[c].Wishes))
	}
	for given := 0; given <= wishes; given++ {
		p := b.party(group, given)
		if p == nil {
			continue
		}
		found := a.seat(b, p, sparing)
		if found.pods > best.pods {
			best = found
		}
		if found.all {
			break
		}
	}
	if best.pods == 0 {
		return false
	}
	g.bind(best.plan)
	return true
}

// party returns the pods of a group that can begin on a new machine, nil when none can: those that nobody has to be there for, those that they
// found, and those for whom waiting pods that are free to go anywhere can lead.
func (b *books) party(group []int, given int) *party {
	p := &party{given: given, pods: map[int]int{}, leads: map[int]bool{}}
	var members, free []int
	for _, c := range group {
		switch {
		case len(b.Classes[c].Pods) == 0:
		case b.follows(c, given):
			members = append(members, c)
		default:
			free = append(free, c)
		}
	}
	join := func(present map[int]int) bool {
		i := slices.IndexFunc(members, func(c int) bool { return p.pods[c] == 0 && b.founded(c, given, present, nil) })
		if i >= 0 {
			p.pods[members[i]] = len(b.Classes[members[i]].Pods)
		}
		return i >= 0
	}
	for again := true; again; {
		for again = false; join(p.pods); again = true {
			continue
		}
		for _, x := range free {
			led := maps.Clone(p.pods)
			led[x] = 1
			if !p.leads[x] && join(led) {
				p.pods[x], p.leads[x], again = 1, true, true
			}
		}
	}
	if len(p.pods) == 0 {
		return nil
	}
	return p
}

// follows reports whether pods of a class have to be on a machine with others.
func (b *books) follows(class, given int) bool {
	for i := range b.rules {
		if b.together(i) && b.rules[i].stands(class, given) {
			return true
		}
	}
	return false
}

// wellFounded reports whether the pods that are placed on a machine can have come one after another.
func (b *books) wellFounded(given int, placed map[int]int, domains []int) bool {
	in := map[int]int{}
	for again := true; again; {
		again = false
		for c, n := range placed {
			if n > 0 && in[c] == 0 && b.founded(c, given, in, domains) {
				in[c], again = n, true
			}
		}
	}
	for c, n := range placed {
		if n > 0 && in[c] == 0 {
			return false
		}
	}
	return true
}

func (b *books) together(i int) bool {
	return b.rules[i].Kind == Together && b.rules[i].Topology == PerNode
}

// settled is a plan for a party.
type settled struct {
	plan Plan
	pods int
	all  bool
}

// berth is a machine that a party may begin on: a node, or an offering with its alternatives.
type berth struct {
	node         int
	offering     int
	alternatives []int
	has          Node
	admits       []int
	weight       int32
	price        MicroUSD
	// admits are the classes that may be on it, and holds is at most how many pods of the party find room, by their resources.
	holds int64
}

// seat finds the machine for a party.
func (a *arranger) seat(b *books, p *party, sparing bool) settled {
	var best settled
	total := 0
	for _, n := range p.pods {
		total += n
	}
	berths := b.berths(p, sparing)
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
	slices.SortStableFunc(berths, func(x, y berth) int { return cmp.Compare(y.holds, x.holds) })
	for _, x := range berths[:min(len(berths), maxParts)] {
		if x.holds > int64(best.pods) && x.holds < int64(total) {
			if found := a.try(b, p, x); found.pods > best.pods {
				best = found
			}
		}
	}
	return best
}

// berths returns the machines that admit some of a party: nodes before launches, unless nodes are to be spared, then the heavier pools, then the cheaper machines.
func (b *books) berths(p *party, sparing bool) []berth {
	var offerings, nodes []int
	sets := map[int][2][]int{}
	for c := range p.pods {
		all, on := b.granting(c, p.given)
		sets[c] = [2][]int{all, on}
		offerings, nodes = append(offerings, all...), append(nodes, on...)
	}
	var out []berth
	for _, v := range sound(nodes, len(b.Nodes)) {
		out = append(out, berth{node: v, offering: -1, has: b.Nodes[v], weight: math.MaxInt32})
	}
	for _, i := range sound(offerings, len(b.Offerings)) {
		if o := b.Offerings[i]; b.usable[i] {
			out = append(out, berth{node: -1, offering: i, weight: b.Pools[o.Pool].Weight, price: o.Price})
		}
	}
	for k := range out {
		x := &out[k]
		var admitted []int
		for _, c := range b.order {
			if set, ok := sets[c]; ok && (x.offering < 0 && slices.Contains(set[1], x.node) || x.offering >= 0 && slices.Contains(set[0], x.offering)) {
				admitted = append(admitted, c)
			}
		}
		x.admits = admitted
		if x.offering < 0 {
			continue
		}
		common := slices.DeleteFunc(slices.Clone(sets[admitted[0]][0]), func(i int) bool {
			return !b.usable[i] || b.Offerings[i].Pool != b.Offerings[x.offering].Pool ||
				slices.ContainsFunc(admitted, func(c int) bool { return !slices.Contains(sets[c][0], i) })
		})
		alternatives, short := choice(b.Snapshot, x.offering, common)
		has, mixed := least(b.Snapshot, x.offering, alternatives)
		x.alternatives, x.has = alternatives, has
		if short != nil || mixed {
			x.admits = nil
		}
	}
	out = slices.DeleteFunc(out, func(x berth) bool {
		return len(x.admits) == 0 || slices.ContainsFunc(b.order, func(c int) bool { return p.leads[c] && !slices.Contains(x.admits, c) })
	})
	for k := range out {
		for _, c := range out[k].admits {
			out[k].holds += min(int64(p.pods[c]), nodeTimes(b.Snapshot, b.Classes[c], out[k].has))
		}
	}
	name := func(x berth) [4]string {
		if x.offering < 0 {
			return [4]string{x.has.Name}
		}
		o := b.Offerings[x.offering]
		return [4]string{b.Pools[o.Pool].Name, o.InstanceType, o.Zone, o.CapacityType}
	}
	slices.SortStableFunc(out, func(x, y berth) int {
		s, t := name(x), name(y)
		u, v := vecOf(x.has.Free), vecOf(y.has.Free)
		nodesFirst := cmp.Compare(min(y.node, 0), min(x.node, 0))
		if sparing {
			nodesFirst = -nodesFirst
		}
		return cmp.Or(nodesFirst, cmp.Compare(y.weight, x.weight), cmp.Compare(x.price, y.price),
			slices.Compare(u[:], v[:]), slices.Compare(s[:], t[:]))
	})
	return out
}

// try plans for a party on one machine: leads first, then all others at once. Where those who follow would take the room of those whom they
// follow, one of these goes with the leads.
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

// board plans for the leads of a party, and one pod of the first class unless that is -1, and then for the rest of it. It reports whether they
// can have come one after another.
func (a *arranger) board(b *books, p *party, x berth, first int) (settled, bool) {
	g := newGround(b.only(x))
	census := newCensus(b)
	domains := b.vector(x.has.Domains)
	for i := range b.rules {
		if r := &b.rules[i]; r.Kind == Together && r.Topology != PerNode && census.somewhere[i] == 0 {
			census.begun[i] = domains[r.Topology]
		}
	}
	placed := map[int]int{}
	seat := func(wanted func(c int) int) {
		one := newBooks(g.Snapshot)
		one.beginning = true
		var parts []portion
		for _, c := range b.order {
			n := int(min(int64(wanted(c)), census.room(c, p.given, domains)))
			if n > 0 && len(one.Classes[c].Nodes) > 0 {
				parts = append(parts, portion{class: c, given: p.given, nodes: []int{0}, pods: n})
				census.add(c, domains, int64(n))
			}
		}
		if len(parts) == 0 {
			return
		}
		plan := a.plain(one.lowered(parts, false))
		for _, q := range parts {
			placed[q.class] += q.pods
			for _, y := range plan.Unplaced {
				if _, ok := slices.BinarySearch(b.Classes[q.class].Pods, y.Pod); ok {
					placed[q.class]--
				}
			}
		}
		g.bind(plan)
	}
	early := func(c int) int { return int(truth(p.leads[c] || c == first)) }
	seat(early)
	seat(func(c int) int { return p.pods[c] - early(c) })
	total := 0
	for c, n := range placed {
		total += n
		if p.leads[c] && n == 0 {
			return settled{}, false
		}
	}
	if total <= len(p.leads) || !b.wellFounded(p.given, placed, domains) {
		return settled{}, false
	}
	var plan Plan
	for _, y := range g.plan.Placements {
		if x.offering < 0 {
			plan.Placements = append(plan.Placements, Placement{Node: x.node, Pods: y.Pods, GPUs: y.GPUs})
		} else {
			plan.Launches = append(plan.Launches, Launch{Offering: x.offering, Pods: y.Pods, GPUs: y.GPUs, Alternatives: x.alternatives})
			plan.Price += x.price
		}
	}
	return settled{plan: plan, pods: total}, true
}

// only returns the snapshot with one machine as its one node, for the classes that it admits.
func (b *books) only(x berth) Snapshot {
	s := b.Snapshot
	s.Nodes = []Node{x.has}
	s.Classes, s.Rules = slices.Clone(s.Classes), slices.Clone(s.Rules)
	for c := range s.Classes {
		s.Classes[c].Offerings, s.Classes[c].Nodes = nil, nil
		if slices.Contains(x.admits, c) {
			s.Classes[c].Nodes = []int{0}
		}
	}
	for i := range s.Rules {
		if r := &s.Rules[i]; r.Topology == PerNode {
			here := int64(0)
			if x.node >= 0 && x.node < len(r.Present) {
				here = r.Present[x.node]
			}
			r.Present = []int64{here}
		}
	}
	return s
}

// founded reports whether pods of a class that are placed on a machine with the given others may be there. The rules about domains are heeded
// where those of the machine are given.
func (b *books) founded(class, given int, placed map[int]int, domains []int) bool {
	for i := range b.rules {
		r := &b.rules[i]
		switch {
		case r.Kind != Together || !r.stands(class, given) || r.counts[class] && r.somewhere() == 0:
		case r.Topology != PerNode && (domains == nil || r.present(domains[r.Topology]) > 0):
		case !slices.ContainsFunc(r.Counted, func(x int) bool { return x != class && placed[x] > 0 }):
			return false
		}
	}
	return true
}

// vector returns the domain of a machine in every topology.
func (b *books) vector(domains []int) []int {
	out := make([]int, len(b.Topologies))
	for t := range out {
		out[t] = b.domain(domains, t)
	}
	return out
}
