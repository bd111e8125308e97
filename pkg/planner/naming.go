package planner

import (
	"cmp"
	"slices"
)

// naming gives the loads of a plan their pods, each shape's in the order of their names.
type naming struct {
	*problem
	next []int // by shape, the first pod without a place
	room room
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
	for _, k := range n.byGPU {
		stated = stated || l[k] > 0
	}
	if stated {
		n.assign(c, l, &n.room, &on)
	}
	take := func(k int, count int32, gpu int) {
		for _, pod := range n.shapes[k].pods[n.next[k] : n.next[k]+int(count)] {
			places = append(places, place{pod.name, gpu})
		}
		n.next[k] += int(count)
	}
	for _, x := range on {
		take(x.shape, x.pods, c.gpuAt[x.gpu])
	}
	for k, count := range l {
		if count > 0 && !n.shapes[k].states() {
			take(k, count, -1)
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
