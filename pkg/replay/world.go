// Package replay replays pods that come and go. It runs the planner and consolidation against a model of the scheduler, and adds up the cost of the
// machines and the number of moved pods.
//
// Machines start and stop immediately and are billed by the second. So the replay compares decisions, not boot times.
package replay

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"karve.sh/karve/pkg/planner"
)

// world is the state of the cluster at a time of a trace.
type world struct {
	trace *Trace
	now   time.Duration
	// offerings have the current prices: the first priced price changes of the trace are applied.
	offerings []planner.Offering
	priced    int
	// admits has for each shape whether its pods may run on machines of an offering, by its index. An entry is nil if they may run on all.
	admits [][]bool
	// machines are ordered by launch.
	machines []*machine
	// pods are those of the trace, by index. waiting holds the indices of pending pods, in the order of arrival or eviction.
	pods     []running
	waiting  []int
	launched int
	// changes counts the pods and machines that came or went, and the prices that changed. still is the count at which the last consolidation found
	// nothing to do, or -1 before.
	changes, still int
}

type machine struct {
	name     string
	offering int
	launched time.Duration
	// surplus reports whether the machine has Karve's PreferNoSchedule taint.
	surplus bool
	free    planner.Resources
	gpus    []planner.GPU
	// pods are in the order in which they came to the machine.
	pods []int
}

// running is the placement of a pod.
type running struct {
	machine *machine
	// since is when the pod started there. on is the GPU of each of its replicas.
	since time.Duration
	on    []int
}

func newWorld(t *Trace) *world {
	w := &world{trace: t, offerings: slices.Clone(t.Snapshot.Offerings), pods: make([]running, len(t.Pods)), still: -1, admits: make([][]bool, len(t.Snapshot.Classes))}
	for shape, c := range t.Snapshot.Classes {
		if len(c.Offerings) == len(w.offerings) {
			continue
		}
		w.admits[shape] = make([]bool, len(w.offerings))
		for _, o := range c.Offerings {
			w.admits[shape][o] = true
		}
	}
	return w
}

func (w *world) admitted(shape int, m *machine) bool {
	return w.admits[shape] == nil || w.admits[shape][m.offering]
}

// at sets the time and its prices.
func (w *world) at(now time.Duration) {
	w.now = now
	for ; w.priced < len(w.trace.Prices) && w.trace.Prices[w.priced].At <= now; w.priced++ {
		x := w.trace.Prices[w.priced]
		w.offerings[x.Offering].Price = x.Price
		w.changes++
	}
}

func (w *world) class(pod int) *planner.Class {
	return &w.trace.Snapshot.Classes[w.trace.Pods[pod].Shape]
}

func (w *world) price(m *machine) planner.MicroUSD {
	return w.offerings[m.offering].Price
}

func (w *world) launch(offering int) *machine {
	o := w.trace.Snapshot.Offerings[offering]
	m := &machine{name: fmt.Sprintf("m%06d", w.launched), offering: offering, launched: w.now, free: o.Free, gpus: slices.Clone(o.GPUs)}
	w.launched++
	w.changes++
	w.machines = append(w.machines, m)
	return m
}

// gpusFor returns the GPUs that a pod's replicas would use, or nil if the pod does not fit on the machine. A pod without GPU memory takes each replica
// from the GPU with the most free replicas, as karve-node does.
func (m *machine) gpusFor(c *planner.Class) []int {
	r := c.Requests
	if f := m.free; r.MilliCPU > f.MilliCPU || r.MemoryBytes > f.MemoryBytes || r.EphemeralBytes > f.EphemeralBytes || r.Pods > f.Pods || r.Replicas > f.Replicas {
		return nil
	}
	if c.GPUMemoryBytes > 0 {
		return m.oneGPU(c)
	}
	left := slices.Clone(m.gpus)
	on := make([]int, 0, r.Replicas)
	for range r.Replicas {
		best := 0
		for i, g := range left {
			if roomier(g, left[best]) {
				best = i
			}
		}
		left[best].Replicas--
		on = append(on, best)
	}
	return on
}

