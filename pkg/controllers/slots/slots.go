// Package slots sets the slots of device memory on the GPUs of machines. The node agent lays them out.
//
// An additional slot takes memory that no slot has, so it is written immediately. A free slot that is withdrawn may be given to a pod at the same
// moment, and the kubelet would reject that pod. So the Node is tainted first. The slots are written once the scheduler has had time to bind what it
// had already decided, and only if none of the pods bound by then needs what is withdrawn. The taint is removed when the Node shows the new slots.
package slots

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	fleet "karve.sh/karve/pkg/fleet/slots"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// Update writes the slots that a plan's placements need.
func Update(ctx context.Context, c client.Client, recorder events.EventRecorder, view *snapshot.View, placements []planner.Placement, now time.Time) error {
	for _, change := range fleet.Changes(view, placements) {
		m := change.Machine
		write := func() error { return promise(ctx, c, recorder, m.Claim, m.Node, change.Slots, now) }
		if change.Withdraws {
			write = func() error { return begin(ctx, c, m.Node, change.Slots, now) }
		}
		if err := write(); err != nil {
			return err
		}
	}
	return nil
}

// promise writes slots to the NodeClaim, which plans use, and then to the Node, which the agent reads. If the NodeClaim has changed since it was read,
// it does nothing, and a later plan repeats it.
func promise(ctx context.Context, c client.Client, recorder events.EventRecorder, was *karpv1.NodeClaim, on *corev1.Node, slots nodecontract.Slots, now time.Time) error {
	claim := was.DeepCopy()
	claim.Annotations[nodecontract.SlotsAnnotation] = slots.String()
	claim.Annotations[v1alpha1.ReplicasRaisedAnnotation] = now.UTC().Format(time.RFC3339)
	err := c.Patch(ctx, claim, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		return nil
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the slots to NodeClaim %s: %w", claim.Name, err)
	}
	log.FromContext(ctx).Info("Changed the slots of a machine", "nodeClaim", klog.KObj(claim), "slots", described(slots))
	if on == nil {
		return nil // Karpenter copies the annotation to the Node.
	}
	node := on.DeepCopy()
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, nodecontract.SlotsAnnotation, slots.String())
	delete(node.Annotations, v1alpha1.SlotsNextAnnotation)
	if err := c.Patch(ctx, node, client.MergeFrom(on)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the slots to node %s: %w", node.Name, err)
	}
	if !facts.PromiseOf(was.Annotations).Slots.Equal(slots) {
		recorder.Eventf(node, claim, corev1.EventTypeNormal, "SlotsChanged", "Share", "the GPUs are to have %s, for the pods that are planned there", described(slots))
	}
	return nil
}

// described returns the slots of a machine for messages, for example "3 nvidia.com/gpu-2gb, 1 nvidia.com/gpu-8gb".
func described(slots nodecontract.Slots) string {
	var parts []string
	for i, n := range slots.Wanted() {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, nodecontract.SlotResource(slots.SizesMiB[i])))
		}
	}
	if len(parts) == 0 {
		return "no slots"
	}
	return strings.Join(parts, ", ")
}

// begin taints a Node on which free slots are to be withdrawn, and records what replaces them.
func begin(ctx context.Context, c client.Client, on *corev1.Node, next nodecontract.Slots, now time.Time) error {
	node := on.DeepCopy()
	node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: nodecontract.SlotsChangingTaintKey, Effect: corev1.TaintEffectNoSchedule})
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.SlotsNextAnnotation, next.String())
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.SlotsChangingSinceAnnotation, now.UTC().Format(time.RFC3339))
	err := c.Patch(ctx, node, client.MergeFromWithOptions(on, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		return nil // A later plan repeats it.
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("tainting node %s, of which free slots are to be withdrawn: %w", node.Name, err)
	}
	log.FromContext(ctx).Info("Withdrawing free slots of a machine", "node", klog.KObj(node), "next", described(next))
	return nil
}

// Config has the dependencies of the controller.
type Config struct {
	Client client.Client
	// Live reads from the API server, since what is withdrawn depends on the latest pods.
	Live     client.Reader
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
}

// Controller withdraws free slots of one Node at a time.
type Controller struct{ Config }

// New returns a new controller.
func New(config Config) *Controller { return &Controller{config} }

// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=list
// +kubebuilder:rbac:groups=karpenter.sh,resources=nodeclaims,verbs=list;watch;patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Register adds the controller to the manager.
func (c *Controller) Register(m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("slots").
		For(&corev1.Node{}, builder.WithPredicates(predicate.NewPredicateFuncs(changing))).
		WithOptions(controller.Options{MaxConcurrentReconciles: 1}).
		Complete(c)
}

// changing selects Karve's Nodes whose free slots are being withdrawn.
func changing(o client.Object) bool {
	node, ok := o.(*corev1.Node)
	return ok && node.Labels[v1alpha1.GPUNodeClassLabel] != "" && facts.HasTaint(node, nodecontract.SlotsChangingTaintKey)
}

