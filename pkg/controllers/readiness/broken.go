package readiness

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/words"
)

// giveBack deletes the NodeClaim of a machine that did not start in time, once the condition of its pool shows the failure. The condition keeps the
// pool from launching the next broken machine. Pods of workloads, or an outage of its zone, keep the machine for one more timeout. After that, its pods
// are evicted with it.
func (c *Controller) giveBack(ctx context.Context, m *records.Machine) (reconcile.Result, error) {
	c.giving.Lock()
	defer c.giving.Unlock()
	if m.State() == lifecycle.Launched {
		return reconcile.Result{}, nil // Karpenter deletes NodeClaims that do not register.
	}
	if known, err := c.accounted(ctx, m); err != nil || !known {
		return reconcile.Result{RequeueAfter: soon}, err
	}
	if there, err := c.lookAt(ctx, m); err != nil || !there {
		return reconcile.Result{RequeueAfter: soon}, err
	}
	now := c.Clock.Now()
	since, ok := m.BrokenSince(c.Timeout)
	if !ok || now.Before(since) {
		return reconcile.Result{RequeueAfter: soon}, nil // The machine has made progress, and the cache will show it.
	}
	nodes := &corev1.NodeList{}
	if err := c.Client.List(ctx, nodes); err != nil {
		return reconcile.Result{}, fmt.Errorf("listing nodes: %w", err)
	}
	why, until := keeps(m, nodes.Items, since, c.Timeout)
	if why != "" && (until.IsZero() || now.Before(until)) {
		c.recordKept(m, why, until)
		again := c.Timeout
		if !until.IsZero() {
			again = min(again, until.Sub(now))
		}
		return reconcile.Result{RequeueAfter: again}, nil
	}
	return c.delete(ctx, m)
}

// accounted reports whether the condition of the pool accounts for a broken machine. A pool that no longer exists launches nothing, so it returns true.
func (c *Controller) accounted(ctx context.Context, m *records.Machine) (bool, error) {
	pool := &karpv1.NodePool{}
	if err := c.Client.Get(ctx, client.ObjectKey{Name: m.Pool()}, pool); err != nil {
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, fmt.Errorf("reading NodePool %s: %w", m.Pool(), err)
	}
	healthy := facts.Condition(pool.Status.Conditions, v1alpha1.ConditionReplicasHealthy)
	if healthy.IsFalse() {
		return true, nil
	}
	return healthy != nil && !m.Fresh(healthy.LastTransitionTime.Time, c.Clock.Now(), c.Timeout), nil
}

// lookAt reads the Node and its pods from the API server. It returns false if the Node has appeared or vanished since the cache was read.
func (c *Controller) lookAt(ctx context.Context, m *records.Machine) (bool, error) {
	seen := m.Node != nil
	live, err := c.Gatherer.Node(ctx, m.Claim.Status.NodeName)
	switch {
	case apierrors.IsNotFound(err):
		return !seen, nil
	case err != nil:
		return false, fmt.Errorf("reading node %s: %w", m.Claim.Status.NodeName, err)
	case !seen:
		return false, nil
	}
	pods, err := c.Gatherer.PodsOn(ctx, live.Name)
	if err != nil {
		return false, err
	}
	m.Node, m.Pods = live, nil
	for i := range pods {
		if pod := &pods[i]; !karpenter.IsTerminal(pod) {
			m.Pods = append(m.Pods, pod)
		}
	}
	return true, nil
}

// keeps returns why a machine that has been broken since a given time stays, and until when. The zero time means that there is no end. An outage of its
// zone keeps the machine no longer than pods do: it has never started, so no work is lost, and the machines that are launched during the outage would
// add up.
func keeps(m *records.Machine, nodes []corev1.Node, since time.Time, timeout time.Duration) (why string, until time.Time) {
	if m.Node == nil {
		return "", time.Time{}
	}
	for _, o := range []client.Object{m.Claim, m.Node} {
		if o.GetAnnotations()[repair.DoNotRepair] == "true" {
			return "it carries " + repair.DoNotRepair, time.Time{}
		}
	}
	if out := repair.Outage(nodes, m.Node); out != "" {
		return out, since.Add(timeout)
	}
	if i := slices.IndexFunc(m.Pods, func(pod *corev1.Pod) bool { return !karpenter.IsDaemon(pod) }); i >= 0 {
		return fmt.Sprintf("pod %s/%s runs on it", m.Pods[i].Namespace, m.Pods[i].Name), since.Add(timeout)
	}
	return "", time.Time{}
}

