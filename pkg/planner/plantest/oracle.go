package plantest

import (
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
)

// MostUnderRules returns the maximum number of pods that any plan for a snapshot can place under all its rules, and the lowest price of such a plan. It
// tries every way to divide the pods, and uses [check.Plan] to decide which keep the rules, so it is for about six pods. It ignores minValues.
func MostUnderRules(s planner.Snapshot) (int, planner.MicroUSD) {
	o := newOracle(s, func(planner.Class, string) bool { return true })
	o.part(0, 0, 0)
	return o.most, o.price
}

// Optimum returns the lowest price of any plan that places exactly the given pods under all rules, and whether there is one. It is for about seven pods.
func Optimum(s planner.Snapshot, pods []string) (planner.MicroUSD, bool) {
	o := newOracle(s, func(_ planner.Class, pod string) bool { return slices.Contains(pods, pod) })
	o.all = true
	o.part(0, 0, 0)
	return o.price, o.most == len(pods)
}

// oracle divides pods among nodes, launches and unplaced pods. Pods of one class are identical, so none is placed before the place of the previous one.
type oracle struct {
	snapshot planner.Snapshot
	// free is the snapshot without its rules, which check.Plan checks.
	free planner.Snapshot
	// nodes, limits and stocks are what is left of those of the snapshot, and bought are the machines that are launched.
	nodes  []Spot
	limits []planner.Physical
	stocks []planner.Stock
	bought []machine
	pods   []string
	class  []int
	// at is the place of each pod: a node, a launch (from the number of nodes on), or -1 for none. on is its GPU there.
	at, on []int
	all    bool
	most   int
	price  planner.MicroUSD
	// enough reports whether nothing better can be found.
	enough func() bool
}

func newOracle(s planner.Snapshot, wanted func(planner.Class, string) bool) *oracle {
	o := &oracle{snapshot: s, free: s, stocks: slices.Clone(s.Stocks), most: -1, price: math.MaxInt64, enough: func() bool { return false }}
	o.free.Rules = nil
	for _, n := range s.Nodes {
		o.nodes = append(o.nodes, newSpot(s, n.Free, n.GPUs, n.Quotas))
	}
	for _, p := range s.Pools {
		o.limits = append(o.limits, p.Remaining)
	}
	for i, c := range s.Classes {
		for _, pod := range c.Pods {
			if c.Blocked == nil && wanted(c, pod) {
				o.pods, o.class = append(o.pods, pod), append(o.class, i)
			}
		}
	}
	o.at, o.on = make([]int, len(o.pods)), make([]int, len(o.pods))
	return o
}

func (o *oracle) part(k, placed int, price planner.MicroUSD) {
	left := len(o.pods) - k
	if placed+left < o.most || placed+left == o.most && price >= o.price || o.enough() {
		return
	}
	if k > 0 && o.at[k-1] >= 0 && o.broken(k) {
		return
	}
	if k == len(o.pods) {
		if o.keepsRules(price) {
			o.most, o.price = placed, price
		}
		return
	}
	from := 0
	if k > 0 && o.class[k-1] == o.class[k] {
		from = o.at[k-1]
		if from < 0 {
			from = math.MaxInt
		}
	}
	o.toNodes(k, from, placed, price)
	o.toBought(k, from, placed, price)
	if from < math.MaxInt {
		o.toNew(k, placed, price)
	}
	if !o.all {
		o.at[k] = -1
		o.part(k+1, placed, price)
	}
}

// broken reports whether the first k pods break a rule that the other pods cannot repair.
func (o *oracle) broken(k int) bool {
	for i, r := range o.snapshot.Rules {
		here := o.domain(r, k-1)
		if here < 0 || r.Kind == planner.Together {
			continue
		}
		counted, asking, both := map[int]int64{}, map[int]int64{}, map[int]int64{}
		for j := range k {
			d := o.domain(r, j)
			asks := slices.Contains(r.Classes, o.class[j]) && !slices.ContainsFunc(o.snapshot.Classes[o.class[j]].Preferences, func(w planner.Preference) bool { return w.Rule == i })
			counts := slices.Contains(r.Counted, o.class[j])
			counted[d], asking[d] = counted[d]+one(counts), asking[d]+one(asks)
			both[d] += one(asks && counts)
		}
		if r.Kind == planner.Apart && asking[here] > 0 && counted[here] > 0 && (asking[here] > 1 || counted[here] > 1 || both[here] == 0) {
			return true
		}
		if r.Kind == planner.Spread && asking[here] > 0 && o.missing(r, here, counted) > int64(len(o.pods)-k) {
			return true
		}
	}
	return false
}

// missing returns the minimum number of additional pods that other domains need, so that a domain does not have too many.
func (o *oracle) missing(r planner.Rule, here int, counted map[int]int64) int64 {
	has := func(d int) int64 {
		if d < len(r.Present) {
			return r.Present[d] + counted[d]
		}
		return counted[d]
	}
	if r.Topology == planner.PerNode {
		return (has(here) - r.MaxSkew) * int64(len(o.pods)+1)
	}
	sum, eligible := int64(0), 0
	for d := range o.snapshot.Topologies[r.Topology].Domains {
		if r.Eligible == nil || slices.Contains(r.Eligible, d) {
			eligible++
			sum += max(0, has(here)-r.MaxSkew-has(d))
		}
	}
	if int64(eligible) < r.MinDomains {
		return (has(here) - r.MaxSkew) * int64(len(o.pods)+1)
	}
	return sum
}

