package consolidate

import (
	"slices"
	"strings"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/alternatives"
	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/constraints"
	"karve.sh/karve/pkg/planner/internal/effort"
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/solve"
)

// stepper takes steps from a layout one after the other.
type stepper struct {
	solver solve.Solver
	layout Layout
	// now is the current state. Its nodes have what the pending pods and the pods of the steps taken leave free, and its pools what their launches leave of
	// the limits. Its classes have no pods, and only the nodes that accept more of their pods.
	now planner.Snapshot
	// candidates are the machines that may leave, ordered by name. candidateAt maps nodes to them, and has -1 for nodes that are not among them.
	candidates  []candidate
	candidateAt []int
}

// candidate is a machine that may leave.
type candidate struct {
	// Machine has the pending pods that are planned there too. Moving those costs nothing.
	Machine
	machine int // an index into Layout.Machines
	// moves is the cost of moving all pods.
	moves planner.MicroUSD
	// settled reports whether the candidate is decided. It stays because moving its pods costs too much, because some of them may not be moved, or because a
	// step moves pods there; or a step has removed it.
	settled bool
}

func newStepper(solver solve.Solver, l Layout) *stepper {
	f := &stepper{solver: solver, layout: l, now: l.Snapshot}
	f.solver.First = nil
	f.now.Pools, f.now.Nodes, f.now.Stocks = slices.Clone(l.Snapshot.Pools), slices.Clone(l.Snapshot.Nodes), slices.Clone(l.Snapshot.Stocks)
	f.now.Classes = slices.Clone(l.Snapshot.Classes)
	for c := range f.now.Classes {
		f.now.Classes[c].Pods = nil
	}
	f.addCandidates()
	f.dropRules()
	f.seatWaiting()
	return f
}

// addCandidates adds the machines that are valid in the layout. Others stay.
func (f *stepper) addCandidates() {
	l := f.layout
	known, taken := l.named(), map[int]bool{}
	for i, m := range l.Machines {
		if !l.describes(m) || taken[m.Node] {
			continue
		}
		h := candidate{Machine: m, machine: i}
		h.Pods = slices.Clone(m.Pods)
		sound := true
		for _, pod := range m.Pods {
			sound = sound && pod.Class >= 0 && pod.Class < len(l.Snapshot.Classes) && known[pod.Name] == 1 && pod.Move >= 0 && pod.Move < planner.MaxPrice
			h.moves += min(max(pod.Move, 0), planner.MaxPrice)
		}
		if taken[m.Node] = true; sound {
			h.settled = h.moves >= h.Price || slices.ContainsFunc(h.Pods, func(pod Running) bool { return l.Snapshot.Classes[pod.Class].Blocked != nil })
			f.candidates = append(f.candidates, h)
		}
	}
	slices.SortStableFunc(f.candidates, func(a, b candidate) int {
		return strings.Compare(l.Snapshot.Nodes[a.Node].Name, l.Snapshot.Nodes[b.Node].Name)
	})
	f.candidateAt = slices.Repeat([]int{-1}, len(l.Snapshot.Nodes))
	for i := range f.candidates {
		f.candidateAt[f.candidates[i].Node] = i
	}
}

// named returns how often each pod occurs in the layout.
func (l *Layout) named() map[string]int {
	known := map[string]int{}
	for _, c := range l.Snapshot.Classes {
		for _, pod := range c.Pods {
			known[pod]++
		}
	}
	for _, m := range l.Machines {
		for _, pod := range m.Pods {
			known[pod.Name]++
		}
	}
	return known
}

// describes reports whether the node, pool and price of a machine are valid.
func (l *Layout) describes(m Machine) bool {
	return m.Node >= 0 && m.Node < len(l.Snapshot.Nodes) && m.Pool >= 0 && m.Pool < len(l.Snapshot.Pools) && m.Price > 0 && m.Price <= planner.MaxPrice &&
		!slices.ContainsFunc(m.Draws, func(d planner.Draw) bool {
			return d.Stock < 0 || d.Stock >= len(l.Snapshot.Stocks) || d.Amount < 1 || d.Amount > planner.MaxAmount
		})
}

