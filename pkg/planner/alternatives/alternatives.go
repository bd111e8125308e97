package alternatives

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/amount"
)

// Add returns a plan in which each launch has all alternatives that it may have. The alternatives are combinations of instance types and zones that
// hold the pods, in the same domains as far as rules concern them, at the launch's capacity type, for at most MaxPremium percent more. A NodeClaim
// admits each of its types in each of its zones, so all of these must be suitable. Of the possible sets of zones, Add takes the one with the most pairs
// of type and zone. The offerings of the launches and the price stay the same. Launches of pools with MinValues keep their alternatives. No alternative draws from
// a stock.
func Add(s planner.Snapshot, p planner.Plan) planner.Plan {
	f := finder{snapshot: s, class: s.ClassByPod(), ruled: map[int][]int{}, left: make([]planner.Physical, len(s.Pools)), found: map[string][]int{}}
	for _, r := range s.Rules {
		if r.Topology == planner.PerNode {
			continue
		}
		for _, c := range slices.Concat(r.Classes, r.Counted) {
			if !slices.Contains(f.ruled[c], r.Topology) {
				f.ruled[c] = append(f.ruled[c], r.Topology)
			}
		}
	}
	for i := range s.Pools {
		f.left[i] = s.Pools[i].Remaining
	}
	for _, l := range p.Launches {
		o := s.Offerings[l.Offering]
		f.left[o.Pool].Take(Greatest(s, Variant{l.Offering, l.Alternatives}))
	}
	p.Launches = slices.Clone(p.Launches)
	for i := range p.Launches {
		if l := &p.Launches[i]; len(s.Pools[s.Offerings[l.Offering].Pool].MinValues) == 0 {
			l.Alternatives = f.once(*l)
		}
	}
	return p
}

// finder finds alternatives for launches.
type finder struct {
	snapshot planner.Snapshot
	class    map[string]int
	ruled    map[int][]int      // by class, the topologies of the rules that constrain or count its pods
	left     []planner.Physical // by pool, what the launches leave of its limits
	found    map[string][]int
}

// needs is what the pods of a launch need of a machine.
type needs struct {
	classes []int
	sum     planner.Resources
	quotas  []int64
	gpus    []planner.GPU // by GPU, what its pods use
}

// once returns the alternatives of a launch. Without limits, it computes them once for equal launches.
func (f *finder) once(l planner.Launch) []int {
	left := f.left[f.snapshot.Offerings[l.Offering].Pool]
	left.Nodes = planner.Unlimited
	if left != planner.NoLimits {
		return f.alternatives(l)
	}
	classes := make([]int, len(l.Pods))
	for i, pod := range l.Pods {
		classes[i] = f.class[pod]
	}
	key := fmt.Sprint(l.Offering, classes, l.GPUs)
	if _, ok := f.found[key]; !ok {
		f.found[key] = f.alternatives(l)
	}
	return slices.Clone(f.found[key])
}

func (f *finder) alternatives(l planner.Launch) []int {
	s := f.snapshot
	o := s.Offerings[l.Offering]
	need := f.needs(l)
	offered := map[pair][]int{}
	sound := map[pair]bool{}
	for i, x := range s.Offerings {
		if x.Pool != o.Pool || x.CapacityType != o.CapacityType || x.Choice != o.Choice || i != l.Offering && planner.Repriced(o, x) {
			continue
		}
		at := pair{x.InstanceType, x.Zone}
		_, known := sound[at]
		sound[at] = (!known || sound[at]) && (i == l.Offering || f.serves(l, need, i))
		offered[at] = append(offered[at], i)
	}
	best := widest(sound, pair{o.InstanceType, o.Zone})
	var out []int
	for _, at := range best {
		for _, i := range offered[at] {
			if i != l.Offering {
				out = append(out, i)
			}
		}
	}
	slices.SortFunc(out, func(i, j int) int {
		x, y := s.Offerings[i], s.Offerings[j]
		return cmp.Or(cmp.Compare(x.Price, y.Price), strings.Compare(x.InstanceType, y.InstanceType), strings.Compare(x.Zone, y.Zone), cmp.Compare(i, j))
	})
	was := Greatest(s, Variant{Offering: l.Offering})
	f.left[o.Pool].Take(Greatest(s, Variant{l.Offering, out}).Minus(was))
	return out
}

