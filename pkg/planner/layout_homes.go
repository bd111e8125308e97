package planner

import "slices"

// home is a machine that stays with its pods and takes others, or leaves, in terms of a problem.
type home struct {
	// host is an index into the hosts of the fleet; -1 for a node that is none of them.
	host int
	// node is an index into the nodes of the problem; -1 where it has no room for any pod.
	node int
	// load is its own pods, price what it costs, moves what moving them counts.
	load  load
	price int64
	moves int64
	pool  int
	uses  usage
	// fixed is whether it stays whatever happens.
	fixed bool
}

// keeps is what it costs more that the machine stays than that it leaves, leaving its pods aside.
func (x *home) keeps() int64 { return x.price - x.moves }

// everybody is what there is to plan for when all machines leave, but for the nodes: they have the room that they have now.
func (f *fleet) everybody() Snapshot {
	all := make([]int, len(f.hosts))
	for i := range all {
		all[i] = i
	}
	s := f.without(all)
	for c := range s.Classes {
		s.Classes[c].Nodes = f.now.Classes[c].Nodes
	}
	return s
}

// homes are the machines of a fleet, and the nodes that have room besides, in terms of a problem for everybody.
func (f *fleet) homes(p *problem) []home {
	shape := map[string]int{}
	for k := range p.shapes {
		for _, pod := range p.shapes[k].pods {
			shape[pod.name] = k
		}
	}
	nodeAt := map[int]int{}
	for i := range p.nodes {
		nodeAt[p.nodes[i].index] = i
	}
	var out []home
	for i := range f.hosts {
		h := &f.hosts[i]
		x := home{host: i, node: -1, load: make(load, len(p.shapes)), price: int64(h.price), moves: int64(h.moves), pool: h.pool, uses: usageOf(h.counts), fixed: h.settled}
		for _, pod := range h.pods {
			if k, ok := shape[pod.Name]; ok {
				x.load[k]++
			} else {
				x.fixed = true
			}
		}
		if at, ok := nodeAt[h.node]; ok {
			x.node = at
			delete(nodeAt, h.node)
		}
		out = append(out, x)
	}
	for i := range p.nodes {
		if _, ok := nodeAt[p.nodes[i].index]; ok {
			out = append(out, home{host: -1, node: i, load: make(load, len(p.shapes)), pool: -1, fixed: true})
		}
	}
	return out
}

// housing says who stays, who is launched, and where the pods of those that leave are.
type housing struct {
	stays []bool
	// more is by home what it takes beside its own pods; loads are shared and never changed.
	more     []load
	machines []machine
	left     load
}

func (s *housing) clone() *housing {
	return &housing{slices.Clone(s.stays), slices.Clone(s.more), slices.Clone(s.machines), slices.Clone(s.left)}
}

// cost counts what stays and what is launched; moving the pods of whoever leaves is in it as a discount for whoever stays.
func (v *settler) cost(s *housing) cost {
	c := cost{left: s.left.total(), machines: int64(len(s.machines))}
	for i, stays := range s.stays {
		if stays && !v.homes[i].fixed {
			c.price += v.homes[i].keeps()
			c.machines++
		}
	}
	for _, m := range s.machines {
		c.price += v.ctx.problem.offers[m.offer].price
	}
	return c
}

// settler looks for the cheapest housing.
type settler struct {
	ctx    *mixer
	homes  []home
	best   *housing
	values []int64
	noisy  []int64
	// limits are what the pools may launch beside who stays and who is launched.
	limits []usage
	seq    sequence
}

// try houses everybody when just these stay, and keeps that when it is the cheapest so far. Of those that leave, some stay after all where others would
// have no place.
func (v *settler) try(stays []bool, more []load) {
	found, limits := v.best, v.limits
	stays = slices.Clone(stays)
	for v.best = v.house(stays, more); !v.best.left.empty(); v.best = v.house(stays, more) {
		for left := slices.Clone(v.best.left); !left.empty(); {
			best, most := -1, int64(0)
			for i := range v.homes {
				if n := v.homes[i].load.within(left).total(); !stays[i] && (n > most || n > 0 && n == most && v.homes[i].keeps() < v.homes[best].keeps()) {
					best, most = i, n
				}
			}
			stays[best] = true
			left.add(v.homes[best].load.within(left), -1)
		}
	}
	if found != nil && !v.cost(v.best).less(v.cost(found)) {
		v.best, v.limits = found, limits
	}
}

// house houses everybody when just these stay: first what they take by the given loads, then whatever fits, then launches.
func (v *settler) house(stays []bool, more []load) *housing {
	s := &housing{stays: slices.Clone(stays), more: make([]load, len(v.homes)), left: make(load, len(v.ctx.problem.shapes))}
	limits := slices.Clone(v.ctx.problem.limits)
	for i := range v.homes {
		x := &v.homes[i]
		s.more[i] = make(load, len(v.ctx.problem.shapes))
		if !s.stays[i] {
			s.left.add(x.load, 1)
		} else if x.pool >= 0 {
			limits[x.pool].launch(x.uses)
		}
	}
	for i := range v.homes {
		if s.stays[i] && more[i] != nil {
			s.more[i] = more[i].within(s.left)
			s.left.add(s.more[i], -1)
		}
	}
	for i := range v.homes {
		if s.stays[i] && v.homes[i].node >= 0 && !s.left.empty() {
			if l := v.ctx.topUp(&v.ctx.problem.nodes[v.homes[i].node].capacity, s.more[i], s.left); l != nil {
				s.more[i] = l
			}
		}
	}
	t := &solution{left: s.left}
	v.ctx.buy(t, v.values, limits)
	v.ctx.downsizeWithin(t, limits)
	s.machines = t.machines
	v.limits = limits
	return s
}
