// Package replay replays pods that come and go through the planner and what gives machines back, against a model of the scheduler, and adds up what the
// machines cost and how many pods had to move.
//
// Machines start and stop at once and are paid by the second, so it compares decisions, not how long machines take to boot.
package replay

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"karve.sh/karve/pkg/planner"
)

// world is what runs where at some time of a trace.
type world struct {
	trace *Trace
	now   time.Duration
	// machines are in the order in which they were launched.
	machines []*machine
	// pods are those of the trace, by its indices; waiting are the indices of those that wait, in the order in which they came or were evicted.
	pods     []running
	waiting  []int
	launched int
}

// machine is a node.
type machine struct {
	name     string
	offering int
	launched time.Duration
	// surplus is whether it has Karve's taint with the effect PreferNoSchedule.
	surplus bool
	free    planner.Resources
	gpus    []planner.GPU
	// pods are in the order in which they came to the machine.
	pods []int
}

// running is where a pod is.
type running struct {
	machine *machine
	// since is when it came there; on is the GPU of each of its replicas.
	since time.Duration
	on    []int
}

func newWorld(t *Trace) *world { return &world{trace: t, pods: make([]running, len(t.Pods))} }

func (w *world) class(pod int) *planner.Class {
	return &w.trace.Snapshot.Classes[w.trace.Pods[pod].Shape]
}

func (w *world) price(m *machine) planner.MicroUSD {
	return w.trace.Snapshot.Offerings[m.offering].Price
}

// launch adds a machine.
func (w *world) launch(offering int) *machine {
	o := w.trace.Snapshot.Offerings[offering]
	m := &machine{name: fmt.Sprintf("m%06d", w.launched), offering: offering, launched: w.now, free: o.Free, gpus: slices.Clone(o.GPUs)}
	w.launched++
	w.machines = append(w.machines, m)
	return m
}

// gpusFor are the GPUs that a pod's replicas would be on, nil where it has no room on the machine. What states no memory takes each replica from the GPU
// with the most free ones, as karve-node does. For what does, pick chooses between the GPUs that have room; it reports whether it prefers the first.
func (m *machine) gpusFor(c *planner.Class, pick func(a, b planner.GPU) bool) []int {
	r := c.Requests
	if f := m.free; r.MilliCPU > f.MilliCPU || r.MemoryBytes > f.MemoryBytes || r.EphemeralBytes > f.EphemeralBytes || r.Pods > f.Pods || r.Replicas > f.Replicas {
		return nil
	}
	if c.GPUMemoryBytes > 0 {
		return m.oneGPU(c, pick)
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

// oneGPU is gpusFor for what states memory and is on one GPU.
func (m *machine) oneGPU(c *planner.Class, pick func(a, b planner.GPU) bool) []int {
	best := -1
	for i, g := range m.gpus {
		if g.Replicas >= c.Requests.Replicas && g.MemoryBytes >= c.GPUMemoryBytes && (best < 0 || pick(g, m.gpus[best])) {
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

// place has a pod run on a machine, on those GPUs.
func (w *world) place(pod int, m *machine, on []int) {
	w.pods[pod] = running{machine: m, since: w.now, on: on}
	m.pods = append(m.pods, pod)
	m.take(w.class(pod), on, 1)
}

// remove takes a pod off its machine.
func (w *world) remove(pod int) {
	at := w.pods[pod]
	at.machine.take(w.class(pod), at.on, -1)
	at.machine.pods = slices.DeleteFunc(at.machine.pods, func(p int) bool { return p == pod })
	w.pods[pod] = running{}
}

// take has a pod's requests off what is free, or gives them back.
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

// evict has the pods of machines wait again and takes the machines away. It returns how many pods that were.
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

// drop takes empty machines away.
func (w *world) drop() {
	w.machines = slices.DeleteFunc(w.machines, func(m *machine) bool { return len(m.pods) == 0 })
}

// snapshot is the world as the planner sees it, with all classes or only those of which pods wait.
func (w *world) snapshot(all bool) planner.Snapshot {
	t := w.trace.Snapshot
	s := planner.Snapshot{Pools: t.Pools, Offerings: t.Offerings}
	every := make([]int, 0, len(w.machines))
	for i, m := range w.machines {
		s.Nodes = append(s.Nodes, planner.Node{Name: m.name, Free: m.free, GPUs: m.gpus})
		every = append(every, i)
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
		s.Classes = append(s.Classes, c)
	}
	return s
}

// cost is what the machines cost an hour.
func (w *world) cost() planner.MicroUSD {
	var sum planner.MicroUSD
	for _, m := range w.machines {
		sum += w.price(m)
	}
	return sum
}

// check reports what is not as it should be: a pod that is nowhere or in two places, a machine that holds more than it has.
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
