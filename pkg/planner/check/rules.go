package check

import (
	"fmt"
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// spot is a machine of a plan, as the checks of rules need it.
type spot struct {
	where   string
	machine int // the index of a node, or the number of nodes plus the index of a launch
	domains []int
	classes map[int]int64 // the number of pods of each class
}

// rules checks the places of all pods against the rules, and the alternatives of launches.
func (c *checker) rules(p planner.Plan) {
	var spots []*spot
	note := func(where string, machine int, domains []int, pods []string) {
		x := &spot{where, machine, domains, map[int]int64{}}
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
	at := make([][]*spot, len(c.snapshot.Classes)) // The spots of each class.
	for _, x := range spots {
		for class := range x.classes {
			at[class] = append(at[class], x)
		}
	}
	for i, r := range c.snapshot.Rules {
		c.concerns(nil, slices.Concat(r.Classes, r.Counted)...)
		if r.Kind == planner.Spread {
			c.checkSpread(i, r, at)
		}
		if r.Kind == planner.Apart {
			c.checkApart(i, r, at)
		}
	}
	c.checkTogether(spots, at)
}

// bound returns, for each class that a rule constrains, whether the rule is binding. It is not if the class only prefers it.
func (c *checker) bound(i int, r planner.Rule) map[int]bool {
	out := map[int]bool{}
	for _, class := range r.Classes {
		out[class] = !slices.ContainsFunc(c.snapshot.Classes[class].Preferences, func(w planner.Preference) bool { return w.Rule == i })
	}
	return out
}

// domain returns the domain of a spot for a rule, or -1 if it has none.
func (x *spot) domain(r planner.Rule) int {
	switch {
	case r.Topology == planner.PerNode:
		return x.machine
	case r.Topology < len(x.domains):
		return x.domains[r.Topology]
	}
	return -1
}

func presentAt(r planner.Rule, d int) int64 {
	if d < len(r.Present) {
		return r.Present[d]
	}
	return 0
}

func (c *checker) checkSpread(i int, r planner.Rule, at [][]*spot) {
	counted := map[int]int64{}
	asks := map[int]string{}
	for class, bound := range c.bound(i, r) {
		if !bound {
			continue
		}
		for _, x := range at[class] {
			d := x.domain(r)
			if d < 0 || r.Topology != planner.PerNode && r.Eligible != nil && !slices.Contains(r.Eligible, d) {
				c.bad("%s has pods that %s keeps from it: its domain does not count", x.where, r.Name)
			}
			asks[d] = x.where
		}
	}
	for _, class := range r.Counted {
		for _, x := range at[class] {
			counted[x.domain(r)] += x.classes[class]
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

// fewest returns the smallest number of counted pods in an eligible domain of a spread.
func (c *checker) fewest(r planner.Rule, counted map[int]int64) int64 {
	if r.Topology == planner.PerNode {
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

func (c *checker) checkApart(i int, r planner.Rule, at [][]*spot) {
	bound := c.bound(i, r)
	asking, counted, both := map[int]int64{}, map[int]int64{}, map[int]int64{}
	for class, is := range bound {
		for _, x := range at[class] {
			if is {
				asking[x.domain(r)] += x.classes[class]
			}
		}
	}
	for _, class := range r.Counted {
		for _, x := range at[class] {
			counted[x.domain(r)] += x.classes[class]
			if bound[class] {
				both[x.domain(r)] += x.classes[class]
			}
		}
	}
	for d, n := range asking {
		if d >= 0 && n > 0 && (counted[d] > 1 || counted[d] == 1 && (n > 1 || both[d] == 0)) {
			c.bad("%d pods of %s share domain %d with %d pods that it excludes", n, r.Name, d, counted[d])
		}
	}
}

// alternatives checks that a launch allows the choice that its pool requires, and that each alternative can serve the pods.
func (c *checker) alternatives(where string, l planner.Launch) {
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

// alternative checks that an offering admits and holds the pods of a launch, and is in the same domains as far as rules concern them.
func (c *checker) alternative(where string, l planner.Launch, i int) {
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
			if about && r.Topology != planner.PerNode && here.domain(r) != there.domain(r) {
				c.bad("%s: alternative %d is in another domain of %s for pod %s", where, i, s.Topologies[r.Topology].Key, pod)
			}
		}
	}
	if !c.held(l, s.Offerings[i]) {
		c.bad("%s: alternative %d does not hold its pods", where, i)
	}
}

// held reports whether a machine of an offering holds the pods of a launch, each on the same GPU.
func (c *checker) held(l planner.Launch, o planner.Offering) bool {
	other := checker{snapshot: c.snapshot, class: c.class, seen: map[string]int{}}
	other.pods("", l.Pods, o.Free, nil)
	other.gpus("", l.Pods, l.GPUs, o.GPUs)
	other.quotas("", l.Pods, o.Quotas)
	return len(other.errs) == 0
}
