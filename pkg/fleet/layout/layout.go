// Package layout decides which machines a cheaper layout may do without, and what it counts to move their pods. It is pure.
package layout

import (
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/retention"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/consolidate"
	"karve.sh/karve/pkg/snapshot"
)

// Layout is what runs where, for the planner to make cheaper, with the objects that it speaks of.
type Layout struct {
	// Layout is what the planner gets; its Most is nil.
	Layout consolidate.Layout
	// View is its snapshot with the objects.
	View snapshot.View
	// Machines are those of Layout.Machines, at the same indices.
	Machines []*snapshot.Machine
	// Kept says of the claims of other machines that might have been among them what keeps them.
	Kept map[string]string
}

// Build makes the layout of a cluster: the machines of pools whose pods may be moved, but for those that have just come, that are on their way out,
// or that something on them keeps, as keeps says of a machine; "" when nothing does.
func Build(c *snapshot.Cluster, keeps func(*snapshot.Machine) string) Layout {
	l := Layout{Kept: map[string]string{}}
	type candidate struct {
		machine *snapshot.Machine
		pool    int
	}
	var candidates []candidate
	var classes map[*corev1.Pod]int
	l.View, classes = snapshot.BuildWith(c, func(pools []snapshot.Pool, machines []snapshot.Machine) []*corev1.Pod {
		var moving []*corev1.Pod
		for i := range machines {
			m := &machines[i]
			pool := slices.IndexFunc(pools, func(p snapshot.Pool) bool { return p.NodePool.Name == m.Pool() })
			if pool < 0 || !movable(&pools[pool], m, c.Now) {
				continue
			}
			if why := keeps(m); why != "" {
				l.Kept[m.Claim.Name] = why
				continue
			}
			candidates = append(candidates, candidate{m, pool})
			moving = append(moving, m.Moving()...)
		}
		return moving
	})
	nodes := map[string]int{}
	for i := range l.View.Nodes {
		nodes[l.View.Nodes[i].Name] = i
	}
	for _, candidate := range candidates {
		m, pool := candidate.machine, &l.View.Pools[candidate.pool]
		node, ok := nodes[m.Node.Name]
		if !ok || l.View.Snapshot.Pools[candidate.pool].Closed != nil {
			continue // What is wrong with the pool comes first.
		}
		pods, why := l.running(m, pool, classes, c.Now)
		if why != "" {
			l.Kept[m.Claim.Name] = why
			continue
		}
		counts := m.Physical()
		if pool.Probing() {
			counts.Nodes = 0 // The one machine that the pool may launch does not become two when another goes.
		}
		near := pool.Class.Spec.Consolidation.NearEnough()
		if len(l.Machines) > 0 {
			near = min(near, l.Layout.NearEnough)
		}
		l.Layout.NearEnough = near
		l.Machines = append(l.Machines, m)
		l.Layout.Machines = append(l.Layout.Machines, consolidate.Machine{
			Node: node, Pool: candidate.pool, Price: planner.MicroUSD(m.MicroUSDPerHour()), Physical: counts, Pods: pods,
		})
	}
	l.Layout.Snapshot = l.View.Snapshot
	l.Layout.Snapshot.Classes = slices.Concat(l.View.Classes, l.View.HeadroomClasses()) // It waits like pods: a layout has to leave it room.
	return l
}

// movable says whether the pods of a machine may be moved to make the machines cheaper, as far as the pool, its class and the age of things say.
func movable(pool *snapshot.Pool, m *snapshot.Machine, now time.Time) bool {
	if !pool.MovesPods() || !pool.NodePool.DeletionTimestamp.IsZero() {
		return false
	}
	settle, err := pool.Class.Spec.Consolidation.SettleDuration()
	if err != nil || !m.Started() || m.Leaving() || snapshot.HasTaint(m.Node, v1alpha1.DisruptingTaintKey) || !retention.BackoffUntil(m, now).IsZero() {
		return false // A duration that cannot be read is told by the class's Accepted condition.
	}
	if _, never := pool.IdleAfter(); m.Empty() && never {
		return false // It stays, and is room for nothing.
	}
	started := snapshot.Condition(m.Claim.Status.Conditions, karpv1.ConditionTypeInitialized).LastTransitionTime
	return !now.Before(started.Add(settle)) && pool.Quiet(m, now)
}

// running are the pods of a machine that move when it goes, or why they cannot.
func (l *Layout) running(m *snapshot.Machine, pool *snapshot.Pool, classes map[*corev1.Pod]int, now time.Time) (pods []consolidate.Running, why string) {
	saving, err := pool.Class.Spec.Consolidation.SavingPerMove()
	if err != nil {
		return nil, err.Error()
	}
	settle, err := pool.Class.Spec.Consolidation.SettleDuration()
	if err != nil {
		return nil, err.Error()
	}
	on := m.GPUsHeld()
	for _, pod := range m.Moving() {
		class, ok := classes[pod]
		if !ok {
			return nil, fmt.Sprintf("pod %s is not Karve's to place: no NodePool of Karve's admits it any more", snapshot.PodName(pod))
		}
		if blocked := l.View.Classes[class].Blocked; blocked != nil {
			return nil, fmt.Sprintf("pod %s would have no new place: %s", snapshot.PodName(pod), blocked.Message)
		}
		gpu := -1
		if held, ok := on[pod]; ok {
			gpu = held
		}
		pods = append(pods, consolidate.Running{
			Name: snapshot.PodName(pod), Class: class, GPU: gpu, Move: planner.MicroUSD(moveCost(saving, karpenter.EvictionCost(pod), now.Sub(snapshot.StartTime(pod)), settle)),
		})
	}
	return pods, ""
}

// maxYouth is how many times as much it counts at most to move a pod that has just come.
const maxYouth = 20

// moveCost is what the machines must cost less for a pod to be moved: so much as the class says, weighted as Karpenter weighs evictions, and never nothing: of two ways that save as much, the one with
// fewer moves is better. A pod that
// has not settled yet counts more, in proportion: who has just come may go as soon, and has just been started once.
func moveCost(saving int64, weight float64, age, settle time.Duration) int64 {
	const parts = 1000
	cost := max(1, saving*int64(math.Round(max(0, weight)*parts))/parts)
	switch {
	case age >= settle:
		return cost
	case age < settle/maxYouth:
		return cost * maxYouth
	}
	return cost * int64(settle*parts/age) / parts
}
