// Package disruption gives machines back that hold no pods, and replaces those that have a cause to go. A machine goes in small steps that can each be undone but
// the last: it is marked, then tainted, then watched, then looked at live, and only then is its NodeClaim deleted.
package disruption

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/gather"
	"karve.sh/karve/pkg/controllers/share"
	"karve.sh/karve/pkg/fleet/drift"
	"karve.sh/karve/pkg/fleet/retention"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot"
)

// soon is when to look again at a Node that somebody else has changed meanwhile.
const soon = time.Second

// Config is what the controller needs.
type Config struct {
	Client   client.Client
	Gatherer *gather.Gatherer
	Metrics  *metrics.Metrics
	Recorder events.EventRecorder
	Clock    clock.Clock
	// Settle is how long a tainted node is watched before it is given back, so that a pod bound at the last moment is seen.
	Settle time.Duration
	// Tolerations are how long sick machines are borne.
	Tolerations repair.Tolerations
}

// Controller looks at all machines together, since budgets speak of all.
type Controller struct {
	Config
	// told are the reasons why machines stay, so that an event marks a change.
	told map[types.UID]string
	// caused is since when the machines of claims have been seen to have a cause to go.
	caused lasting
	// refused are the claims whose pods had no place to go to, until they are planned for again: a plan takes time, and many machines may be asked about.
	refused map[string]refusal
	// handed is when pods of pools' machines were last handed over.
	handed map[string]handed
	consolidation
}

type refusal struct {
	why   string
	until time.Time
}

// New makes the controller.
func New(config Config) *Controller {
	return &Controller{Config: config, told: map[types.UID]string{}, caused: lasting{}, refused: map[string]refusal{}, handed: map[string]handed{}, consolidation: newConsolidation()}
}

// +kubebuilder:rbac:groups="",resources=nodes,verbs=patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods/eviction,verbs=create
// +kubebuilder:rbac:groups=karpenter.sh,resources=nodeclaims,verbs=patch;delete
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Register adds the controller to the manager.
func (c *Controller) Register(m ctrl.Manager) error {
	one := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{}}
	})
	return ctrl.NewControllerManagedBy(m).Named("disruption").
		Watches(&corev1.Pod{}, one, builder.WithPredicates(podLeftOrCame())).
		Watches(&corev1.Node{}, one, builder.WithPredicates(ours())).
		Watches(&karpv1.NodeClaim{}, one, builder.WithPredicates(claimsOfOurs())).
		Watches(&karpv1.NodePool{}, one).
		Watches(&v1alpha1.GPUNodeClass{}, one, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: 1}).
		Complete(c)
}

// podLeftOrCame lets through what can make a node idle or busy.
func podLeftOrCame() predicate.Predicate {
	bound := func(o client.Object) bool {
		pod, ok := o.(*corev1.Pod)
		return ok && pod.Spec.NodeName != "" && !karpenter.IsDaemon(pod)
	}
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return bound(e.Object) },
		DeleteFunc: func(e event.DeleteEvent) bool { return bound(e.Object) },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, okBefore := e.ObjectOld.(*corev1.Pod)
			after, okAfter := e.ObjectNew.(*corev1.Pod)
			return okBefore && okAfter && bound(after) &&
				(before.Spec.NodeName != after.Spec.NodeName || karpenter.IsTerminal(before) != karpenter.IsTerminal(after))
		},
	}
}

func ours() predicate.Predicate {
	return predicate.And(
		predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetLabels()[v1alpha1.GPUNodeClassLabel] != "" }),
		predicate.Or(predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{}, taintsChanged(), healthChanged()),
	)
}

// claimsOfOurs lets through what can make a machine drift, or a place of its pods.
func claimsOfOurs() predicate.Predicate {
	return predicate.NewPredicateFuncs(func(o client.Object) bool {
		claim, ok := o.(*karpv1.NodeClaim)
		return ok && snapshot.IsOurClaim(claim)
	})
}

func taintsChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, okBefore := e.ObjectOld.(*corev1.Node)
		after, okAfter := e.ObjectNew.(*corev1.Node)
		return okBefore && okAfter && len(before.Spec.Taints) != len(after.Spec.Taints)
	}}
}

