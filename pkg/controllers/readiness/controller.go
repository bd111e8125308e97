// Package readiness removes the startup taint from nodes that expose the promised replicas, and deletes machines that do not start in time.
package readiness

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// soon is the delay after a conflict, or while something else has to happen first.
const soon = time.Second

// Config has the dependencies and settings of the controller.
type Config struct {
	Client client.Client
	// Gatherer knows which pods wait, and which are on a node. It also reads from the API server, for the check before a machine is deleted.
	Gatherer *gather.Gatherer
	Metrics  *metrics.Metrics
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
	// Nominations reports whether to nominate pods for the nodes that were launched for them.
	Nominations bool
	// Planned reports whether a pod that the scheduler has not tried yet has a place in the plan in progress. If it is nil, none has.
	Planned func(*corev1.Pod) bool
	// Groups knows which groups of pods have all of their machines.
	Groups *snapshot.GroupPlans
	// Timeout is how long a machine may take for each step: to register, to expose its replicas, and then to be initialized.
	Timeout time.Duration
}

// Controller reconciles several NodeClaims concurrently, so that slow requests for one do not delay the others.
type Controller struct {
	Config

	// giving is locked while a machine is deleted. It guards reported, which has the reasons why broken machines are kept, by the UIDs of their
	// NodeClaims. An event is recorded when the reason changes.
	giving   sync.Mutex
	reported map[types.UID]string

	nominator *Nominator

	// seats is locked while pods are chosen for a machine. It guards the fields below.
	seats sync.Mutex
	// nominated has the nominations that are being written, or that the cache may not show yet. Without them, nodes that become ready one after the other
	// would be given the same pods.
	nominated map[types.UID]nominated
	// opens has the nodes that wait until the cache shows their nominations, with the time at which they open in any case.
	opens map[string]time.Time
	// index, seating and groups belong to the last reading of the pods, which was at that time.
	index   *facts.Index
	seating *snapshot.Seating
	groups  *snapshot.GroupMachines
	read    time.Time
	// awaited has for what machines wait, by the UIDs of their NodeClaims.
	awaited map[types.UID]string
	// nominatedSince has since when machines wait for the nominations of others of their group, by the UIDs of their NodeClaims.
	nominatedSince map[types.UID]time.Time
}

type nominated struct {
	pod   client.ObjectKey
	node  string
	until time.Time
}

// shownFor is how long a node with nominations that the cache does not show yet is not opened. The scheduler probably does not know them yet either: it would
// give the places to other pods. shownAgain is when to look again.
const (
	shownFor   = 2 * time.Second
	shownAgain = 50 * time.Millisecond
)

// cacheLag is how long the cache of a busy controller may not show a write.
const cacheLag = 5 * time.Second

// readingAge is the maximum age of a reading of the pods from which machines are filled. Hundreds of machines may start within a minute, while
// thousands of pods wait.
const readingAge = time.Second

// atOnce is how many machines are handled concurrently. Most of the time they wait for their nominations, of which all machines together have a limited
// number in flight.
const atOnce = 16

// New returns a new controller.
func New(config Config) *Controller {
	if config.Planned == nil {
		config.Planned = func(*corev1.Pod) bool { return false }
	}
	return &Controller{
		Config: config, reported: map[types.UID]string{}, nominator: NewNominator(config.Client, config.Metrics), nominated: map[types.UID]nominated{}, opens: map[string]time.Time{}, awaited: map[types.UID]string{}, nominatedSince: map[types.UID]time.Time{},
	}
}

// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch
// +kubebuilder:rbac:feature=nominations,groups="",resources=pods/status,verbs=patch
// +kubebuilder:rbac:groups=karpenter.sh,resources=nodeclaims,verbs=list;watch;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Register adds the controller to the manager.
func (c *Controller) Register(m ctrl.Manager) error {
	b := ctrl.NewControllerManagedBy(m).Named("readiness").
		For(&karpv1.NodeClaim{}, builder.WithPredicates(predicate.NewPredicateFuncs(starts))).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(claimOf))
	if c.Gatherer.DRA {
		b = b.Watches(&resourcev1.ResourceSlice{}, handler.EnqueueRequestsFromMapFunc(c.claimOfSlice))
	}
	return b.WithOptions(controller.Options{MaxConcurrentReconciles: atOnce}).Complete(c)
}

// claimOfSlice returns a request for the NodeClaim of the Node of a ResourceSlice.
func (c *Controller) claimOfSlice(ctx context.Context, o client.Object) []reconcile.Request {
	slice, ok := o.(*resourcev1.ResourceSlice)
	if !ok || slice.Spec.NodeName == nil {
		return nil
	}
	node := &corev1.Node{}
	if err := c.Client.Get(ctx, client.ObjectKey{Name: *slice.Spec.NodeName}, node); err != nil {
		return nil // A change of the Node will show it.
	}
	return claimOf(ctx, node)
}

// starts selects Karve's NodeClaims.
func starts(o client.Object) bool {
	claim, ok := o.(*karpv1.NodeClaim)
	return ok && facts.IsOurClaim(claim)
}

