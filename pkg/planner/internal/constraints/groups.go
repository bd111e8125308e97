package constraints

import (
	"maps"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// Limits on the choice of a machine for pods that have to share one.
const (
	// maxFits is the number of machines that are tried for a whole group. maxParts is the number if none holds all of it.
	maxFits  = 64
	maxParts = 12
	// maxMachines is the maximum number of machines for pods that follow others which are not bound to each other.
	maxMachines = 100
)

// gather plans the pods that have to share a machine with others of the plan, each group on one machine. If sparing is true, it leaves nodes to others
// that may need them more than a group that can have a machine of its own. It removes groups for which there is no time from the snapshot and returns
// them. The first one is always planned.
func (a *arranger) gather(g *Partial, sparing bool) []planner.Unplaced {
	pr := newProblem(g.Snapshot)
	late := map[int]bool{}
	for i, group := range pr.groups() {
		for n := range maxMachines {
			if i+n > 0 && a.stopped() {
				for _, c := range group {
					late[c] = late[c] || pr.mustFollow(c)
				}
				break
			}
			if !a.colocate(g, group, sparing) {
				break
			}
		}
	}
	return postponed(g, late)
}

// mustFollow reports whether pods of a class have to be on a machine with others whatever preferences they give up.
func (pr *problem) mustFollow(class int) bool {
	return slices.ContainsFunc(pr.about[class], func(i int) bool { return pr.together(i) && pr.rules[i].always(class) })
}

// postponed removes the pods of classes from the snapshot, and returns them.
func postponed(g *Partial, classes map[int]bool) []planner.Unplaced {
	if len(classes) == 0 {
		return nil
	}
	var out []planner.Unplaced
	for c := range g.Classes {
		if classes[c] {
			for _, pod := range g.Classes[c].Pods {
				out = append(out, planner.Unplaced{Pod: pod, Refusal: planner.NextRound})
			}
		}
	}
	g.Snapshot = without(g.Snapshot, func(c int, _ string) bool { return classes[c] })
	return out
}

// groups returns the sets of classes that are connected by rules to be together on one machine, in the order of their pods.
func (pr *problem) groups() [][]int {
	of := make([]int, len(pr.Classes))
	for c := range of {
		of[c] = c
	}
	asked := map[int]bool{}
	for i := range pr.rules {
		if !pr.together(i) {
			continue
		}
		r := &pr.rules[i]
		about := r.classes()
		for _, a := range r.constrained {
			asked[a.class] = true
		}
		for _, c := range about {
			of[root(of, c)] = root(of, about[0])
		}
	}
	groups, at := [][]int{}, map[int]int{}
	for _, c := range pr.order {
		group, ok := at[root(of, c)]
		if !ok {
			group = len(groups)
			at[root(of, c)] = group
			groups = append(groups, nil)
		}
		groups[group] = append(groups[group], c)
	}
	return slices.DeleteFunc(groups, func(group []int) bool { return !slices.ContainsFunc(group, func(c int) bool { return asked[c] }) })
}

// root returns the root of the tree of i in a forest that is given by the parent of each element.
func root(parent []int, i int) int {
	for parent[i] != i {
		parent[i] = parent[parent[i]]
		i = parent[i]
	}
	return i
}

// colocated is a set of pods, by class, that are placed together on one machine. leads are the classes that the others need.
type colocated struct {
	given int
	pods  map[int]int
	leads map[int]bool
}

// colocate places pods of a group on one machine and reports whether it did. It chooses the cheapest machine that holds them all, or else the one that holds most.
func (a *arranger) colocate(g *Partial, group []int, sparing bool) bool {
	pr := newProblem(g.Snapshot)
	pr.beginning = true
	var best colocation
	preferences := 0
	for _, c := range group {
		preferences = max(preferences, len(pr.Classes[c].Preferences))
	}
	for given := 0; given <= preferences; given++ {
		p := pr.colocated(group, given)
		if p == nil {
			continue
		}
		found := a.choose(pr, p, sparing)
		if found.pods > best.pods {
			best = found
		}
		if found.all {
			break
		}
	}
	if best.pods == 0 {
		return false
	}
	g.Fix(best.plan)
	return true
}

// colocated returns the pods of a group that can be placed on a new machine. These are pods that may be the first, pods that may follow those, and pods
// that can follow a waiting pod without such a rule. It returns nil if there are none.
func (pr *problem) colocated(group []int, given int) *colocated {
	p := &colocated{given: given, pods: map[int]int{}, leads: map[int]bool{}}
	var members, free []int
	for _, c := range group {
		switch {
		case len(pr.Classes[c].Pods) == 0:
		case pr.follows(c, given):
			members = append(members, c)
		default:
			free = append(free, c)
		}
	}
	join := func(present map[int]int) bool {
		i := slices.IndexFunc(members, func(c int) bool { return p.pods[c] == 0 && pr.founded(c, given, present, nil) })
		if i >= 0 {
			p.pods[members[i]] = len(pr.Classes[members[i]].Pods)
		}
		return i >= 0
	}
	for again := true; again; {
		for again = false; join(p.pods); again = true {
			continue
		}
		for _, x := range free {
			led := maps.Clone(p.pods)
			led[x] = 1
			if !p.leads[x] && join(led) {
				p.pods[x], p.leads[x], again = 1, true, true
			}
		}
	}
	if len(p.pods) == 0 {
		return nil
	}
	return p
}

// follows reports whether pods of a class have to be on a machine with others.
func (pr *problem) follows(class, given int) bool {
	for _, i := range pr.about[class] {
		if pr.together(i) && pr.rules[i].binds(class, given) {
			return true
		}
	}
	return false
}

// wellFounded reports whether the pods on a machine can be placed in some order.
func (pr *problem) wellFounded(given int, placed map[int]int, domains []int) bool {
	in := map[int]int{}
	for again := true; again; {
		again = false
		for c, n := range placed {
			if n > 0 && in[c] == 0 && pr.founded(c, given, in, domains) {
				in[c], again = n, true
			}
		}
	}
	for c, n := range placed {
		if n > 0 && in[c] == 0 {
			return false
		}
	}
	return true
}

func (pr *problem) together(i int) bool {
	return pr.rules[i].Kind == planner.Together && pr.rules[i].Topology == planner.PerNode
}

// founded reports whether pods of a class may be on a machine with the given others. Rules about domains are checked if the domains of the machine are given.
func (pr *problem) founded(class, given int, placed map[int]int, domains []int) bool {
	for _, i := range pr.about[class] {
		r := &pr.rules[i]
		switch {
		case r.Kind != planner.Together || !r.binds(class, given) || r.counts(class) && r.somewhere() == 0:
		case r.Topology != planner.PerNode && (domains == nil || r.present(domains[r.Topology]) > 0):
		case !slices.ContainsFunc(r.Counted, func(x int) bool { return x != class && placed[x] > 0 }):
			return false
		}
	}
	return true
}
