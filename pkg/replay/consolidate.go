package replay

import (
	"cmp"
	"slices"
	"time"

	"karve.sh/karve/pkg/fleet/disruption"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/consolidate"
	"karve.sh/karve/pkg/planner/solve"
)

// Karve consolidates like the controller, with the decisions of package disruption. It remembers the waste, so each replay needs its own.
//
// It has no budgets and no back-off: a replay consolidates at intervals, between which the steps of all machines have time, and its scheduler places the pods.
type Karve struct {
	Search solve.Solver
	// Restart is the cost of restarting a pod.
	Restart planner.MicroUSD

	accounts disruption.Accounts
	last     search
}

// FixedRate is for comparison: it takes each step that saves PerMove per hour for each pod that moves.
type FixedRate struct {
	Search  solve.Solver
	PerMove planner.MicroUSD

	last search
}

// search is the last search for a cheaper layout.
type search struct {
	layout consolidate.Layout
	found  disruption.Found
	// steps has the step of each proposal.
	steps map[string]consolidate.Step
	// seen is the number of changes of the world before it, plus one, so that it is never 0.
	seen int
}

// Consolidate carries out the steps towards the cheaper layout for which the account pays.
func (k *Karve) Consolidate(w *world) int {
	now := time.Time{}.Add(w.now)
	if k.accounts == nil {
		k.accounts = disruption.Accounts{w.trace.Name: {At: now}}
	}
	// A pod stays until its machine has cost as much as its restart.
	stays := func(pod int) bool {
		at := w.pods[pod]
		if w.trace.Pods[pod].Placeholder {
			return false
		}
		return !consolidate.Settled(w.now-at.since, w.price(at.machine), k.Restart)
	}
	move := func(pod int) planner.MicroUSD {
		if w.trace.Pods[pod].Placeholder {
			return 0
		}
		return consolidate.Move(k.Restart, w.now-w.pods[pod].since)
	}
	k.last.search(w, k.Search, k.Restart, move, stays)
	k.accounts.Look(now, k.last.found.Proposals, k.last.found.Proposals)
	begun := k.accounts.Spend(disruption.Ranked(k.last.found.Proposals), func(disruption.Proposal) bool { return true }, func(disruption.Proposal) disruption.Answer { return disruption.Begins })
	return k.last.take(w, begun)
}

// Consolidate carries out all steps that save enough.
func (f *FixedRate) Consolidate(w *world) int {
	f.last.search(w, f.Search, 0, func(int) planner.MicroUSD { return f.PerMove }, func(int) bool { return false })
	return f.last.take(w, f.last.found.Proposals)
}

func (x *search) search(w *world, solver solve.Solver, restart planner.MicroUSD, move func(pod int) planner.MicroUSD, stays func(pod int) bool) {
	l := w.layout(move, stays)
	if x.seen == w.changes+1 && len(x.layout.Machines) == len(l.Machines) {
		return
	}
	l.Most = slices.Repeat([]int{len(w.machines)}, len(l.Snapshot.Pools)) // Budgets limit how many leave at a time, and there is time for all of them between two searches.
	residents := make([]disruption.Resident, len(l.Machines))
	for i, m := range l.Machines {
		at := w.machines[m.Node]
		residents[i] = disruption.Resident{Claim: at.name, Class: w.trace.Name, Room: at.free.Replicas > 0, Restarts: slices.Repeat([]planner.MicroUSD{restart}, w.restarts(at))}
	}
	x.layout, x.seen, x.steps = l, w.changes+1, map[string]consolidate.Step{}
	found, steps := disruption.Propose(l, residents, consolidate.Plan(solver, l))
	for i := range found.Proposals {
		found.Proposals[i].Saving = found.Proposals[i].Found // The scheduler of a replay knows no constraints between pods.
		x.steps[found.Proposals[i].String()] = steps[i]
	}
	x.found = found
}

