package pack

import (
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/amount"
)

// Problem is a snapshot that is prepared for the search. Everything is sorted by name or by size, not by index, so that the order of the snapshot has
// no effect. Unusable items are removed, and identical ones are merged.
type Problem struct {
	Snapshot planner.Snapshot
	Shapes   []Shape
	// ofClass maps the classes that are planned for to their shapes.
	ofClass map[int]int
	Offers  []Offer
	Nodes   []node
	// quotas is what a machine has by default, by quota of the problem. quotaAt maps the quotas of the snapshot to those, and has -1 for quotas that no pod
	// uses. aparts is the number of rules that keep pods apart on machines.
	quotas  []int64
	quotaAt []int
	aparts  int
	// Stated reports whether any pod requests device memory. byGPU are the shapes that do, those with the most first.
	Stated bool
	byGPU  []int
	// Worthiest limits the worth of a pod, in units of 1/pricing.Scale micro-dollars, so that the worth of all pods does not overflow an int64.
	Worthiest int64
	// Limits are what pools may still launch and what is left of stocks. Limited reports whether any limit of a pool with offers is finite, and Stocked whether
	// any offer draws from a stock.
	Limits           Limits
	Limited, Stocked bool
	// Refused are the pods that are not planned for, with their reasons.
	Refused []planner.Unplaced
}

// Shape is all pods with the same requests that fit on the same usable offerings and nodes. It merges the classes that differ in nothing else.
type Shape struct {
	Request amount.Vector
	// quotas are what a pod uses, by quota of the problem. apart are the rules that keep it apart from others on a machine.
	quotas []planner.Amount
	apart  []share
	Pods   []podRef
	// Launchable reports whether any usable offering can hold one pod, apart from limits.
	Launchable bool
}

type podRef struct {
	Name  string
	Class int
}

// Offer is a usable offering: its pool is open, the cloud has it, and some shape fits.
type Offer struct {
	Index int
	Price int64
	Charge
	Capacity
}

// node is an existing machine with room for some shape.
type node struct {
	Index int
	Capacity
}

// Compile prepares a valid snapshot.
func Compile(s planner.Snapshot) *Problem {
	p := &Problem{Snapshot: s, ofClass: map[int]int{}, Limits: LimitsOf(s)}
	p.findQuotas(s)
	p.addOffers(s)
	p.addNodes(s)
	p.addShapes(s)
	p.addFits(s)
	p.dropDominated()
	p.Worthiest = min(worthiest, (1<<61)/(p.Demand().Total()+1))
	for t := range p.Offers {
		o := &p.Offers[t]
		p.Limited = p.Limited || !p.Limits.Pool(o.Pool).Unlimited()
		p.Stocked = p.Stocked || o.MayRunOut()
	}
	return p
}

// Demand returns the number of pods of each shape.
func (p *Problem) Demand() Load {
	d := make(Load, len(p.Shapes))
	for k := range p.Shapes {
		d[k] = int32(len(p.Shapes[k].Pods))
	}
	return d
}

// worthiest limits the worth of a pod. If there are few pods, it is the worth of a pod that only a node can hold: 64 times the price of the most
// expensive machine that exists.
const worthiest = 1 << 44

// Dearest returns the highest price of an offer.
func (p *Problem) Dearest() int64 {
	var most int64
	for t := range p.Offers {
		most = max(most, p.Offers[t].Price)
	}
	return most
}
