package planner

import (
	"fmt"
	"maps"
	"math"
	"slices"
)

// spot is a machine of a plan for the checks of rules.
type spot struct {
	where   string
	machine int // a node's index, or a number from the number of nodes on
	domains []int
	classes map[int]int64 // how many pods of each class are there
	founded map[int]bool  // the classes of which it is known how the first pod came there
}

// rules checks the places of all pods against the rules, and the choice that launches leave against minValues.
func (c *checker) rules(p Plan) {
	var spots []*spot
	note := func(where string, machine int, domains []int, pods []string) {
		x := &spot{where, machine, domains, map[int]int64{}, map[int]bool{}}
		for _, pod := range pods {
			if class, ok := c.class[pod]; ok {
				x.classes[class]++
			}
		}
		spots = append(spots, x)
	}
	for _, x := range p.Placements {
		if x.Node >= 0 && x.Node < len(c.snapshot.Nodes) {
			note("node "+c.snapshot.Nodes[x.Node].Name, x.Node, c.snapshot.Nodes[x.Node].Domains, x.Pods)
		}
	}
	for i, l := range p.Launches {
		if l.Offering >= 0 && l.Offering < len(c.snapshot.Offerings) {
			note(fmt.Sprintf("launch %d", i), len(c.snapshot.Nodes)+i, c.snapshot.Offerings[l.Offering].Domains, l.Pods)
			c.concerns(l.Pods)
			c.alternatives(fmt.Sprintf("launch %d", i), l)
		}
	}
	for i, r := range c.snapshot.Rules {
		c.concerns(nil, slices.Concat(r.Classes, r.Counted)...)
		if r.Kind == Spread {
			c.checkSpread(i, r, spots)
		}
		if r.Kind == Apart {
			c.checkApart(i, r, spots)
		}
	}
	c.checkTogether(spots)
}

// bound returns the classes that a rule binds whatever they wish.
func (c *checker) bound(i int, r Rule) map[int]bool {
	out := map[int]bool{}
	for _, class := range r.Classes {
		out[class] = !slices.ContainsFunc(c.snapshot.Classes[class].Wishes, func(w Wish) bool { return w.Rule == i })
	}
	return out
}

// domain is the domain of a spot for a rule, -1 for none.
func (x *spot) domain(r Rule) int {
	switch {
	case r.Topology == PerNode:
		return x.machine
	case r.Topology < len(x.domains):
		return x.domains[r.Topology]
	}
	return -1
}

func presentAt(r Rule, d int) int64 {
	if d < len(r.Present) {
		return r.Present[d]
	}
	return 0
}

func (c *checker) checkSpread(i int, r Rule, spots []*spot) {
	bound := c.bound(i, r)
	counted := map[int]int64{}
	asks := map[int]string{}
	for _, x := range spots {
		d := x.domain(r)
		for class, n := range x.classes {
			if bound[class] {
				if d < 0 || r.Topology != PerNode && r.Eligible != nil && !slices.Contains(r.Eligible, d) {
					c.bad("%s has pods that %s keeps from it: its domain does not count", x.where, r.Name)
				}
				asks[d] = x.where
			}
			if slices.Contains(r.Counted, class) {
				counted[d] += n
			}
		}
	}
	fewest := c.fewest(r, counted)
	for d, where := range asks {
		if d < 0 {
			continue
		}
		if n := presentAt(r, d) + counted[d]; n-fewest > r.MaxSkew {
			c.bad("%s and its domain have %d pods that %s counts, another one %d: more than %d apart", where, n, r.Name, fewest, r.MaxSkew)
		}
	}
}

// fewest is how many counted pods the domain with the fewest has that counts for a spread.
func (c *checker) fewest(r Rule, counted map[int]int64) int64 {
	if r.Topology == PerNode {
		return 0
	}
	eligible := r.Eligible
	if eligible == nil {
		for d := range c.snapshot.Topologies[r.Topology].Domains {
			eligible = append(eligible, d)
		}
	}
	if int64(len(eligible)) < r.MinDomains {
		return 0
	}
	fewest := int64(math.MaxInt64)
	for _, d := range eligible {
		fewest = min(fewest, presentAt(r, d)+counted[d])
	}
	return fewest
}

func (c *checker) checkApart(i int, r Rule, spots []*spot) {
	bound := c.bound(i, r)
	asking, counted, both := map[int]int64{}, map[int]int64{}, map[int]int64{}
	for _, x := range spots {
		d := x.domain(r)
		for class, n := range x.classes {
			if bound[class] {
				asking[d] += n
			}
			if slices.Contains(r.Counted, class) {
				counted[d] += n
				if bound[class] {
					both[d] += n
				}
			}
		}
	}
	for d, n := range asking {
		if d >= 0 && n > 0 && (counted[d] > 1 || counted[d] == 1 && (n > 1 || both[d] == 0)) {
			c.bad("%d pods of %s share domain %d with %d pods that it excludes", n, r.Name, d, counted[d])
		}
	}
}

