package pack

import (
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/amount"
)

// Problem is a snapshot in the order that decisions are made in: everything sorted by name or by size, never by its index, so
// that shuffling a snapshot changes nothing; what cannot be used is gone, what cannot be told apart is merged.
type Problem struct {
	Snapshot planner.Snapshot
	Shapes   []Shape
	// ofClass are the shapes of the classes whose pods are planned for.
	ofClass map[int]int
	Offers  []Offer
	Nodes   []node
	// quotas is what a machine has, by quota of the problem, where nothing is said of it; quotaAt leads there from the snapshot's, -1 for
	// those that no pod takes. aparts is the number of rules that keep pods apart on machines.
	quotas  []int64
	quotaAt []int
	aparts  int
	// Stated is whether any pod states device memory; byGPU are the shapes that do, those with the most first.
	Stated bool
	byGPU  []int
	// Replaced leads from each offering of the snapshot that another one replaces to that one.
	Replaced map[int]int
	// Worthiest bounds the worth of a pod, in units of valueScale, so that the worth of all pods stays within an int64.
	Worthiest int64
	// Limits is what each pool of the snapshot may still launch; limited whether any of them is finite.
	Limits  []amount.Usage
	Limited bool
	// Refused are the pods that are not planned for at all, with their reason.
	Refused []planner.Unplaced
}

// Shape is all pods with the same requests that the same usable offerings and nodes can hold: classes that differ only
// in what makes no difference here share one.
type Shape struct {
	Request amount.Vector
	// quotas are what a pod takes, by quota of the problem; apart are the rules that keep it apart from others on a machine.
	quotas []planner.Amount
	apart  []share
	Pods   []podRef
	// Launchable is whether any usable offering can hold one pod, were there no limits.
	Launchable bool
}

type podRef struct {
	Name  string
	Class int
}

// Offer is a usable offering: it exists, its pool is open, the cloud has it, and some shape fits.
type Offer struct {
	Index int
	Pool  int
	Price int64
	Uses  amount.Usage
	Capacity
}

// node is an existing machine with room for some shape.
type node struct {
	Index int
	Capacity
}

// Compile prepares a snapshot. It accepts anything: what [planner.Validate] would refuse is left out or refused, pod by pod.
func Compile(s planner.Snapshot) *Problem {
	p := &Problem{Snapshot: s, ofClass: map[int]int{}}
	for _, pool := range s.Pools {
		left := amount.UsageOf(pool.Remaining)
		p.Limits = append(p.Limits, left)
	}
	p.addTerms(s)
	p.addOffers(s)
	p.addNodes(s)
	p.addShapes(s)
	p.addFits(s)
	p.dropDominated()
	p.Worthiest = min(worthiest, (1<<61)/(p.Demand().Total()+1))
	for _, o := range p.Offers {
		if !p.Limits[o.Pool].Unlimited() {
			p.Limited = true
		}
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

// worthiest bounds the worth of a pod. It is the worth of a pod that only a node can hold: 64 times the dearest machine there is, were there few pods.
const worthiest = 1 << 44

// Dearest is the highest price of an offer.
func (p *Problem) Dearest() int64 {
	var most int64
	for t := range p.Offers {
		most = max(most, p.Offers[t].Price)
	}
	return most
}

// InRange returns those of xs that are indices of n things, sorted, each once.
func InRange(xs []int, n int) []int {
	sound := len(xs) == 0 || xs[0] >= 0 && xs[len(xs)-1] < n
	for i := 1; i < len(xs); i++ {
		sound = sound && xs[i-1] < xs[i]
	}
	if sound {
		return xs
	}
	out := slices.DeleteFunc(slices.Clone(xs), func(x int) bool { return x < 0 || x >= n })
	slices.Sort(out)
	return slices.Compact(out)
}