// dropRules drops the preferences and the rules about several machines. The caller that carries out a step plans for its pods with all of them. Priorities are
// irrelevant, because a step has a place for each of its pods.
func (f *stepper) dropRules() {
	at := make([]int, len(f.now.Rules))
	var kept []planner.Rule
	for r, rule := range f.now.Rules {
		if at[r] = -1; rule.Kind == planner.Apart && rule.Topology == planner.PerNode {
			at[r] = len(kept)
			kept = append(kept, rule)
		}
	}
	for c := range f.now.Classes {
		for _, w := range f.now.Classes[c].Preferences {
			if w.Rule >= 0 && at[w.Rule] >= 0 {
				bound := &kept[at[w.Rule]]
				bound.Classes = slices.DeleteFunc(slices.Clone(bound.Classes), func(x int) bool { return x == c })
			}
		}
		f.now.Classes[c].Preferences, f.now.Classes[c].Priority = nil, 0
	}
	f.now.Rules = kept
}

// seatWaiting places the pending pods on nodes and charges their launches to the limits.
func (f *stepper) seatWaiting() {
	waiting := f.now
	waiting.Classes = f.layout.Snapshot.Classes
	waiting.Rules = f.layout.Snapshot.Rules
	if !slices.ContainsFunc(waiting.Classes, func(c planner.Class) bool { return len(c.Pods) > 0 }) {
		return
	}
	plan := f.solver.Plan(waiting)
	class := waiting.ClassByPod()
	f.occupy(plan, class)
	for _, p := range plan.Placements {
		if i := f.candidateAt[p.Node]; i >= 0 {
			for k, pod := range p.Pods {
				gpu := -1
				if p.GPUs != nil {
					gpu = p.GPUs[k]
				}
				f.candidates[i].Pods = append(f.candidates[i].Pods, Running{Name: pod, Class: class[pod], GPU: gpu})
			}
		}
	}
}

// occupy subtracts what a plan uses from the nodes and the limits.
func (f *stepper) occupy(plan planner.Plan, class map[string]int) {
	for _, p := range plan.Placements {
		n := &f.now.Nodes[p.Node]
		n.GPUs, n.Quotas = slices.Clone(n.GPUs), slices.Clone(n.Quotas)
		for i, pod := range p.Pods {
			gpu := -1
			if p.GPUs != nil {
				gpu = p.GPUs[i]
			}
			f.now.Occupy(n, class[pod], gpu)
			f.keepApart(p.Node, class[pod])
		}
	}
	for _, x := range plan.Launches {
		o := f.now.Offerings[x.Offering]
		f.now.Pools[o.Pool].Remaining.Take(alternatives.Greatest(f.now, alternatives.Variant{Offering: x.Offering, Alternatives: x.Alternatives}))
		planner.Take(f.now.Stocks, o.Draws)
	}
}

// keepApart closes a node to the classes that may not share it with a pod of the given class, which is placed there.
func (f *stepper) keepApart(node, class int) {
	for _, r := range f.now.Rules {
		if r.Kind != planner.Apart || r.Topology != planner.PerNode {
			continue
		}
		var others []int
		if slices.Contains(r.Classes, class) {
			others = append(others, r.Counted...)
		}
		if slices.Contains(r.Counted, class) {
			others = append(others, r.Classes...)
		}
		for _, c := range others {
			f.close(node, c)
		}
	}
}

// close removes a node from those of a class.
func (f *stepper) close(node, class int) {
	c := &f.now.Classes[class]
	if i, found := slices.BinarySearch(c.Nodes, node); found {
		c.Nodes = slices.Delete(slices.Clone(c.Nodes), i, i+1)
	}
}

