package planner

import (
	"cmp"
	"slices"
)

// naming gives the loads of machines their pods.
type naming struct {
	problem *problem
	room    room
	// take takes the names of so many pods of a shape.
	take func(k int, count int32) []string
}

// inTurn names the pods of each shape in the order of their names; next is by shape the first that has no place yet.
func (p *problem) inTurn(next []int) naming {
	return naming{problem: p, room: room{ledger: newLedger(p)}, take: func(k int, count int32) []string {
		var out []string
		for _, pod := range p.shapes[k].pods[next[k] : next[k]+int(count)] {
			out = append(out, pod.name)
		}
		next[k] += int(count)
		return out
	}}
}

// pick takes the pods of one machine's load, sorted, and the GPU of each, nil where none states device memory.
func (n *naming) pick(c *capacity, l load) (pods []string, gpus []int) {
	type place struct {
		pod string
		gpu int
	}
	var places []place
	var on []onGPU
	stated := false
	for _, k := range n.problem.byGPU {
		stated = stated || l[k] > 0
	}
	if stated {
		n.problem.assign(c, l, &n.room, &on)
	}
	put := func(k int, count int32, gpu int) {
		for _, pod := range n.take(k, count) {
			places = append(places, place{pod, gpu})
		}
	}
	for _, x := range on {
		put(x.shape, x.pods, c.gpuAt[x.gpu])
	}
	for k, count := range l {
		if count > 0 && !n.problem.shapes[k].states() {
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
