package disruption

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/fleet/disruption/reason"
	"karve.sh/karve/pkg/fleet/drift"
	"karve.sh/karve/pkg/fleet/retention"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planning/checked"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Seen is what one round reads: the machines and pools of a cluster, and the plan for its pending pods. A round does not change it.
type Seen struct {
	fleet
	// view is the view from which the machines were read. What-if questions edit it.
	view *snapshot.View
	// waiting are the pending pods. placed maps the names of pending pods and headroom to the names of the Nodes on which the plans place them.
	waiting []*corev1.Pod
	placed  map[string]string
	others  *retention.OtherNodes
}

// Look returns what a round of decisions reads of a cluster, with a plan for its pending pods and the headroom after it. settle is how long a tainted Node is
// watched before its NodeClaim is deleted.
func Look(
	cluster *facts.Cluster, plan *checked.Plan, headroom *checked.Headroom, diagnosis repair.Diagnosis, evictions karpenter.Evictions, settle time.Duration,
) *Seen {
	view, others := &plan.View, retention.NewOtherNodes(cluster)
	s := &Seen{
		fleet: fleet{
			now: cluster.Now, settle: settle, byName: map[string]*reason.Machine{}, pools: map[string]*reason.Pool{}, pods: clusterPods{evictions, others, retention.Pods(cluster)},
		},
		view: view, waiting: view.Waiting(), placed: placesOf(plan, headroom), others: others,
	}
	for i := range view.Pools {
		np := &view.Pools[i]
		p := s.poolNamed(np.NodePool.Name)
		observe(p, np, budgeted(view.Machines, p.Name), s.now)
		reserve, _ := headroom.Of(p.Name)
		p.HeadroomComing = reserve.Coming > 0
		if closed := view.Snapshot.Pools[i].Closed; closed != nil {
			p.Closed = closed.Message
		}
	}
	wanted, reserved := map[string]bool{}, headroom.Keeps()
	for _, placement := range plan.Placements {
		if len(placement.Pods) > 0 {
			wanted[view.Nodes[placement.Node].Name] = true
		}
	}
	for i := range view.Machines {
		m := s.add(&view.Machines[i])
		if found, ok := diagnosis.Cases[m.Claim.Name]; ok {
			m.Health = &found
		}
		if m.Node != nil {
			m.Wanted, m.Headroom = wanted[m.Node.Name], reserved[m.Node.Name]
		}
		if np := view.PoolNamed(m.Pool()); np != nil {
			m.Drift = drift.Of(cluster, np, m.Machine)
		}
		if !m.Started() && !m.Deleting() && !m.Broken(s.now, cluster.ReplicasTimeout) {
			m.NodePool.Launching = true
		}
	}
	for _, launch := range plan.Launches {
		s.poolNamed(view.Snapshot.Pools[view.Snapshot.Offerings[launch.Offering].Pool].Name).Launching = true
	}
	return s
}

// placesOf returns the names of the Nodes on which the plans place pending pods and headroom, by their names.
func placesOf(plan *checked.Plan, headroom *checked.Headroom) map[string]string {
	placed := map[string]string{}
	place := func(nodes []planner.Node, placements []planner.Placement) {
		for _, placement := range placements {
			for _, pod := range placement.Pods {
				placed[pod] = nodes[placement.Node].Name
			}
		}
	}
	place(plan.View.Nodes, plan.Placements)
	place(headroom.Nodes, headroom.Plan.Placements)
	return placed
}

// observe sets the fields that come from a NodePool and its GPUNodeClass. Budgets are calculated for this number of machines.
func observe(p *reason.Pool, np *snapshot.Pool, machines int, now time.Time) {
	p.Unready = len(np.Problems) > 0
	p.DrainBounded = np.NodePool.Spec.Template.Spec.TerminationGracePeriod != nil
	p.MovesPods, p.KeepsIdle = np.MovesPods(), np.KeepsIdle()
	if idle, never := np.IdleAfter(); !never {
		p.IdleAfter = &idle
	}
	p.Budgets = map[karpv1.DisruptionReason]int{}
	for _, name := range []karpv1.DisruptionReason{karpv1.DisruptionReasonEmpty, karpv1.DisruptionReasonDrifted, karpv1.DisruptionReasonUnderutilized, karpv1.DisruptionReasonUnhealthy} {
		p.Budgets[name] = karpenter.AllowedDisruptions(np.NodePool, machines, name, now)
	}
}
