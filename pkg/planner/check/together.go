package check

import (
	"maps"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// checkTogether checks that the pods can be placed in some order such that each pod either goes to a domain that already has a pod it must be together
// with, or may be the first of its group.
func (c *checker) checkTogether(spots []*spot, at [][]*spot) {
	a := newArrival(c, spots, at)
	if len(a.rules) == 0 {
		return
	}
	for a.placeReady() || a.begin() {
		continue
	}
	a.waits = false
	for a.placeReady() || a.begin() {
		continue
	}
	for _, p := range a.left {
		c.concerns(nil, p.class)
		c.bad("%s has %d pods of class %d without any that they have to be together with", p.spot.where, p.spot.classes[p.class], p.class)
	}
}

// arrival is a partial order of placement of the pods of a plan.
type arrival struct {
	at [][]*spot
	// left are the pods that are not placed yet, in the order of their spots.
	left []arriving
	// binding are the rules that bind each class. counting are those that count it.
	binding, counting [][]*gathering
	rules             []*gathering
	// waits reports whether pods that may be placed at any time wait for pods that may only be the first of their group while none of the former is placed.
	waits bool
}

// arriving is the pods of a class at one spot.
type arriving struct {
	spot  *spot
	class int
}

// gathering is a Together rule with the domains that have counted pods.
type gathering struct {
	planner.Rule
	bound    map[int]bool
	anywhere bool
	here     map[int]bool
	// begins reports whether the plan has pods that may be the first of the group.
	begins bool
}

func newArrival(c *checker, spots []*spot, at [][]*spot) *arrival {
	a := &arrival{at: at, binding: make([][]*gathering, len(at)), counting: make([][]*gathering, len(at)), waits: true}
	for i, r := range c.snapshot.Rules {
		if r.Kind != planner.Together || len(r.Classes) == 0 {
			continue
		}
		g := &gathering{Rule: r, bound: c.bound(i, r), here: map[int]bool{}, anywhere: r.Elsewhere > 0}
		for d, n := range r.Present {
			if n > 0 {
				g.here[d], g.anywhere = true, true
			}
		}
		for class, is := range g.bound {
			if is {
				a.binding[class] = append(a.binding[class], g)
			}
		}
		for _, class := range r.Counted {
			a.counting[class] = append(a.counting[class], g)
			g.begins = g.begins || g.bound[class] && len(at[class]) > 0
		}
		a.rules = append(a.rules, g)
	}
	for _, x := range spots {
		for _, class := range slices.Sorted(maps.Keys(x.classes)) {
			a.left = append(a.left, arriving{x, class})
		}
	}
	return a
}

// place records that pods are placed.
func (a *arrival) place(p arriving) {
	for _, g := range a.counting[p.class] {
		g.anywhere = true
		if d := p.spot.domain(g.Rule); d >= 0 {
			g.here[d] = true
		}
	}
}

// placeReady places all pods whose counted pods are already placed, and pods without a Together rule. It reports whether it placed any.
func (a *arrival) placeReady() bool {
	before := len(a.left)
	a.left = slices.DeleteFunc(a.left, func(p arriving) bool {
		may := a.may(p, false)
		if may {
			a.place(p)
		}
		return may
	})
	return len(a.left) < before
}

// begin places pods of one class as the first of their group, and reports whether there were any. It prefers pods for which the fewest other pods could be
// placed first, because those others can follow.
func (a *arrival) begin() bool {
	first, least := -1, 0
	for k, p := range a.left {
		if !a.may(p, true) {
			continue
		}
		if n := a.others(p); first < 0 || n < least {
			first, least = k, n
		}
		if least == 0 {
			break
		}
	}
	if first < 0 {
		return false
	}
	a.place(a.left[first])
	a.left = slices.Delete(a.left, first, first+1)
	return true
}

// may reports whether pods may be placed next. If begin is true, they may also be the first of their group.
func (a *arrival) may(p arriving, begin bool) bool {
	return (!a.waits || !a.awaited(p.class)) && !slices.ContainsFunc(a.binding[p.class], func(g *gathering) bool { return !g.lets(p, begin) })
}

func (g *gathering) lets(p arriving, begin bool) bool {
	d := p.spot.domain(g.Rule)
	return d >= 0 && g.here[d] || begin && !g.anywhere && d >= 0 && slices.Contains(g.Counted, p.class)
}

// awaited reports whether pods of a class are counted by a rule that does not bind them, of which no counted pod is placed yet, although the plan has pods
// that may be the first.
func (a *arrival) awaited(class int) bool {
	return slices.ContainsFunc(a.counting[class], func(g *gathering) bool { return g.begins && !g.bound[class] && !g.anywhere })
}

// others returns the number of unmet rules of a class that count other awaited pods in the domain of the spot. These pods could be placed at any time.
func (a *arrival) others(p arriving) int {
	n := 0
	for _, g := range a.binding[p.class] {
		d := p.spot.domain(g.Rule)
		if d >= 0 && g.here[d] {
			continue
		}
		if slices.ContainsFunc(g.Counted, func(c int) bool {
			return c != p.class && a.awaited(c) && slices.ContainsFunc(a.at[c], func(y *spot) bool { return y.domain(g.Rule) == d })
		}) {
			n++
		}
	}
	return n
}
