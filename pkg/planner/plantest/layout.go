package plantest

import (
	"fmt"
	"slices"

	"pgregory.net/rapid"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/consolidate"
)

// Price returns the price of the machines of a layout per hour.
func Price(l consolidate.Layout) planner.MicroUSD {
	var sum planner.MicroUSD
	for _, m := range l.Machines {
		sum += m.Price
	}
	return sum
}

// Layouts generates small valid layouts: snapshots whose nodes are mostly machines with pods, with a maximum number of pods.
func Layouts(snapshots *rapid.Generator[planner.Snapshot], pods int) *rapid.Generator[consolidate.Layout] {
	return rapid.Custom(func(t *rapid.T) consolidate.Layout {
		n := func(name string, low, high int) int { return rapid.IntRange(low, high).Draw(t, name) }
		l := consolidate.Layout{Snapshot: snapshots.Draw(t, "snapshot")}
		s := &l.Snapshot
		if !rapid.Bool().Draw(t, "some wait") {
			for c := range s.Classes {
				s.Classes[c].Pods = nil
			}
		}
		left := pods
		for i := range s.Nodes {
			if n("no machine of ours", 0, 5) == 0 {
				continue
			}
			m := consolidate.Machine{
				Node: i, Pool: n("pool", 0, len(s.Pools)-1), Price: planner.MicroUSD(n("price", 1, 16)),
				Physical: planner.Physical{MilliCPU: 10, MemoryBytes: 10, GPUs: int64(n("GPUs", 1, 3)), Nodes: 1},
			}
			m.Draws = draws(t, *s, m.Price)
			for j := range n("running", 0, min(3, left)) {
				left--
				pod := consolidate.Running{Name: fmt.Sprintf("default/running-%d-%d", i, j), Class: n("class", 0, len(s.Classes)-1), GPU: -1, Move: planner.MicroUSD(n("move", 0, 2))}
				if s.Classes[pod.Class].GPUMemoryBytes > 0 && len(s.Nodes[i].GPUs) > 0 {
					pod.GPU = n("GPU", 0, len(s.Nodes[i].GPUs)-1)
				}
				m.Pods = append(m.Pods, pod)
				keepApart(s, i, pod.Class)
			}
			l.Machines = append(l.Machines, m)
		}
		if rapid.Bool().Draw(t, "so many at a time") {
			for range s.Pools {
				l.Most = append(l.Most, n("most", 0, 2))
			}
		}
		return l
	})
}

// ShuffledLayout returns the same layout in another order. pick(n) chooses from 0 to n-1.
func ShuffledLayout(l consolidate.Layout, pick func(n int) int) consolidate.Layout {
	s, at := shuffled(l.Snapshot, pick)
	out := consolidate.Layout{Snapshot: s}
	order, _ := permutation(len(l.Machines), pick)
	for _, i := range order {
		m := l.Machines[i]
		m.Node, m.Pool = at.node[m.Node], at.pool[m.Pool]
		m.Pods = slices.Clone(m.Pods)
		for j := range m.Pods {
			m.Pods[j].Class = at.class[m.Pods[j].Class]
		}
		out.Machines = append(out.Machines, m)
	}
	if l.Most != nil {
		out.Most = rearranged(l.Most, at.pool)
	}
	return out
}

// Seated returns the layout in which the pods that a plan places on nodes run there, and no pods are pending. The launches of the plan are not part of it.
func Seated(l consolidate.Layout, p planner.Plan) consolidate.Layout {
	l = After(l, consolidate.Step{Placements: p.Placements})
	for _, x := range p.Launches {
		l.Snapshot.Pools[l.Snapshot.Offerings[x.Offering].Pool].Remaining.Take(l.Snapshot.Offerings[x.Offering].Physical)
		planner.Take(l.Snapshot.Stocks, l.Snapshot.Offerings[x.Offering].Draws)
	}
	for c := range l.Snapshot.Classes {
		l.Snapshot.Classes[c].Pods = nil
	}
	return l
}