func (f *finder) needs(l planner.Launch) needs {
	s := f.snapshot
	n := needs{quotas: make([]int64, len(s.Quotas)), gpus: make([]planner.GPU, len(s.Offerings[l.Offering].GPUs))}
	for i, pod := range l.Pods {
		c, ok := f.class[pod]
		if !ok {
			continue
		}
		class := s.Classes[c]
		n.classes = append(n.classes, c)
		n.sum = n.sum.Each(class.Requests, amount.Saturating)
		for _, q := range class.Quotas {
			n.quotas[q.Quota] += q.Count
		}
		if i < len(l.GPUs) && l.GPUs[i] >= 0 && l.GPUs[i] < len(n.gpus) {
			n.gpus[l.GPUs[i]].Replicas += class.Requests.Replicas
			n.gpus[l.GPUs[i]].MemoryBytes += class.GPUMemoryBytes
		}
	}
	slices.Sort(n.classes)
	n.classes = slices.Compact(n.classes)
	return n
}

// serves reports whether an offering can also serve the pods of a launch, within the premium and the limits.
func (f *finder) serves(l planner.Launch, n needs, i int) bool {
	s := f.snapshot
	o, x := s.Offerings[l.Offering], s.Offerings[i]
	return x.Unavailable == nil && affordable(s.Pools[o.Pool], o, x) && f.holds(n, o, x) && f.welcome(l, n, i) && f.allowed(o, x)
}

// affordable reports whether an alternative is within the premium of the chosen offering. The cloud launches what its list has for the lowest price, so such an alternative
// must not cost more than the chosen offering.
func affordable(p planner.Pool, o, x planner.Offering) bool {
	if x.ListPrice < o.ListPrice && x.Price > o.Price {
		return false
	}
	return x.Price <= o.Price || int64(x.Price-o.Price) <= amount.MulDiv(int64(o.Price), p.MaxPremium, 100)
}

// holds reports whether a machine has what the pods need if each of its GPUs has as many replicas as those of the chosen offering. The NodeClaim states
// that number before the launched machine is known.
func (f *finder) holds(n needs, o, x planner.Offering) bool {
	if !x.Free.Covers(n.sum) {
		return false
	}
	for q, taken := range n.quotas {
		if has := f.snapshot.QuotaOf(x.Quotas, q); taken > has && has != planner.Unlimited {
			return false
		}
	}
	for g, taken := range n.gpus {
		if taken != (planner.GPU{}) && (g >= len(x.GPUs) || taken.Replicas > x.GPUs[g].Replicas || taken.MemoryBytes > x.GPUs[g].MemoryBytes) {
			return false
		}
	}
	return sharesAsFinely(o, x) && n.sum.Replicas <= promised(o, x)
}

// shares returns the number of replicas of each GPU of a machine, or 0 if the GPUs are unknown.
func shares(o planner.Offering) int64 {
	var most int64
	for _, g := range o.GPUs {
		most = max(most, g.Replicas)
	}
	return most
}

// sharesAsFinely reports whether each GPU of a machine can have at least as many replicas as those of the chosen offering.
func sharesAsFinely(o, x planner.Offering) bool {
	return !slices.ContainsFunc(x.GPUs, func(g planner.GPU) bool { return g.Replicas < shares(o) }) || slices.Equal(o.GPUs, x.GPUs)
}

// promised returns the minimum number of replicas of a machine whose GPUs are shared like those of the chosen offering.
func promised(o, x planner.Offering) int64 {
	if len(o.GPUs) == 0 || len(x.GPUs) == 0 || slices.Equal(o.GPUs, x.GPUs) {
		return x.Free.Replicas
	}
	return min(x.Free.Replicas, int64(len(x.GPUs))*shares(o))
}

// welcome reports whether an offering admits the pods of a launch, is in the same domains as the launch for the rules about them, and satisfies the preferences
// that the launch satisfies.
func (f *finder) welcome(l planner.Launch, n needs, i int) bool {
	s := f.snapshot
	for _, c := range n.classes {
		class := s.Classes[c]
		if !slices.Contains(class.Offerings, i) {
			return false
		}
		for _, w := range class.Preferences {
			if w.Rule < 0 && slices.Contains(w.Offerings, l.Offering) && !slices.Contains(w.Offerings, i) {
				return false
			}
		}
		for _, t := range f.ruled[c] {
			if domainOf(s.Offerings[i].Domains, t) != domainOf(s.Offerings[l.Offering].Domains, t) {
				return false
			}
		}
	}
	return true
}

// domainOf returns the domain of a machine in a topology, or -1 if it is in none.
func domainOf(domains []int, topology int) int {
	if topology < 0 || topology >= len(domains) {
		return -1
	}
	return domains[topology]
}

// allowed reports whether the limits of the pool allow a machine instead of the chosen one.
func (f *finder) allowed(o, x planner.Offering) bool {
	left, more := f.left[o.Pool], x.Physical.Minus(o.Physical)
	return more.MilliCPU <= max(0, left.MilliCPU) && more.MemoryBytes <= max(0, left.MemoryBytes) && more.GPUs <= max(0, left.GPUs) &&
		more.Replicas <= max(0, left.Replicas)
}
