package pack

import (
	"cmp"
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/amount"
)

// UsableOfferings returns the indices of the offerings that can be launched now, in stable order.
func UsableOfferings(s planner.Snapshot) []int {
	var out []int
	limits := LimitsOf(s)
	for i, o := range s.Offerings {
		if limits.Usable(s, o) {
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(i, j int) int { return CompareOfferings(s, i, j) })
	return out
}

// Usable reports whether a machine of an offering can be launched now.
func (l Limits) Usable(s planner.Snapshot, o planner.Offering) bool {
	c := ChargeOf(o)
	return o.Unavailable == nil && s.Pools[o.Pool].Closed == nil && l.Admits(&c)
}

// CompareOfferings defines the stable order of offerings: by names, and by capacities if names are equal.
func CompareOfferings(s planner.Snapshot, i, j int) int {
	a, b := s.Offerings[i], s.Offerings[j]
	fa, fb := amount.VectorOf(a.Free), amount.VectorOf(b.Free)
	ua, ub := amount.UsageOf(a.Physical), amount.UsageOf(b.Physical)
	return cmp.Or(
		cmp.Compare(s.Pools[a.Pool].Name, s.Pools[b.Pool].Name),
		cmp.Compare(a.InstanceType, b.InstanceType),
		cmp.Compare(a.Zone, b.Zone),
		cmp.Compare(a.CapacityType, b.CapacityType),
		cmp.Compare(a.Price, b.Price),
		slices.Compare(fa[:], fb[:]),
		slices.Compare(ua[:], ub[:]),
		slices.CompareFunc(a.GPUs, b.GPUs, compareGPUs),
		slices.CompareFunc(a.Quotas, b.Quotas, func(x, y planner.Amount) int {
			return cmp.Or(cmp.Compare(x.Quota, y.Quota), cmp.Compare(x.Count, y.Count))
		}),
		slices.CompareFunc(a.Draws, b.Draws, func(x, y planner.Draw) int {
			return cmp.Or(cmp.Compare(s.Stocks[x.Stock].Name, s.Stocks[y.Stock].Name), cmp.Compare(x.Amount, y.Amount))
		}),
		cmp.Compare(i, j),
	)
}

// findQuotas finds the quotas that the pods of the snapshot use, and whether they request device memory.
func (p *Problem) findQuotas(s planner.Snapshot) {
	p.quotaAt = make([]int, len(s.Quotas))
	for q := range p.quotaAt {
		p.quotaAt[q] = -1
	}
	for _, c := range s.Classes {
		p.Stated = p.Stated || c.GPUMemoryBytes > 0
		for _, x := range c.Quotas {
			if x.Count > 0 && p.quotaAt[x.Quota] < 0 {
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

func (p *Problem) addOffers(s planner.Snapshot) {
	for _, i := range UsableOfferings(s) {
		o := s.Offerings[i]
		p.Offers = append(p.Offers, Offer{
			Index: i, Price: int64(o.Price), Charge: ChargeOf(o), Capacity: NewCapacity(p, o.Free, o.GPUs, o.Quotas),
		})
	}
}

// addNodes adds the nodes, the fullest first. This is the order of best fit, and names only decide between nodes with the same room.
func (p *Problem) addNodes(s planner.Snapshot) {
	for i, n := range s.Nodes {
		if !amount.VectorOf(n.Free).Negative() {
			p.Nodes = append(p.Nodes, node{Index: i, Capacity: NewCapacity(p, n.Free, n.GPUs, n.Quotas)})
		}
	}
	slices.SortFunc(p.Nodes, func(a, b node) int {
		return cmp.Or(slices.Compare(a.Free[:], b.Free[:]), slices.CompareFunc(a.Gpus, b.Gpus, compareGPUs), slices.Compare(a.Quotas, b.Quotas),
			cmp.Compare(s.Nodes[a.Index].Name, s.Nodes[b.Index].Name), cmp.Compare(a.Index, b.Index))
	})
}

// Places maps the indices of a snapshot's offerings and nodes to those of the problem. Entries are -1 if the problem does not have them.
func (p *Problem) Places(s planner.Snapshot) (offerAt, nodeAt []int) {
	offerAt, nodeAt = make([]int, len(s.Offerings)), make([]int, len(s.Nodes))
	for i := range offerAt {
		offerAt[i] = -1
	}
	for i := range nodeAt {
		nodeAt[i] = -1
	}
	for at := range p.Offers {
		offerAt[p.Offers[at].Index] = at
	}
	for at := range p.Nodes {
		nodeAt[p.Nodes[at].Index] = at
	}
	return offerAt, nodeAt
}

// addFits computes how many pods of each shape the offers and nodes hold, and drops those that hold none.
func (p *Problem) addFits(s planner.Snapshot) {
	for i := range p.Offers {
		p.Offers[i].Fits = make([]int32, len(p.Shapes))
	}
	for i := range p.Nodes {
		p.Nodes[i].Fits = make([]int32, len(p.Shapes))
	}
	offerAt, nodeAt := p.Places(s)
	for k := range p.Shapes {
		sh := &p.Shapes[k]
		class := s.Classes[sh.Pods[0].Class]
		n := int32(len(sh.Pods))
		for _, i := range class.Offerings {
			if offerAt[i] >= 0 {
				o := &p.Offers[offerAt[i]]
				o.Fits[k] = o.Alone(sh, n)
				sh.Launchable = sh.Launchable || o.Fits[k] > 0
			}
		}
		for _, i := range class.Nodes {
			if nodeAt[i] >= 0 {
				v := &p.Nodes[nodeAt[i]]
				v.Fits[k] = v.Alone(sh, n)
			}
		}
	}
	holds := func(fits []int32) bool { return slices.ContainsFunc(fits, func(n int32) bool { return n > 0 }) }
	p.Offers = slices.DeleteFunc(p.Offers, func(o Offer) bool { return !holds(o.Fits) })
	p.Nodes = slices.DeleteFunc(p.Nodes, func(n node) bool { return !holds(n.Fits) })
}

// dropDominated removes dominated offers. A dominating offer holds every load that the other one holds, costs no more, and counts no more against a
// limit and a stock. This removes most zones and capacity types of an instance type.
func (p *Problem) dropDominated() {
	var kept []Offer
	for i, o := range p.Offers {
		beaten := false
		for j := range p.Offers {
			if i != j && p.dominates(j, i) && (!p.dominates(i, j) || j < i) {
				beaten = true
				break
			}
		}
		if !beaten {
			kept = append(kept, o)
		}
	}
	p.Offers = kept
}

// dominates reports whether offer a dominates offer b.
func (p *Problem) dominates(a, b int) bool {
	x, y := &p.Offers[a], &p.Offers[b]
	if x.Price > y.Price || !x.covers(&y.Capacity) || !x.drawsAtMost(y) {
		return false
	}
	for k := range x.Fits {
		if y.Fits[k] > 0 && x.Fits[k] == 0 {
			return false
		}
	}
	return p.Limits.Pool(x.Pool).Unlimited() || x.Pool == y.Pool && y.Uses.Admits(x.Uses)
}

// drawsAtMost reports whether an offer draws no more from any stock than another one.
func (o *Offer) drawsAtMost(x *Offer) bool {
	for _, d := range o.Draws {
		if !slices.ContainsFunc(x.Draws, func(y planner.Draw) bool { return y.Stock == d.Stock && y.Amount >= d.Amount }) {
			return false
		}
	}
	return true
}
