package solve

import (
	"cmp"
	"slices"
	"strings"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/alternatives"
	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// keeper finds the part of an earlier plan that is still valid.
type keeper struct {
	problem *pack.Problem
	s       planner.Snapshot
	// shape has the shapes of the pods that are not placed yet, by name.
	shape map[string]int
	// offers caches the capacities of launches without alternatives, by offering.
	offers  map[int]*pack.Capacity
	usable  []bool
	room    pack.Room
	leaves  pack.Limits
	without []bool
}

// keep returns the part of an earlier plan that is still valid in a snapshot. Each machine keeps as many of its pods as are still pending and fit. If leaveOut
// is not nil, the pods of the classes that it marks are not kept.
func keep(s planner.Snapshot, earlier planner.Plan, leaveOut []bool) planner.Plan {
	k := keeper{problem: pack.Compile(s), s: s, shape: map[string]int{}, offers: map[int]*pack.Capacity{}, without: leaveOut}
	k.room = pack.Room{Ledger: pack.NewLedger(k.problem)}
	k.leaves = k.problem.Limits.Clone()
	for i := range k.problem.Shapes {
		for _, pod := range k.problem.Shapes[i].Pods {
			if leaveOut == nil || !leaveOut[pod.Class] {
				k.shape[pod.Name] = i
			}
		}
	}
	k.usable = make([]bool, len(s.Offerings))
	for _, i := range pack.UsableOfferings(s) {
		k.usable[i] = true
	}
	var kept planner.Plan
	_, nodeAt := k.problem.Places(s)
	placed := make([]bool, len(s.Nodes))
	for _, x := range earlier.Placements {
		if x.Node < 0 || x.Node >= len(nodeAt) || nodeAt[x.Node] < 0 || placed[x.Node] {
			continue
		}
		placed[x.Node] = true
		if pods, gpus := k.take(&k.problem.Nodes[nodeAt[x.Node]].Capacity, x.Pods); len(pods) > 0 {
			kept.Placements = append(kept.Placements, planner.Placement{Node: x.Node, Pods: pods, GPUs: gpus})
		}
	}
	for _, l := range earlier.Launches {
		if c := k.launchable(l); c != nil {
			if pods, gpus := k.take(c, l.Pods); len(pods) > 0 {
				k.leaves.Launch(k.charge(l))
				kept.Launches = append(kept.Launches, planner.Launch{Offering: l.Offering, Pods: pods, GPUs: gpus, Alternatives: slices.Clone(l.Alternatives)})
				kept.Price += s.Offerings[l.Offering].Price
			}
		}
	}
	return kept
}

// ruled reports for each class whether it is constrained or counted by a rule about more than the pods of one machine.
func ruled(s planner.Snapshot) []bool {
	out := make([]bool, len(s.Classes))
	for _, r := range s.Rules {
		if r.Kind == planner.Apart && r.Topology == planner.PerNode {
			continue
		}
		for _, list := range [][]int{r.Classes, r.Counted} {
			for _, c := range list {
				out[c] = true
			}
		}
	}
	return out
}

// charge returns what a launch counts against the limits of its pool and draws from stocks.
func (k *keeper) charge(l planner.Launch) *pack.Charge {
	c := pack.ChargeOf(k.s.Offerings[l.Offering])
	c.Uses = amount.UsageOf(alternatives.Greatest(k.s, alternatives.Variant{Offering: l.Offering, Alternatives: l.Alternatives}))
	return &c
}

// launchable returns the capacity of the machine of a launch, or nil if it may no longer be launched.
func (k *keeper) launchable(l planner.Launch) *pack.Capacity {
	for _, i := range append([]int{l.Offering}, l.Alternatives...) {
		if i < 0 || i >= len(k.usable) || !k.usable[i] || k.s.Offerings[i].Pool != k.s.Offerings[l.Offering].Pool {
			return nil
		}
	}
	if !k.leaves.Admits(k.charge(l)) {
		return nil
	}
	if c := k.offers[l.Offering]; c != nil && len(l.Alternatives) == 0 {
		return c
	}
	has, _ := alternatives.Least(k.s, l.Offering, l.Alternatives)
	c := pack.NewCapacity(k.problem, has.Free, has.GPUs, has.Quotas)
	c.Fits = make([]int32, len(k.problem.Shapes))
	for i := range k.problem.Shapes {
		class := k.s.Classes[k.problem.Shapes[i].Pods[0].Class]
		missing := func(o int) bool { return !slices.Contains(class.Offerings, o) }
		if !missing(l.Offering) && !slices.ContainsFunc(l.Alternatives, missing) {
			c.Fits[i] = c.Alone(&k.problem.Shapes[i], int32(len(k.problem.Shapes[i].Pods)))
		}
	}
	if len(l.Alternatives) == 0 {
		k.offers[l.Offering] = &c
	}
	return &c
}

// take assigns to a machine as many of the pods as are pending and fit. It returns them with their GPUs.
func (k *keeper) take(c *pack.Capacity, pods []string) ([]string, []int) {
	l, of := make(pack.Load, len(k.problem.Shapes)), make([][]string, len(k.problem.Shapes))
	var known []string
	for _, pod := range slices.Compact(slices.Sorted(slices.Values(pods))) {
		if i, ok := k.shape[pod]; ok {
			known = append(known, pod)
			of[i] = append(of[i], pod)
			l[i]++
		}
	}
	if !k.room.Fill(k.problem, c, l) {
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
	names := pack.Naming{Problem: k.problem, Room: k.room, Take: func(i int, n int32) []string {
		var out []string
		out, of[i] = of[i][:n], of[i][n:]
		return out
	}}
	return names.Pick(c, l)
}

// asManyOf returns the part of a load that the machine can hold. Pods with the largest requests come first.
func (k *keeper) asManyOf(c *pack.Capacity, wanted pack.Load) pack.Load {
	order := make([]int, 0, len(wanted))
	for i, n := range wanted {
		if n > 0 {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(i, j int) int {
		a, b := &k.problem.Shapes[i], &k.problem.Shapes[j]
		return cmp.Or(slices.Compare(b.Request[:], a.Request[:]), strings.Compare(a.Pods[0].Name, b.Pods[0].Name))
	})
	l := make(pack.Load, len(wanted))
	for _, i := range order {
		for n := min(wanted[i], c.Fits[i]); n > 0; n-- {
			if l[i] = n; k.room.Fill(k.problem, c, l) {
				break
			}
			l[i] = 0
		}
	}
	return l
}
