package constraints

import (
	"cmp"
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// problem is a snapshot with its rules, prepared for planning.
type problem struct {
	planner.Snapshot
	rules []rule
	// about is, by class, the indices of the rules that constrain or count its pods, sorted.
	about [][]int
	// order is the classes by their first pods. topologies is the topologies by their keys.
	order      []int
	topologies []int
	// usable reports, by offering, whether it can be launched now.
	usable []bool
	// beginning reports whether the machine for the first pods of a Together rule is being chosen, so that they need not be with others.
	beginning bool
}

func newProblem(s planner.Snapshot) *problem {
	pr := &problem{Snapshot: s, order: pack.ClassOrder(s), usable: make([]bool, len(s.Offerings))}
	for t := range s.Topologies {
		pr.topologies = append(pr.topologies, t)
	}
	slices.SortStableFunc(pr.topologies, func(x, y int) int { return cmp.Compare(s.Topologies[x].Key, s.Topologies[y].Key) })
	limits := pack.LimitsOf(s)
	for i, o := range s.Offerings {
		pr.usable[i] = limits.Usable(s, o)
	}
	preferences := map[int][]constrained{}
	for c, class := range s.Classes {
		for w, preference := range class.Preferences {
			preferences[preference.Rule] = append(preferences[preference.Rule], constrained{c, w + 1})
		}
	}
	for i := range s.Rules {
		pr.rules = append(pr.rules, pr.read(i, preferences[i]))
	}
	pr.merge()
	pr.about = make([][]int, len(s.Classes))
	for i := range pr.rules {
		for _, c := range pr.rules[i].classes() {
			pr.about[c] = append(pr.about[c], i)
		}
	}
	return pr
}

// read returns a rule with the classes that prefer it.
func (pr *problem) read(i int, preference []constrained) rule {
	r := rule{Rule: pr.Rules[i]}
	for _, c := range r.Classes {
		r.constrained = append(r.constrained, constrained{c, math.MaxInt})
	}
	for _, a := range preference {
		r.constrain(a)
	}
	return pr.withDomains(r)
}

// withDomains sets the fields of a rule that come from its topology.
func (pr *problem) withDomains(r rule) rule {
	if r.Topology == planner.PerNode {
		return r
	}
	r.domains = len(pr.Topologies[r.Topology].Domains)
	r.eligible = make([]bool, r.domains)
	for d := range r.eligible {
		r.eligible[d] = r.Eligible == nil
	}
	for _, d := range r.Eligible {
		r.eligible[d] = true
	}
	n := 0
	for _, ok := range r.eligible {
		if ok {
			n++
		}
	}
	r.tooFew = int64(n) < r.MinDomains
	return r
}

// merge merges rules with equal requirements for different classes, so that the pods of one are not treated as unrelated to the other.
func (pr *problem) merge() {
	var kept []rule
	known := map[string]int{}
	for _, r := range pr.rules {
		if len(r.constrained) == 0 {
			continue // It does not constrain any pods.
		}
		key := r.key()
		i, ok := known[key]
		if !ok {
			known[key] = len(kept)
			kept = append(kept, r)
			continue
		}
		for _, a := range r.constrained {
			a.until = max(a.until, kept[i].until(a.class))
			kept[i].constrain(a)
		}
		kept[i].Name = min(kept[i].Name, r.Name)
	}
	slices.SortStableFunc(kept, func(x, y rule) int { return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Kind, y.Kind)) })
	pr.rules = kept
}

// domain returns the domain of a machine in a topology, or -1 if it has none.
func (pr *problem) domain(domains []int, topology int) int {
	if topology < 0 || topology >= len(domains) {
		return -1
	}
	return domains[topology]
}

// labeled returns the offerings and nodes of a class that have the labels which its rules require whatever preferences it gives up.
func (pr *problem) labeled(class int) (offerings, nodes []int) {
	lacks := func(domains []int) bool {
		return slices.ContainsFunc(pr.about[class], func(i int) bool {
			r := &pr.rules[i]
			if r.Topology == planner.PerNode || !r.always(class) || r.Kind == planner.Apart {
				return false
			}
			d := pr.domain(domains, r.Topology)
			return d < 0 || r.Kind == planner.Spread && !r.eligible[d]
		})
	}
	for _, i := range pr.Classes[class].Offerings {
		if !lacks(pr.Offerings[i].Domains) {
			offerings = append(offerings, i)
		}
	}
	for _, i := range pr.Classes[class].Nodes {
		if !lacks(pr.Nodes[i].Domains) {
			nodes = append(nodes, i)
		}
	}
	return offerings, nodes
}
