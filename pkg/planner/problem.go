package planner

import "slices"

// problem is a snapshot in the order that decisions are made in: everything sorted by name or by size, never by its index, so
// that shuffling a snapshot changes nothing; what cannot be used is gone, what cannot be told apart is merged.
type problem struct {
	snapshot Snapshot
	shapes   []shape
	// ofClass are the shapes of the classes whose pods are planned for.
	ofClass map[int]int
	offers  []offer
	nodes   []node
	// quotas is what a machine has, by quota of the problem, where nothing is said of it; quotaAt leads there from the snapshot's, -1 for
	// those that no pod takes. aparts is the number of rules that keep pods apart on machines.
	quotas  []int64
	quotaAt []int
	aparts  int
	// stated is whether any pod states device memory; byGPU are the shapes that do, those with the most first.
	stated bool
	byGPU  []int
	// replaced leads from each offering of the snapshot that another one replaces to that one.
	replaced map[int]int
	// worthiest bounds the worth of a pod, in units of valueScale, so that the worth of all pods stays within an int64.
	worthiest int64
	// limits is what each pool of the snapshot may still launch; limited whether any of them is finite.
	limits  []usage
	limited bool
	// refused are the pods that are not planned for at all, with their reason.
	refused []Unplaced
}

// shape is all pods with the same requests that the same usable offerings and nodes can hold: classes that differ only
// in what makes no difference here share one.
type shape struct {
	request vec
	// quotas are what a pod takes, by quota of the problem; apart are the rules that keep it apart from others on a machine.
	quotas []Amount
	apart  []share
	pods   []podRef
	// launchable is whether any usable offering can hold one pod, were there no limits.
	launchable bool
}

type podRef struct {
	name  string
	class int
}

// offer is a usable offering: it exists, its pool is open, the cloud has it, and some shape fits.
type offer struct {
	index int
	pool  int
	price int64
	uses  usage
	capacity
}

// node is an existing machine with room for some shape.
type node struct {
	index int
	capacity
}

// compile prepares a snapshot. It accepts anything: what [Validate] would refuse is left out or refused, pod by pod.
func compile(s Snapshot) *problem {
	p := &problem{snapshot: s, ofClass: map[int]int{}}
	for _, pool := range s.Pools {
		left := usageOf(pool.Remaining)
		p.limits = append(p.limits, left)
	}
	p.addTerms(s)
	p.addOffers(s)
	p.addNodes(s)
	p.addShapes(s)
	p.addFits(s)
	p.dropDominated()
	p.worthiest = min(worthiest, (1<<61)/(p.demand().total()+1))
	for _, o := range p.offers {
		if !p.limits[o.pool].unlimited() {
			p.limited = true
		}
	}
	return p
}

// demand returns the number of pods of each shape.
func (p *problem) demand() load {
	d := make(load, len(p.shapes))
	for k := range p.shapes {
		d[k] = int32(len(p.shapes[k].pods))
	}
	return d
}

// worthiest bounds the worth of a pod. It is the worth of a pod that only a node can hold: 64 times the dearest machine there is, were there few pods.
const worthiest = 1 << 44

// dearest is the highest price of an offer.
func (p *problem) dearest() int64 {
	var most int64
	for t := range p.offers {
		most = max(most, p.offers[t].price)
	}
	return most
}

// inRange returns those of xs that are indices of n things, sorted, each once.
func inRange(xs []int, n int) []int {
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
