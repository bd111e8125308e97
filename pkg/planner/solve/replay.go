package solve

import (
	"slices"
	"strings"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/constraints"
)

// ungrouped is Plan for a snapshot without groups.
func (with Solver) ungrouped(s planner.Snapshot) planner.Plan {
	plan := with.search(s)
	with.First = nil
	return with.replay(s, plan)
}

// replay makes a plan as if the nodes that equal new machines of an offering did not exist, and uses these nodes in place of launches. Right after a
// plan was carried out, its machines are such nodes, and their pods are still pending. The same plan results again and finds its machines, whereas
// packing the nodes from scratch might miss by one pod and launch another machine. replay returns the given plan if that is as good.
func (with Solver) replay(s planner.Snapshot, plan planner.Plan) planner.Plan {
	fresh := freshNodes(s)
	if plan.Price == 0 && len(plan.Unplaced) == 0 || len(fresh) == 0 || with.stopped() {
		return plan
	}
	again := with.search(without(s, fresh))
	again.Bound = 0
	launches := again.Launches
	again.Launches = nil
	// A node that admits exactly the pods that the offering admits comes before one that admits more, because other pods may need the latter.
	for _, exactly := range []bool{true, false} {
		var rest []planner.Launch
		for _, l := range launches {
			n := needOf(s, l)
			at := slices.IndexFunc(fresh, func(f freshNode) bool { return f.meets(n, exactly) })
			if at < 0 {
				rest = append(rest, l)
				continue
			}
			again.Placements = append(again.Placements, planner.Placement{Node: fresh[at].node, Pods: l.Pods, GPUs: l.GPUs})
			again.Price -= s.Offerings[l.Offering].Price
			fresh = slices.Delete(fresh, at, at+1)
		}
		launches = rest
	}
	again.Launches = launches
	constraints.Sort(s, &again)
	better := orBetter(s, plan, again)
	if samePods(plan, better) {
		better.Bound = plan.Bound
	}
	return better
}

// freshNode is a node that equals a new machine of the offerings.
type freshNode struct {
	node      int
	offerings []int
	// admits reports for each class whether the node admits its pods.
	admits []bool
}

// freshNodes returns the nodes that equal new machines of an offering and have no pods that a rule counts, in the order of their names.
func freshNodes(s planner.Snapshot) []freshNode {
	var fresh []freshNode
	for v := range s.Nodes {
		counted := slices.ContainsFunc(s.Rules, func(r planner.Rule) bool {
			return r.Topology == planner.PerNode && v < len(r.Present) && r.Present[v] > 0
		})
		f := freshNode{node: v}
		for t := range s.Offerings {
			if !counted && isNew(s.Nodes[v], s.Offerings[t]) {
				f.offerings = append(f.offerings, t)
			}
		}
		if len(f.offerings) == 0 {
			continue
		}
		for _, c := range s.Classes {
			_, admitted := slices.BinarySearch(c.Nodes, v)
			f.admits = append(f.admits, admitted)
		}
		fresh = append(fresh, f)
	}
	slices.SortStableFunc(fresh, func(a, b freshNode) int { return strings.Compare(s.Nodes[a.node].Name, s.Nodes[b.node].Name) })
	return fresh
}

// isNew reports whether a node has exactly the capacity and the domains of a machine of an offering.
func isNew(n planner.Node, o planner.Offering) bool {
	return n.Free == o.Free && slices.Equal(n.GPUs, o.GPUs) && slices.Equal(n.Quotas, o.Quotas) && slices.Equal(n.Domains, o.Domains)
}

// without returns a snapshot in which no class is admitted by the fresh nodes.
func without(s planner.Snapshot, fresh []freshNode) planner.Snapshot {
	isFresh := make([]bool, len(s.Nodes))
	for _, f := range fresh {
		isFresh[f.node] = true
	}
	s.Classes = slices.Clone(s.Classes)
	for c := range s.Classes {
		s.Classes[c].Nodes = slices.DeleteFunc(slices.Clone(s.Classes[c].Nodes), func(v int) bool { return isFresh[v] })
	}
	return s
}

// need is what a node must have to replace a launch.
type need struct {
	// offerings are that of the launch and its alternatives. The node must equal a new machine of one of them.
	offerings []int
	// admits reports for each class whether the launch's offering admits its pods, and has whether the launch has any of them.
	admits, has []bool
}

func needOf(s planner.Snapshot, l planner.Launch) need {
	n := need{offerings: append([]int{l.Offering}, l.Alternatives...)}
	for _, c := range s.Classes {
		_, admitted := slices.BinarySearch(c.Offerings, l.Offering)
		n.admits = append(n.admits, admitted)
		n.has = append(n.has, slices.ContainsFunc(l.Pods, func(pod string) bool { _, is := slices.BinarySearch(c.Pods, pod); return is }))
	}
	return n
}

// meets reports whether a node can replace a launch. If exactly is true, the node must also admit the same classes as the offering.
func (f freshNode) meets(n need, exactly bool) bool {
	if !slices.ContainsFunc(n.offerings, func(t int) bool { return slices.Contains(f.offerings, t) }) {
		return false
	}
	if exactly {
		return slices.Equal(f.admits, n.admits)
	}
	for c, has := range n.has {
		if has && !f.admits[c] {
			return false
		}
	}
	return true
}
