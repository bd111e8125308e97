package disruption

import (
	"context"
	"fmt"

	"k8s.io/utils/clock"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/controllers/disruption/reason"
	"karve.sh/karve/pkg/fleet/drift"
	"karve.sh/karve/pkg/fleet/retention"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planning/checked"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/watchdog"
)

func (c *Controller) observe(ctx context.Context) (*pass, error) {
	cluster, err := c.Gatherer.Cluster(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the cluster: %w", err)
	}
	evictions, err := karpenter.NewEvictions(ctx, c.Client, c.Clock)
	if err != nil {
		return nil, err
	}
	g, err := c.Planner.Of(ctx, cluster)
	if err != nil {
		return nil, err
	}
	plan, headroom := g.Plan(ctx), g.Headroom(ctx)
	var s *pass
	if err := c.Planner.Watchdog.Run(ctx, watchdog.View, func(context.Context, watchdog.Visit) error {
		s = newPass(cluster, plan, headroom, repair.Diagnose(cluster, g.View.Machines, c.Tolerations), evictions, c.Clock, c.questions())
		return nil
	}); err != nil {
		return nil, err
	}
	s.settle = c.Settle
	c.memory.keep(s)
	s.whatIf = c.memory.remember(s, c.Metrics)
	for name, p := range s.pools {
		p.handed = c.memory.pools[name].handed
	}
	c.consider(s)
	s.choose()
	for _, m := range s.machines {
		m.Steady = c.memory.of(m).candidate.note(m.Candidate != nil, s)
	}
	return s, nil
}

// questions returns a function that reports whether there is time for another question in this pass.
func (c *Controller) questions() func() bool {
	started := c.Clock.Now()
	return func() bool { return c.Clock.Since(started) < questionsFor }
}

// newPass returns a pass without the controller's memory and without candidates.
func newPass(
	cluster *snapshot.Cluster, plan *checked.Plan, headroom *checked.Headroom, diagnosis repair.Diagnosis, evictions karpenter.Evictions, clk clock.Clock, more func() bool,
) *pass {
	view, others := &plan.View, retention.NewOtherNodes(cluster)
	s := &pass{
		now: cluster.Now, view: view, pools: map[string]*pool{}, waiting: view.Waiting(), placed: map[string]string{},
		pods: clusterPods{evictions, others, retention.Pods(cluster)}, saved: map[string]saved{}, accounts: map[string]account{},
	}
	for i := range view.Pools {
		np := &view.Pools[i]
		p := s.poolNamed(np.NodePool.Name)
		p.observe(np, budgeted(view.Machines, p.Name), clk)
		reserve, _ := headroom.Of(p.Name)
		p.HeadroomComing = reserve.Coming > 0
		if np.Class != nil {
			s.accounts[np.Class.Name] = account{at: s.now}
		}
		if closed := view.Snapshot.Pools[i].Closed; closed != nil {
			p.Closed = closed.Message
		}
	}
	wanted, reserved := map[string]bool{}, headroom.Keeps()
	place := func(nodes []planner.Node, placements []planner.Placement) {
		for _, placement := range placements {
			for _, pod := range placement.Pods {
				s.placed[pod] = nodes[placement.Node].Name
			}
		}
	}
	place(view.Nodes, plan.Placements)
	for _, node := range s.placed {
		wanted[node] = true
	}
	place(headroom.Nodes, headroom.Plan.Placements)
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
	s.whatIf = newWhatIf(view, others, s.unhealthy(), more)
	return s
}

// observe sets the fields that come from a NodePool and its GPUNodeClass. Budgets are calculated for this number of machines.
func (p *pool) observe(np *snapshot.Pool, machines int, clk clock.Clock) {
	p.Unready = len(np.Problems) > 0
	p.DrainBounded = np.NodePool.Spec.Template.Spec.TerminationGracePeriod != nil
	p.MovesPods, p.KeepsIdle = np.MovesPods(), np.KeepsIdle()
	if idle, never := np.IdleAfter(); !never {
		p.IdleAfter = &idle
	}
	p.Budgets = map[karpv1.DisruptionReason]int{}
	for _, name := range []karpv1.DisruptionReason{karpv1.DisruptionReasonEmpty, karpv1.DisruptionReasonDrifted, karpv1.DisruptionReasonUnderutilized, karpv1.DisruptionReasonUnhealthy} {
		p.Budgets[name] = np.NodePool.MustGetAllowedDisruptions(clk, machines, name)
	}
}

// poolNamed returns the record of a pool, and creates it if necessary.
func (s *pass) poolNamed(name string) *pool {
	if s.pools[name] == nil {
		s.pools[name] = &pool{Pool: reason.Pool{Name: name}}
	}
	return s.pools[name]
}

// add adds and returns the record of a machine.
func (s *pass) add(m *snapshot.Machine) *reason.Machine {
	record := &reason.Machine{Machine: m, NodePool: &s.poolNamed(m.Pool()).Pool}
	s.machines = append(s.machines, record)
	if s.byName == nil {
		s.byName = map[string]*reason.Machine{}
	}
	s.byName[m.Claim.Name] = record
	return record
}

// unhealthy returns the names of the Nodes of unhealthy machines.
func (s *pass) unhealthy() []string {
	var names []string
	for _, m := range s.machines {
		if m.Health != nil && m.Node != nil {
			names = append(names, m.Node.Name)
		}
	}
	return names
}

// choose sets the candidate of each machine.
func (s *pass) choose() {
	for _, m := range s.machines {
		m.Candidate = reason.First(m, s.now)
	}
}
