package plantest

import (
	"slices"

	"karve.sh/karve/pkg/planner"
)

// Spot is the capacity that one machine has left for pods, and the classes of the pods on it.
type Spot struct {
	free    planner.Resources
	gpus    []planner.GPU
	quotas  []int64
	classes []int
}

func newSpot(s planner.Snapshot, free planner.Resources, gpus []planner.GPU, amounts []planner.Amount) Spot {
	p := Spot{free: free, gpus: gpus}
	for _, q := range s.Quotas {
		p.quotas = append(p.quotas, q.Each)
	}
	for _, x := range amounts {
		p.quotas[x.Quota] = x.Count
	}
	return p
}

// Empty returns a machine of an offering without pods.
func Empty(s planner.Snapshot, offering int) Spot {
	o := s.Offerings[offering]
	return newSpot(s, o.Free, o.GPUs, o.Quotas)
}

// With returns the spot after one more pod of a class, once for each GPU that the pod could be on. It returns none if the pod does not fit. It does not check
// whether the machine admits the class.
func (p Spot) With(s planner.Snapshot, class int) []Spot {
	c := s.Classes[class]
	if !p.free.Covers(c.Requests) || !p.welcomes(s, class) {
		return nil
	}
	p.free = p.free.Minus(c.Requests)
	p.classes = append(slices.Clip(p.classes), class)
	slices.Sort(p.classes)
	p.quotas = slices.Clone(p.quotas)
	for _, x := range c.Quotas {
		if p.quotas[x.Quota] < x.Count {
			return nil
		}
		if p.quotas[x.Quota] != planner.Unlimited {
			p.quotas[x.Quota] -= x.Count
		}
	}
	if c.GPUMemoryBytes == 0 {
		return []Spot{p}
	}
	var out []Spot
	for i, g := range p.gpus {
		if g.MemoryBytes < c.GPUMemoryBytes || g.Replicas < c.Requests.Replicas || slices.Contains(p.gpus[:i], g) {
			continue
		}
		after := p
		after.gpus = slices.Clone(p.gpus)
		after.gpus[i].MemoryBytes -= c.GPUMemoryBytes
		after.gpus[i].Replicas -= c.Requests.Replicas
		out = append(out, after)
	}
	return out
}

// welcomes reports whether no rule keeps a pod of a class apart from the pods on the machine.
func (p Spot) welcomes(s planner.Snapshot, class int) bool {
	for _, r := range s.Rules {
		if r.Kind != planner.Apart || r.Topology != planner.PerNode {
			continue
		}
		for _, other := range p.classes {
			if slices.Contains(r.Classes, class) && slices.Contains(r.Counted, other) || slices.Contains(r.Classes, other) && slices.Contains(r.Counted, class) {
				return false
			}
		}
	}
	return true
}

// Room returns the capacity that a plan leaves on each node of a snapshot and on each of its launches.
func Room(s planner.Snapshot, p planner.Plan) (nodes, launches []Spot) {
	class := s.ClassByPod()
	after := func(spot Spot, pods []string, gpus []int) Spot {
		spot.gpus = slices.Clone(spot.gpus)
		spot.quotas = slices.Clone(spot.quotas)
		for i, pod := range pods {
			c := s.Classes[class[pod]]
			spot.free = spot.free.Minus(c.Requests)
			spot.classes = append(spot.classes, class[pod])
			for _, x := range c.Quotas {
				spot.quotas[x.Quota] -= x.Count
			}
			if c.GPUMemoryBytes > 0 {
				spot.gpus[gpus[i]].MemoryBytes -= c.GPUMemoryBytes
				spot.gpus[gpus[i]].Replicas -= c.Requests.Replicas
			}
		}
		return spot
	}
	for _, n := range s.Nodes {
		nodes = append(nodes, newSpot(s, n.Free, n.GPUs, n.Quotas))
	}
	for _, x := range p.Placements {
		nodes[x.Node] = after(nodes[x.Node], x.Pods, x.GPUs)
	}
	for _, l := range p.Launches {
		o := s.Offerings[l.Offering]
		launches = append(launches, after(newSpot(s, o.Free, o.GPUs, o.Quotas), l.Pods, l.GPUs))
	}
	return nodes, launches
}

// count subtracts a machine from the remaining limits, and reports whether they allow it.
func count(left *planner.Physical, u planner.Physical) bool {
	if u.MilliCPU > left.MilliCPU || u.MemoryBytes > left.MemoryBytes || u.GPUs > left.GPUs || u.Replicas > left.Replicas || u.Nodes > left.Nodes {
		return false
	}
	left.Take(u)
	return true
}
