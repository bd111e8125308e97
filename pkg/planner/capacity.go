package planner

import (
	"cmp"
	"slices"
)

// capacity is what one machine has for pods: a node, or what an offering launches.
type capacity struct {
	free vec
	// gpus are the GPUs of the machine, those with the least memory first, and gpuAt where each stands in the snapshot.
	gpus  []GPU
	gpuAt []int
	// binned is whether it matters which GPU a pod is on: else the totals in free say it all.
	binned bool
	// quotas are by quota of the problem.
	quotas []int64
	// fits is, by shape, how many of its pods alone the machine holds; 0 where it is not admitted.
	fits []int32
}

func newCapacity(p *problem, r Resources, gpus []GPU, quotas []Amount) capacity {
	c := capacity{free: vecOf(r), quotas: slices.Clone(p.quotas)}
	for i := range gpus {
		c.gpuAt = append(c.gpuAt, i)
	}
	slices.SortFunc(c.gpuAt, func(i, j int) int { return cmp.Or(compareGPUs(gpus[i], gpus[j]), cmp.Compare(i, j)) })
	for _, i := range c.gpuAt {
		g := GPU{Replicas: max(0, gpus[i].Replicas), MemoryBytes: max(0, gpus[i].MemoryBytes)}
		c.gpus = append(c.gpus, g)
		c.free[dimGPUMemory] = saturating(c.free[dimGPUMemory], g.MemoryBytes)
	}
	c.binned = p.stated && (len(gpus) > 1 || len(gpus) == 1 && gpus[0].Replicas < r.Replicas)
	for _, x := range quotas {
		if x.Quota >= 0 && x.Quota < len(p.quotaAt) && p.quotaAt[x.Quota] >= 0 {
			c.quotas[p.quotaAt[x.Quota]] = x.Count
		}
	}
	return c
}

func compareGPUs(a, b GPU) int {
	return cmp.Or(cmp.Compare(a.MemoryBytes, b.MemoryBytes), cmp.Compare(a.Replicas, b.Replicas))
}

// alone returns how many pods of one shape the machine holds when nothing else is on it, at most most.
func (c *capacity) alone(s *shape, most int32) int32 {
	n := c.free.fit(s.request, most)
	for _, x := range s.quotas {
		n = int32(min(int64(n), max(0, c.quotas[x.Quota])/x.Count))
	}
	for _, x := range s.apart {
		if x.asks && x.counted {
			n = min(n, 1)
		}
	}
	if s.states() && c.binned {
		var each int64
		for _, g := range c.gpus {
			each += int64(fitGPU(&g, s, n))
		}
		n = int32(min(int64(n), each))
	}
	return n
}

// sameAs reports whether two machines have the same for pods, admitted or not.
func (c *capacity) sameAs(o *capacity) bool {
	return c.free == o.free && slices.Equal(c.gpus, o.gpus) && slices.Equal(c.quotas, o.quotas)
}

// covers reports whether a machine holds whatever another one holds, were all pods admitted to both.
func (c *capacity) covers(o *capacity) bool {
	for d := range c.free {
		if c.free[d] < o.free[d] {
			return false
		}
	}
	for q := range c.quotas {
		if c.quotas[q] < o.quotas[q] {
			return false
		}
	}
	if !c.binned && !o.binned {
		return true
	}
	// The GPUs of the other one find their match from the largest down.
	if len(c.gpus) < len(o.gpus) {
		return false
	}
	skip := len(c.gpus) - len(o.gpus)
	for i, g := range o.gpus {
		if c.gpus[skip+i].MemoryBytes < g.MemoryBytes || c.gpus[skip+i].Replicas < g.Replicas {
			return false
		}
	}
	return true
}

// room is what is left on a machine while it is filled.
type room struct {
	free   vec
	ledger ledger
	gpus   []GPU
	chosen []onGPU // scratch of assign
}

// fill begins with a machine under a load that it holds, and reports whether it found a place for each of its pods.
func (r *room) fill(p *problem, c *capacity, l load) bool {
	r.free = c.free
	r.ledger.open(c)
	for k, n := range l {
		if n > 0 {
			s := &p.shapes[k]
			if c.fits[k] < n || r.free.fit(s.request, n) < n || !s.plain() && r.ledger.fit(s, n) < n {
				return false
			}
			r.free.take(s.request, n)
			if !s.plain() {
				r.ledger.take(s, n)
			}
		}
	}
	r.gpus = r.gpus[:0]
	return !c.binned || p.assign(c, l, r, nil)
}

// add puts as many more pods of a shape on the machine as fit, at most most, and returns how many.
func (r *room) add(p *problem, c *capacity, k int, most int32) int32 {
	s := &p.shapes[k]
	n := r.free.fit(s.request, min(most, c.fits[k]))
	if n > 0 && !s.plain() {
		n = r.ledger.fit(s, n)
	}
	if n > 0 && c.binned && s.states() {
		n = bestFit(r.gpus, s, n, nil)
	}
	if n > 0 {
		r.free.take(s.request, n)
		if !s.plain() {
			r.ledger.take(s, n)
		}
	}
	return n
}
