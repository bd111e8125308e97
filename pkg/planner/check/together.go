package check

import (
	"maps"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// checkTogether checks that the pods can have come one after another: each to a domain where a pod that it follows was, or as the first of its
// like.
func (c *checker) checkTogether(spots []*spot, at [][]*spot) {
	a := newArrival(c, spots, at)
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
	for _, p := range a.left {
		c.concerns(nil, p.class)
		c.bad("%s has %d pods of class %d without any that they have to be together with", p.spot.where, p.spot.classes[p.class], p.class)
	}
}

// arrival is pods that come to their places one after another.
type arrival struct {
	at [][]*spot
	// left are those that have not come yet, in the order of their spots.
	left []arriving
	// binding and counting are, by class, the rules that bind it and those that count it.
	binding, counting [][]*gathering
	rules             []*gathering
	// waits is whether pods that may come at any time let those go first that may only begin while none of them is there.
	waits bool
}

// arriving is the pods of a class that come to a spot.
type arriving struct {
	spot  *spot
	class int
}

// gathering is a rule to be together, and where counted pods are.
type gathering struct {
	planner.Rule
	bound    map[int]bool
	anywhere bool
	here     map[int]bool
	// begins is whether the plan has pods that could begin.
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

// found notes that pods have come.
func (a *arrival) found(p arriving) {
	for _, g := range a.counting[p.class] {
		g.anywhere = true
		if d := p.spot.domain(g.Rule); d >= 0 {
			g.here[d] = true
		}
	}
}

// come lets pods come who find those that they follow, or follow nobody, and reports whether any came.
func (a *arrival) come() bool {
	before := len(a.left)
	a.left = slices.DeleteFunc(a.left, func(p arriving) bool {
		may := a.may(p, false)
		if may {
			a.found(p)
		}
		return may
	})
	return len(a.left) < before
}

// begin lets pods of one class begin on a machine where there are none of its like, and reports whether any did: where the fewest others could come
// before them, since those others can come after.
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
	a.found(a.left[first])
	a.left = slices.Delete(a.left, first, first+1)
	return true
}

// may reports whether pods may come next, be it that they begin.
func (a *arrival) may(p arriving, begin bool) bool {
	return (!a.waits || !a.awaited(p.class)) && !slices.ContainsFunc(a.binding[p.class], func(g *gathering) bool { return !g.lets(p, begin) })
}

func (g *gathering) lets(p arriving, begin bool) bool {
	d := p.spot.domain(g.Rule)
	return d >= 0 && g.here[d] || begin && !g.anywhere && d >= 0 && slices.Contains(g.Counted, p.class)
}

// awaited reports whether pods of a class are counted by a rule, not theirs, under which somebody in the plan could begin and nobody has.
func (a *arrival) awaited(class int) bool {
	return slices.ContainsFunc(a.counting[class], func(g *gathering) bool { return g.begins && !g.bound[class] && !g.anywhere })
}

// others is how many rules of a class that are not kept at a spot yet count other pods in its domain that are awaited, and may come at any time.
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
