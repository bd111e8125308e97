package consolidate

import (
	"cmp"
	"slices"
	"strings"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/search"
)

// change is an independent part of a solution: the machines that leave, the launches for their pods, and the places that the pods take on nodes.
type change struct {
	leave []int // indices of candidates, sorted
	plan  planner.Plan
}

// splitter divides a solution into independent parts. Pods of a shape are interchangeable, so it may choose which pods go where. A launch joins the parts
// of the machines whose pods it takes. Room on nodes joins none.
type splitter struct {
	improver *improver
	stepper  *stepper
	s        *solution
	// rest are the pods of each machine that are not placed yet, as loads. names are the same pods by name.
	rest  []pack.Load
	names [][][]string
	// of is, by machine, another machine of the same part, or the machine itself if it represents the part.
	of []int
	// net is, by machine that represents a part, the saving of the part less its moves and launches.
	net []int64
}

func newSplitter(st *stepper, v *improver) *splitter {
	t := &splitter{improver: v, stepper: st, s: v.best, of: make([]int, len(v.existing)), net: make([]int64, len(v.existing))}
	shape := map[string]int{}
	for k := range v.ctx.Problem.Shapes {
		for _, pod := range v.ctx.Problem.Shapes[k].Pods {
			shape[pod.Name] = k
		}
	}
	for i := range v.existing {
		x := &v.existing[i]
		t.of[i], t.net[i] = i, x.keeps()
		t.rest = append(t.rest, slices.Clone(x.load))
		names := make([][]string, len(v.ctx.Problem.Shapes))
		if !t.s.stays[i] {
			for _, pod := range st.candidates[x.candidate].Pods {
				names[shape[pod.Name]] = append(names[shape[pod.Name]], pod.Name)
			}
			for k := range names {
				slices.Sort(names[k])
			}
		}
		t.names = append(t.names, names)
	}
	return t
}

// part returns the machine that represents the part of a machine.
func (t *splitter) part(i int) int {
	for t.of[i] != i {
		i = t.of[i]
	}
	return i
}

// merge joins the parts of two machines.
func (t *splitter) merge(i, j int) {
	if i, j = t.part(i), t.part(j); i != j {
		t.of[j] = i
		t.net[i] += t.net[j]
	}
}

// take takes the names of n pods of a shape from a machine.
func (t *splitter) take(i, k int, n int32) []string {
	out := t.names[i][k][:n]
	t.names[i][k] = t.names[i][k][n:]
	t.rest[i][k] -= n
	return out
}

// parts returns the parts of the solution that save money.
func (t *splitter) parts() []change {
	type launch struct {
		machine int
		planner.Launch
	}
	var launches []launch
	order := slices.Clone(t.s.machines)
	slices.SortStableFunc(order, func(a, b search.Machine) int {
		return cmp.Or(cmp.Compare(t.improver.ctx.Problem.Offers[b.Offer].Price, t.improver.ctx.Problem.Offers[a.Offer].Price), cmp.Compare(a.Offer, b.Offer), -slices.Compare(a.Load, b.Load))
	})
	for _, m := range order {
		machine, names := t.source(m)
		o := &t.improver.ctx.Problem.Offers[m.Offer]
		pods, gpus := names.Pick(&o.Capacity, m.Load)
		launches = append(launches, launch{machine, planner.Launch{Offering: o.Index, Pods: pods, GPUs: gpus}})
	}
	byPart := map[int]*change{}
	var parts []*change
	for i := range t.improver.existing {
		if t.s.stays[i] {
			continue
		}
		at := t.part(i)
		if byPart[at] == nil {
			byPart[at] = &change{}
			parts = append(parts, byPart[at])
		}
		byPart[at].leave = append(byPart[at].leave, t.improver.existing[i].candidate)
	}
	for _, x := range launches {
		plan := &byPart[t.part(x.machine)].plan
		plan.Launches = append(plan.Launches, x.Launch)
		plan.Price += t.stepper.now.Offerings[x.Offering].Price
	}
	t.placeOnNodes(byPart)
	var out []change
	for _, x := range parts {
		if _, ok := t.stepper.step(x.leave, x.plan); ok {
			slices.Sort(x.leave)
			out = append(out, *x)
		}
	}
	return out
}

// source chooses the machines whose pods a launch takes. It prefers one part that has them all, then the part that saves most, and takes pods from as few
// machines as possible.
func (t *splitter) source(m search.Machine) (machine int, names pack.Naming) {
	need := slices.Clone(m.Load)
	taken := make([][]string, len(t.improver.ctx.Problem.Shapes))
	machine = -1
	for !need.Empty() {
		best, most, gain := -1, int64(0), int64(0)
		for i := range t.improver.existing {
			if t.s.stays[i] {
				continue
			}
			n := t.rest[i].Within(need).Total()
			if machine >= 0 && n > 0 && t.part(i) == t.part(machine) {
				n += int64(len(t.improver.existing)) + need.Total()
			}
			if net := t.net[t.part(i)]; n > most || n > 0 && n == most && net > gain {
				best, most, gain = i, n, net
			}
		}
		for k, n := range t.rest[best].Within(need) {
			if n > 0 {
				taken[k] = append(taken[k], t.take(best, k, n)...)
				need[k] -= n
			}
		}
		if machine < 0 {
			machine = best
			t.net[t.part(machine)] -= t.improver.ctx.Problem.Offers[m.Offer].Price
		}
		t.merge(machine, best)
	}
	return machine, t.given(taken)
}

// given returns a naming that takes pods from lists by shape.
func (t *splitter) given(lists [][]string) pack.Naming {
	return pack.Naming{Problem: t.improver.ctx.Problem, Room: pack.Room{Ledger: pack.NewLedger(t.improver.ctx.Problem)}, Take: func(k int, count int32) []string {
		out := lists[k][:count]
		lists[k] = lists[k][count:]
		return out
	}}
}

// placeOnNodes places the pods that are not on launches onto the nodes that have room for them.
func (t *splitter) placeOnNodes(parts map[int]*change) {
	at := make([]int, len(t.improver.ctx.Problem.Shapes)) // by shape, the first machine that may have pods left
	for j := range t.improver.existing {
		if t.s.more[j].Empty() {
			continue
		}
		lists, of := make([][]string, len(t.improver.ctx.Problem.Shapes)), map[string]int{}
		for k, n := range t.s.more[j] {
			for n > 0 {
				i := at[k]
				if t.s.stays[i] || t.rest[i][k] == 0 {
					at[k]++
					continue
				}
				some := t.take(i, k, min(n, t.rest[i][k]))
				for _, pod := range some {
					of[pod] = t.part(i)
				}
				lists[k] = append(lists[k], some...)
				n -= int32(len(some))
			}
		}
		node := &t.improver.ctx.Problem.Nodes[t.improver.existing[j].node]
		names := t.given(lists)
		pods, gpus := names.Pick(&node.Capacity, t.s.more[j])
		for n, pod := range pods {
			plan := &parts[of[pod]].plan
			if k := len(plan.Placements); k == 0 || plan.Placements[k-1].Node != node.Index {
				plan.Placements = append(plan.Placements, planner.Placement{Node: node.Index})
			}
			p := &plan.Placements[len(plan.Placements)-1]
			p.Pods = append(p.Pods, pod)
			if gpus != nil {
				p.GPUs = append(p.GPUs, gpus[n])
			}
		}
	}
	for _, x := range parts {
		slices.SortFunc(x.plan.Placements, func(a, b planner.Placement) int {
			return strings.Compare(t.stepper.now.Nodes[a.Node].Name, t.stepper.now.Nodes[b.Node].Name)
		})
	}
}