// checkTogether checks that the pods can have come one after another: each to a domain where a pod that it follows was, or as the first of its
// like.
func (c *checker) checkTogether(spots []*spot) {
	a := arrival{checker: c, spots: spots, bound: map[int]map[int]bool{}, waits: true}
	for i, r := range c.snapshot.Rules {
		if r.Kind == Together && len(r.Classes) > 0 {
			a.rules = append(a.rules, i)
			a.bound[i] = c.bound(i, r)
		}
	}
	if len(a.rules) == 0 {
		return
	}
	for a.come() || a.begin() {
		continue
	}
	a.waits = false
	for a.come() || a.begin() {
		continue
	}
	for _, x := range spots {
		for class, n := range x.classes {
			if !x.founded[class] {
				c.concerns(nil, class)
				c.bad("%s has %d pods of class %d without any that they have to be together with", x.where, n, class)
			}
		}
	}
}

// arrival is pods that come to their places one after another.
type arrival struct {
	*checker
	spots []*spot
	rules []int
	bound map[int]map[int]bool
	// waits is whether pods that may come at any time let those go first that may only begin while none of them is there.
	waits bool
}

// come lets pods come who find those that they follow, or follow nobody, and reports whether any came.
func (a *arrival) come() bool {
	came := false
	for _, x := range a.spots {
		for class := range x.classes {
			if a.may(class, x, false) {
				x.founded[class], came = true, true
			}
		}
	}
	return came
}

// begin lets pods of one class begin on a machine where there are none of its like, and reports whether any did: where the fewest others could come
// before them, since those others can come after.
func (a *arrival) begin() bool {
	var first *spot
	least, begins := 0, 0
	awaited := make([]bool, len(a.snapshot.Classes))
	for class := range awaited {
		awaited[class] = a.awaited(class)
	}
	for _, x := range a.spots {
		for _, class := range slices.Sorted(maps.Keys(x.classes)) {
			if !a.may(class, x, true) {
				continue
			}
			if n := a.others(x, class, awaited); first == nil || n < least {
				first, least, begins = x, n, class
			}
		}
	}
	if first != nil {
		first.founded[begins] = true
	}
	return first != nil
}

// may reports whether pods of a class may come to a spot next, be it that they begin.
func (a *arrival) may(class int, x *spot, begin bool) bool {
	return !x.founded[class] && (!a.waits || !a.awaited(class)) &&
		!slices.ContainsFunc(a.rules, func(i int) bool { return !a.lets(i, class, x, begin) })
}

// there reports whether counted pods of a rule are anywhere, and whether in the domain of a spot.
func (a *arrival) there(i int, x *spot) (anywhere, here bool) {
	r := a.snapshot.Rules[i]
	anywhere = r.Elsewhere > 0 || slices.ContainsFunc(r.Present, func(n int64) bool { return n > 0 })
	d := x.domain(r)
	here = d >= 0 && presentAt(r, d) > 0
	for _, y := range a.spots {
		for other := range y.founded {
			if slices.Contains(r.Counted, other) {
				anywhere = true
				here = here || d >= 0 && y.domain(r) == d
			}
		}
	}
	return anywhere, here
}

func (a *arrival) lets(i, class int, x *spot, begin bool) bool {
	if !a.bound[i][class] {
		return true
	}
	r := a.snapshot.Rules[i]
	anywhere, here := a.there(i, x)
	return here || begin && !anywhere && x.domain(r) >= 0 && slices.Contains(r.Counted, class)
}

// awaited reports whether pods of a class are counted by a rule, not theirs, under which somebody in the plan could begin and nobody has.
func (a *arrival) awaited(class int) bool {
	return slices.ContainsFunc(a.rules, func(i int) bool {
		r := a.snapshot.Rules[i]
		anywhere, _ := a.there(i, &spot{machine: -1})
		begins := slices.ContainsFunc(r.Counted, func(c int) bool {
			return a.bound[i][c] && slices.ContainsFunc(a.spots, func(x *spot) bool { return x.classes[c] > 0 })
		})
		return begins && !a.bound[i][class] && !anywhere && slices.Contains(r.Counted, class)
	})
}

