package planner

import (
	"cmp"
	"slices"
)

// usableOfferings returns the indices of the offerings that can be launched at present, in stable order.
func usableOfferings(s Snapshot) []int {
	var out []int
	for i, o := range s.Offerings {
		if o.Pool < 0 || o.Pool >= len(s.Pools) || o.Price <= 0 || o.Price > MaxPrice ||
			o.Unavailable != nil || s.Pools[o.Pool].Closed != nil || vecOf(o.Free).negative() {
			continue
		}
		if uses := usageOf(o.Physical); slices.Min(uses[:]) < 0 {
			continue
		}
		if limits := usageOf(s.Pools[o.Pool].Remaining); !limits.admits(usageOf(o.Physical)) {
			continue
		}
		out = append(out, i)
	}
	slices.SortFunc(out, func(i, j int) int { return compareOfferings(s, i, j) })
	return out
}

// compareOfferings is the stable order of offerings: by what they are called, and by what they are where names repeat.
func compareOfferings(s Snapshot, i, j int) int {
	a, b := s.Offerings[i], s.Offerings[j]
	fa, fb := vecOf(a.Free), vecOf(b.Free)
	ua, ub := usageOf(a.Physical), usageOf(b.Physical)
	return cmp.Or(
		cmp.Compare(s.Pools[a.Pool].Name, s.Pools[b.Pool].Name),
		cmp.Compare(a.InstanceType, b.InstanceType),
		cmp.Compare(a.Zone, b.Zone),
		cmp.Compare(a.CapacityType, b.CapacityType),
		cmp.Compare(a.Price, b.Price),
		slices.Compare(fa[:], fb[:]),
		slices.Compare(ua[:], ub[:]),
		slices.CompareFunc(a.GPUs, b.GPUs, compareGPUs),
		slices.CompareFunc(a.Quotas, b.Quotas, func(x, y Amount) int {
			return cmp.Or(cmp.Compare(x.Quota, y.Quota), cmp.Compare(x.Count, y.Count))
		}),
		cmp.Compare(i, j),
	)
}

// addTerms finds out of which quotas, GPUs and rules the pods of a snapshot make any use.
func (p *problem) addTerms(s Snapshot) {
	p.quotaAt = make([]int, len(s.Quotas))
	for q := range p.quotaAt {
		p.quotaAt[q] = -1
	}
	for _, c := range s.Classes {
		p.stated = p.stated || c.GPUMemoryBytes > 0
		for _, x := range c.Quotas {
			if x.Count > 0 && x.Quota >= 0 && x.Quota < len(s.Quotas) && p.quotaAt[x.Quota] < 0 {
				p.quotaAt[x.Quota] = 0
			}
		}
	}
	for q, at := range p.quotaAt {
		if at == 0 {
			p.quotaAt[q] = len(p.quotas)
			p.quotas = append(p.quotas, s.Quotas[q].Each)
		}
	}
}

func (p *problem) addOffers(s Snapshot) {
	for _, i := range usableOfferings(s) {
		o := s.Offerings[i]
		p.offers = append(p.offers, offer{
			index: i, pool: o.Pool, price: int64(o.Price), uses: usageOf(o.Physical), capacity: newCapacity(p, o.Free, o.GPUs, o.Quotas),
		})
	}
}

// addNodes adds the nodes, the fullest first, so that best fit is the order itself and a name decides only between nodes with the
// same room.
func (p *problem) addNodes(s Snapshot) {
	for i, n := range s.Nodes {
		if !vecOf(n.Free).negative() {
			p.nodes = append(p.nodes, node{index: i, capacity: newCapacity(p, n.Free, n.GPUs, n.Quotas)})
		}
	}
	slices.SortFunc(p.nodes, func(a, b node) int {
		return cmp.Or(slices.Compare(a.free[:], b.free[:]), slices.CompareFunc(a.gpus, b.gpus, compareGPUs), slices.Compare(a.quotas, b.quotas),
			cmp.Compare(s.Nodes[a.index].Name, s.Nodes[b.index].Name), cmp.Compare(a.index, b.index))
	})
}

// places maps the indices of a snapshot's offerings and nodes to those of the problem, -1 where it has none.
func (p *problem) places(s Snapshot) (offerAt, nodeAt []int) {
	offerAt, nodeAt = make([]int, len(s.Offerings)), make([]int, len(s.Nodes))
	for i := range offerAt {
		offerAt[i] = -1
	}
	for i := range nodeAt {
		nodeAt[i] = -1
	}
	for at := range p.offers {
		offerAt[p.offers[at].index] = at
	}
	for at := range p.nodes {
		nodeAt[p.nodes[at].index] = at
	}
	return offerAt, nodeAt
}

// addFits finds how many pods of each shape the offers and nodes hold, and keeps those that hold any.
func (p *problem) addFits(s Snapshot) {
	for i := range p.offers {
		p.offers[i].fits = make([]int32, len(p.shapes))
	}
	for i := range p.nodes {
		p.nodes[i].fits = make([]int32, len(p.shapes))
	}
	offerAt, nodeAt := p.places(s)
	for k := range p.shapes {
		sh := &p.shapes[k]
		class := s.Classes[sh.pods[0].class]
		n := int32(len(sh.pods))
		for _, i := range class.Offerings {
			if i >= 0 && i < len(offerAt) && offerAt[i] >= 0 {
				o := &p.offers[offerAt[i]]
				o.fits[k] = o.alone(sh, n)
				sh.launchable = sh.launchable || o.fits[k] > 0
			}
		}
		for _, i := range class.Nodes {
			if i >= 0 && i < len(nodeAt) && nodeAt[i] >= 0 {
				v := &p.nodes[nodeAt[i]]
				v.fits[k] = v.alone(sh, n)
			}
		}
	}
	holds := func(fits []int32) bool { return slices.ContainsFunc(fits, func(n int32) bool { return n > 0 }) }
	p.offers = slices.DeleteFunc(p.offers, func(o offer) bool { return !holds(o.fits) })
	p.nodes = slices.DeleteFunc(p.nodes, func(n node) bool { return !holds(n.fits) })
}

// dropDominated removes offers that another one replaces in every plan: it holds whatever they hold, costs no more, and
// counts no more against a limit. Zones and capacity types of one machine mostly fall away here.
func (p *problem) dropDominated() {
	var kept []offer
	p.replaced = map[int]int{}
	for i, o := range p.offers {
		beaten := false
		for j := range p.offers {
			if i != j && p.replaces(j, i) && (!p.replaces(i, j) || j < i) {
				beaten = true
				p.replaced[o.index] = p.offers[j].index
				break
			}
		}
		if !beaten {
			kept = append(kept, o)
		}
	}
	p.offers = kept
}

// replaces reports whether offer a can stand in for offer b wherever b is bought.
func (p *problem) replaces(a, b int) bool {
	x, y := &p.offers[a], &p.offers[b]
	if x.price > y.price || !x.covers(&y.capacity) {
		return false
	}
	for k := range x.fits {
		if y.fits[k] > 0 && x.fits[k] == 0 {
			return false
		}
	}
	return p.limits[x.pool].unlimited() || x.pool == y.pool && y.uses.admits(x.uses)
}
