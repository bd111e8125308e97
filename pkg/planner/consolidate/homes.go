package consolidate

import (
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/search"
)

// home is a machine that stays with its pods and takes others, or leaves, in terms of a problem.
type home struct {
	// host is an index into the hosts of the fleet; -1 for a node that is none of them.
	host int
	// node is an index into the nodes of the problem; -1 where it has no room for any pod.
	node int
	// load is its own pods, price what it costs, moves what moving them counts.
	load  pack.Load
	price int64
	moves int64
	pool  int
	uses  amount.Usage
	// fixed is whether it stays whatever happens.
	fixed bool
}

// keeps is what it costs more that the machine stays than that it leaves, leaving its pods aside.
func (x *home) keeps() int64 { return x.price - x.moves }

// everybody is what there is to plan for when all machines leave, but for the nodes: they have the room that they have now.
func (f *fleet) everybody() planner.Snapshot {
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
func (f *fleet) homes(p *pack.Problem) []home {
	shape := map[string]int{}
	for k := range p.Shapes {
		for _, pod := range p.Shapes[k].Pods {
			shape[pod.Name] = k
		}
	}
	nodeAt := map[int]int{}
	for i := range p.Nodes {
		nodeAt[p.Nodes[i].Index] = i
	}
	var out []home
	for i := range f.hosts {
		h := &f.hosts[i]
		x := home{host: i, node: -1, load: make(pack.Load, len(p.Shapes)), price: int64(h.price), moves: int64(h.moves), pool: h.pool, uses: amount.UsageOf(h.counts), fixed: h.settled}
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
	for i := range p.Nodes {
		if _, ok := nodeAt[p.Nodes[i].Index]; ok {
			out = append(out, home{host: -1, node: i, load: make(pack.Load, len(p.Shapes)), pool: -1, fixed: true})
		}
	}
	return out
}

// housing says who stays, who is launched, and where the pods of those that leave are.
type housing struct {
	stays []bool
	// more is by home what it takes beside its own pods; loads are shared and never changed.
	more     []pack.Load
	machines []search.Machine
	left     pack.Load
}

func (s *housing) clone() *housing {
	return &housing{slices.Clone(s.stays), slices.Clone(s.more), slices.Clone(s.machines), slices.Clone(s.left)}
}

// cost counts what stays and what is launched; moving the pods of whoever leaves is in it as a discount for whoever stays.
func (v *settler) cost(s *housing) pack.Cost {
	c := pack.Cost{Left: s.left.Total(), Machines: int64(len(s.machines))}
	for i, stays := range s.stays {
		if stays && !v.homes[i].fixed {
			c.Price += v.homes[i].keeps()
			c.Machines++
		}
	}
	for _, m := range s.machines {
		c.Price += v.ctx.Problem.Offers[m.Offer].Price
	}
	return c
}

// settler looks for the cheapest housing.
type settler struct {
	ctx    *search.Context
	homes  []home
	best   *housing
	values []int64
	noisy  []int64
	// limits are what the pools may launch beside who stays and who is launched.
	limits []amount.Usage
	seq    search.Sequence
}

// try houses everybody when just these stay, and keeps that when it is the cheapest so far. Of those that leave, some stay after all where others would
// have no place.
func (v *settler) try(stays []bool, more []pack.Load) {
	found, limits := v.best, v.limits
	stays = slices.Clone(stays)
	for v.best = v.house(stays, more); !v.best.left.Empty(); v.best = v.house(stays, more) {
		for left := slices.Clone(v.best.left); !left.Empty(); {
			best, most := -1, int64(0)
			for i := range v.homes {
				if n := v.homes[i].load.Within(left).Total(); !stays[i] && (n > most || n > 0 && n == most && v.homes[i].keeps() < v.homes[best].keeps()) {
					best, most = i, n
				}
			}
			stays[best] = true
			left.Add(v.homes[best].load.Within(left), -1)
		}
	}
	if found != nil && !v.cost(v.best).Less(v.cost(found)) {
		v.best, v.limits = found, limits
	}
}

// house houses everybody when just these stay: first what they take by the given loads, then whatever fits, then launches.
func (v *settler) house(stays []bool, more []pack.Load) *housing {
	s := &housing{stays: slices.Clone(stays), more: make([]pack.Load, len(v.homes)), left: make(pack.Load, len(v.ctx.Problem.Shapes))}
	limits := slices.Clone(v.ctx.Problem.Limits)
	for i := range v.homes {
		x := &v.homes[i]
		s.more[i] = make(pack.Load, len(v.ctx.Problem.Shapes))
		if !s.stays[i] {
			s.left.Add(x.load, 1)
		} else if x.pool >= 0 {
			limits[x.pool].Launch(x.uses)
		}
	}
	for i := range v.homes {
		if s.stays[i] && more[i] != nil {
			s.more[i] = more[i].Within(s.left)
			s.left.Add(s.more[i], -1)
		}
	}
	for i := range v.homes {
		if s.stays[i] && v.homes[i].node >= 0 && !s.left.Empty() {
			if l := v.ctx.TopUp(&v.ctx.Problem.Nodes[v.homes[i].node].Capacity, s.more[i], s.left); l != nil {
				s.more[i] = l
			}
		}
	}
	t := &search.Solution{Left: s.left}
	v.ctx.Buy(t, v.values, limits)
	v.ctx.DownsizeWithin(t, limits)
	s.machines = t.Machines
	v.limits = limits
	return s
}