// take carries out proposals. It steers pods like the controller: it taints surplus machines and, while pods are handed over to one machine, all others.
func (x *search) take(w *world, begun []disruption.Proposal) (evicted int) {
	machines := slices.Clone(w.machines)
	for _, p := range begun {
		n, homes := w.take(machines, x.layout, x.steps[p.String()])
		evicted += n
		w.handOver(homes)
	}
	surplus := map[string]bool{}
	for _, name := range x.found.Surplus {
		surplus[name] = true
	}
	for _, m := range w.machines {
		m.surplus = surplus[m.name]
	}
	return evicted
}

// Karpenter carries out the steps of the model of Karpenter's consolidation until there are none.
func Karpenter(w *world) int {
	evicted := 0
	for range 200 {
		if w.changes == w.still {
			break
		}
		l := w.layout(func(int) planner.MicroUSD { return 0 }, func(int) bool { return false })
		step, ok := KarpenterStep(l)
		if !ok {
			w.still = w.changes
			break
		}
		n, _ := w.take(slices.Clone(w.machines), l, step)
		evicted += n
		w.schedule()
		w.drop()
		if len(w.waiting) > 0 {
			break
		}
	}
	return evicted
}

// layout returns the world as a layout, with the cost of moving a pod. Machines with a pod that stays may not leave.
func (w *world) layout(move func(pod int) planner.MicroUSD, stays func(pod int) bool) consolidate.Layout {
	l := consolidate.Layout{Snapshot: w.snapshot(true)}
	for i, m := range w.machines {
		if slices.ContainsFunc(m.pods, stays) {
			continue
		}
		o := w.offerings[m.offering]
		x := consolidate.Machine{Node: i, Pool: o.Pool, Price: o.Price, Physical: o.Physical, Draws: o.Draws}
		for _, pod := range m.pods {
			r := consolidate.Running{Name: name(pod), Class: w.trace.Pods[pod].Shape, GPU: -1, Move: move(pod)}
			if w.class(pod).GPUMemoryBytes > 0 {
				r.GPU = w.pods[pod].on[0]
			}
			x.Pods = append(x.Pods, r)
		}
		l.Machines = append(l.Machines, x)
	}
	return l
}

// home is a machine and the pods that a plan places on it.
type home struct {
	machine *machine
	pods    []string
}

// handOver schedules the pending pods of one machine after the other, the machine with the largest pod first. Meanwhile all other machines are tainted.
func (w *world) handOver(homes []home) {
	largest := func(h home) (found planner.Resources) {
		for _, pod := range h.pods {
			if r := w.class(podOf(pod)).Requests; cmp.Or(cmp.Compare(r.Replicas, found.Replicas), cmp.Compare(r.MilliCPU, found.MilliCPU)) > 0 {
				found = r
			}
		}
		return found
	}
	slices.SortStableFunc(homes, func(a, b home) int {
		x, y := largest(a), largest(b)
		return cmp.Or(cmp.Compare(y.Replicas, x.Replicas), cmp.Compare(y.MilliCPU, x.MilliCPU))
	})
	for _, h := range homes {
		for _, m := range w.machines {
			m.surplus = m != h.machine
		}
		var turn, later []int
		for _, pod := range w.waiting {
			if slices.Contains(h.pods, name(pod)) {
				turn = append(turn, pod)
			} else {
				later = append(later, pod)
			}
		}
		w.waiting = turn
		w.schedule()
		w.waiting = append(w.waiting, later...)
	}
}

// take carries out a step of a layout. It returns the number of evicted pods, which are pending afterwards, and where the plan places them.
func (w *world) take(machines []*machine, l consolidate.Layout, step consolidate.Step) (int, []home) {
	var leave []*machine
	for _, i := range step.Leave {
		leave = append(leave, machines[l.Machines[i].Node])
	}
	n := w.evict(leave)
	var homes []home
	for _, l := range step.Launches {
		homes = append(homes, home{w.launch(l.Offering), l.Pods})
	}
	for _, p := range step.Placements {
		homes = append(homes, home{machines[p.Node], p.Pods})
	}
	return n, homes
}
