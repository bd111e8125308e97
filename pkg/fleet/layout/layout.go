// Package layout decides which machines a search for a cheaper layout may remove, and the cost of moving their pods. The package has no clock and no client.
package layout

import (
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/retention"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/consolidate"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// Layout is the planner's input for a search for a cheaper layout, with the objects that it refers to.
type Layout struct {
	// Layout is the input of the planner. Its Most is nil.
	Layout consolidate.Layout
	// View has the snapshot of the layout and its objects.
	View snapshot.View
	// Machines lists the machines of Layout.Machines, at the same indices.
	Machines []*records.Machine
	// Restarts lists the restart costs of the pods of Layout.Machines, at the same indices.
	Restarts [][]planner.MicroUSD
	// Kept maps the names of the other NodeClaims to why they stay.
	Kept map[string]string
}

// Part is a part of a fleet. Pods of its machines move only among them and to machines that are launched.
type Part struct {
	// Machines has the names of the NodeClaims.
	Machines map[string]bool
	// Placed maps pending pods and headroom to the names of the Nodes on which they are planned. Those on nodes of other parts are ignored.
	Placed map[string]string
}

// Build returns the layout of a part of a view, or of the whole view if part is nil. It has the machines whose pods the pool allows to move. It leaves
// out machines that have just started, that are leaving, or for which keeps returns a reason. keeps returns "" if nothing keeps the machine.
func Build(v *snapshot.View, part *Part, keeps func(*records.Machine) string) Layout {
	l := Layout{Kept: map[string]string{}}
	type candidate struct {
		machine *records.Machine
		pool    int
	}
	var candidates []candidate
	var moving []*corev1.Pod
	for i := range v.Machines {
		m := &v.Machines[i]
		pool := slices.IndexFunc(v.Pools, func(p snapshot.Pool) bool { return p.NodePool.Name == m.Pool() })
		if pool < 0 || part != nil && !part.Machines[m.Claim.Name] || Unmovable(&v.Pools[pool], m, v.Now()) != "" {
			continue
		}
		if why := keeps(m); why != "" {
			l.Kept[m.Claim.Name] = why
			continue
		}
		candidates = append(candidates, candidate{m, pool})
		moving = append(moving, m.Moving()...)
	}
	var classes map[*corev1.Pod]int
	l.View, classes = v.Moving(moving)
	nodes := map[string]int{}
	for i := range l.View.Nodes {
		nodes[l.View.Nodes[i].Name] = i
	}
	for _, candidate := range candidates {
		m, pool := candidate.machine, &l.View.Pools[candidate.pool]
		node, ok := nodes[m.Node.Name]
		if !ok || l.View.Snapshot.Pools[candidate.pool].Closed != nil {
			continue // Problems of the pool are solved first.
		}
		pods, costs, why := l.running(m, pool, node, classes)
		if why != "" {
			l.Kept[m.Claim.Name] = why
			continue
		}
		counts := m.Physical()
		if pool.Probing() {
			counts.Nodes = 0 // The pool may launch only one machine, whether or not others are removed.
		}
		l.Machines, l.Restarts = append(l.Machines, m), append(l.Restarts, costs)
		l.Layout.Machines = append(l.Layout.Machines, consolidate.Machine{
			Node: node, Pool: candidate.pool, Price: planner.MicroUSD(m.MicroUSDPerHour()), Physical: counts, Draws: l.View.Draws(m), Pods: pods,
		})
	}
	l.Layout.Snapshot = l.View.Snapshot
	l.Layout.Snapshot.Classes = slices.Concat(l.View.Classes, l.View.HeadroomClasses()) // Headroom counts like pending pods: a layout has to leave room for it.
	if part != nil {
		part.limit(&l)
	}
	return l
}

// limit removes from the classes of a layout the nodes of machines in other parts, and the pods that are planned elsewhere than on nodes of this part.
func (p *Part) limit(l *Layout) {
	inside, outside := map[string]bool{}, make([]bool, len(l.View.Nodes))
	for i := range l.View.Nodes {
		m := l.View.MachineOn(i)
		outside[i] = m != nil && !p.Machines[m.Claim.Name]
		inside[l.View.Nodes[i].Name] = !outside[i]
	}
	for i := range l.Layout.Snapshot.Classes {
		c := &l.Layout.Snapshot.Classes[i]
		c.Nodes = slices.DeleteFunc(slices.Clone(c.Nodes), func(node int) bool { return outside[node] })
		c.Pods = slices.DeleteFunc(slices.Clone(c.Pods), func(pod string) bool { return !inside[p.Placed[pod]] })
	}
}

// Unmovable returns why the pods of a machine must not move to a cheaper layout, according to its pool, its GPUNodeClass and the time since its last
// changes. It returns "" if they may.
func Unmovable(pool *snapshot.Pool, m *records.Machine, now time.Time) string {
	if !pool.NodePool.DeletionTimestamp.IsZero() {
		return fmt.Sprintf("NodePool %s is being deleted", pool.NodePool.Name)
	}
	if !pool.MovesPods() {
		return fmt.Sprintf("NodePool %s and its GPUNodeClass do not allow moving pods to reduce the cost", pool.NodePool.Name)
	}
	switch {
	case !m.Started():
		return "it has not started"
	case m.Leaving() || facts.HasTaint(m.Node, v1alpha1.DisruptingTaintKey):
		return "it is leaving already"
	}
	if until := retention.BackoffUntil(m, now); !until.IsZero() {
		return fmt.Sprintf("no new place for its pods came, and the next try is after %s (remove the annotation %s to try now)", until.Format(time.RFC3339), v1alpha1.ReplaceAfterAnnotation)
	}
	if _, never := pool.IdleAfter(); m.Empty() && never {
		return "it is empty, and its GPUNodeClass keeps idle nodes" // It offers no room.
	}
	if !pool.Quiet(m, now) {
		return fmt.Sprintf("pods came or went within consolidateAfter of NodePool %s", pool.NodePool.Name)
	}
	restart, err := pool.Class.Spec.Consolidation.RestartMicroUSD()
	if err != nil {
		return err.Error() // The API server refuses such a value.
	}
	for _, pod := range m.Moving() {
		if !consolidate.Settled(now.Sub(facts.StartTime(pod)), planner.MicroUSD(m.MicroUSDPerHour()), restartCost(restart, pod, 1)) {
			return fmt.Sprintf("pod %s started a short time ago: it stays until its node has cost as much as its restart", facts.PodName(pod))
		}
	}
	return ""
}

// running returns the pods that move when the machine, which is a node of the snapshot, is removed, with their restart costs, or why they cannot move.
func (l *Layout) running(m *records.Machine, pool *snapshot.Pool, node int, classes map[*corev1.Pod]int) (pods []consolidate.Running, restarts []planner.MicroUSD, why string) {
	restart, err := pool.Class.Spec.Consolidation.RestartMicroUSD()
	if err != nil {
		return nil, nil, err.Error()
	}
	on := m.GPUsHeld()
	for _, pod := range m.Moving() {
		class, ok := classes[pod]
		if !ok {
			return nil, nil, fmt.Sprintf("pod %s is not Karve's to place: no NodePool of Karve's admits it any more", facts.PodName(pod))
		}
		if blocked := l.View.Classes[class].Blocked; blocked != nil {
			return nil, nil, fmt.Sprintf("pod %s would have no new place: %s", facts.PodName(pod), blocked.Message)
		}
		together, whole := l.View.RestartsWith(pod)
		if whole != "" {
			return nil, nil, whole
		}
		cost := restartCost(restart, pod, together)
		gpu := -1
		if held, ok := on[pod]; ok {
			gpu = held
		}
		if gpu > 0 && l.View.AnyGPU(node) {
			gpu = 0
		}
		pods = append(pods, consolidate.Running{Name: facts.PodName(pod), Class: class, GPU: gpu, Move: consolidate.Move(cost, l.View.Now().Sub(facts.StartTime(pod)))})
		restarts = append(restarts, cost)
	}
	return pods, restarts, ""
}

// restartCost returns the cost of restarting a pod, in micro-dollars: the cost in the GPUNodeClass for each pod that restarts with it, weighted like evictions in Karpenter.
func restartCost(cost int64, pod *corev1.Pod, together int64) planner.MicroUSD {
	const parts = 1000
	return min(planner.MaxPrice-1, planner.MicroUSD(amount.Times(cost*int64(math.Round(max(0, karpenter.EvictionCost(pod))*parts))/parts, together)))
}
