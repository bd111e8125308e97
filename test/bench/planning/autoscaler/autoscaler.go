// Package autoscaler models the Cluster Autoscaler with one node group per offering. The Cluster Autoscaler itself is not available as a library. The
// model covers its estimator, first fit decreasing by the share of CPU and memory, and two of its expanders. Unlike the real one, the model knows
// replicas and the memory of each GPU.
package autoscaler

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// Expander chooses among the node groups that could take pods.
type Expander string

const (
	// LeastWaste picks the group that leaves the least CPU and memory idle. It ignores GPUs and prices.
	LeastWaste Expander = "least-waste"
	// Price picks the group with the lowest price per pod. The Cluster Autoscaler has no prices on AWS, so this expander cannot be used there.
	Price Expander = "price"
)

// maxNodes is how many nodes one scale-up may add to a group (--max-nodes-per-scaleup).
const maxNodes = 1000

// Plan scales up one group at a time while pods are pending. It returns an error if pods fit no group. It ignores limits, existing nodes, quotas and
// rules.
func Plan(s planner.Snapshot, e Expander) (planner.Plan, error) {
	waiting, left := make([][]string, len(s.Classes)), 0
	for i, c := range s.Classes {
		waiting[i] = c.Pods
		left += len(c.Pods)
	}
	var p planner.Plan
	for left > 0 {
		best, bestScore := -1, math.Inf(1)
		var bestNodes []*node
		for g := range s.Offerings {
			nodes := estimate(s, g, waiting)
			if len(nodes) == 0 {
				continue
			}
			score := e.score(s, g, nodes)
			if best < 0 || score < bestScore-1e-12 || score <= bestScore+1e-12 && s.Offerings[g].Price < s.Offerings[best].Price {
				best, bestScore, bestNodes = g, score, nodes
			}
		}
		if best < 0 {
			return p, fmt.Errorf("%d pods fit no node group", left)
		}
		for _, n := range bestNodes {
			left -= len(n.seats)
			p.Launches = append(p.Launches, n.launch(best))
			p.Price += s.Offerings[best].Price
			for class, pods := range n.pods {
				waiting[class] = waiting[class][pods:]
			}
		}
	}
	return p, nil
}

// score rates the nodes that a group would add. Lower is better.
func (e Expander) score(s planner.Snapshot, group int, nodes []*node) float64 {
	o := s.Offerings[group]
	var used planner.Resources
	pods := 0
	for _, n := range nodes {
		pods += len(n.seats)
		used.MilliCPU += o.Free.MilliCPU - n.free.MilliCPU
		used.MemoryBytes += o.Free.MemoryBytes - n.free.MemoryBytes
	}
	if e == Price {
		return float64(len(nodes)) * float64(o.Price) / float64(pods)
	}
	idle := func(has, used int64) float64 {
		all := float64(len(nodes)) * float64(has)
		return (all - float64(used)) / all
	}
	return idle(o.Free.MilliCPU, used.MilliCPU) + idle(o.Free.MemoryBytes, used.MemoryBytes)
}

// estimate returns the nodes of a group that the pending pods need. It places the largest pods first, each on the first node with room.
func estimate(s planner.Snapshot, group int, waiting [][]string) []*node {
	o := s.Offerings[group]
	var order []int
	for i, c := range s.Classes {
		if _, admitted := slices.BinarySearch(c.Offerings, group); admitted && len(waiting[i]) > 0 {
			order = append(order, i)
		}
	}
	share := func(c planner.Class) float64 {
		return float64(c.Requests.MilliCPU)/float64(o.Free.MilliCPU) + float64(c.Requests.MemoryBytes)/float64(o.Free.MemoryBytes)
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(share(s.Classes[j]), share(s.Classes[i])) })
	var nodes []*node
	for _, i := range order {
		pods := waiting[i]
		for _, n := range nodes {
			pods = n.put(s.Classes[i], i, pods)
		}
		for len(pods) > 0 && len(nodes) < maxNodes {
			n := &node{free: o.Free, gpus: slices.Clone(o.GPUs), pods: map[int]int{}}
			rest := n.put(s.Classes[i], i, pods)
			if len(rest) == len(pods) {
				break
			}
			nodes, pods = append(nodes, n), rest
		}
	}
	return nodes
}

// node is a node to add.
type node struct {
	free  planner.Resources
	gpus  []planner.GPU
	pods  map[int]int // number of pods by class
	seats []seat
}

type seat struct {
	pod string
	gpu int
}

// put places as many of the pods as fit on the node and returns the others.
func (n *node) put(c planner.Class, class int, pods []string) []string {
	k := n.fit(c, int64(len(pods)))
	for _, pod := range pods[:k] {
		n.seats = append(n.seats, seat{pod, n.takeGPU(c)})
	}
	if k > 0 {
		n.pods[class] += int(k)
	}
	n.free.MilliCPU -= k * c.Requests.MilliCPU
	n.free.MemoryBytes -= k * c.Requests.MemoryBytes
	n.free.EphemeralBytes -= k * c.Requests.EphemeralBytes
	n.free.Pods -= k * c.Requests.Pods
	n.free.Replicas -= k * c.Requests.Replicas
	return pods[k:]
}

func (n *node) fit(c planner.Class, most int64) int64 {
	for _, x := range [][2]int64{
		{n.free.MilliCPU, c.Requests.MilliCPU},
		{n.free.MemoryBytes, c.Requests.MemoryBytes},
		{n.free.EphemeralBytes, c.Requests.EphemeralBytes},
		{n.free.Pods, c.Requests.Pods},
		{n.free.Replicas, c.Requests.Replicas},
	} {
		if x[1] > 0 {
			most = min(most, x[0]/x[1])
		}
	}
	if c.GPUMemoryBytes == 0 {
		return most
	}
	var onGPUs int64
	for _, g := range n.gpus {
		onGPUs += fitsOn(g, c)
	}
	return min(most, onGPUs)
}

func fitsOn(g planner.GPU, c planner.Class) int64 {
	k := g.MemoryBytes / c.GPUMemoryBytes
	if c.Requests.Replicas > 0 {
		k = min(k, g.Replicas/c.Requests.Replicas)
	}
	return k
}

// takeGPU places a pod on the fitting GPU with the least memory left. It returns the GPU's index, or -1 for a pod that requests no GPU memory.
func (n *node) takeGPU(c planner.Class) int {
	if c.GPUMemoryBytes == 0 {
		return -1
	}
	best := -1
	for i, g := range n.gpus {
		if fitsOn(g, c) > 0 && (best < 0 || g.MemoryBytes < n.gpus[best].MemoryBytes ||
			g.MemoryBytes == n.gpus[best].MemoryBytes && g.Replicas < n.gpus[best].Replicas) {
			best = i
		}
	}
	n.gpus[best].MemoryBytes -= c.GPUMemoryBytes
	n.gpus[best].Replicas -= c.Requests.Replicas
	return best
}

func (n *node) launch(offering int) planner.Launch {
	l := planner.Launch{Offering: offering}
	slices.SortFunc(n.seats, func(a, b seat) int { return cmp.Compare(a.pod, b.pod) })
	stated := false
	for _, x := range n.seats {
		l.Pods, l.GPUs = append(l.Pods, x.pod), append(l.GPUs, x.gpu)
		stated = stated || x.gpu >= 0
	}
	if !stated {
		l.GPUs = nil
	}
	return l
}
