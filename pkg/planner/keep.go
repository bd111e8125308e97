package planner

import (
	"cmp"
	"slices"
	"strings"
)

// keeper finds what still holds of an earlier plan.
type keeper struct {
	problem *problem
	s       Snapshot
	// shape is by the names of the pods that have no place yet.
	shape map[string]int
	// offers are the capacities of what may be launched, by offering; only of those without alternatives.
	offers  map[int]*capacity
	usable  []bool
	room    room
	leaves  []usage
	without []bool
}

// keep returns what holds of an earlier plan in a snapshot, with as many of the pods of each machine as still wait and fit. Pods of the classes in
// leaveOut, where that is not nil, are not kept.
func keep(s Snapshot, earlier Plan, leaveOut []bool) Plan {
	k := keeper{problem: compile(s), s: s, shape: map[string]int{}, offers: map[int]*capacity{}, without: leaveOut}
	k.room = room{ledger: newLedger(k.problem)}
	k.leaves = slices.Clone(k.problem.limits)
	for i := range k.problem.shapes {
		for _, pod := range k.problem.shapes[i].pods {
			if leaveOut == nil || !leaveOut[pod.class] {
				k.shape[pod.name] = i
			}
		}
	}
	k.usable = make([]bool, len(s.Offerings))
	for _, i := range usableOfferings(s) {
		k.usable[i] = true
	}
	var kept Plan
	_, nodeAt := k.problem.places(s)
	placed := make([]bool, len(s.Nodes))
	for _, x := range earlier.Placements {
		if x.Node < 0 || x.Node >= len(nodeAt) || nodeAt[x.Node] < 0 || placed[x.Node] {
			continue
		}
		placed[x.Node] = true
		if pods, gpus := k.take(&k.problem.nodes[nodeAt[x.Node]].capacity, x.Pods); len(pods) > 0 {
			kept.Placements = append(kept.Placements, Placement{Node: x.Node, Pods: pods, GPUs: gpus})
		}
	}
	for _, l := range earlier.Launches {
		if c := k.launchable(l); c != nil {
			if pods, gpus := k.take(c, l.Pods); len(pods) > 0 {
				k.leaves[s.Offerings[l.Offering].Pool].launch(k.uses(l))
				kept.Launches = append(kept.Launches, Launch{Offering: l.Offering, Pods: pods, GPUs: gpus, Alternatives: slices.Clone(l.Alternatives)})
				kept.Price += s.Offerings[l.Offering].Price
			}
		}
	}
	return kept
}

// uses is what a launch counts against the limits of its pool.
func (k *keeper) uses(l Launch) usage {
	return usageOf(greatest(k.s, variant{l.Offering, l.Alternatives}))
}

// launchable returns what the machine of a launch has for pods, nil where it may not be launched any more.
func (k *keeper) launchable(l Launch) *capacity {
	for _, i := range append([]int{l.Offering}, l.Alternatives...) {
		if i < 0 || i >= len(k.usable) || !k.usable[i] || k.s.Offerings[i].Pool != k.s.Offerings[l.Offering].Pool {
			return nil
		}
	}
	if !k.leaves[k.s.Offerings[l.Offering].Pool].admits(k.uses(l)) {
		return nil
	}
	if c := k.offers[l.Offering]; c != nil && len(l.Alternatives) == 0 {
		return c
	}
	has, _ := least(k.s, l.Offering, l.Alternatives)
	c := newCapacity(k.problem, has.Free, has.GPUs, has.Quotas)
	c.fits = make([]int32, len(k.problem.shapes))
	for i := range k.problem.shapes {
		class := k.s.Classes[k.problem.shapes[i].pods[0].class]
		missing := func(o int) bool { return !slices.Contains(class.Offerings, o) }
		if !missing(l.Offering) && !slices.ContainsFunc(l.Alternatives, missing) {
			c.fits[i] = c.alone(&k.problem.shapes[i], int32(len(k.problem.shapes[i].pods)))
		}
	}
	if len(l.Alternatives) == 0 {
		k.offers[l.Offering] = &c
	}
	return &c
}

// take gives a machine as many of the pods as wait and fit, all of them where it can, and returns them with their GPUs.
func (k *keeper) take(c *capacity, pods []string) ([]string, []int) {
	l, of := make(load, len(k.problem.shapes)), make([][]string, len(k.problem.shapes))
	var known []string
	for _, pod := range slices.Compact(slices.Sorted(slices.Values(pods))) {
		if i, ok := k.shape[pod]; ok {
			known = append(known, pod)
			of[i] = append(of[i], pod)
			l[i]++
		}
	}
	if !k.room.fill(k.problem, c, l) {
		l = k.asManyOf(c, l)
	}
	for i, n := range l {
		for _, pod := range of[i][:n] {
			delete(k.shape, pod)
		}
	}
	if len(known) == 0 {
		return nil, nil
	}
	names := naming{problem: k.problem, room: k.room, take: func(i int, n int32) []string {
		var out []string
		out, of[i] = of[i][:n], of[i][n:]
		return out
	}}
	return names.pick(c, l)
}

// asManyOf returns what the machine holds of a load, the pods first that ask for most.
func (k *keeper) asManyOf(c *capacity, wanted load) load {
	order := make([]int, 0, len(wanted))
	for i, n := range wanted {
		if n > 0 {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(i, j int) int {
		a, b := &k.problem.shapes[i], &k.problem.shapes[j]
		return cmp.Or(slices.Compare(b.request[:], a.request[:]), strings.Compare(a.pods[0].name, b.pods[0].name))
	})
	l := make(load, len(wanted))
	for _, i := range order {
		for n := min(wanted[i], c.fits[i]); n > 0; n-- {
			if l[i] = n; k.room.fill(k.problem, c, l) {
				break
			}
			l[i] = 0
		}
	}
	return l
}
