package pack

import (
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/amount"
)

// assignSteps limits the search for GPUs for the pods of one machine. The search runs only if best fit fails.
const assignSteps = 400

// States reports whether pods of the shape request device memory, so that each must be on one GPU.
func (s *Shape) States() bool { return s.Request[amount.GPUMemory] > 0 }

// fitGPU returns how many pods of a shape that requests device memory fit on the GPU, up to most.
func fitGPU(g *planner.GPU, s *Shape, most int32) int32 {
	n := min(int64(most), g.MemoryBytes/s.Request[amount.GPUMemory])
	if r := s.Request[amount.Replicas]; r > 0 {
		n = min(n, g.Replicas/r)
	}
	return int32(n)
}

// GpuHolds reports whether one pod of a shape that requests device memory fits on the GPU.
func GpuHolds(g *planner.GPU, s *Shape) bool {
	r := s.Request[amount.Replicas]
	return g.MemoryBytes >= s.Request[amount.GPUMemory] && (r == 0 || g.Replicas >= r)
}

// TakeGPU subtracts the requests of n pods of a shape from a GPU.
func TakeGPU(g *planner.GPU, s *Shape, n int32) {
	g.MemoryBytes -= s.Request[amount.GPUMemory] * int64(n)
	g.Replicas -= s.Request[amount.Replicas] * int64(n)
}

// onGPU is a number of pods of a shape on a GPU, which is an index into Capacity.Gpus.
type onGPU struct {
	shape int
	gpu   int
	pods  int32
}

// bestFit puts up to most pods on GPUs, each on the fullest GPU that has room. It returns how many it placed.
func bestFit(gpus []planner.GPU, s *Shape, most int32, note func(gpu int, n int32)) int32 {
	placed := int32(0)
	for placed < most {
		best := -1
		for i := range gpus {
			if GpuHolds(&gpus[i], s) && (best < 0 || compareGPUs(gpus[i], gpus[best]) < 0) {
				best = i
			}
		}
		if best < 0 {
			break
		}
		n := fitGPU(&gpus[best], s, most-placed)
		TakeGPU(&gpus[best], s, n)
		placed += n
		if note != nil {
			note(best, n)
		}
	}
	return placed
}

// assign finds a GPU for each pod of a load that requests device memory. It stores what is left on the GPUs in r, and the GPUs of the pods in note if
// that is not nil. It returns false if it found no assignment.
func (p *Problem) assign(c *Capacity, l Load, r *Room, note *[]onGPU) bool {
	ok, _ := p.AssignOrKnow(c, l, r, note)
	return ok
}

// AssignOrKnow is assign. If it fails, unsure reports whether an assignment may still exist.
func (p *Problem) AssignOrKnow(c *Capacity, l Load, r *Room, note *[]onGPU) (ok, unsure bool) {
	if p.AssignAtOnce(c, l, r, note) {
		return true, false
	}
	if note != nil {
		*note = (*note)[:0]
	}
	r.gpus = append(r.gpus[:0], c.Gpus...)
	spare, may := p.spare(c, l)
	if !may {
		return false, false
	}
	a := assignment{problem: p, left: slices.Clone(l), gpus: r.gpus, full: make([]bool, len(r.gpus)), spare: spare, steps: assignSteps, chosen: r.chosen[:0]}
	ok = a.place()
	r.chosen = a.chosen
	if ok && note != nil {
		*note = append(*note, a.chosen...)
	}
	return ok, !ok && a.steps <= 0
}

// AssignAtOnce is assign without a search: pods with the most memory come first, each on the fullest GPU that has room.
func (p *Problem) AssignAtOnce(c *Capacity, l Load, r *Room, note *[]onGPU) bool {
	r.gpus = append(r.gpus[:0], c.Gpus...)
	for _, k := range p.byGPU {
		if n := l[k]; n > 0 {
			var tell func(int, int32)
			if note != nil {
				tell = func(gpu int, n int32) { *note = append(*note, onGPU{k, gpu, n}) }
			}
			if bestFit(r.gpus, &p.Shapes[k], n, tell) < n {
				return false
			}
		}
	}
	return true
}

