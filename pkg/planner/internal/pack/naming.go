package pack

import (
	"cmp"
	"slices"
)

// Naming assigns pods to the loads of machines.
type Naming struct {
	Problem *Problem
	Room    Room
	// Take takes the names of count pods of shape k.
	Take func(k int, count int32) []string
}

// InTurn returns a naming that takes the pods of each shape in the order of their names. next is, by shape, the index of the first pod that is not taken yet.
func (p *Problem) InTurn(next []int) Naming {
	return Naming{Problem: p, Room: Room{Ledger: NewLedger(p)}, Take: func(k int, count int32) []string {
		var out []string
		for _, pod := range p.Shapes[k].Pods[next[k] : next[k]+int(count)] {
			out = append(out, pod.Name)
		}
		next[k] += int(count)
		return out
	}}
}

// Pick takes the pods of one machine's load. It returns them sorted, with the GPU of each. gpus is nil if no pod requests device memory.
func (n *Naming) Pick(c *Capacity, l Load) (pods []string, gpus []int) {
	type place struct {
		pod string
		gpu int
	}
	var places []place
	var on []onGPU
	stated := false
	for _, k := range n.Problem.byGPU {
		stated = stated || l[k] > 0
	}
	if stated {
		n.Problem.assign(c, l, &n.Room, &on)
	}
	put := func(k int, count int32, gpu int) {
		for _, pod := range n.Take(k, count) {
			places = append(places, place{pod, gpu})
		}
	}
	for _, x := range on {
		put(x.shape, x.pods, c.gpuAt[x.gpu])
	}
	for k, count := range l {
		if count > 0 && !n.Problem.Shapes[k].States() {
			put(k, count, -1)
		}
	}
	slices.SortFunc(places, func(a, b place) int { return cmp.Compare(a.pod, b.pod) })
	for _, x := range places {
		pods = append(pods, x.pod)
		if stated {
			gpus = append(gpus, x.gpu)
		}
	}
	return pods, gpus
}