// others is how many rules of a class that are not kept at a spot yet count other pods in its domain that are awaited, and may come at any time.
func (a *arrival) others(x *spot, class int, awaited []bool) int {
	n := 0
	for _, i := range a.rules {
		r := a.snapshot.Rules[i]
		if _, here := a.there(i, x); here || !a.bound[i][class] {
			continue
		}
		if slices.ContainsFunc(a.spots, func(y *spot) bool {
			return y.domain(r) == x.domain(r) && slices.ContainsFunc(r.Counted, func(c int) bool { return c != class && y.classes[c] > 0 && awaited[c] })
		}) {
			n++
		}
	}
	return n
}

// alternatives checks that a launch leaves the choice that its pool demands, and that each alternative would do as well.
func (c *checker) alternatives(where string, l Launch) {
	s := c.snapshot
	pool := s.Pools[s.Offerings[l.Offering].Pool]
	all := []int{l.Offering}
	for _, i := range l.Alternatives {
		switch {
		case i < 0 || i >= len(s.Offerings):
			c.bad("%s: there is no offering %d", where, i)
			continue
		case slices.Contains(all, i):
			c.bad("%s: offering %d is named twice", where, i)
		case s.Offerings[i].Pool != s.Offerings[l.Offering].Pool:
			c.bad("%s: alternative %d is of another pool", where, i)
		case s.Offerings[i].Unavailable != nil:
			c.bad("%s: alternative %d is unavailable", where, i)
		}
		all = append(all, i)
		c.alternative(where, l, i)
	}
	if len(pool.MinValues) == 0 {
		c.freely(where, l, all)
	}
	for _, m := range pool.MinValues {
		values := map[string]bool{}
		for _, i := range all {
			if i < len(m.Values) && m.Values[i] != "" {
				values[m.Values[i]] = true
			}
		}
		if len(values) < m.Min {
			c.bad("%s leaves %d values of %s, pool %s asks for %d", where, len(values), m.Key, pool.Name, m.Min)
		}
	}
}

// alternative checks that an offering admits and holds the pods of a launch, and is where the rules have them.
func (c *checker) alternative(where string, l Launch, i int) {
	s := c.snapshot
	here := &spot{domains: s.Offerings[l.Offering].Domains}
	there := &spot{domains: s.Offerings[i].Domains}
	for _, pod := range l.Pods {
		at, ok := c.class[pod]
		if !ok {
			continue
		}
		if !slices.Contains(s.Classes[at].Offerings, i) {
			c.bad("%s: alternative %d does not admit pod %s", where, i, pod)
		}
		for _, r := range s.Rules {
			about := slices.Contains(r.Classes, at) || slices.Contains(r.Counted, at)
			if about && r.Topology != PerNode && here.domain(r) != there.domain(r) {
				c.bad("%s: alternative %d is in another domain of %s for pod %s", where, i, s.Topologies[r.Topology].Key, pod)
			}
		}
	}
	if !c.held(l, s.Offerings[i]) {
		c.bad("%s: alternative %d does not hold its pods", where, i)
	}
}

// held reports whether a machine of an offering holds the pods of a launch, each on the same GPU.
func (c *checker) held(l Launch, o Offering) bool {
	free, gpus, quotas := o.Free, slices.Clone(o.GPUs), map[int]int64{}
	for q, quota := range c.snapshot.Quotas {
		quotas[q] = quota.Each
	}
	for _, a := range o.Quotas {
		quotas[a.Quota] = a.Count
	}
	for k, pod := range l.Pods {
		at, ok := c.class[pod]
		if !ok {
			continue
		}
		class := c.snapshot.Classes[at]
		free.MilliCPU -= class.Requests.MilliCPU
		free.MemoryBytes -= class.Requests.MemoryBytes
		free.EphemeralBytes -= class.Requests.EphemeralBytes
		free.Pods -= class.Requests.Pods
		free.Replicas -= class.Requests.Replicas
		for _, a := range class.Quotas {
			if quotas[a.Quota] != Unlimited {
				quotas[a.Quota] -= a.Count
			}
		}
		if class.GPUMemoryBytes == 0 {
			continue
		}
		if k >= len(l.GPUs) || l.GPUs[k] < 0 || l.GPUs[k] >= len(gpus) {
			return false
		}
		gpus[l.GPUs[k]].Replicas -= class.Requests.Replicas
		gpus[l.GPUs[k]].MemoryBytes -= class.GPUMemoryBytes
	}
	for _, left := range quotas {
		if left < 0 {
			return false
		}
	}
	return !slices.ContainsFunc(gpus, func(g GPU) bool { return g.Replicas < 0 || g.MemoryBytes < 0 }) &&
		min(free.MilliCPU, free.MemoryBytes, free.EphemeralBytes, free.Pods, free.Replicas) >= 0
}