// without returns the snapshot to plan for if some candidates leave, as [Layout.Freed].
func (f *stepper) without(leave []int) planner.Snapshot {
	machines := make([]*Machine, len(leave))
	for i, h := range leave {
		machines[i] = &f.candidates[h].Machine
	}
	return freed(f.now, machines)
}

// giveBackPhysical undoes Take.
func giveBackPhysical(left *planner.Physical, counts planner.Physical) {
	left.Take(planner.Physical{}.Minus(counts))
}

// step returns the step that removes some candidates with a plan for their pods. It reports whether the plan places all pods and saves more than the moves
// cost.
func (f *stepper) step(leave []int, plan planner.Plan) (Step, bool) {
	s := Step{Launches: plan.Launches, Placements: plan.Placements, Saving: -plan.Price}
	for _, i := range leave {
		s.Leave = append(s.Leave, f.candidates[i].machine)
		s.Saving += f.candidates[i].Price
		s.Moves += f.candidates[i].moves
	}
	slices.Sort(s.Leave)
	return s, len(plan.Unplaced) == 0 && s.Saving > s.Moves
}

// relaunch plans the launches of a plan again if more than prices matters: weights of pools, or choices that NodeClaims must allow.
func (f *stepper) relaunch(leave []int, plan planner.Plan) planner.Plan {
	if len(plan.Launches) == 0 || constraints.OnlyPrice(f.now) {
		return plan
	}
	launched := map[string]bool{}
	for _, x := range plan.Launches {
		for _, pod := range x.Pods {
			launched[pod] = true
		}
	}
	s := f.without(leave)
	for c := range s.Classes {
		s.Classes[c].Nodes = nil
		s.Classes[c].Pods = slices.DeleteFunc(s.Classes[c].Pods, func(pod string) bool { return !launched[pod] })
	}
	again := f.small().Plan(s)
	again.Placements = plan.Placements
	return again
}

// small returns a solver with the effort for the pods of a few machines.
func (f *stepper) small() solve.Solver {
	s := f.solver
	s.Effort = max(1, effort.New(f.solver.Effort, f.solver.Stop).Left/200)
	return s
}

// allows reports whether the limits of the pools and the stocks allow the launches of a step once its machines are removed.
func (f *stepper) allows(leave []int, plan planner.Plan) bool {
	left := pack.LimitsOf(f.now)
	for _, i := range leave {
		left.GiveBack(f.candidates[i].charge())
	}
	for _, x := range plan.Launches {
		c := pack.ChargeOf(f.now.Offerings[x.Offering])
		c.Uses = amount.UsageOf(alternatives.Greatest(f.now, alternatives.Variant{Offering: x.Offering, Alternatives: x.Alternatives}))
		if !left.Admits(&c) {
			return false
		}
		left.Launch(&c)
	}
	return true
}

// charge returns what the machine counts against the limits of its pool and draws from stocks.
func (h *candidate) charge() *pack.Charge {
	return &pack.Charge{Pool: h.Pool, Uses: amount.UsageOf(h.Physical), Draws: h.Draws}
}

// take applies a step: its nodes are gone, and its pods are on nodes that stay.
func (f *stepper) take(leave []int, plan planner.Plan) {
	class := map[string]int{}
	for _, i := range leave {
		h := &f.candidates[i]
		h.settled = true
		giveBackPhysical(&f.now.Pools[h.Pool].Remaining, h.Physical)
		planner.GiveBack(f.now.Stocks, h.Draws)
		for _, pod := range h.Pods {
			class[pod.Name] = pod.Class
		}
		for c := range f.now.Classes {
			f.close(h.Node, c)
		}
	}
	f.occupy(plan, class)
	for _, p := range plan.Placements {
		if i := f.candidateAt[p.Node]; i >= 0 {
			f.candidates[i].settled = true
		}
	}
}
