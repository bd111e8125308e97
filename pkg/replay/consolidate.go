package replay

import (
	"cmp"
	"slices"
	"time"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/consolidate"
	"karve.sh/karve/pkg/planner/solve"
)

// Karve consolidates like Karve. It remembers the waste, so each replay needs its own.
type Karve struct {
	Search solve.Solver
	// Restart is the cost of restarting a pod.
	Restart planner.MicroUSD
	// PerMove is for comparison: with it, every step that saves this much per hour for each pod that moves is taken immediately, as in Karve before it had
	// accounts.
	PerMove planner.MicroUSD

	account consolidate.Account
	looked  time.Duration
	// layout and found belong to the last search, and seen is the number of changes of the world before it.
	layout consolidate.Layout
	found  consolidate.Outlook
	seen   int // plus one, so that it is never 0
}

// Consolidate carries out the steps towards the cheaper layout for which the account pays. It steers pods like the controller: it taints surplus
// machines and, while pods are handed over to one machine, all others.
func (k *Karve) Consolidate(w *world, s Scheduler) int {
	k.search(w)
	steps := k.pay(w.now)
	machines := slices.Clone(w.machines)
	surplus := map[string]bool{}
	for _, i := range k.found.Surplus {
		surplus[machines[i].name] = true
	}
	evicted := 0
	for _, step := range steps {
		n, homes := w.take(machines, k.layout, step, s)
		evicted += n
		w.handOver(homes, s)
	}
	for _, m := range w.machines {
		m.surplus = surplus[m.name]
	}
	return evicted
}

// search looks for steps, unless nothing has changed since the last search.
func (k *Karve) search(w *world) {
	l := w.layout(func(pod int) planner.MicroUSD {
		return cmp.Or(k.PerMove, consolidate.Move(k.Restart, w.now-w.pods[pod].since))
	}, k.stays(w))
	if k.seen == w.changes+1 && len(k.layout.Machines) == len(l.Machines) {
		return
	}
	l.Most = slices.Repeat([]int{len(w.machines)}, len(l.Snapshot.Pools)) // Budgets limit how many leave at a time, and there is time for all of them between two searches.
	k.layout, k.found, k.seen = l, consolidate.Plan(k.Search, l), w.changes+1
}

// stays returns a function that reports whether a pod stays where it is: until its machine has cost as much as its restart.
func (k *Karve) stays(w *world) func(pod int) bool {
	return func(pod int) bool {
		at := w.pods[pod]
		return k.PerMove == 0 && !consolidate.Settled(w.now-at.since, w.price(at.machine), k.Restart)
	}
}

// pay returns the steps that are taken now.
func (k *Karve) pay(now time.Duration) (taken []consolidate.Step) {
	if k.PerMove > 0 {
		return k.found.Steps
	}
	var all consolidate.Worth
	worth := make([]consolidate.Worth, len(k.found.Steps))
	for n, step := range k.found.Steps {
		pods := 0
		for _, i := range step.Leave {
			pods += len(k.layout.Machines[i].Pods)
		}
		worth[n] = consolidate.Worth{Saving: step.Saving, Restarts: planner.MicroUSD(pods) * k.Restart}
		all.Saving, all.Restarts = all.Saving+step.Saving, all.Restarts+worth[n].Restarts
	}
	k.account, k.looked = k.account.Look(now-k.looked, all.Saving, all.Restarts), now
	for _, n := range consolidate.Ranked(worth) {
		if worth[n].Restarts > k.account.Wasted {
			break
		}
		k.account.Wasted -= worth[n].Restarts
		k.account.Saving -= worth[n].Saving
		taken = append(taken, k.found.Steps[n])
	}
	return taken
}

// Karpenter carries out the steps of the model of Karpenter's consolidation until there are none.
func Karpenter(w *world, s Scheduler) int {
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
		n, _ := w.take(slices.Clone(w.machines), l, step, s)
		evicted += n
		s.schedule(w)
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
		x := consolidate.Machine{Node: i, Pool: o.Pool, Price: o.Price, Physical: o.Physical}
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
func (w *world) handOver(homes []home, s Scheduler) {
	largest := func(h home) (most planner.Resources) {
		for _, pod := range h.pods {
			if r := w.class(podOf(pod)).Requests; cmp.Or(cmp.Compare(r.Replicas, most.Replicas), cmp.Compare(r.MilliCPU, most.MilliCPU)) > 0 {
				most = r
			}
		}
		return most
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
		s.schedule(w)
		w.waiting = append(w.waiting, later...)
	}
}

// take carries out a step of a layout. It returns the number of evicted pods and where the plan places them. They are pending afterwards, unless the
// scheduler places pods as planned.
func (w *world) take(machines []*machine, l consolidate.Layout, step consolidate.Step, s Scheduler) (int, []home) {
	var leave []*machine
	for _, i := range step.Leave {
		leave = append(leave, machines[l.Machines[i].Node])
	}
	n := w.evict(leave)
	var homes []home
	goes := func(m *machine, pods []string, gpus []int) {
		if s.planned {
			w.seat(m, pods, gpus, s)
		}
		homes = append(homes, home{m, pods})
	}
	for _, l := range step.Launches {
		goes(w.launch(l.Offering), l.Pods, l.GPUs)
	}
	for _, p := range step.Placements {
		goes(machines[p.Node], p.Pods, p.GPUs)
	}
	return n, homes
}
