package constraints

import (
	"cmp"
	"fmt"
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/alternatives"
)

// Partial is a snapshot for which some pods are already planned. These pods are removed from its classes, their machines are nodes with the remaining
// capacity, and its rules count them. Further plans are based on it.
type Partial struct {
	planner.Snapshot
	// Plan is what is already planned, in terms of the original snapshot. first is the number of nodes of that snapshot; the nodes after them are the
	// launches of Plan.
	Plan  planner.Plan
	first int
}

// NewPartial returns a partial snapshot in which nothing is planned yet.
func NewPartial(s planner.Snapshot) *Partial { return &Partial{Snapshot: s, first: len(s.Nodes)} }

// Clone returns a copy to which other plans can be added.
func (g *Partial) Clone() *Partial {
	c := *g
	c.Plan.Placements, c.Plan.Launches, c.Plan.Unplaced = slices.Clone(g.Plan.Placements), slices.Clone(g.Plan.Launches), slices.Clone(g.Plan.Unplaced)
	return &c
}

// Add adds a plan for the partial snapshot to the plan for the original snapshot.
func (g *Partial) Add(p planner.Plan) {
	for _, x := range p.Placements {
		if v := x.Node - g.first; v >= 0 {
			l := &g.Plan.Launches[v]
			l.Pods, l.GPUs = joined(l.Pods, l.GPUs, x.Pods, x.GPUs)
			continue
		}
		i := slices.IndexFunc(g.Plan.Placements, func(y planner.Placement) bool { return y.Node == x.Node })
		if i < 0 {
			g.Plan.Placements = append(g.Plan.Placements, x)
			continue
		}
		y := &g.Plan.Placements[i]
		y.Pods, y.GPUs = joined(y.Pods, y.GPUs, x.Pods, x.GPUs)
	}
	g.Plan.Launches = append(g.Plan.Launches, p.Launches...)
	g.Plan.Price += p.Price
	g.Plan.Unplaced = append(g.Plan.Unplaced, p.Unplaced...)
}

// joined merges the pods of two plans for one machine, by name, and their GPUs. The GPUs are nil if no pod has one.
func joined(pods []string, gpus []int, more []string, moreGPUs []int) ([]string, []int) {
	all := append(slices.Clone(pods), more...)
	at := make([]int, len(all))
	for i := range at {
		at[i] = i
	}
	slices.SortFunc(at, func(i, j int) int { return cmp.Compare(all[i], all[j]) })
	gpu := func(i int) int {
		switch {
		case i < len(gpus):
			return gpus[i]
		case i >= len(pods) && i-len(pods) < len(moreGPUs):
			return moreGPUs[i-len(pods)]
		}
		return -1
	}
	names, on := make([]string, len(all)), make([]int, len(all))
	for to, from := range at {
		names[to], on[to] = all[from], gpu(from)
	}
	if gpus == nil && moreGPUs == nil {
		on = nil
	}
	return names, on
}

// Fix adds a plan for the partial snapshot to the plan, except for the pods that it does not place, and updates the snapshot.
func (g *Partial) Fix(p planner.Plan) {
	p.Unplaced = nil
	g.Add(p)
	class := g.ClassByPod()
	s := &g.Snapshot
	s.Nodes, s.Pools, s.Classes, s.Rules = slices.Clone(s.Nodes), slices.Clone(s.Pools), slices.Clone(s.Classes), slices.Clone(s.Rules)
	s.Stocks = slices.Clone(s.Stocks)
	for i := range s.Rules {
		s.Rules[i].Present = slices.Clone(s.Rules[i].Present)
	}
	for c := range s.Classes { // Once for all launches: with many nodes, a copy for each of them would be most of the work.
		class := &s.Classes[c]
		class.Nodes, class.Preferences = slices.Clone(class.Nodes), slices.Clone(class.Preferences)
		for i := range class.Preferences {
			class.Preferences[i].Nodes = slices.Clone(class.Preferences[i].Nodes)
		}
	}
	for _, l := range p.Launches {
		v := g.launched(l)
		g.occupy(v, l.Pods, l.GPUs, class)
	}
	for _, x := range p.Placements {
		g.occupy(x.Node, x.Pods, x.GPUs, class)
	}
	bound := map[string]bool{}
	for _, x := range p.Placements {
		for _, pod := range x.Pods {
			bound[pod] = true
		}
	}
	for _, l := range p.Launches {
		for _, pod := range l.Pods {
			bound[pod] = true
		}
	}
	s.Groups = stillNeeded(*s, bound)
	*s = without(*s, func(_ int, pod string) bool { return bound[pod] })
}

// stillNeeded returns the groups that need more pods than those that are placed.
func stillNeeded(s planner.Snapshot, placed map[string]bool) []planner.Group {
	var groups []planner.Group
	for _, group := range s.Groups {
		for _, c := range group.Classes {
			for _, pod := range s.Classes[c].Pods {
				if placed[pod] {
					group.Min--
				}
			}
		}
		if group.Min > 0 {
			groups = append(groups, group)
		}
	}
	return groups
}

