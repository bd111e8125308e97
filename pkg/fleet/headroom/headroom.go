// Package headroom plans the capacity that is kept free for future pods, on existing and on new machines. It decides which idle machines to keep for
// it. The package has no clock and no client.
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
	"karve.sh/karve/pkg/snapshot/facts"
)

// Headroom is a plan for the capacity that is kept free for future pods. It is made after the plan for pending pods, from the capacity that is left, so
// it takes nothing from pending pods and moves no pods.
type Headroom struct {
	// View has no pods. Plan was made for its snapshot. Its nodes are those of the cluster, followed by the launches for pending pods.
	snapshot.View
	Plan planner.Plan
	// started reports for each existing node, by index, whether pods can start on it now. Nodes with higher indices are launches for pending pods.
	started []bool
}

// Pool is the headroom of one pool, in replicas.
type Pool struct {
	// Wanted is the number of replicas to keep free, Free is how many are free, and Coming is how many will be free on machines that are starting.
	Wanted, Free, Coming int64
	// Refused is why the rest cannot be provided. It is nil if nothing is missing.
	Refused *planner.Refusal
}

// Input is the input of a plan for headroom. It has only plain values, so equal inputs have equal plans.
type Input struct {
	// Snapshot has the pending pods, and Served is the plan for them.
	Snapshot planner.Snapshot
	Served   planner.Plan
	// Classes are the classes of headroom pods.
	Classes []planner.Class
	// Turns lists the nodes in the order in which the planner tries them.
	Turns [][]int
	// Unused has, for each node, the price of its machine if no pod uses it, or 0 otherwise.
	Unused []planner.MicroUSD
}

// Build plans the headroom after the plan served for pending pods.
func Build(v *snapshot.View, served planner.Plan, search solve.Solver) Headroom {
	left, plan := InputOf(v, served).Plan(search)
	return Of(v, left, plan)
}

// InputOf returns the input for a view after the plan served for its pending pods.
func InputOf(v *snapshot.View, served planner.Plan) Input {
	d := Input{Snapshot: v.Snapshot}
	if len(v.Reserves) == 0 {
		return d
	}
	d.Served, d.Classes, d.Turns = served, givingWay(v, served), turnsOf(v, served)
	d.Unused = make([]planner.MicroUSD, len(v.Nodes))
	for i := range v.Nodes {
		if m := v.MachineOn(i); m != nil && m.NoReplicasHeld() {
			d.Unused[i] = planner.MicroUSD(m.MicroUSDPerHour())
		}
	}
	return d
}

// Plan returns a plan for the headroom and its snapshot, which has the capacity that the plan for pending pods leaves. It leaves out an expensive idle
// machine if the headroom is as large without it and costs less by at least half of the machine's price.
func (d Input) Plan(search solve.Solver) (planner.Snapshot, planner.Plan) {
	if len(d.Classes) == 0 {
		d.Snapshot.Classes = nil
		return d.Snapshot, planner.Plan{}
	}
	turns := d.Turns
	left, plan := search.Headroom(d.Snapshot, d.Served, d.Classes, turns)
	for k := len(turns) - 1; k > 0; k-- {
		node := turns[k][0]
		if !uses(plan, node) || d.Unused[node] < 2*d.cheapest() {
			continue
		}
		without := slices.Delete(slices.Clone(turns), k, k+1)
		_, other := search.Headroom(d.Snapshot, d.Served, d.Classes, without)
		if len(other.Unplaced) <= len(plan.Unplaced) && d.cost(plan)-d.cost(other) >= d.Unused[node]/2 {
			plan, turns = other, without
		}
	}
	return left, plan
}

// cost returns the price of the headroom: its launches, and the idle machines that stay for it.
func (d Input) cost(plan planner.Plan) planner.MicroUSD {
	price := plan.Price
	for _, p := range plan.Placements {
		if p.Node < len(d.Unused) {
			price += d.Unused[p.Node]
		}
	}
	return price
}

// cheapest returns the price of the cheapest offering.
func (d Input) cheapest() planner.MicroUSD {
	least := planner.MicroUSD(math.MaxInt64 / 2)
	for i := range d.Snapshot.Offerings {
		least = min(least, d.Snapshot.Offerings[i].Price)
	}
	return least
}

// uses reports whether the plan places headroom on a node.
func uses(plan planner.Plan, node int) bool {
	return slices.ContainsFunc(plan.Placements, func(p planner.Placement) bool { return p.Node == node })
}

// Of returns the headroom of a view whose input has this plan.
func Of(v *snapshot.View, left planner.Snapshot, plan planner.Plan) Headroom {
	h := Headroom{View: *v, Plan: plan, started: make([]bool, len(v.Nodes))}
	h.Snapshot, h.Pods = left, nil
	for i := range v.Nodes {
		h.started[i] = !v.Starting(i)
	}
	return h
}

// givingWay returns the classes of the reserves. It blocks those of pools whose limits leave pending pods without capacity, since the headroom would
// take it from them.
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

// turnsOf returns the nodes in the order in which the planner tries them for headroom. The first turn has all machines that stay for their pods. Each
// idle machine, which may be deleted if headroom does not need it, has its own turn: first machines that have started and are not about to be deleted,
// in ascending order of price.
func turnsOf(v *snapshot.View, served planner.Plan) [][]int {
	serves := map[int]bool{}
	for _, p := range served.Placements {
		serves[p.Node] = true
	}
	var busy, idle []int
	for i := range v.Nodes {
		if m := v.MachineOn(i); m == nil || serves[i] || !m.NoReplicasHeld() {
			busy = append(busy, i)
		} else {
			idle = append(idle, i)
		}
	}
	rank := func(node int) int {
		switch {
		case v.Starting(node):
			return 2
		case facts.HasTaint(v.MachineOn(node).Node, v1alpha1.DisruptingTaintKey):
			return 1
		}
		return 0
	}
	slices.SortStableFunc(idle, func(i, j int) int {
		a, b := v.MachineOn(i), v.MachineOn(j)
		return cmp.Or(cmp.Compare(rank(i), rank(j)), cmp.Compare(a.MicroUSDPerHour(), b.MicroUSDPerHour()), cmp.Compare(a.Claim.Name, b.Claim.Name))
	})
	turns := [][]int{busy}
	for _, i := range idle {
		turns = append(turns, []int{i})
	}
	return turns
}

// Keeps returns the names of the existing nodes that the headroom needs.
func (h *Headroom) Keeps() map[string]bool {
	keeps := map[string]bool{}
	for _, p := range h.Plan.Placements {
		if p.Node < len(h.started) {
			keeps[h.Nodes[p.Node].Name] = true
		}
	}
	return keeps
}

// Of returns the headroom of a pool. It returns false if the pool wants none.
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
