package provisioning

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
)

const (
	// nominateFor is how long plans may wait for pods to be nominated; what is left is done in the next round.
	nominateFor = time.Second
	// nominateMost is how many pods are nominated in one round at most, about what the client may send in that time.
	nominateMost = 200
	// nominators is how many are nominated at a time.
	nominators = 16
	// answerFor is how long one request may take, with the time that it waits for the client's rate limiter.
	answerFor = 5 * time.Second
	// firstPause is how long the same nomination is not repeated, which is how soon the default scheduler tries a pod again at the earliest. That
	// scheduler clears the nomination each time that it finds no place, and the pod needs it again when its machine has started. The pause of nominations that
	// are taken back doubles each time, up to longestPause.
	firstPause, longestPause = time.Second, 10 * time.Minute
)

// nominate writes the nominations that a plan asks for. A nomination is a hint: that one cannot be written never fails a reconcile. It returns when those that are
// left are due, 0 when none is.
func (c *Controller) nominate(ctx context.Context, view *snapshot.View, plan planner.Plan) time.Duration {
	if !c.Nominations {
		return 0
	}
	now := c.Clock.Now()
	var due []snapshot.Nomination
	for _, n := range view.Nominations(plan) {
		if c.nominated.due(n.Pod.UID, n.Node, now) {
			due = append(due, n)
		}
	}
	round := due[:min(len(due), nominateMost)]
	errs := make([]error, len(round))
	var mu sync.Mutex
	tried, lost := 0, false
	handOut, cancel := context.WithTimeout(ctx, nominateFor)
	defer cancel()
	workqueue.ParallelizeUntil(handOut, nominators, len(round), func(i int) {
		// The time of the round ends the handing out, not the request: the client's rate limiter fails at once where a deadline leaves too little time.
		err := c.nominateOne(ctx, round[i])
		var status apierrors.APIStatus
		mu.Lock()
		defer mu.Unlock()
		tried++
		errs[i] = err
		if err != nil && !errors.As(err, &status) {
			lost = true // Nobody answered, so it is tried again in the next round.
			return
		}
		c.nominated.note(round[i].Pod.UID, round[i].Node, now)
	})
	if err := errors.Join(errs...); err != nil {
		log.FromContext(ctx).Info("Nominations failed, and are tried again later", "pods", len(round), "error", err.Error())
	}
	switch {
	case lost:
		return time.Second
	case tried < len(due):
		return soon
	}
	return 0
}

func (c *Controller) nominateOne(ctx context.Context, n snapshot.Nomination) error {
	ctx, cancel := context.WithTimeout(ctx, answerFor)
	defer cancel()
	pod := n.Pod.DeepCopy()
	pod.Status.NominatedNodeName = n.Node
	// Without a lock, which would fail whenever the scheduler has just said again why the pod waits. Of one that is bound by now it is invalid.
	err := c.Client.Status().Patch(ctx, pod, client.MergeFrom(n.Pod))
	if err == nil {
		c.Metrics.Nominated.Inc()
	}
	if client.IgnoreNotFound(err) == nil || apierrors.IsInvalid(err) {
		return nil
	}
	log.FromContext(ctx).V(1).Info("Nominating a node failed", "pod", klog.KObj(pod), "node", n.Node, "error", err.Error())
	return err
}

// nominations are those that were written. Some schedulers clear a pod's nomination each time that they find no place for it: writing it again at once would
// go on as long as the machine starts.
type nominations struct {
	mu  sync.Mutex
	own map[types.UID]nomination
}

type nomination struct {
	node  string
	at    time.Time
	pause time.Duration
}

// due says whether a node, or none where it is "", may be nominated for a pod now: another one than last time, or after the pause.
func (n *nominations) due(pod types.UID, node string, now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	last, ok := n.own[pod]
	return !ok || last.node != node || !now.Before(last.at.Add(last.pause))
}

func (n *nominations) note(pod types.UID, node string, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	pause := firstPause
	if last, ok := n.own[pod]; ok && node == "" && last.node == "" {
		pause = min(2*last.pause, longestPause)
	}
	n.own[pod] = nomination{node, now, pause}
}

// pauseLeft returns how long a nomination that the pod has lost is not written again.
func (n *nominations) pauseLeft(pod types.UID, now time.Time) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	last, ok := n.own[pod]
	if !ok {
		return 0
	}
	return last.at.Add(last.pause).Sub(now)
}

// forget forgets nominations that were written long ago. What is said of a pod is of use only while its machine starts.
func (n *nominations) forget(now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for pod, last := range n.own {
		if now.After(last.at.Add(2 * longestPause)) {
			delete(n.own, pod)
		}
	}
}

// podHandler plans for a pod that changed. For one that has only lost its nomination it plans when the nomination may be written again.
func (c *Controller) podHandler() handler.EventHandler {
	plan := handler.EnqueueRequestsFromMapFunc(c.batchPod)
	return handler.Funcs{
		CreateFunc: plan.Create, DeleteFunc: plan.Delete, GenericFunc: plan.Generic,
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			if left := c.nominated.pauseLeft(e.ObjectNew.GetUID(), c.Clock.Now()); left > 0 && lostNomination(e) {
				queue.AddAfter(reconcile.Request{}, left)
				return
			}
			plan.Update(ctx, e, queue)
		},
	}
}

func lostNomination(e event.UpdateEvent) bool {
	before, okBefore := e.ObjectOld.(*corev1.Pod)
	after, okAfter := e.ObjectNew.(*corev1.Pod)
	return okBefore && okAfter && before.Status.NominatedNodeName != "" && after.Status.NominatedNodeName == "" &&
		after.Spec.NodeName == "" && after.DeletionTimestamp == nil && before.Generation == after.Generation
}