// launched adds a node for a launch, for the classes that all its alternatives admit. It changes their lists of nodes.
func (g *Partial) launched(l planner.Launch) int {
	s := &g.Snapshot
	v := len(s.Nodes)
	o := s.Offerings[l.Offering]
	has, mixed := alternatives.Least(*s, l.Offering, l.Alternatives)
	s.Nodes = append(s.Nodes, planner.Node{
		Name: fmt.Sprintf("~%06d", v), Free: has.Free, GPUs: has.GPUs, Quotas: has.Quotas, Domains: has.Domains,
	})
	s.Pools[o.Pool].Remaining.Take(alternatives.Greatest(*s, alternatives.Variant{Offering: l.Offering, Alternatives: l.Alternatives}))
	planner.Take(s.Stocks, o.Draws)
	all := func(list []int) bool {
		return slices.Contains(list, l.Offering) && !slices.ContainsFunc(l.Alternatives, func(i int) bool { return !slices.Contains(list, i) })
	}
	ruled := map[int]bool{}
	for _, r := range s.Rules {
		for _, c := range append(slices.Clone(r.Classes), r.Counted...) {
			ruled[c] = ruled[c] || r.Topology != planner.PerNode
		}
	}
	for c := range s.Classes {
		class := &s.Classes[c]
		if !all(class.Offerings) || mixed && ruled[c] {
			continue
		}
		class.Nodes = append(class.Nodes, v)
		for i := range class.Preferences {
			if w := &class.Preferences[i]; w.Rule < 0 && all(w.Offerings) {
				w.Nodes = append(w.Nodes, v)
			}
		}
	}
	return v
}

// occupy subtracts pods from the capacity of a node, and counts them.
func (g *Partial) occupy(v int, pods []string, gpus []int, class map[string]int) {
	n := &g.Nodes[v]
	n.GPUs, n.Quotas = slices.Clone(n.GPUs), slices.Clone(n.Quotas)
	counts := map[int]int64{}
	for i, pod := range pods {
		gpu := -1
		if i < len(gpus) {
			gpu = gpus[i]
		}
		counts[class[pod]]++
		g.Occupy(n, class[pod], gpu)
	}
	for i := range g.Rules {
		g.count(&g.Rules[i], i, v, counts)
	}
}

// count adds pods on a node to those that a rule counts. Pods that must be apart from them lose the places.
func (g *Partial) count(r *planner.Rule, index, v int, counts map[int]int64) {
	d := v
	if r.Topology != planner.PerNode {
		d = -1
		if t := g.Nodes[v].Domains; r.Topology < len(t) {
			d = t[r.Topology]
		}
	}
	var counted int64
	asked := false
	for c, n := range counts {
		if slices.Contains(r.Counted, c) {
			counted += n
		}
		asked = asked || g.always(*r, index, c)
	}
	switch {
	case d >= 0:
		for len(r.Present) <= d {
			r.Present = append(r.Present, 0)
		}
		r.Present[d] += counted
	default:
		r.Elsewhere += counted
	}
	switch {
	case d < 0 || !asked:
	case r.Kind == planner.Apart:
		g.forbid(r.Counted, r.Topology, d)
	case r.Kind == planner.Spread:
		g.guard(r, index, d)
	}
}

// always reports whether a rule constrains the pods of a class whatever preferences they give up.
func (g *Partial) always(r planner.Rule, index, class int) bool {
	return slices.Contains(r.Classes, class) && !slices.ContainsFunc(g.Classes[class].Preferences, func(w planner.Preference) bool { return w.Rule == index })
}

// guard keeps counted pods that the spread does not constrain out of a domain in which they could exceed the skew for the constrained pods there.
func (g *Partial) guard(r *planner.Rule, index, d int) {
	var strangers []int
	waiting := int64(0)
	for _, c := range r.Counted {
		if !g.always(*r, index, c) {
			strangers = append(strangers, c)
			waiting += int64(len(g.Classes[c].Pods))
		}
	}
	pr := &problem{Snapshot: g.Snapshot}
	x := pr.withDomains(rule{Rule: *r})
	pr.rules = []rule{x}
	c := census{problem: pr, counted: [][]int64{nil}}
	for e := range x.domains {
		c.counted[0] = append(c.counted[0], x.present(e))
	}
	fewest := int64(0)
	if r.Topology != planner.PerNode {
		fewest = c.fewest(0)
	}
	if fewest+r.MaxSkew-x.present(d) < waiting {
		g.forbid(strangers, r.Topology, d)
	}
}

// forbid removes the machines of a domain from those of classes.
func (g *Partial) forbid(classes []int, topology, d int) {
	in := func(domains []int) bool { return topology < len(domains) && domains[topology] == d }
	for _, c := range classes {
		class := &g.Classes[c]
		class.Nodes = slices.DeleteFunc(slices.Clone(class.Nodes), func(v int) bool {
			return topology == planner.PerNode && v == d || topology != planner.PerNode && in(g.Nodes[v].Domains)
		})
		if topology != planner.PerNode {
			class.Offerings = slices.DeleteFunc(slices.Clone(class.Offerings), func(i int) bool { return in(g.Offerings[i].Domains) })
		}
	}
}