// recordKept records an event about why a broken machine is kept, once for each reason.
func (c *Controller) recordKept(m *records.Machine, why string, until time.Time) {
	if c.reported[m.Claim.UID] == why {
		return
	}
	c.reported[m.Claim.UID] = why
	next := ""
	if !until.IsZero() {
		next = fmt.Sprintf(". At %s it is given back all the same, and its pods are evicted; annotate the Node with %s=true to keep it", until.UTC().Format(time.RFC3339), repair.DoNotRepair)
	}
	c.Recorder.Eventf(m.Claim, m.Node, corev1.EventTypeWarning, "BrokenButKept", "Keep", "%s", plain.Shorten(c.fault(m)+", and is kept: "+why+next, plain.MaxNote))
}

// fault returns why a machine is broken.
func (c *Controller) fault(m *records.Machine) string {
	switch m.State() {
	case lifecycle.NodeMissing:
		return fmt.Sprintf("node %s is gone", m.Claim.Status.NodeName)
	case lifecycle.Initializing:
		return fmt.Sprintf("node %s exposes its %s and was not initialized within %s: it %s", m.Node.Name, m.Promise.Resource, c.Timeout, records.Uninitialized(m))
	default:
		return fmt.Sprintf("node %s exposes %d of %d %s %s after it registered", m.Node.Name, m.Exposed(), m.Promise.Replicas(), m.Promise.Resource, c.Timeout)
	}
}

func (c *Controller) delete(ctx context.Context, m *records.Machine) (reconcile.Result, error) {
	reason, help := metrics.DeletionReplicasMissing, "; look at the device plugin or DRA driver on such nodes"
	switch m.State() {
	case lifecycle.NodeMissing:
		reason, help = metrics.DeletionNodeMissing, ""
	case lifecycle.Initializing:
		reason, help = metrics.DeletionNotInitialized, "; look at what sets and removes the startup taints of the NodePool, and at the kubelet"
	default:
	}
	return c.deleteFor(ctx, m, reason, fmt.Sprintf("%s and is given back with %s%s", c.fault(m), words.Count(len(m.Moving())+len(m.ForeignPods()), "pod"), help))
}

// deleteFor deletes the NodeClaim of a machine for a reason, with an event that explains it. giving must be locked.
func (c *Controller) deleteFor(ctx context.Context, m *records.Machine, reason metrics.Deletion, why string) (reconcile.Result, error) {
	// The NodeClaim comes from a cache. If it has changed meanwhile, for example because it is being deleted, it is checked again.
	err := c.Client.Delete(ctx, m.Claim.DeepCopy(), client.Preconditions{UID: &m.Claim.UID, ResourceVersion: &m.Claim.ResourceVersion})
	switch {
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, nil
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: soon}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("deleting NodeClaim %s: %w", m.Claim.Name, err)
	}
	delete(c.reported, m.Claim.UID)
	c.Metrics.ClaimsDeleted.WithLabelValues(m.Pool(), string(reason)).Inc()
	c.Recorder.Eventf(m.Claim, nil, corev1.EventTypeWarning, string(reason), "GiveBack", "%s", plain.Shorten(why, plain.MaxNote))
	log.FromContext(ctx).Info("Gave back a node that did not start", "nodeClaim", klog.KObj(m.Claim), "node", m.Claim.Status.NodeName, "reason", reason, "state", m.State(),
		"exposed", m.Exposed(), "promised", m.Promise.Replicas())
	return reconcile.Result{}, nil
}
