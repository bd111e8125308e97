package snapshot

import (
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/planner"
)

// Layout is what runs where, for the planner to make cheaper, with the objects that it speaks of.
type Layout struct {
	// Layout is what the planner gets; its Most is nil.
	Layout planner.Layout
	// View is its snapshot with the objects.
	View View
	// Machines are those of Layout.Machines, at the same indices.
	Machines []*Machine
	// Kept says of the claims of other machines that might have been among them what keeps them.
	Kept map[string]string
}

// BuildLayout makes the layout of a cluster: the machines of pools whose pods may be moved, but for those that have just come, that are on their way out,
// or that something on them keeps, as keeps says of a machine; "" when nothing does.
func BuildLayout(c *Cluster, keeps func(*Machine) string) Layout {
	l := Layout{View: c.look(), Kept: map[string]string{}}
	settled := moving{}
	type candidate struct {
		machine *Machine
		pool    int
	}
	var candidates []candidate
	for i := range l.View.Machines {
		m := &l.View.Machines[i]
		pool := slices.IndexFunc(l.View.Pools, func(p Pool) bool { return p.NodePool.Name == m.Pool() })
		if pool < 0 || !c.movable(&l.View.Pools[pool], m) {
			continue
		}
		if why := keeps(m); why != "" {
			l.Kept[m.Claim.Name] = why
			continue
		}
		candidates = append(candidates, candidate{m, pool})
		for _, pod := range m.Moving() {
			settled[pod] = true
		}
	}
	classes := l.View.fill(nil, settled)
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
		if probing(pool) {
			counts.Nodes = 0 // The one machine that the pool may launch does not become two when another goes.
		}
		near := pool.Class.Spec.Consolidation.NearEnough()
		if len(l.Machines) > 0 {
			near = min(near, l.Layout.NearEnough)
		}
		l.Layout.NearEnough = near
		l.Machines = append(l.Machines, m)
		l.Layout.Machines = append(l.Layout.Machines, planner.Machine{
			Node: node, Pool: candidate.pool, Price: planner.MicroUSD(m.MicroUSDPerHour()), Physical: counts, Pods: pods,
		})
	}
	l.Layout.Snapshot = l.View.Snapshot
	l.Layout.Snapshot.Classes = slices.Concat(l.View.Classes, l.View.headroom()) // It waits like pods: a layout has to leave it room.
	return l
}

// movable says whether the pods of a machine may be moved to make the machines cheaper, as far as the pool, its class and the age of things say.
func (c *Cluster) movable(pool *Pool, m *Machine) bool {
	if !pool.MovesPods() || !pool.NodePool.DeletionTimestamp.IsZero() {
		return false
	}
	settle, err := pool.Class.Spec.Consolidation.SettleDuration()
	if err != nil || !m.Started() || m.Leaving() || hasTaint(m.Node, v1alpha1.DisruptingTaintKey) || !m.RestsUntil(c.Now).IsZero() {
		return false // A duration that cannot be read is told by the class's Accepted condition.
	}
	if _, never := pool.IdleAfter(); m.Empty() && never {
		return false // It stays, and is room for nothing.
	}
	started := Condition(m.Claim.Status.Conditions, karpv1.ConditionTypeInitialized).LastTransitionTime
	return !c.Now.Before(started.Add(settle)) && pool.quiet(m, c.Now)
}

func startOf(pod *corev1.Pod) time.Time {
	if pod.Status.StartTime != nil {
		return pod.Status.StartTime.Time
	}
	return pod.CreationTimestamp.Time
}

// MicroUSDPerHour is what the machine costs today, where the catalogue knows: prices of spot capacity come and go. Else it is the price when it was chosen.
func (m *Machine) MicroUSDPerHour() int64 {
	_, zone, capacityType := ShapeOf(m.Claim)
	if m.Type != nil {
		for _, o := range m.Type.Offerings {
			if o.Zone == zone && o.CapacityType == capacityType {
				return o.MicroUSDPerHour
			}
		}
	}
	return m.Promise.MicroUSDPerHour
}

// running are the pods of a machine that move when it goes, or why they cannot.
func (l *Layout) running(m *Machine, pool *Pool, classes map[*corev1.Pod]int, now time.Time) (pods []planner.Running, why string) {
	saving, err := pool.Class.Spec.Consolidation.SavingPerMove()
	if err != nil {
		return nil, err.Error()
	}
	settle, err := pool.Class.Spec.Consolidation.SettleDuration()
	if err != nil {
		return nil, err.Error()
	}
	_, on := gpusHeld(m.Promise.GPUs, m.Promise.ReplicasPerGPU, memoryMiB(m.Node.Labels, m.Type), m.Exposed(), m.Pods, m.Promise.Resource)
	for _, pod := range m.Moving() {
		class, ok := classes[pod]
		if !ok {
			return nil, fmt.Sprintf("pod %s is not Karve's to place: no NodePool of Karve's admits it any more", podName(pod))
		}
		if blocked := l.View.Classes[class].Blocked; blocked != nil {
			return nil, fmt.Sprintf("pod %s would have no new place: %s", podName(pod), blocked.Message)
		}
		gpu := -1
		if held, ok := on[pod]; ok {
			gpu = held
		}
		pods = append(pods, planner.Running{
			Name: podName(pod), Class: class, GPU: gpu, Move: planner.MicroUSD(moveCost(saving, karpenter.EvictionCost(pod), now.Sub(startOf(pod)), settle)),
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
