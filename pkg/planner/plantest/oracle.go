package plantest

import (
	"fmt"
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// Optimum returns the lowest price of any plan that places exactly the given pods, and whether there is one. It tries every way to divide the pods
// among nodes and machines, so it is for about seven pods. It does not assume that the pods of a class are identical.
func Optimum(s planner.Snapshot, pods []string) (planner.MicroUSD, bool) {
	o := oracle{snapshot: s, best: math.MaxInt64}
	class := map[string]int{}
	for i, c := range s.Classes {
		for _, pod := range c.Pods {
			class[pod] = i
		}
	}
	for _, pod := range pods {
		o.classes = append(o.classes, class[pod])
	}
	for _, n := range s.Nodes {
		o.nodes = append(o.nodes, newSpot(s, n.Free, n.GPUs, n.Quotas))
	}
	o.limit()
	o.place(0, 0)
	return planner.MicroUSD(o.best), o.best < math.MaxInt64
}

// oracle places one pod after another: on a node, on a machine that is already bought, or on a new one. It tries each GPU for pods that request device
// memory.
type oracle struct {
	snapshot planner.Snapshot
	classes  []int // the class of each pod
	nodes    []Spot
	limits   []planner.Physical
	stocks   []int64
	bought   []machine
	best     int64
}

type machine struct {
	offering int
	spot     Spot
}

// limit sets what may be launched.
func (o *oracle) limit() {
	for _, p := range o.snapshot.Pools {
		o.limits = append(o.limits, p.Remaining)
	}
	for _, x := range o.snapshot.Stocks {
		o.stocks = append(o.stocks, x.Left)
	}
}

// launch calls then with one machine of an offering less to launch, if there is one.
func (o *oracle) launch(offering int, then func()) {
	off := o.snapshot.Offerings[offering]
	if off.Unavailable != nil || o.snapshot.Pools[off.Pool].Closed != nil {
		return
	}
	for _, d := range off.Draws {
		if o.stocks[d.Stock] < d.Amount {
			return
		}
	}
	before := o.limits[off.Pool]
	if count(&o.limits[off.Pool], off.Physical) {
		for _, d := range off.Draws {
			o.stocks[d.Stock] -= d.Amount
		}
		then()
		for _, d := range off.Draws {
			o.stocks[d.Stock] += d.Amount
		}
	}
	o.limits[off.Pool] = before
}

func (o *oracle) place(pod int, price int64) {
	if price >= o.best {
		return
	}
	if pod == len(o.classes) {
		o.best = price
		return
	}
	at := o.classes[pod]
	c := o.snapshot.Classes[at]
	for _, i := range c.Nodes {
		before := o.nodes[i]
		for _, after := range before.With(o.snapshot, at) {
			o.nodes[i] = after
			o.place(pod+1, price)
		}
		o.nodes[i] = before
	}
	tried := map[string]bool{}
	for i := range o.bought {
		before := o.bought[i]
		key := fmt.Sprint(before)
		if tried[key] || !admits(c, before.offering) {
			continue
		}
		tried[key] = true
		for _, after := range before.spot.With(o.snapshot, at) {
			o.bought[i].spot = after
			o.place(pod+1, price)
		}
		o.bought[i] = before
	}
	for _, i := range c.Offerings {
		o.launch(i, func() {
			for _, after := range Empty(o.snapshot, i).With(o.snapshot, at) {
				o.bought = append(o.bought, machine{i, after})
				o.place(pod+1, price+int64(o.snapshot.Offerings[i].Price))
				o.bought = o.bought[:len(o.bought)-1]
			}
		})
	}
}

func admits(c planner.Class, offering int) bool {
	return slices.Contains(c.Offerings, offering)
}

// subtract subtracts the requests of a pod from the free resources, and reports whether it fits.
func subtract(free *planner.Resources, r planner.Resources) bool {
	if r.MilliCPU > free.MilliCPU || r.MemoryBytes > free.MemoryBytes || r.EphemeralBytes > free.EphemeralBytes ||
		r.Pods > free.Pods || r.Replicas > free.Replicas {
		return false
	}
	free.MilliCPU -= r.MilliCPU
	free.MemoryBytes -= r.MemoryBytes
	free.EphemeralBytes -= r.EphemeralBytes
	free.Pods -= r.Pods
	free.Replicas -= r.Replicas
	return true
}

// count subtracts a machine from the remaining limits, and reports whether they allow it.
func count(left *planner.Physical, u planner.Physical) bool {
	if u.MilliCPU > left.MilliCPU || u.MemoryBytes > left.MemoryBytes || u.GPUs > left.GPUs || u.Replicas > left.Replicas || u.Nodes > left.Nodes {
		return false
	}
	for _, d := range []struct {
		left *int64
		uses int64
	}{
		{&left.MilliCPU, u.MilliCPU}, {&left.MemoryBytes, u.MemoryBytes}, {&left.GPUs, u.GPUs}, {&left.Replicas, u.Replicas}, {&left.Nodes, u.Nodes},
	} {
		if *d.left != planner.Unlimited {
			*d.left -= d.uses
		}
	}
	return true
}
