// Package headroom plans for what is kept free for pods that may come, on machines that are there and on others, and says which idle machines stay for it. It is
// pure.
package headroom

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
)

// Headroom is what is kept free for pods that may come: what a plan for those that are there leaves, with classes of pods that are not, and a plan for
// them. It is made after that plan and of its leavings, so no pod that is there goes without for it, and none moves.
type Headroom struct {
	// View has no pods. Its snapshot is what Plan was made for, and its nodes are those of the cluster and then the launches for the pods that are there.
	snapshot.View
	Plan planner.Plan
	// started are the nodes that exist, by index, on which pods start at once. Those after them are launched for the pods that are there.
	started []bool
}

// Pool is the headroom of one pool, in replicas.
type Pool struct {
	// Wanted is how many are to be free, Free how many of them are, and Coming how many will be when the machines have started that are on their way.
	Wanted, Free, Coming int64
	// Refused is why there is nothing for the rest; nil where there is no rest.
	Refused *planner.Refusal
}

// Build plans for what is to be kept free once the pods of a view are served.
func Build(v *snapshot.View, served planner.Plan, search solve.Solver) Headroom {
	h := Headroom{View: *v}
	h.Pods, h.Classes = nil, nil
	if len(v.Reserves) == 0 {
		return h
	}
	turns := turnsOf(v, served)
	plan := func(turns [][]int) (planner.Snapshot, planner.Plan) {
		return search.Headroom(v.Snapshot, served, givingWay(v, served), turns)
	}
	h.Snapshot, h.Plan = plan(turns)
	for k := len(turns) - 1; k > 0; k-- {
		node := turns[k][0]
		if !h.uses(node) || idlePrice(v, node) < 2*cheapest(v) {
			continue
		}
		without := slices.Delete(slices.Clone(turns), k, k+1)
		left, other := plan(without)
		if len(other.Unplaced) <= len(h.Plan.Unplaced) && cost(v, h.Plan)-cost(v, other) >= idlePrice(v, node)/2 {
			h.Snapshot, h.Plan, turns = left, other, without
		}
	}
	h.started = make([]bool, len(v.Nodes))
	for i := range v.Nodes {
		h.started[i] = !v.Starting(i)
	}
	return h
}

// idlePrice is what an idle machine costs.
func idlePrice(v *snapshot.View, node int) planner.MicroUSD {
	return planner.MicroUSD(v.MachineOn(node).MicroUSDPerHour())
}

// cost is what headroom costs: what is launched for it, and the idle machines that stay for it.
func cost(v *snapshot.View, plan planner.Plan) planner.MicroUSD {
	price := plan.Price
	for _, p := range plan.Placements {
		if m := v.MachineOn(p.Node); m != nil && m.Unused() {
			price += idlePrice(v, p.Node)
		}
	}
	return price
}

// cheapest is the price of the cheapest machine.
func cheapest(v *snapshot.View) planner.MicroUSD {
	least := planner.MicroUSD(math.MaxInt64 / 2)
	for i := range v.Snapshot.Offerings {
		least = min(least, v.Snapshot.Offerings[i].Price)
	}
	return least
}

// uses says whether headroom is on a node.
func (h *Headroom) uses(node int) bool {
	return slices.ContainsFunc(h.Plan.Placements, func(p planner.Placement) bool { return p.Node == node })
}

// givingWay are the classes of the reserves, less those of pools whose limits leave out pods that wait: what the headroom has there would be theirs.
func givingWay(v *snapshot.View, served planner.Plan) []planner.Class {
	classes := v.HeadroomClasses()
	class := map[string]*planner.Class{}
	for i := range v.Classes {
		for _, pod := range v.Classes[i].Pods {
			class[pod] = &v.Classes[i]
		}
	}
	for _, u := range served.Unplaced {
		c := class[u.Pod]
		if u.Reason != planner.ReasonLimitReached || c == nil {
			continue
		}
		for i := range classes {
			pool := v.Reserves[i].Pool
			if classes[i].Blocked == nil && slices.ContainsFunc(c.Offerings, func(o int) bool { return v.Snapshot.Offerings[o].Pool == pool }) {
				classes[i].Blocked = &planner.Refusal{Reason: planner.ReasonLimitReached, Message: fmt.Sprintf(
					"gives way to pods that wait, such as %s: a limit of NodePool %s leaves them no room; raise it", u.Pod, v.Pools[pool].NodePool.Name)}
			}
		}
	}
	return classes
}

// turnsOf are the nodes in the order in which headroom is looked for on them. Machines that stay for their pods come first, all in one turn. Of those that hold
// none, and that may go where the headroom does not need them, each has a turn: those first that have started, are not about to go, and cost the least. One that
// costs so much that others can be launched for half of it has none.
func turnsOf(v *snapshot.View, served planner.Plan) [][]int {
	serves := map[int]bool{}
	for _, p := range served.Placements {
		serves[p.Node] = true
	}
	var busy, idle []int
	for i := range v.Nodes {
		if m := v.MachineOn(i); m == nil || serves[i] || !m.Unused() {
			busy = append(busy, i)
		} else {
			idle = append(idle, i)
		}
	}
	rank := func(node int) int {
		switch {
		case v.Starting(node):
			return 2
		case snapshot.HasTaint(v.MachineOn(node).Node, v1alpha1.DisruptingTaintKey):
			return 1
		}
		return 0
	}
	slices.SortStableFunc(idle, func(i, j int) int {
		return cmp.Or(cmp.Compare(rank(i), rank(j)), cmp.Compare(idlePrice(v, i), idlePrice(v, j)),
			cmp.Compare(v.MachineOn(i).Claim.Name, v.MachineOn(j).Claim.Name))
	})
	turns := [][]int{busy}
	for _, i := range idle {
		turns = append(turns, []int{i})
	}
	return turns
}

// Keeps are the nodes that the headroom needs, by the names that the planner uses.
func (h *Headroom) Keeps() map[string]bool {
	keeps := map[string]bool{}
	for _, p := range h.Plan.Placements {
		if p.Node < len(h.started) {
			keeps[h.Nodes[p.Node].Name] = true
		}
	}
	return keeps
}

// Of is the headroom of a pool; false where it is to have none.
func (h *Headroom) Of(pool string) (Pool, bool) {
	var r Pool
	replicas := map[string]int64{}
	for _, reserve := range h.Reserves {
		if h.Pools[reserve.Pool].NodePool.Name != pool {
			continue
		}
		for _, pod := range reserve.Class.Pods {
			replicas[pod] = reserve.Class.Requests.Replicas
			r.Wanted += reserve.Class.Requests.Replicas
		}
	}
	count := func(n *int64, pods []string) {
		for _, pod := range pods {
			*n += replicas[pod]
		}
	}
	for _, p := range h.Plan.Placements {
		if p.Node < len(h.started) && h.started[p.Node] {
			count(&r.Free, p.Pods)
		} else {
			count(&r.Coming, p.Pods)
		}
	}
	for _, l := range h.Plan.Launches {
		count(&r.Coming, l.Pods)
	}
	for _, u := range h.Plan.Unplaced {
		if replicas[u.Pod] > 0 && r.Refused == nil {
			r.Refused = &u.Refusal
		}
	}
	return r, r.Wanted > 0
}
