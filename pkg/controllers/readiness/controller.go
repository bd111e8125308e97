// Package readiness takes the startup taint off nodes that expose the replicas they promised, and gives back those that never do.
package readiness

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/snapshot"
)

// soon is when to look again at what somebody else has changed meanwhile, or has yet to say.
const soon = time.Second

// Config is what the controller needs.
type Config struct {
	Client client.Client
	// Live reads from the API server, for the last look before a machine is given back.
	Live     client.Reader
	Metrics  *metrics.Metrics
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
	// Timeout is how long a registered node may go without its replicas.
	Timeout time.Duration
}

// Controller looks at one Node at a time.
type Controller struct{ Config }

// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=karpenter.sh,resources=nodeclaims,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Register adds the controller to the manager.
func (c *Controller) Register(m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("readiness").
		For(&corev1.Node{}, builder.WithPredicates(predicate.NewPredicateFuncs(awaitsReplicas))).
		Complete(c)
}

func awaitsReplicas(o client.Object) bool {
	node, ok := o.(*corev1.Node)
	return ok && taintIndex(node) >= 0
}

func taintIndex(node *corev1.Node) int {
	for i, t := range node.Spec.Taints {
		if t.Key == v1alpha1.ReplicasNotReadyTaintKey {
			return i
		}
	}
	return -1
}

// Reconcile looks at one Node that still has the startup taint.
func (c *Controller) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	node := &corev1.Node{}
	if err := c.Client.Get(ctx, req.NamespacedName, node); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !awaitsReplicas(node) || !node.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil
	}
	claim, err := c.claim(ctx, node)
	if err != nil || claim == nil || !claim.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, err
	}
	machine := snapshot.Machine{Claim: claim, Node: node, Promise: snapshot.PromiseOf(claim.Annotations)}
	switch v, again := decide(&machine, c.Clock.Now(), c.Timeout); v {
	case ready:
		return c.admit(ctx, &machine)
	case broken:
		return c.giveBack(ctx, &machine)
	default:
		return reconcile.Result{RequeueAfter: again}, nil
	}
}

type verdict int

const (
	wait verdict = iota
	ready
	broken
)

// decide says whether a machine exposes what it promised; again is when to look at a waiting one, 0 when its Node will wake us.
func decide(m *snapshot.Machine, now time.Time, timeout time.Duration) (verdict, time.Duration) {
	if m.Promise.Replicas() > 0 && m.Exposed() >= m.Promise.Replicas() {
		return ready, 0
	}
	since, ok := m.BrokenSince(timeout)
	switch {
	case !ok:
		return wait, timeout
	case now.Before(since):
		return wait, since.Sub(now)
	}
	return broken, 0
}

// claim is the NodeClaim of ours that owns the Node; nil when there is none.
func (c *Controller) claim(ctx context.Context, node *corev1.Node) (*karpv1.NodeClaim, error) {
	for _, owner := range node.OwnerReferences {
		if owner.Kind != "NodeClaim" {
			continue
		}
		claim := &karpv1.NodeClaim{}
		if err := c.Client.Get(ctx, client.ObjectKey{Name: owner.Name}, claim); err != nil {
			return nil, client.IgnoreNotFound(err)
		}
		if snapshot.IsOurClaim(claim) {
			return claim, nil
		}
	}
	return nil, nil
}

// admit takes the startup taint off.
func (c *Controller) admit(ctx context.Context, m *snapshot.Machine) (reconcile.Result, error) {
	stored := m.Node.DeepCopy()
	i := taintIndex(m.Node)
	m.Node.Spec.Taints = append(m.Node.Spec.Taints[:i:i], m.Node.Spec.Taints[i+1:]...)
	// Taints are a list that others write too: the lock keeps this patch from undoing theirs.
	err := c.Client.Patch(ctx, m.Node, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
	switch {
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, nil
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: soon}, nil // kubelet and Karpenter write a lot to a Node that starts.
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("taking the startup taint off node %s: %w", m.Node.Name, err)
	}
	took := c.Clock.Since(m.Claim.CreationTimestamp.Time)
	c.Metrics.ReplicasSeconds.WithLabelValues(m.Pool()).Observe(took.Seconds())
	c.Recorder.Eventf(m.Node, nil, corev1.EventTypeNormal, "ReplicasReady", "Admit", "exposes %d %s", m.Exposed(), m.Promise.Resource)
	log.FromContext(ctx).Info("Node exposes its replicas", "node", klog.KObj(m.Node), "resource", m.Promise.Resource, "replicas", m.Exposed(), "after", took.String())
	return reconcile.Result{}, nil
}

// look reads the Node and its pods live.
func (c *Controller) look(ctx context.Context, m *snapshot.Machine) error {
	live := &corev1.Node{}
	if err := c.Live.Get(ctx, client.ObjectKeyFromObject(m.Node), live); err != nil {
		return fmt.Errorf("reading node %s: %w", m.Node.Name, err)
	}
	pods := &corev1.PodList{}
	if err := c.Live.List(ctx, pods, client.MatchingFields{"spec.nodeName": m.Node.Name}); err != nil {
		return fmt.Errorf("listing the pods of node %s: %w", m.Node.Name, err)
	}
	m.Node, m.Pods = live, nil
	for i := range pods.Items {
		if pod := &pods.Items[i]; !karpenter.IsTerminal(pod) {
			m.Pods = append(m.Pods, pod)
		}
	}
	return nil
}

// giveBack deletes a machine that never exposed its replicas, once its pool's condition says so: the condition is what keeps the pool from launching
// the next broken machine.
func (c *Controller) giveBack(ctx context.Context, m *snapshot.Machine) (reconcile.Result, error) {
	pool := &karpv1.NodePool{}
	if err := c.Client.Get(ctx, client.ObjectKey{Name: m.Pool()}, pool); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !snapshot.Condition(pool.Status.Conditions, v1alpha1.ConditionReplicasHealthy).IsFalse() {
		return reconcile.Result{RequeueAfter: soon}, nil
	}
	if err := c.look(ctx, m); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !m.Broken(c.Clock.Now(), c.Timeout) {
		return reconcile.Result{RequeueAfter: soon}, nil // The replicas have come at last; the cache will tell.
	}
	if !m.Empty() {
		return reconcile.Result{RequeueAfter: c.Timeout}, nil // Someone tolerates everything and runs there; a person must look.
	}
	// The claim comes from a cache: one that changed a moment ago, for instance because it is being deleted, is looked at again.
	err := c.Client.Delete(ctx, m.Claim, client.Preconditions{UID: &m.Claim.UID, ResourceVersion: &m.Claim.ResourceVersion})
	switch {
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, nil
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: soon}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("deleting NodeClaim %s: %w", m.Claim.Name, err)
	}
	c.Metrics.ClaimsDeleted.WithLabelValues(m.Pool(), string(metrics.DeletionReplicasMissing)).Inc()
	c.Recorder.Eventf(m.Claim, nil, corev1.EventTypeWarning, "ReplicasMissing", "GiveBack",
		"node %s exposes %d of %d %s %s after it registered and is given back; look at the device plugin on such nodes",
		m.Node.Name, m.Exposed(), m.Promise.Replicas(), m.Promise.Resource, c.Timeout)
	log.FromContext(ctx).Info("Gave back a node without its replicas", "node", klog.KObj(m.Node), "exposed", m.Exposed(), "promised", m.Promise.Replicas())
	return reconcile.Result{}, nil
}
