package replay

import (
	"cmp"
	"slices"
	"time"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/consolidate"
	"karve.sh/karve/pkg/planner/solve"
)

// Karve consolidates as Karve does.
type Karve struct {
	Search solve.Solver
	// Move is what the machines must save per hour for each pod that moves. Settle is how long a pod must have run before it moves.
	Move   planner.MicroUSD
	Settle time.Duration
	// Percent limits how much of the machines may leave at a time. Steered taints surplus machines and, while pods are handed over to one machine, all
	// other machines.
	Percent int
	Steered bool
	// NearEnough is as in [consolidate.Layout].
	NearEnough int
}

// Consolidate carries out the steps towards the cheaper layout within the budget.
func (k Karve) Consolidate(w *world, s Scheduler) int {
	l := w.layout(k.Move, k.Settle)
	most := max(1, (len(w.machines)*k.Percent+99)/100)
	l.Most, l.NearEnough = slices.Repeat([]int{most}, len(l.Snapshot.Pools)), k.NearEnough
	out := consolidate.Plan(k.Search, l)
	var steered []string
	for _, i := range out.Surplus {
		steered = append(steered, w.machines[i].name)
	}
	surplus := func(m *machine) bool { return k.Steered && slices.Contains(steered, m.name) }
	now := slices.Clone(w.machines)
	evicted := 0
	for _, step := range out.Steps {
		if most -= len(step.Leave); most < 0 {
			break
		}
		n, homes := w.take(now, l, step, s)
		evicted += n
		if k.Steered {
			w.handOver(homes, s)
		}
	}
	for _, m := range w.machines {
		m.surplus = surplus(m)
	}
	return evicted
}

// Karpenter carries out the steps of the model of Karpenter's consolidation until there are none.
func Karpenter(w *world, s Scheduler) int {
	evicted := 0
	for range 200 {
		l := w.layout(0, 0)
		step, ok := KarpenterStep(l)
		if !ok {
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

// layout returns the world as a layout. A machine may leave if all of its pods have run for at least settle.
func (w *world) layout(move planner.MicroUSD, settle time.Duration) consolidate.Layout {
	l := consolidate.Layout{Snapshot: w.snapshot(true)}
	for i, m := range w.machines {
		o := w.trace.Snapshot.Offerings[m.offering]
		x := consolidate.Machine{Node: i, Pool: o.Pool, Price: o.Price, Physical: o.Physical}
		settled := true
		for _, pod := range m.pods {
			settled = settled && w.now-w.pods[pod].since >= settle
			r := consolidate.Running{Name: name(pod), Class: w.trace.Pods[pod].Shape, GPU: -1, Move: move}
			if w.class(pod).GPUMemoryBytes > 0 {
				r.GPU = w.pods[pod].on[0]
			}
			x.Pods = append(x.Pods, r)
		}
		if settled {
			l.Machines = append(l.Machines, x)
		}
	}
	return l
}

// home is a machine and the pods that a plan places on it.
type home struct {
	machine *machine
	pods    []string
}

// handOver schedules the pending pods of one machine after the other, the machine with the largest pod first. All other machines are tainted meanwhile.
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
