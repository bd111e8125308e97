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
	st := &stepper{solver: solver, layout: l, now: l.Snapshot}
	st.solver.First = nil
	st.now.Pools, st.now.Nodes, st.now.Stocks = slices.Clone(l.Snapshot.Pools), slices.Clone(l.Snapshot.Nodes), slices.Clone(l.Snapshot.Stocks)
	st.now.Classes = slices.Clone(l.Snapshot.Classes)
	for c := range st.now.Classes {
		st.now.Classes[c].Pods = nil
	}
	st.addCandidates()
	st.dropRules()
	st.seatWaiting()
	return st
}

// addCandidates adds the machines that are valid in the layout. Others stay.
func (st *stepper) addCandidates() {
	l := st.layout
	known, taken := l.named(), map[int]bool{}
	for i, m := range l.Machines {
		if !l.describes(m) || taken[m.Node] {
			continue
		}
		one := candidate{Machine: m, machine: i}
		one.Pods = slices.Clone(m.Pods)
		sound := true
		for _, pod := range m.Pods {
			sound = sound && pod.Class >= 0 && pod.Class < len(l.Snapshot.Classes) && known[pod.Name] == 1 && pod.Move >= 0 && pod.Move < planner.MaxPrice
			one.moves += min(max(pod.Move, 0), planner.MaxPrice)
		}
		if taken[m.Node] = true; sound {
			one.settled = one.moves >= one.Price || slices.ContainsFunc(one.Pods, func(pod Running) bool { return l.Snapshot.Classes[pod.Class].Blocked != nil })
			st.candidates = append(st.candidates, one)
		}
	}
	slices.SortStableFunc(st.candidates, func(a, b candidate) int {
		return strings.Compare(l.Snapshot.Nodes[a.Node].Name, l.Snapshot.Nodes[b.Node].Name)
	})
	st.candidateAt = slices.Repeat([]int{-1}, len(l.Snapshot.Nodes))
	for i := range st.candidates {
		st.candidateAt[st.candidates[i].Node] = i
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
func (st *stepper) dropRules() {
	at := make([]int, len(st.now.Rules))
	var kept []planner.Rule
	for r, rule := range st.now.Rules {
		if at[r] = -1; rule.Kind == planner.Apart && rule.Topology == planner.PerNode {
			at[r] = len(kept)
			kept = append(kept, rule)
		}
	}
	for c := range st.now.Classes {
		for _, w := range st.now.Classes[c].Preferences {
			if w.Rule >= 0 && at[w.Rule] >= 0 {
				bound := &kept[at[w.Rule]]
				bound.Classes = slices.DeleteFunc(slices.Clone(bound.Classes), func(x int) bool { return x == c })
			}
		}
		st.now.Classes[c].Preferences, st.now.Classes[c].Priority = nil, 0
	}
	st.now.Rules = kept
}

// seatWaiting places the pending pods on nodes and charges their launches to the limits.
func (st *stepper) seatWaiting() {
	waiting := st.now
	waiting.Classes = st.layout.Snapshot.Classes
	waiting.Rules = st.layout.Snapshot.Rules
	if !slices.ContainsFunc(waiting.Classes, func(c planner.Class) bool { return len(c.Pods) > 0 }) {
		return
	}
	plan := st.solver.Plan(waiting)
	class := waiting.ClassByPod()
	st.occupy(plan, class)
	for _, p := range plan.Placements {
		if i := st.candidateAt[p.Node]; i >= 0 {
			for k, pod := range p.Pods {
				gpu := -1
				if p.GPUs != nil {
					gpu = p.GPUs[k]
				}
				st.candidates[i].Pods = append(st.candidates[i].Pods, Running{Name: pod, Class: class[pod], GPU: gpu})
			}
		}
	}
}

// occupy subtracts what a plan uses from the nodes and the limits.
func (st *stepper) occupy(plan planner.Plan, class map[string]int) {
	for _, p := range plan.Placements {
		n := &st.now.Nodes[p.Node]
		n.GPUs, n.Quotas = slices.Clone(n.GPUs), slices.Clone(n.Quotas)
		for i, pod := range p.Pods {
			gpu := -1
			if p.GPUs != nil {
				gpu = p.GPUs[i]
			}
			st.now.Occupy(n, class[pod], gpu)
			st.keepApart(p.Node, class[pod])
		}
	}
	for _, x := range plan.Launches {
		o := st.now.Offerings[x.Offering]
		st.now.Pools[o.Pool].Remaining.Take(alternatives.Greatest(st.now, alternatives.Variant{Offering: x.Offering, Alternatives: x.Alternatives}))
		planner.Take(st.now.Stocks, o.Draws)
	}
}

// keepApart closes a node to the classes that may not share it with a pod of the given class, which is placed there.
func (st *stepper) keepApart(node, class int) {
	for _, r := range st.now.Rules {
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
			st.close(node, c)
		}
	}
}

// close removes a node from those of a class.
func (st *stepper) close(node, class int) {
	c := &st.now.Classes[class]
	if i, found := slices.BinarySearch(c.Nodes, node); found {
		c.Nodes = slices.Delete(slices.Clone(c.Nodes), i, i+1)
	}
}

// without returns the snapshot to plan for if some candidates leave, as [Layout.Freed].
func (st *stepper) without(leave []int) planner.Snapshot {
	machines := make([]*Machine, len(leave))
	for i, at := range leave {
		machines[i] = &st.candidates[at].Machine
	}
	return freed(st.now, machines)
}

// giveBackPhysical undoes Take.
func giveBackPhysical(left *planner.Physical, counts planner.Physical) {
	left.Take(planner.Physical{}.Minus(counts))
}

// step returns the step that removes some candidates with a plan for their pods. It reports whether the plan places all pods and saves more than the moves
// cost.
func (st *stepper) step(leave []int, plan planner.Plan) (Step, bool) {
	s := Step{Launches: plan.Launches, Placements: plan.Placements, Saving: -plan.Price}
	for _, i := range leave {
		s.Leave = append(s.Leave, st.candidates[i].machine)
		s.Saving += st.candidates[i].Price
		s.Moves += st.candidates[i].moves
	}
	slices.Sort(s.Leave)
	return s, len(plan.Unplaced) == 0 && s.Saving > s.Moves
}

// relaunch plans the launches of a plan again if more than prices matters: weights of pools, or choices that NodeClaims must allow.
func (st *stepper) relaunch(leave []int, plan planner.Plan) planner.Plan {
	if len(plan.Launches) == 0 || constraints.OnlyPrice(st.now) {
		return plan
	}
	launched := map[string]bool{}
	for _, x := range plan.Launches {
		for _, pod := range x.Pods {
			launched[pod] = true
		}
	}
	s := st.without(leave)
	for c := range s.Classes {
		s.Classes[c].Nodes = nil
		s.Classes[c].Pods = slices.DeleteFunc(s.Classes[c].Pods, func(pod string) bool { return !launched[pod] })
	}
	again := st.small().Plan(s)
	again.Placements = plan.Placements
	return again
}

// small returns a solver with the effort for the pods of a few machines.
func (st *stepper) small() solve.Solver {
	s := st.solver
	s.Effort = max(1, effort.New(st.solver.Effort, st.solver.Stop).Left/200)
	return s
}

// allows reports whether the limits of the pools and the stocks allow the launches of a step once its machines are removed.
func (st *stepper) allows(leave []int, plan planner.Plan) bool {
	left := pack.LimitsOf(st.now)
	for _, i := range leave {
		left.GiveBack(st.candidates[i].charge())
	}
	for _, x := range plan.Launches {
		c := pack.ChargeOf(st.now.Offerings[x.Offering])
		c.Uses = amount.UsageOf(alternatives.Greatest(st.now, alternatives.Variant{Offering: x.Offering, Alternatives: x.Alternatives}))
		if !left.Admits(&c) {
			return false
		}
		left.Launch(&c)
	}
	return true
}

// charge returns what the machine counts against the limits of its pool and draws from stocks.
func (m *candidate) charge() *pack.Charge {
	return &pack.Charge{Pool: m.Pool, Uses: amount.UsageOf(m.Physical), Draws: m.Draws}
}

// take applies a step: its nodes are gone, and its pods are on nodes that stay.
func (st *stepper) take(leave []int, plan planner.Plan) {
	class := map[string]int{}
	for _, i := range leave {
		m := &st.candidates[i]
		m.settled = true
		giveBackPhysical(&st.now.Pools[m.Pool].Remaining, m.Physical)
		planner.GiveBack(st.now.Stocks, m.Draws)
		for _, pod := range m.Pods {
			class[pod.Name] = pod.Class
		}
		for c := range st.now.Classes {
			st.close(m.Node, c)
		}
	}
	st.occupy(plan, class)
	for _, p := range plan.Placements {
		if i := st.candidateAt[p.Node]; i >= 0 {
			st.candidates[i].settled = true
		}
	}
}