// spare returns the capacity of all GPUs in excess of what the pods of a load that request device memory need, and reports whether it is ≥ 0. The
// replicas of other pods are checked elsewhere, in Free.
func (p *Problem) spare(c *Capacity, l Load) (planner.GPU, bool) {
	var g planner.GPU
	for _, x := range c.Gpus {
		g.MemoryBytes, g.Replicas = amount.Saturating(g.MemoryBytes, x.MemoryBytes), amount.Saturating(g.Replicas, x.Replicas)
	}
	for _, k := range p.byGPU {
		g.MemoryBytes -= p.Shapes[k].Request[amount.GPUMemory] * int64(l[k])
		g.Replicas -= p.Shapes[k].Request[amount.Replicas] * int64(l[k])
	}
	return g, g.MemoryBytes >= 0 && g.Replicas >= 0
}

// assignment is a search, exhaustive within its steps, for GPUs for the pods of one machine. It fills one GPU after the other (bin completion, Gent and
// Walsh). The largest remaining pod goes to a GPU together with other pods, so that nothing more fits. The full GPUs may leave unused at most what all
// GPUs have to spare.
type assignment struct {
	problem *Problem
	left    Load
	gpus    []planner.GPU
	full    []bool
	spare   planner.GPU
	steps   int
	chosen  []onGPU
}

// place finds GPUs for all remaining pods. It tries only one of identical GPUs.
func (a *assignment) place() bool {
	first := slices.IndexFunc(a.problem.byGPU, func(k int) bool { return a.left[k] > 0 })
	if first < 0 {
		return true
	}
	for g := range a.gpus {
		if a.full[g] || !GpuHolds(&a.gpus[g], &a.problem.Shapes[a.problem.byGPU[first]]) {
			continue
		}
		same := false
		for f := range g {
			same = same || !a.full[f] && a.gpus[f] == a.gpus[g]
		}
		if same {
			continue
		}
		a.full[g] = true
		if a.fill(g, first, 1) {
			return true
		}
		a.full[g] = false
	}
	return false
}

// fill chooses the pods of one GPU, from the i-th shape of byGPU on. It takes no fewer than least pods of that shape.
func (a *assignment) fill(g, i int, least int32) bool {
	for i < len(a.problem.byGPU) && a.left[a.problem.byGPU[i]] == 0 {
		i++
	}
	if a.steps <= 0 {
		return false
	}
	a.steps--
	if i == len(a.problem.byGPU) {
		return a.finish(g)
	}
	k := a.problem.byGPU[i]
	s := &a.problem.Shapes[k]
	for n := fitGPU(&a.gpus[g], s, a.left[k]); n >= least; n-- {
		TakeGPU(&a.gpus[g], s, n)
		a.left[k] -= n
		if n > 0 {
			a.chosen = append(a.chosen, onGPU{k, g, n})
		}
		if a.fill(g, i+1, 0) {
			return true
		}
		if n > 0 {
			a.chosen = a.chosen[:len(a.chosen)-1]
		}
		a.left[k] += n
		TakeGPU(&a.gpus[g], s, -n)
	}
	return false
}

// finish continues after a GPU is filled. It returns false if one of the remaining pods still fits on the GPU, or if the GPU leaves too much unused.
func (a *assignment) finish(g int) bool {
	over := a.gpus[g]
	if over.MemoryBytes > a.spare.MemoryBytes || over.Replicas > a.spare.Replicas {
		return false
	}
	for _, k := range a.problem.byGPU {
		if a.left[k] > 0 && GpuHolds(&over, &a.problem.Shapes[k]) {
			return false
		}
	}
	a.spare.MemoryBytes -= over.MemoryBytes
	a.spare.Replicas -= over.Replicas
	if a.place() {
		return true
	}
	a.spare.MemoryBytes += over.MemoryBytes
	a.spare.Replicas += over.Replicas
	return false
}