// Reconcile takes the next step for each machine.
func (c *Controller) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	started := c.Clock.Now()
	defer func() { c.Metrics.DisruptionSeconds.Observe(c.Clock.Since(started).Seconds()) }()
	s, view, err := c.observe(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	var errs []error
	for _, change := range share.Changes(&view, nil) {
		errs = append(errs, share.Write(ctx, c.Client, c.Recorder, change, c.Clock.Now()))
	}
	errs = append(errs, c.noteShortages(ctx, &s))
	actions, again := decide(s)
	again = min(again, c.lookAgain(s.now))
	take := func(marking bool) {
		for _, a := range actions {
			if a.step.marks() != marking {
				continue
			}
			err := c.act(ctx, &s, a)
			if apierrors.IsConflict(err) {
				again = min(again, soon) // The Node changed since it was read; look again.
				continue
			}
			errs = append(errs, err)
		}
	}
	// Whoever plans sees all marks of a step or none: for the pods of a part of its machines others would be launched than for those of all.
	if slices.ContainsFunc(actions, func(a action) bool { return a.step.marks() }) {
		c.Gatherer.Together(func() { take(true) })
	}
	take(false)
	for _, m := range s.steered() {
		err := c.steer(ctx, m)
		if apierrors.IsConflict(err) {
			again = min(again, soon)
			continue
		}
		errs = append(errs, err)
	}
	c.measure(&s)
	c.measureHealth(&s)
	c.forget(s.machines)
	if err := errors.Join(errs...); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: again}, nil
}

func (c *Controller) observe(ctx context.Context) (state, snapshot.View, error) {
	cluster, err := c.Gatherer.Cluster(ctx)
	if err != nil {
		return state{}, snapshot.View{}, fmt.Errorf("reading the cluster: %w", err)
	}
	evictions, err := karpenter.NewEvictions(ctx, c.Client, c.Clock)
	if err != nil {
		return state{}, snapshot.View{}, err
	}
	view := snapshot.Build(cluster)
	s := see(cluster, &view, c.Clock)
	s.settle, s.blocker, s.budgets = c.Settle, evictions.Blocker, evictions.Budgets
	s.heed(repair.Diagnose(cluster, view.Machines, c.Tolerations))
	s.planned, s.handed = c.seldom(s.now, s.planned), c.handed
	c.consider(cluster, &s)
	c.steady(&s)
	return s, view, nil
}

// see is the state as far as the cluster alone tells it.
func see(cluster *snapshot.Cluster, view *snapshot.View, clk clock.Clock) state {
	others := retention.NewOtherNodes(cluster)
	places := newPlaces(view, others)
	var plan planner.Plan
	view.Snapshot, plan = soundly(view.Snapshot, planner.Search{})
	headroom := view.Headroom(plan, planner.Search{})
	s := state{
		now: cluster.Now, machines: view.Machines, planned: places.planned, place: places.now, homes: places.homes, saves: places.saves, places: places, stays: retention.Pods(cluster),
		together: others.Hold,
		targets:  map[string]string{}, waiting: view.Waiting(),
		wanted: map[string]bool{}, warm: headroom.Keeps(), cold: map[string]bool{}, launching: map[string]bool{}, moves: map[string]bool{}, ripe: map[string]bool{}, surplus: map[string]bool{},
		idleAfter: map[string]time.Duration{}, keepsIdle: map[string]string{}, allowed: map[string]map[karpv1.DisruptionReason]int{},
		causes: map[string]cause{}, steady: map[string]bool{}, unknown: map[string]bool{}, closed: map[string]string{}, bounded: map[string]bool{},
	}
	s.expect(view, plan, cluster.ReplicasTimeout)
	for i := range view.Pools {
		pool := &view.Pools[i]
		np := pool.NodePool
		total := budgeted(view.Machines, np.Name)
		s.unknown[np.Name] = len(pool.Problems) > 0
		reserve, _ := headroom.Of(np.Name)
		s.cold[np.Name] = reserve.Coming > 0
		if closed := view.Snapshot.Pools[i].Closed; closed != nil {
			s.closed[np.Name] = closed.Message
		}
		s.bounded[np.Name] = np.Spec.Template.Spec.TerminationGracePeriod != nil
		s.allowed[np.Name] = map[karpv1.DisruptionReason]int{}
		for _, why := range []karpv1.DisruptionReason{karpv1.DisruptionReasonEmpty, karpv1.DisruptionReasonDrifted, karpv1.DisruptionReasonUnderutilized} {
			s.allowed[np.Name][why] = np.MustGetAllowedDisruptions(clk, total, why)
		}
		for j := range view.Machines {
			if m := &view.Machines[j]; m.Pool() == np.Name {
				if d := drift.Of(cluster, pool, m); d != nil {
					s.causes[m.Claim.Name] = drifted(d)
				}
			}
		}
		s.moves[np.Name], s.keepsIdle[np.Name] = pool.MovesPods(), pool.KeepsIdle()
		if idle, never := pool.IdleAfter(); !never {
			s.idleAfter[np.Name] = idle
		}
	}
	return s
}