// claimOf returns a request for the NodeClaim of one of Karve's Nodes that has not started or is being deleted.
func claimOf(_ context.Context, o client.Object) []reconcile.Request {
	node, ok := o.(*corev1.Node)
	if !ok || node.Labels[v1alpha1.GPUNodeClassLabel] == "" || node.Labels[karpv1.NodeInitializedLabelKey] == "true" && taintIndex(node) < 0 && node.DeletionTimestamp.IsZero() {
		return nil
	}
	for _, owner := range node.OwnerReferences {
		if owner.Kind == "NodeClaim" {
			return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: owner.Name}}}
		}
	}
	return nil
}

func taintIndex(node *corev1.Node) int {
	return slices.IndexFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == v1alpha1.ReplicasNotReadyTaintKey })
}

// Reconcile handles the machine of one NodeClaim until it has started.
func (c *Controller) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	machine, err := c.machine(ctx, req.Name)
	if err != nil || machine == nil {
		return reconcile.Result{}, err
	}
	switch v, again := decide(machine, c.Clock.Now(), c.Timeout); v {
	case ready:
		return c.admit(ctx, machine)
	case broken:
		return c.giveBack(ctx, machine)
	default:
		return reconcile.Result{RequeueAfter: again}, nil
	}
}

// machine returns the machine of a NodeClaim, without its pods. It returns nil if the NodeClaim does not exist or is not Karve's.
func (c *Controller) machine(ctx context.Context, name string) (*records.Machine, error) {
	claim := &karpv1.NodeClaim{}
	if err := c.Client.Get(ctx, client.ObjectKey{Name: name}, claim); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if !facts.IsOurClaim(claim) {
		return nil, nil
	}
	m := &records.Machine{Claim: claim, Promise: facts.PromiseOf(claim.Annotations)}
	if claim.Status.NodeName == "" {
		return m, nil
	}
	node := &corev1.Node{}
	switch err := c.Client.Get(ctx, client.ObjectKey{Name: claim.Status.NodeName}, node); {
	case err == nil:
		if m.Node, err = c.Gatherer.Published(ctx, node); err != nil {
			return nil, err
		}
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("reading node %s: %w", claim.Status.NodeName, err)
	}
	return m, nil
}

type verdict int

const (
	// wait means that the next step is not the controller's, or that the machine has started.
	wait verdict = iota
	// ready means that the startup taint can be removed.
	ready
	// broken means that the machine can be deleted.
	broken
)

// decide returns what to do about a machine. For wait it also returns when to check again, or 0 if there is nothing to wait for.
func decide(m *records.Machine, now time.Time, timeout time.Duration) (verdict, time.Duration) {
	switch m.State() {
	case lifecycle.Draining, lifecycle.Requested:
		return wait, 0
	case lifecycle.Initializing:
		if m.AwaitsReplicas() {
			return ready, 0
		}
	default:
	}
	since, ok := m.BrokenSince(timeout)
	switch {
	case !ok:
		return wait, 0
	case now.Before(since):
		return wait, since.Sub(now)
	}
	return broken, 0
}

// tries is how often the controller tries to remove the startup taint from a Node that others change at the same time, before it requeues.
const tries = 5

// admit nominates the pods that the machine was launched for, and then removes the startup taint. The two follow each other directly: the scheduler
// clears the nomination of a pod for which it finds no node, and then other pods could take the capacity. Machines of a group accept pods at once.
func (c *Controller) admit(ctx context.Context, m *records.Machine) (reconcile.Result, error) {
	if waits, result, err := c.awaitGroups(ctx, m); waits {
		return result, err
	}
	if wait, err := c.nominate(ctx, m); err != nil || wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, err
	}
	open := c.together(m)
	if len(open) == 0 {
		return reconcile.Result{RequeueAfter: soon}, nil
	}
	var others sync.WaitGroup
	others.Go(func() { c.admitOthers(ctx, open[1:]) })
	defer others.Wait()
	return c.admitNow(ctx, m)
}

// admitNow removes the startup taint.
func (c *Controller) admitNow(ctx context.Context, m *records.Machine) (reconcile.Result, error) {
	err := c.open(ctx, m.Node)
	for i := 1; i < tries && apierrors.IsConflict(err); i++ { // The kubelet and Karpenter often change a Node that is starting.
		var live *corev1.Node
		if live, err = c.Gatherer.Node(ctx, m.Node.Name); err != nil {
			break
		}
		m.Node = live
		if v, _ := decide(m, c.Clock.Now(), c.Timeout); v != ready {
			return reconcile.Result{RequeueAfter: soon}, nil
		}
		err = c.open(ctx, m.Node)
	}
	switch {
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, nil
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: soon}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("taking the startup taint off node %s: %w", m.Node.Name, err)
	}
	took := c.Clock.Since(m.Claim.CreationTimestamp.Time)
	c.Metrics.ReplicasSeconds.WithLabelValues(m.Pool()).Observe(took.Seconds())
	c.Recorder.Eventf(m.Node, nil, corev1.EventTypeNormal, "ReplicasReady", "Admit", "exposes %d %s", m.Exposed(), m.Promise.Resource)
	log.FromContext(ctx).Info("Node exposes its replicas", "node", klog.KObj(m.Node), "resource", m.Promise.Resource, "replicas", m.Exposed(), "after", took.String())
	return reconcile.Result{}, nil
}

