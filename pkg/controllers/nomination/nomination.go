// Package nomination writes which nodes pods are nominated for.
package nomination

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/snapshot"
)

const (
	// within is how long the nominations of one call are handed out, which bounds how long a plan or a node waits for them.
	within = time.Second
	// most is how many are written at a time.
	most = 16
	// answer is how long one request may take, with the time that it waits for the client's rate limiter.
	answer = 5 * time.Second
)

// Write writes nominations, for a second at most. It returns which were written or refused, and whether nobody answered some. No failure is an error: a nomination is a hint.
func Write(ctx context.Context, c client.Client, m *metrics.Metrics, all []snapshot.Nomination) (done []bool, lost bool) {
	done = make([]bool, len(all))
	errs := make([]error, len(all))
	// The time ends the handing out, not a request: the client's rate limiter fails at once where a deadline leaves too little time.
	handOut, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	workqueue.ParallelizeUntil(handOut, most, len(all), func(i int) {
		errs[i] = write(ctx, c, m, all[i])
		var status apierrors.APIStatus
		done[i] = errs[i] == nil || errors.As(errs[i], &status)
	})
	for i := range all {
		lost = lost || errs[i] != nil && !done[i]
	}
	if err := errors.Join(errs...); err != nil {
		log.FromContext(ctx).Info("Nominations failed", "pods", len(all), "error", err.Error())
	}
	return done, lost
}

func write(ctx context.Context, c client.Client, m *metrics.Metrics, n snapshot.Nomination) error {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	pod := n.Pod.DeepCopy()
	pod.Status.NominatedNodeName = n.Node
	// Without a lock, which would fail whenever the scheduler has just said again why the pod waits. Of one that is bound by now it is invalid.
	err := c.Status().Patch(ctx, pod, client.MergeFrom(n.Pod))
	if err == nil {
		m.Nominated.Inc()
	}
	if client.IgnoreNotFound(err) == nil || apierrors.IsInvalid(err) {
		return nil
	}
	log.FromContext(ctx).V(1).Info("Nominating a node failed", "pod", klog.KObj(pod), "node", n.Node, "error", err.Error())
	return err
}