// After returns the layout after a step: the machines that it removes are gone, its launches exist, and its pods run where it places them. Pending pods
// with a place in the step also run there.
func After(l consolidate.Layout, step consolidate.Step) consolidate.Layout {
	s := Clone(l.Snapshot)
	running := map[string]consolidate.Running{}
	for c, class := range s.Classes {
		for _, pod := range class.Pods {
			running[pod] = consolidate.Running{Name: pod, Class: c, GPU: -1}
		}
	}
	gone := make([]bool, len(s.Nodes))
	out := consolidate.Layout{Most: l.Most}
	for i, m := range l.Machines {
		m.Pods = slices.Clone(m.Pods)
		if !slices.Contains(step.Leave, i) {
			out.Machines = append(out.Machines, m)
			continue
		}
		gone[m.Node] = true
		s.Pools[m.Pool].Remaining.Take(planner.Physical{}.Minus(m.Physical))
		planner.GiveBack(s.Stocks, m.Draws)
		for _, pod := range m.Pods {
			running[pod.Name] = pod
		}
	}
	run := func(node int, pods []string, gpus []int, m *consolidate.Machine) {
		for i, name := range pods {
			pod := running[name]
			pod.GPU = -1
			if gpus != nil {
				pod.GPU = gpus[i]
			}
			Run(&s, node, pod)
			if m != nil {
				m.Pods = append(m.Pods, pod)
			}
		}
	}
	for _, p := range step.Placements {
		var at *consolidate.Machine
		if i := slices.IndexFunc(out.Machines, func(m consolidate.Machine) bool { return m.Node == p.Node }); i >= 0 {
			at = &out.Machines[i]
		}
		run(p.Node, p.Pods, p.GPUs, at)
	}
	for _, x := range step.Launches {
		m := Launched(&s, x.Offering)
		gone = slices.Concat(gone, []bool{false})
		run(m.Node, x.Pods, x.GPUs, &m)
		out.Machines = append(out.Machines, m)
	}
	out.Snapshot = s
	return without(out, gone)
}

// Launched adds an empty machine of an offering to a snapshot and charges it to the limits of its pool and to stocks. Its name is not used by any other node.
func Launched(s *planner.Snapshot, offering int) consolidate.Machine {
	o := s.Offerings[offering]
	n := 0
	for _, v := range s.Nodes {
		var i int
		if _, err := fmt.Sscanf(v.Name, "machine-%d", &i); err == nil {
			n = max(n, i+1)
		}
	}
	node := len(s.Nodes)
	s.Nodes = append(s.Nodes, planner.Node{
		Name: fmt.Sprintf("machine-%06d", n), Free: o.Free, GPUs: slices.Clone(o.GPUs), Quotas: slices.Clone(o.Quotas), Domains: o.Domains,
	})
	for c := range s.Classes {
		if slices.Contains(s.Classes[c].Offerings, offering) {
			s.Classes[c].Nodes = append(s.Classes[c].Nodes, node)
		}
	}
	s.Pools[o.Pool].Remaining.Take(o.Physical)
	planner.Take(s.Stocks, o.Draws)
	return consolidate.Machine{Node: node, Pool: o.Pool, Price: o.Price, Physical: o.Physical, Draws: o.Draws}
}

// Run makes a pod run on a node: it is no longer pending, and its requests are no longer free.
func Run(s *planner.Snapshot, node int, pod consolidate.Running) {
	c := &s.Classes[pod.Class]
	c.Pods = slices.DeleteFunc(slices.Clone(c.Pods), func(name string) bool { return name == pod.Name })
	n := &s.Nodes[node]
	n.GPUs, n.Quotas = slices.Clone(n.GPUs), slices.Clone(n.Quotas)
	s.Occupy(n, pod.Class, pod.GPU)
	keepApart(s, node, pod.Class)
}

// keepApart closes a node to the classes whose pods may not share it with a pod of the given class.
func keepApart(s *planner.Snapshot, node, class int) {
	for _, r := range s.Rules {
		if r.Kind != planner.Apart || r.Topology != planner.PerNode {
			continue
		}
		asks, counted := slices.Contains(r.Classes, class), slices.Contains(r.Counted, class)
		for i := range s.Classes {
			if asks && slices.Contains(r.Counted, i) || counted && slices.Contains(r.Classes, i) {
				other := &s.Classes[i]
				other.Nodes = slices.DeleteFunc(slices.Clone(other.Nodes), func(n int) bool { return n == node })
			}
		}
	}
}

// without removes nodes from a layout.
func without(l consolidate.Layout, gone []bool) consolidate.Layout {
	at := make([]int, len(gone))
	var nodes []planner.Node
	for i, g := range gone {
		if at[i] = -1; !g {
			at[i] = len(nodes)
			nodes = append(nodes, l.Snapshot.Nodes[i])
		}
	}
	l.Snapshot.Nodes = nodes
	for c := range l.Snapshot.Classes {
		class := &l.Snapshot.Classes[c]
		var kept []int
		for _, n := range class.Nodes {
			if at[n] >= 0 {
				kept = append(kept, at[n])
			}
		}
		class.Nodes = kept
	}
	for i := range l.Machines {
		l.Machines[i].Node = at[l.Machines[i].Node]
	}
	return l
}

// Drop removes the machines without pods, and returns how many there were.
func Drop(l consolidate.Layout) (consolidate.Layout, int) {
	var empty []int
	for i, m := range l.Machines {
		if len(m.Pods) == 0 {
			empty = append(empty, i)
		}
	}
	return After(l, consolidate.Step{Leave: empty}), len(empty)
}
