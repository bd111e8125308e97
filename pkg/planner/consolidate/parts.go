package consolidate

import (
	"cmp"
	"slices"
	"strings"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/search"
)

// change is an independent part of a housing: the machines that leave, the launches for their pods, and the places that the pods take on nodes.
type change struct {
	leave []int // indices of hosts, sorted
	plan  planner.Plan
}

// parter divides a housing into independent parts. Pods of a shape are interchangeable, so the parter may choose which pods go where. A launch joins the parts
// of the machines whose pods it takes. Room on nodes joins none.
type parter struct {
	settler *settler
	fleet   *fleet
	s       *housing
	// rest are the pods of each home that are not placed yet, as loads. names are the same pods by name.
	rest  []pack.Load
	names [][][]string
	// of is, by home, another home of the same part, or the home itself if it represents the part.
	of []int
	// net is, by home that represents a part, what the part saves beyond its moves and launches.
	net []int64
}

func newParter(f *fleet, v *settler) *parter {
	t := &parter{settler: v, fleet: f, s: v.best, of: make([]int, len(v.homes)), net: make([]int64, len(v.homes))}
	shape := map[string]int{}
	for k := range v.ctx.Problem.Shapes {
		for _, pod := range v.ctx.Problem.Shapes[k].Pods {
			shape[pod.Name] = k
		}
	}
	for i := range v.homes {
		x := &v.homes[i]
		t.of[i], t.net[i] = i, x.keeps()
		t.rest = append(t.rest, slices.Clone(x.load))
		names := make([][]string, len(v.ctx.Problem.Shapes))
		if !t.s.stays[i] {
			for _, pod := range f.hosts[x.host].pods {
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

// part returns the home that represents the part of a home.
func (t *parter) part(i int) int {
	for t.of[i] != i {
		i = t.of[i]
	}
	return i
}

// tie merges the parts of two homes.
func (t *parter) tie(i, j int) {
	if i, j = t.part(i), t.part(j); i != j {
		t.of[j] = i
		t.net[i] += t.net[j]
	}
}

// take takes the names of n pods of a shape from a home.
func (t *parter) take(i, k int, n int32) []string {
	out := t.names[i][k][:n]
	t.names[i][k] = t.names[i][k][n:]
	t.rest[i][k] -= n
	return out
}

// parts returns the parts of the housing that save money.
func (t *parter) parts() []change {
	type launch struct {
		home int
		planner.Launch
	}
	var launches []launch
	order := slices.Clone(t.s.machines)
	slices.SortStableFunc(order, func(a, b search.Machine) int {
		return cmp.Or(cmp.Compare(t.settler.ctx.Problem.Offers[b.Offer].Price, t.settler.ctx.Problem.Offers[a.Offer].Price), cmp.Compare(a.Offer, b.Offer), -slices.Compare(a.Load, b.Load))
	})
	for _, m := range order {
		home, names := t.source(m)
		o := &t.settler.ctx.Problem.Offers[m.Offer]
		pods, gpus := names.Pick(&o.Capacity, m.Load)
		launches = append(launches, launch{home, planner.Launch{Offering: o.Index, Pods: pods, GPUs: gpus}})
	}
	byPart := map[int]*change{}
	var parts []*change
	for i := range t.settler.homes {
		if t.s.stays[i] {
			continue
		}
		at := t.part(i)
		if byPart[at] == nil {
			byPart[at] = &change{}
			parts = append(parts, byPart[at])
		}
		byPart[at].leave = append(byPart[at].leave, t.settler.homes[i].host)
	}
	for _, x := range launches {
		plan := &byPart[t.part(x.home)].plan
		plan.Launches = append(plan.Launches, x.Launch)
		plan.Price += t.fleet.now.Offerings[x.Offering].Price
	}
	t.seat(byPart)
	var out []change
	for _, x := range parts {
		if _, ok := t.fleet.step(x.leave, x.plan); ok {
			slices.Sort(x.leave)
			out = append(out, *x)
		}
	}
	return out
}

// source chooses the machines whose pods a launch takes. It prefers one part that has them all, then the part that saves most, and takes pods from as few
// machines as possible.
func (t *parter) source(m search.Machine) (home int, names pack.Naming) {
	need := slices.Clone(m.Load)
	taken := make([][]string, len(t.settler.ctx.Problem.Shapes))
	home = -1
	for !need.Empty() {
		best, most, gain := -1, int64(0), int64(0)
		for i := range t.settler.homes {
			if t.s.stays[i] {
				continue
			}
			n := t.rest[i].Within(need).Total()
			if home >= 0 && n > 0 && t.part(i) == t.part(home) {
				n += int64(len(t.settler.homes)) + need.Total()
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
		if home < 0 {
			home = best
			t.net[t.part(home)] -= t.settler.ctx.Problem.Offers[m.Offer].Price
		}
		t.tie(home, best)
	}
	return home, t.given(taken)
}

// given returns a naming that takes pods from lists by shape.
func (t *parter) given(lists [][]string) pack.Naming {
	return pack.Naming{Problem: t.settler.ctx.Problem, Room: pack.Room{Ledger: pack.NewLedger(t.settler.ctx.Problem)}, Take: func(k int, count int32) []string {
		out := lists[k][:count]
		lists[k] = lists[k][count:]
		return out
	}}
}

// seat places the pods that are not on launches onto the nodes that have room for them.
func (t *parter) seat(parts map[int]*change) {
	at := make([]int, len(t.settler.ctx.Problem.Shapes)) // by shape, the first home that may have pods left
	for j := range t.settler.homes {
		if t.s.more[j].Empty() {
			continue
		}
		lists, of := make([][]string, len(t.settler.ctx.Problem.Shapes)), map[string]int{}
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
		node := &t.settler.ctx.Problem.Nodes[t.settler.homes[j].node]
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
			return strings.Compare(t.fleet.now.Nodes[a.Node].Name, t.fleet.now.Nodes[b.Node].Name)
		})
	}
}