// step is the next step for a Node whose free slots are being withdrawn.
type step int

const (
	// wait means that nothing is to be done yet.
	wait step = iota
	// promises means that the next slots can be written.
	promises
	// keeps means that pods need the current slots: the taint is removed and the slots stay.
	keeps
	// opens means that the Node has the new slots: the taint is removed.
	opens
	// givesUp means that the Node has not followed in time: the taint is removed.
	givesUp
)

// decide returns the next step for the machine, and for wait when to check again.
func decide(m *records.Machine, now time.Time) (step, time.Duration) {
	since := facts.TimeOf(m.Node.Annotations[v1alpha1.SlotsChangingSinceAnnotation])
	next, err := nodecontract.ParseSlots(m.Node.Annotations[v1alpha1.SlotsNextAnnotation])
	switch settled, late := since.Add(lifecycle.SlotsSettle), since.Add(lifecycle.SlotsPatience); {
	case err != nil || !next.IsZero() && !next.SameKind(m.Promise.Slots):
		return keeps, 0
	case !next.IsZero() && now.Before(settled):
		return wait, settled.Sub(now)
	case !next.IsZero() && !suffices(m, next):
		return keeps, 0
	case !next.IsZero():
		return promises, 0
	case m.ExposesSlots():
		return opens, 0
	case now.Before(late):
		return wait, late.Sub(now)
	default:
		return givesUp, 0
	}
}

// suffices reports whether all pods on the machine have room in the next slots.
func suffices(m *records.Machine, next nodecontract.Slots) bool {
	gpus, unreported := m.SlotGPUs()
	for i, g := range gpus {
		for s, held := range g.Held {
			if i >= len(next.GPUs) || next.GPUs[i][s] < held {
				return false
			}
			unreported[s] -= next.GPUs[i][s] - held
		}
	}
	return !slices.ContainsFunc(unreported, func(n int64) bool { return n > 0 })
}

// Reconcile takes the next step for a Node.
func (c *Controller) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	m, err := c.look(ctx, req.Name)
	if err != nil || m == nil {
		return reconcile.Result{}, err
	}
	step, again := decide(m, c.Clock.Now())
	switch step {
	case wait:
		return reconcile.Result{RequeueAfter: again}, nil
	case promises:
		next, _ := nodecontract.ParseSlots(m.Node.Annotations[v1alpha1.SlotsNextAnnotation]) // decide has read it.
		if err := promise(ctx, c.Client, c.Recorder, m.Claim, m.Node, next, c.Clock.Now()); err != nil {
			return reconcile.Result{}, err
		}
		return reconcile.Result{RequeueAfter: soon}, nil
	case keeps, opens, givesUp:
	}
	err = c.open(ctx, m.Node)
	switch {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: soon}, nil
	case err != nil || step == opens:
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	why := "a pod has come for a slot that was to be withdrawn"
	kind := corev1.EventTypeNormal
	if step == givesUp {
		why, kind = fmt.Sprintf("the Node does not show them %s after it was tainted: see its karve-node", lifecycle.SlotsPatience), corev1.EventTypeWarning
	}
	c.Recorder.Eventf(m.Node, nil, kind, "SlotsNotChanged", "Share", "the GPUs do not have the slots that are planned: %s", why)
	return reconcile.Result{}, nil
}

// soon is the delay after a conflict, and until the API server shows what was written.
const soon = time.Second

// look reads the machine from the API server. It returns nil if there is nothing to do about it.
func (c *Controller) look(ctx context.Context, name string) (*records.Machine, error) {
	node := &corev1.Node{}
	if err := c.Live.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if !changing(node) || !node.DeletionTimestamp.IsZero() {
		return nil, nil
	}
	claim := &karpv1.NodeClaim{}
	i := slices.IndexFunc(node.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "NodeClaim" })
	if i < 0 {
		return nil, nil
	}
	if err := c.Client.Get(ctx, client.ObjectKey{Name: node.OwnerReferences[i].Name}, claim); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	pods := &corev1.PodList{}
	if err := c.Live.List(ctx, pods, client.MatchingFields{"spec.nodeName": name}); err != nil {
		return nil, fmt.Errorf("listing the pods of node %s: %w", name, err)
	}
	m := &records.Machine{Claim: claim, Node: node, Promise: facts.PromiseOf(node.Annotations)} // The Node is the latest.
	for i := range pods.Items {
		if pod := &pods.Items[i]; !karpenter.IsTerminal(pod) {
			m.Pods = append(m.Pods, pod)
		}
	}
	return m, nil
}

// open removes the taint and the annotations that were written with it.
func (c *Controller) open(ctx context.Context, node *corev1.Node) error {
	stored := node.DeepCopy()
	node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == nodecontract.SlotsChangingTaintKey })
	delete(node.Annotations, v1alpha1.SlotsNextAnnotation)
	delete(node.Annotations, v1alpha1.SlotsChangingSinceAnnotation)
	// Others also change the list of taints. The lock keeps this patch from undoing their changes.
	return c.Client.Patch(ctx, node, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
}
