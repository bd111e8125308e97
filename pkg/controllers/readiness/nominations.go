package readiness

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
	// nominateFor is how long one call starts new requests. It limits how long a plan or a node waits for nominations.
	nominateFor = time.Second
	// nominateAtOnce is the largest number of concurrent requests.
	nominateAtOnce = 16
	// nominateTimeout is the timeout of one request, including the wait for the client's rate limiter.
	nominateTimeout = 5 * time.Second
)

// WriteNominations writes the nominated nodes of pods. It starts no request after a second. It reports which ones the API server answered, and whether requests failed without an
// answer. It logs failures instead of returning them, because a nomination is only a hint.
func WriteNominations(ctx context.Context, c client.Client, m *metrics.Metrics, all []snapshot.Nomination) (done []bool, lost bool) {
	done = make([]bool, len(all))
	errs := make([]error, len(all))
	// This timeout only stops new requests. If it were the deadline of the requests, they would fail immediately in the client's rate limiter when too
	// little time is left.
	handOut, cancel := context.WithTimeout(ctx, nominateFor)
	defer cancel()
	workqueue.ParallelizeUntil(handOut, nominateAtOnce, len(all), func(i int) {
		errs[i] = writeNomination(ctx, c, m, all[i])
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

func writeNomination(ctx context.Context, c client.Client, m *metrics.Metrics, n snapshot.Nomination) error {
	ctx, cancel := context.WithTimeout(ctx, nominateTimeout)
	defer cancel()
	pod := n.Pod.DeepCopy()
	pod.Status.NominatedNodeName = n.Node
	// The patch has no lock, because it would fail whenever the scheduler updates the pod's condition. If the pod is bound by now, the patch is invalid.
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