// nominate nominates the pods that a machine was launched for. It returns how long to wait before the node is opened, while the cache does not show the
// nominations. If nominations cannot be written, this delays the machine by a second for each sixteen pods, and by ten seconds at most; if others are written
// first, by further ten seconds at most.
func (c *Controller) nominate(ctx context.Context, m *records.Machine) (time.Duration, error) {
	if !c.Nominations {
		return 0, nil
	}
	seats, err := c.seatsOf(ctx, m)
	if err != nil {
		return 0, err
	}
	if len(seats) > 0 {
		done, _ := c.nominator.Write(ctx, seats, seatingTime(len(seats)))
		c.nominatedUntil(seats, done)
	}
	return c.unseen(ctx, m.Node.Name), nil
}

// unseen returns how long to wait until the cache shows the nominations for a node, or 0 if it shows them or the node has waited long enough.
func (c *Controller) unseen(ctx context.Context, node string) time.Duration {
	c.seats.Lock()
	defer c.seats.Unlock()
	now := c.Clock.Now()
	maps.DeleteFunc(c.opens, func(of string, at time.Time) bool { return of != node && now.Sub(at) > cacheLag })
	if c.opens[node].IsZero() {
		c.opens[node] = now.Add(shownFor)
	}
	if now.Before(c.opens[node]) {
		for _, n := range c.nominated {
			if n.node != node {
				continue
			}
			pod := &corev1.Pod{}
			if err := c.Client.Get(ctx, n.pod, pod); err == nil && pod.Spec.NodeName == "" && pod.Status.NominatedNodeName != node {
				return shownAgain
			}
		}
	}
	delete(c.opens, node)
	return 0
}

// nominatedUntil forgets the nominations that were not written, and the others once the cache shows them.
func (c *Controller) nominatedUntil(seats []snapshot.Nomination, done []bool) {
	c.seats.Lock()
	defer c.seats.Unlock()
	until := c.Clock.Now().Add(cacheLag)
	for i, n := range seats {
		if done[i] {
			c.nominated[n.Pod.UID] = nominated{client.ObjectKeyFromObject(n.Pod), n.Node, until}
		} else {
			delete(c.nominated, n.Pod.UID)
		}
	}
}

// seatsOf returns the nominations for a machine, and records them, so that no other machine gets the same pods.
func (c *Controller) seatsOf(ctx context.Context, m *records.Machine) ([]snapshot.Nomination, error) {
	c.seats.Lock()
	defer c.seats.Unlock()
	if err := c.look(ctx); err != nil {
		return nil, err
	}
	now := c.Clock.Now()
	_, pods := c.index.Node(m.Node.Name)
	written := map[types.UID]string{}
	maps.DeleteFunc(c.nominated, func(_ types.UID, n nominated) bool { return now.After(n.until) })
	for pod, n := range c.nominated {
		written[pod] = n.node
	}
	seats := c.seating.Seats(m, pods, written)
	until := now.Add(maxSeating + seatingTime(len(seats)) + nominateTimeout)
	for _, n := range seats {
		c.nominated[n.Pod.UID] = nominated{client.ObjectKeyFromObject(n.Pod), n.Node, until}
	}
	return seats, nil
}

// look reads the pods if the last reading is old. seats must be locked.
func (c *Controller) look(ctx context.Context) error {
	now := c.Clock.Now()
	if c.seating != nil && now.Sub(c.read) <= readingAge {
		return nil
	}
	cluster, err := c.Gatherer.Cluster(ctx)
	if err != nil {
		return fmt.Errorf("reading the pods: %w", err)
	}
	c.index, c.read = cluster.Indexed(), now
	c.seating, c.groups = snapshot.NewSeating(c.index.Pending(), c.Planned), snapshot.NewGroupMachines(cluster)
	return nil
}

// open removes the startup taint from a Node.
func (c *Controller) open(ctx context.Context, node *corev1.Node) error {
	i := taintIndex(node)
	if i < 0 {
		return nil
	}
	// The API server's response lacks the replicas that the agent publishes, so the node itself is not changed.
	changed := node.DeepCopy()
	changed.Spec.Taints = append(changed.Spec.Taints[:i:i], changed.Spec.Taints[i+1:]...)
	metav1.SetMetaDataAnnotation(&changed.ObjectMeta, v1alpha1.ReplicasReadySinceAnnotation, c.Clock.Now().UTC().Format(time.RFC3339))
	// Others also change the list of taints. The lock keeps this patch from undoing their changes.
	return c.Client.Patch(ctx, changed, client.MergeFromWithOptions(node, client.MergeFromWithOptimisticLock{}))
}