func one(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// domain returns the domain of the place of a pod, or -1 if it has none.
func (o *oracle) domain(r planner.Rule, pod int) int {
	at := o.at[pod]
	if at < 0 || r.Topology == planner.PerNode {
		return at
	}
	var domains []int
	if at < len(o.snapshot.Nodes) {
		domains = o.snapshot.Nodes[at].Domains
	} else {
		domains = o.snapshot.Offerings[o.bought[at-len(o.snapshot.Nodes)].offering].Domains
	}
	if r.Topology < len(domains) {
		return domains[r.Topology]
	}
	return -1
}

func (o *oracle) toNodes(k, from, placed int, price planner.MicroUSD) {
	for _, v := range o.snapshot.Classes[o.class[k]].Nodes {
		if v >= from {
			o.enter(&o.nodes[v], k, v, placed, price)
		}
	}
}

func (o *oracle) toBought(k, from, placed int, price planner.MicroUSD) {
	for l := range o.bought {
		at := len(o.snapshot.Nodes) + l
		if at >= from && slices.Contains(o.snapshot.Classes[o.class[k]].Offerings, o.bought[l].offering) {
			o.enter(&o.bought[l].spot, k, at, placed, price)
		}
	}
}

type machine struct {
	offering int
	spot     Spot
}

// launch calls then with one machine of an offering less to launch, if there is one.
func (o *oracle) launch(offering int, then func()) {
	off := o.snapshot.Offerings[offering]
	if off.Unavailable != nil || o.snapshot.Pools[off.Pool].Closed != nil || slices.ContainsFunc(off.Draws, func(d planner.Draw) bool { return o.stocks[d.Stock].Left < d.Amount }) {
		return
	}
	before := o.limits[off.Pool]
	if count(&o.limits[off.Pool], off.Physical) {
		planner.Take(o.stocks, off.Draws)
		then()
		planner.GiveBack(o.stocks, off.Draws)
	}
	o.limits[off.Pool] = before
}

func (o *oracle) toNew(k, placed int, price planner.MicroUSD) {
	for _, i := range o.snapshot.Classes[o.class[k]].Offerings {
		o.launch(i, func() {
			bought, l := o.bought, len(o.bought)
			o.bought = append(slices.Clip(o.bought), machine{i, Empty(o.snapshot, i)})
			o.enter(&o.bought[l].spot, k, len(o.snapshot.Nodes)+l, placed, price+o.snapshot.Offerings[i].Price)
			o.bought = bought
		})
	}
}

// enter puts a pod on a machine, on each GPU that it could use, and continues with the next pod.
func (o *oracle) enter(spot *Spot, k, at, placed int, price planner.MicroUSD) {
	before := *spot
	for _, after := range before.With(o.free, o.class[k]) {
		*spot = after
		o.at[k], o.on[k] = at, -1
		for g := range after.gpus {
			if after.gpus[g] != before.gpus[g] {
				o.on[k] = g
			}
		}
		o.part(k+1, placed+1, price)
	}
	*spot = before
}

// keepsRules reports whether the plan passes check.Plan.
func (o *oracle) keepsRules(price planner.MicroUSD) bool {
	p := planner.Plan{Price: price}
	for v := range o.snapshot.Nodes {
		if pods, gpus := o.there(v); len(pods) > 0 {
			p.Placements = append(p.Placements, planner.Placement{Node: v, Pods: pods, GPUs: gpus})
		}
	}
	for l, m := range o.bought {
		pods, gpus := o.there(len(o.snapshot.Nodes) + l)
		p.Launches = append(p.Launches, planner.Launch{Offering: m.offering, Pods: pods, GPUs: gpus})
	}
	out := map[string]bool{}
	for k, pod := range o.pods {
		out[pod] = o.at[k] >= 0
	}
	for _, c := range o.snapshot.Classes {
		for _, pod := range c.Pods {
			if !out[pod] {
				p.Unplaced = append(p.Unplaced, planner.Unplaced{Pod: pod, Refusal: planner.Refusal{Reason: planner.ReasonRule, Message: "left out"}})
			}
		}
	}
	return check.Plan(o.snapshot, p) == nil
}

// there returns the pods at a place by name, and their GPUs. The GPUs are nil if no pod requests device memory.
func (o *oracle) there(at int) (pods []string, gpus []int) {
	stated := false
	for k, pod := range o.pods {
		if o.at[k] == at {
			i, _ := slices.BinarySearch(pods, pod)
			pods, gpus = slices.Insert(pods, i, pod), slices.Insert(gpus, i, o.on[k])
			stated = stated || o.on[k] >= 0
		}
	}
	if !stated {
		gpus = nil
	}
	return pods, gpus
}
