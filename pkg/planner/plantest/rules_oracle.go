package plantest

import (
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// MostUnderRules returns how many pods any plan for a snapshot can place under all its rules, and the least price at which so many have a
// place. It tries every way to part the pods, and has [planner.Check] say which keep the rules, so it is for some six pods. It knows nothing of
// minValues.
func MostUnderRules(s planner.Snapshot) (int, planner.MicroUSD) {
	o := newRuled(s, func(planner.Class, string) bool { return true })
	o.part(0, 0, 0)
	return o.most, o.price
}

// LeastUnderRules returns the least price of any plan that places exactly the given pods under all rules, and whether there is one.
func LeastUnderRules(s planner.Snapshot, pods []string) (planner.MicroUSD, bool) {
	o := newRuled(s, func(_ planner.Class, pod string) bool { return slices.Contains(pods, pod) })
	o.all = true
	o.part(0, 0, 0)
	return o.price, o.most == len(pods)
}

// ruled parts pods among nodes, launches and nothing. Pods of one class are alike: each goes no further to the front than the one before it.
type ruled struct {
	snapshot planner.Snapshot
	oracle   oracle
	pods     []string
	class    []int
	// at is the place of each pod: a node, from the number of nodes on a launch, -1 for none.
	at    []int
	all   bool
	most  int
	price planner.MicroUSD
}

func newRuled(s planner.Snapshot, wanted func(planner.Class, string) bool) *ruled {
	o := &ruled{snapshot: s, oracle: oracle{snapshot: s}, most: -1, price: math.MaxInt64}
	for _, n := range s.Nodes {
		o.oracle.nodes = append(o.oracle.nodes, newSpot(s, n.Free, n.GPUs, n.Quotas))
	}
	for _, p := range s.Pools {
		o.oracle.limits = append(o.oracle.limits, p.Remaining)
	}
	for i, c := range s.Classes {
		for _, pod := range c.Pods {
			if c.Blocked == nil && wanted(c, pod) {
				o.pods, o.class = append(o.pods, pod), append(o.class, i)
			}
		}
	}
	o.at = make([]int, len(o.pods))
	return o
}

func (o *ruled) part(k, placed int, price planner.MicroUSD) {
	left := len(o.pods) - k
	if placed+left < o.most || placed+left == o.most && price >= o.price {
		return
	}
	if k == len(o.pods) {
		if o.keepsRules(price) {
			o.most, o.price = placed, price
		}
		return
	}
	c := o.snapshot.Classes[o.class[k]]
	from := 0
	if k > 0 && o.class[k-1] == o.class[k] {
		from = o.at[k-1]
		if from < 0 {
			from = math.MaxInt
		}
	}
	for _, v := range c.Nodes {
		before := o.oracle.nodes[v]
		if v < from {
			continue
		}
		for _, after := range before.With(o.snapshot, o.class[k]) {
			o.at[k], o.oracle.nodes[v] = v, after
			o.part(k+1, placed+1, price)
		}
		o.oracle.nodes[v] = before
	}
	for l := range o.oracle.bought {
		at, before := len(o.snapshot.Nodes)+l, o.oracle.bought[l]
		if at < from || !admits(c, before.offering) {
			continue
		}
		for _, after := range before.spot.With(o.snapshot, o.class[k]) {
			o.at[k], o.oracle.bought[l].spot = at, after
			o.part(k+1, placed+1, price)
		}
		o.oracle.bought[l] = before
	}
	for _, i := range c.Offerings {
		off := o.snapshot.Offerings[i]
		if from == math.MaxInt || off.Unavailable != nil || o.snapshot.Pools[off.Pool].Closed != nil {
			continue
		}
		before := o.oracle.limits[off.Pool]
		for _, spot := range Empty(o.snapshot, i).With(o.snapshot, o.class[k]) {
			o.oracle.limits[off.Pool] = before
			if !count(&o.oracle.limits[off.Pool], off.Physical) {
				break
			}
			o.at[k] = len(o.snapshot.Nodes) + len(o.oracle.bought)
			o.oracle.bought = append(o.oracle.bought, machine{i, spot})
			o.part(k+1, placed+1, price+off.Price)
			o.oracle.bought = o.oracle.bought[:len(o.oracle.bought)-1]
		}
		o.oracle.limits[off.Pool] = before
	}
	if !o.all {
		o.at[k] = -1
		o.part(k+1, placed, price)
	}
}

// keepsRules has Check judge the plan.
func (o *ruled) keepsRules(price planner.MicroUSD) bool {
	p := planner.Plan{Price: price}
	at := map[int]*[]string{}
	p.Launches = make([]planner.Launch, len(o.oracle.bought))
	for l, m := range o.oracle.bought {
		p.Launches[l].Offering = m.offering
		at[len(o.snapshot.Nodes)+l] = &p.Launches[l].Pods
	}
	p.Placements = make([]planner.Placement, 0, len(o.snapshot.Nodes))
	for v := range o.snapshot.Nodes {
		if slices.Contains(o.at, v) {
			p.Placements = append(p.Placements, planner.Placement{Node: v})
			at[v] = &p.Placements[len(p.Placements)-1].Pods
		}
	}
	out := map[string]bool{}
	for k, pod := range o.pods {
		if o.at[k] >= 0 {
			*at[o.at[k]] = append(*at[o.at[k]], pod)
			out[pod] = true
		}
	}
	for _, c := range o.snapshot.Classes {
		for _, pod := range c.Pods {
			if !out[pod] {
				p.Unplaced = append(p.Unplaced, planner.Unplaced{Pod: pod, Refusal: planner.Refusal{Reason: planner.ReasonRule, Message: "left out"}})
			}
		}
	}
	for l := range p.Launches {
		slices.Sort(p.Launches[l].Pods)
	}
	for i := range p.Placements {
		slices.Sort(p.Placements[i].Pods)
	}
	// That the pods fit, GPU by GPU, is why they are where they are; which GPUs they have is not told.
	judged := Clone(o.snapshot)
	for i := range judged.Classes {
		judged.Classes[i].GPUMemoryBytes = 0
	}
	return planner.Check(judged, p) == nil
}
