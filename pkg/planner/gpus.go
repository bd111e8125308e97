package planner

import "slices"

// assignSteps bounds the search for GPUs for the pods of one machine, when putting each on the fullest GPU that has room does not do.
const assignSteps = 400

// states reports whether pods of the shape state device memory, so that each is on one GPU.
func (s *shape) states() bool { return s.request[dimGPUMemory] > 0 }

// fit returns how many pods of a shape that states device memory fit on the GPU, at most most.
func (g *GPU) fit(s *shape, most int32) int32 {
	n := min(int64(most), g.MemoryBytes/s.request[dimGPUMemory])
	if r := s.request[dimReplicas]; r > 0 {
		n = min(n, g.Replicas/r)
	}
	return int32(n)
}

func (g *GPU) take(s *shape, n int32) {
	g.MemoryBytes -= s.request[dimGPUMemory] * int64(n)
	g.Replicas -= s.request[dimReplicas] * int64(n)
}

// onGPU says that so many pods of a shape are on a GPU, an index into capacity.gpus.
type onGPU struct {
	shape int
	gpu   int
	pods  int32
}

// bestFit puts up to most pods on GPUs, always on the fullest that has room, and returns how many found a place.
func bestFit(gpus []GPU, s *shape, most int32, note func(gpu int, n int32)) int32 {
	placed := int32(0)
	for placed < most {
		best := -1
		for i := range gpus {
			if gpus[i].fit(s, 1) > 0 && (best < 0 || compareGPUs(gpus[i], gpus[best]) < 0) {
				best = i
			}
		}
		if best < 0 {
			break
		}
		n := gpus[best].fit(s, most-placed)
		gpus[best].take(s, n)
		placed += n
		if note != nil {
			note(best, n)
		}
	}
	return placed
}

// assign finds a GPU for each pod of a load that states device memory. What is left on the GPUs afterwards goes to r, and who is where to
// note when it is not nil. It reports false where it found no way.
func (p *problem) assign(c *capacity, l load, r *room, note *[]onGPU) bool {
	ok, _ := p.assignOrKnow(c, l, r, note)
	return ok
}

// assignOrKnow is assign, and says of a failure whether there might be a way all the same.
func (p *problem) assignOrKnow(c *capacity, l load, r *room, note *[]onGPU) (ok, unsure bool) {
	if p.assignAtOnce(c, l, r, note) {
		return true, false
	}
	if note != nil {
		*note = (*note)[:0]
	}
	r.gpus = append(r.gpus[:0], c.gpus...)
	if !p.mayFit(c, l) {
		return false, false
	}
	a := assignment{problem: p, left: l, gpus: r.gpus, steps: assignSteps}
	ok = a.place(0, 0, 0)
	if ok && note != nil {
		*note = append(*note, a.chosen...)
	}
	return ok, !ok && a.steps <= 0
}

// assignAtOnce is assign without a search: pods with the most memory come first, each to the fullest GPU that has room.
func (p *problem) assignAtOnce(c *capacity, l load, r *room, note *[]onGPU) bool {
	r.gpus = append(r.gpus[:0], c.gpus...)
	for _, k := range p.byGPU {
		if n := l[k]; n > 0 {
			var tell func(int, int32)
			if note != nil {
				tell = func(gpu int, n int32) { *note = append(*note, onGPU{k, gpu, n}) }
			}
			if bestFit(r.gpus, &p.shapes[k], n, tell) < n {
				return false
			}
		}
	}
	return true
}

// mayFit rules loads out by the totals of those pods alone, which free does not tell where other pods have replicas too.
func (p *problem) mayFit(c *capacity, l load) bool {
	var memory, replicas int64
	for _, g := range c.gpus {
		memory, replicas = saturating(memory, g.MemoryBytes), saturating(replicas, g.Replicas)
	}
	for _, k := range p.byGPU {
		memory -= p.shapes[k].request[dimGPUMemory] * int64(l[k])
		replicas -= p.shapes[k].request[dimReplicas] * int64(l[k])
	}
	return memory >= 0 && replicas >= 0
}

// assignment is an exhaustive search, within its steps, for GPUs for the pods of one machine.
type assignment struct {
	*problem
	left   load
	gpus   []GPU
	steps  int
	chosen []onGPU
}

// place finds places for the pods from the i-th shape of byGPU on, of which done have one already. Pods of one shape go to GPUs in
// rising order, and of GPUs with the same room only one is tried.
func (a *assignment) place(i int, done int32, from int) bool {
	for i < len(a.byGPU) && done == a.left[a.byGPU[i]] {
		i, done, from = i+1, 0, 0
	}
	if i == len(a.byGPU) {
		return true
	}
	if a.steps <= 0 {
		return false
	}
	a.steps--
	k := a.byGPU[i]
	s := &a.shapes[k]
	for g := from; g < len(a.gpus); g++ {
		if a.gpus[g].fit(s, 1) == 0 || slices.Contains(a.gpus[from:g], a.gpus[g]) {
			continue
		}
		a.gpus[g].take(s, 1)
		a.chosen = append(a.chosen, onGPU{k, g, 1})
		if a.place(i, done+1, g) {
			return true
		}
		a.chosen = a.chosen[:len(a.chosen)-1]
		a.gpus[g].take(s, -1)
	}
	return false
}