// oneGPU is gpusFor for a pod that requests GPU memory, which must fit on one GPU.
func (m *machine) oneGPU(c *planner.Class) []int {
	best := -1
	for i, g := range m.gpus {
		if g.Replicas >= c.Requests.Replicas && g.MemoryBytes >= c.GPUMemoryBytes && (best < 0 || roomier(g, m.gpus[best])) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	return slices.Repeat([]int{best}, int(c.Requests.Replicas))
}

// roomier prefers the GPU with the most free replicas, then the most free memory, as karve-node does.
func roomier(a, b planner.GPU) bool {
	return a.Replicas > b.Replicas || a.Replicas == b.Replicas && a.MemoryBytes > b.MemoryBytes
}

// place runs a pod on a machine, on the given GPUs.
func (w *world) place(pod int, m *machine, on []int) {
	w.changes++
	w.pods[pod] = running{machine: m, since: w.now, on: on}
	m.pods = append(m.pods, pod)
	m.take(w.class(pod), on, 1)
}

func (w *world) remove(pod int) {
	w.changes++
	at := w.pods[pod]
	at.machine.take(w.class(pod), at.on, -1)
	at.machine.pods = slices.DeleteFunc(at.machine.pods, func(p int) bool { return p == pod })
	w.pods[pod] = running{}
}

// take subtracts a pod's requests from the free resources, or adds them if sign is -1.
func (m *machine) take(c *planner.Class, on []int, sign int64) {
	r := c.Requests
	m.free.MilliCPU -= sign * r.MilliCPU
	m.free.MemoryBytes -= sign * r.MemoryBytes
	m.free.EphemeralBytes -= sign * r.EphemeralBytes
	m.free.Pods -= sign * r.Pods
	m.free.Replicas -= sign * r.Replicas
	for i, g := range on {
		m.gpus[g].Replicas -= sign
		if i == 0 {
			m.gpus[g].MemoryBytes -= sign * c.GPUMemoryBytes
		}
	}
}

// evict removes machines and makes their pods pending. It returns the number of pods.
func (w *world) evict(leave []*machine) int {
	n := 0
	for _, m := range leave {
		for _, pod := range slices.Clone(m.pods) {
			w.remove(pod)
			w.waiting = append(w.waiting, pod)
			n++
		}
	}
	w.machines = slices.DeleteFunc(w.machines, func(m *machine) bool { return slices.Contains(leave, m) })
	return n
}

func (w *world) drop() {
	w.machines = slices.DeleteFunc(w.machines, func(m *machine) bool { return len(m.pods) == 0 })
}

// snapshot returns the planner's snapshot of the world, with all classes or only those that have pending pods.
func (w *world) snapshot(all bool) planner.Snapshot {
	t := w.trace.Snapshot
	s := planner.Snapshot{Pools: t.Pools, Offerings: slices.Clone(w.offerings), Stocks: slices.Clone(t.Stocks)}
	every := make([]int, 0, len(w.machines))
	for i, m := range w.machines {
		s.Nodes = append(s.Nodes, planner.Node{Name: m.name, Free: m.free, GPUs: m.gpus})
		every = append(every, i)
		planner.Take(s.Stocks, w.offerings[m.offering].Draws)
	}
	names := make([][]string, len(t.Classes))
	for _, pod := range w.waiting {
		names[w.trace.Pods[pod].Shape] = append(names[w.trace.Pods[pod].Shape], name(pod))
	}
	for i, c := range t.Classes {
		if !all && names[i] == nil {
			continue
		}
		slices.Sort(names[i])
		c.Pods, c.Nodes = names[i], every
		if w.admits[i] != nil {
			c.Nodes = slices.DeleteFunc(slices.Clone(every), func(m int) bool { return !w.admitted(i, w.machines[m]) })
		}
		s.Classes = append(s.Classes, c)
	}
	return s
}

func (w *world) cost() planner.MicroUSD {
	var sum planner.MicroUSD
	for _, m := range w.machines {
		sum += w.price(m)
	}
	return sum
}

// check returns an error if a pod is lost or in two places, or if a machine is overcommitted.
func (w *world) check(arrived int) error {
	var errs []error
	seen := make([]int, len(w.pods))
	for _, pod := range w.waiting {
		seen[pod]++
	}
	for _, m := range w.machines {
		fresh := w.trace.Snapshot.Offerings[m.offering]
		as := &machine{free: fresh.Free, gpus: slices.Clone(fresh.GPUs)}
		for _, pod := range m.pods {
			seen[pod]++
			if w.pods[pod].machine != m {
				errs = append(errs, fmt.Errorf("pod %d is on %s and does not know", pod, m.name))
			}
			as.take(w.class(pod), w.pods[pod].on, 1)
		}
		if as.free != m.free || !slices.Equal(as.gpus, m.gpus) {
			errs = append(errs, fmt.Errorf("%s has %v %v free, its pods leave %v %v", m.name, m.free, m.gpus, as.free, as.gpus))
		}
		if f := m.free; min(f.MilliCPU, f.MemoryBytes, f.EphemeralBytes, f.Pods, f.Replicas) < 0 ||
			slices.ContainsFunc(m.gpus, func(g planner.GPU) bool { return min(g.Replicas, g.MemoryBytes) < 0 }) {
			errs = append(errs, fmt.Errorf("%s holds more than it has: %v %v", m.name, m.free, m.gpus))
		}
	}
	for pod, n := range seen {
		if there := pod < arrived && w.trace.Pods[pod].Ends > w.now; there != (n == 1) || n > 1 {
			errs = append(errs, fmt.Errorf("at %v pod %d, there from %v to %v, is in %d places", w.now, pod, w.trace.Pods[pod].Arrives, w.trace.Pods[pod].Ends, n))
		}
	}
	return errors.Join(errs...)
}
