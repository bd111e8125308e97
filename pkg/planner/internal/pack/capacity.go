package pack

import (
	"cmp"
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/amount"
)

// Capacity is what one machine has for pods: an existing node, or a machine that an offering launches.
type Capacity struct {
	Free amount.Vector
	// Gpus are the GPUs of the machine, those with the least memory first. gpuAt has their indices in the snapshot.
	Gpus  []planner.GPU
	gpuAt []int
	// Binned reports whether it matters which GPU a pod is on. If it is false, the totals in Free are sufficient.
	Binned bool
	// Quotas are what the machine has, by quota of the problem.
	Quotas []int64
	// Fits is, by shape, the number of its pods that the machine holds if it holds no others. It is 0 if the machine does not admit them.
	Fits []int32
}

// NewCapacity returns the capacity of a machine with resources, GPUs and quotas.
func NewCapacity(p *Problem, r planner.Resources, gpus []planner.GPU, quotas []planner.Amount) Capacity {
	c := Capacity{Free: amount.VectorOf(r), Quotas: slices.Clone(p.quotas)}
	for i := range gpus {
		c.gpuAt = append(c.gpuAt, i)
	}
	slices.SortFunc(c.gpuAt, func(i, j int) int { return cmp.Or(compareGPUs(gpus[i], gpus[j]), cmp.Compare(i, j)) })
	for _, i := range c.gpuAt {
		g := planner.GPU{Replicas: max(0, gpus[i].Replicas), MemoryBytes: max(0, gpus[i].MemoryBytes)}
		c.Gpus = append(c.Gpus, g)
		c.Free[amount.GPUMemory] = amount.Saturating(c.Free[amount.GPUMemory], g.MemoryBytes)
	}
	c.Binned = p.Stated && (len(gpus) > 1 || len(gpus) == 1 && gpus[0].Replicas < r.Replicas)
	for _, x := range quotas {
		if p.quotaAt[x.Quota] >= 0 {
			c.Quotas[p.quotaAt[x.Quota]] = x.Count
		}
	}
	return c
}

func compareGPUs(a, b planner.GPU) int {
	return cmp.Or(cmp.Compare(a.MemoryBytes, b.MemoryBytes), cmp.Compare(a.Replicas, b.Replicas))
}

// Alone returns how many pods of one shape the machine holds if it holds no others, up to most.
func (c *Capacity) Alone(s *Shape, most int32) int32 {
	n := c.Free.Fit(s.Request, most)
	for _, x := range s.quotas {
		n = int32(min(int64(n), max(0, c.Quotas[x.Quota])/x.Count))
	}
	for _, x := range s.apart {
		if x.asks && x.counted {
			n = min(n, 1)
		}
	}
	if s.States() && c.Binned {
		var each int64
		for _, g := range c.Gpus {
			each += int64(fitGPU(&g, s, n))
		}
		n = int32(min(int64(n), each))
	}
	return n
}

// covers reports whether a machine holds every load that another one holds, apart from which pods they admit.
func (c *Capacity) covers(o *Capacity) bool {
	for d := range c.Free {
		if c.Free[d] < o.Free[d] {
			return false
		}
	}
	for q := range c.Quotas {
		if c.Quotas[q] < o.Quotas[q] {
			return false
		}
	}
	if !c.Binned && !o.Binned {
		return true
	}
	// Each GPU of the other machine is matched with one of this machine, starting with the largest.
	if len(c.Gpus) < len(o.Gpus) {
		return false
	}
	skip := len(c.Gpus) - len(o.Gpus)
	for i, g := range o.Gpus {
		if c.Gpus[skip+i].MemoryBytes < g.MemoryBytes || c.Gpus[skip+i].Replicas < g.Replicas {
			return false
		}
	}
	return true
}

// Equals reports whether two machines hold the same loads.
func (c *Capacity) Equals(o *Capacity) bool {
	return c.Free == o.Free && slices.Equal(c.Gpus, o.Gpus) && slices.Equal(c.Quotas, o.Quotas) && slices.Equal(c.Fits, o.Fits)
}

// Room is what remains of a machine while it is filled.
type Room struct {
	free   amount.Vector
	Ledger Ledger
	gpus   []planner.GPU
	chosen []onGPU // scratch of assign
}

// Fill starts with a machine under a load. It reports whether the machine can hold the load.
func (r *Room) Fill(p *Problem, c *Capacity, l Load) bool {
	r.free = c.Free
	r.Ledger.Open(c)
	for k, n := range l {
		if n > 0 {
			s := &p.Shapes[k]
			if c.Fits[k] < n || r.free.Fit(s.Request, n) < n || !s.Plain() && r.Ledger.Fit(s, n) < n {
				return false
			}
			r.free.Take(s.Request, n)
			if !s.Plain() {
				r.Ledger.Take(s, n)
			}
		}
	}
	r.gpus = r.gpus[:0]
	return !c.Binned || p.assign(c, l, r, nil)
}

// Add puts as many more pods of a shape on the machine as fit, up to most, and returns how many.
func (r *Room) Add(p *Problem, c *Capacity, k int, most int32) int32 {
	s := &p.Shapes[k]
	n := r.free.Fit(s.Request, min(most, c.Fits[k]))
	if n > 0 && !s.Plain() {
		n = r.Ledger.Fit(s, n)
	}
	if n > 0 && c.Binned && s.States() {
		n = bestFit(r.gpus, s, n, nil)
	}
	if n > 0 {
		r.free.Take(s.Request, n)
		if !s.Plain() {
			r.Ledger.Take(s, n)
		}
	}
	return n
}