// seldom asks of a claim that was refused only after a while.
func (c *Controller) seldom(now time.Time, planned func([]string) string) func([]string) string {
	maps.DeleteFunc(c.refused, func(_ string, r refusal) bool { return !now.Before(r.until) })
	return func(claims []string) string {
		last := claims[len(claims)-1]
		if r, ok := c.refused[last]; ok {
			return r.why
		}
		why := planned(claims)
		if why != "" {
			c.refused[last] = refusal{why, now.Add(longestWait)}
		}
		return why
	}
}

// steady notes which machines have been seen to have a cause to go for a while, and forgets the others.
func (c *Controller) steady(s *state) {
	s.steady = c.caused.note(s, func(m *snapshot.Machine) bool { _, ok := s.causes[m.Claim.Name]; return ok })
}

// lasting is since when something is so of machines.
type lasting map[types.UID]time.Time

// note notes of which machines it is so now, and returns the claims of those of which it has been so for the settle time.
func (l lasting) note(s *state, is func(*snapshot.Machine) bool) map[string]bool {
	there, long := map[types.UID]bool{}, map[string]bool{}
	for i := range s.machines {
		m := &s.machines[i]
		if !is(m) {
			continue
		}
		uid := m.Claim.UID
		there[uid] = true
		if _, ok := l[uid]; !ok {
			l[uid] = s.now
		}
		long[m.Claim.Name] = !s.now.Before(l[uid].Add(s.settle))
	}
	maps.DeleteFunc(l, func(uid types.UID, _ time.Time) bool { return !there[uid] })
	return long
}

// expect notes which Nodes the planner keeps for pods that need a place, and which pools have machines on their way or need some.
func (s *state) expect(view *snapshot.View, plan planner.Plan, timeout time.Duration) {
	for _, p := range plan.Placements {
		s.wanted[view.Nodes[p.Node].Name] = true
	}
	for _, l := range plan.Launches {
		s.launching[view.Snapshot.Pools[view.Snapshot.Offerings[l.Offering].Pool].Name] = true
	}
	for i := range view.Machines {
		if m := &view.Machines[i]; !m.Started() && !m.Deleting() && !m.Broken(s.now, timeout) {
			s.launching[m.Pool()] = true
		}
	}
}

// budgeted is the number of a pool's machines of which budgets take their parts: as in Karpenter those to come do not count.
func budgeted(machines []snapshot.Machine, pool string) int {
	n := 0
	for i := range machines {
		if m := &machines[i]; m.Pool() == pool && counts(m) {
			n++
		}
	}
	return n
}

// measure shows how many machines of each pool have drifted and are leaving.
func (c *Controller) measure(s *state) {
	for pool := range s.allowed {
		drifted, replacing, surplus := 0, 0, 0
		for i := range s.machines {
			m := &s.machines[i]
			if m.Pool() != pool {
				continue
			}
			if s.causes[m.Claim.Name].kind == karpv1.DisruptionReasonDrifted {
				drifted++
			}
			if m.Replacing() != "" {
				replacing++
			}
			if c.outlook.surplus[m.Claim.Name] {
				surplus++
			}
		}
		c.Metrics.PoolSurplus.WithLabelValues(pool).Set(float64(surplus))
		c.Metrics.PoolDrifted.WithLabelValues(pool).Set(float64(drifted))
		c.Metrics.PoolReplacing.WithLabelValues(pool).Set(float64(replacing))
	}
}

func (c *Controller) forget(machines []snapshot.Machine) {
	there := map[types.UID]bool{}
	for i := range machines {
		if machines[i].Node != nil {
			there[machines[i].Node.UID] = true
		}
	}
	for uid := range c.told {
		if !there[uid] {
			delete(c.told, uid)
		}
	}
}
