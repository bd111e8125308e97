package readiness

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/snapshot"
)

const (
	// requestsAtOnce is the largest number of concurrent requests of one [Nominator].
	requestsAtOnce = 32
	// nominateTimeout is the timeout of one request, including the wait for the client's rate limiter.
	nominateTimeout = 5 * time.Second
	// A node waits for its turn for at most maxSeating, and then for its nominations for a second per seatsPerSecond of them, at most maxSeating. A busy API server
	// takes up to a second for a write, and a large machine has eighty pods. If the node opened with half of them, other pods would take the places of the rest.
	seatsPerSecond = 16
	maxSeating     = 10 * time.Second
)

// Nominator writes the nominated nodes of pods. Its callers share a limit of concurrent requests. They take turns, so that the nodes of a burst open one after
// the other with all of their nominations, and not all of them late. It is safe for concurrent use.
type Nominator struct {
	client   client.Client
	metrics  *metrics.Metrics
	requests *semaphore.Weighted
}

// NewNominator returns a Nominator that counts what it writes.
func NewNominator(c client.Client, m *metrics.Metrics) *Nominator {
	return &Nominator{client: c, metrics: m, requests: semaphore.NewWeighted(requestsAtOnce)}
}

// seatingTime returns how long a node waits for the nominations of its pods.
func seatingTime(seats int) time.Duration {
	return min(maxSeating, max(1, time.Duration(seats+seatsPerSecond-1)/seatsPerSecond)*time.Second)
}

// Write waits for its turn and writes nominations, and starts no request after the given time. It reports which ones the API server answered, and whether
// requests failed without an answer. It logs failures instead of returning them, because a nomination is only a hint.
func (n *Nominator) Write(ctx context.Context, all []snapshot.Nomination, within time.Duration) (done []bool, lost bool) {
	done = make([]bool, len(all))
	errs := make([]error, len(all))
	atOnce := min(len(all), requestsAtOnce)
	turn, over := context.WithTimeout(ctx, maxSeating)
	defer over()
	if err := n.requests.Acquire(turn, int64(atOnce)); err != nil {
		log.FromContext(ctx).Info("Nominations were not written, because too many others are being written", "pods", len(all))
		return done, false
	}
	defer n.requests.Release(int64(atOnce))
	// This timeout only stops new requests. If it were the deadline of the requests, they would fail immediately in the client's rate limiter when too
	// little time is left.
	handOut, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	workqueue.ParallelizeUntil(handOut, atOnce, len(all), func(i int) {
		errs[i] = n.write(ctx, all[i])
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

func (n *Nominator) write(ctx context.Context, one snapshot.Nomination) error {
	ctx, cancel := context.WithTimeout(ctx, nominateTimeout)
	defer cancel()
	pod := one.Pod.DeepCopy()
	pod.Status.NominatedNodeName = one.Node
	// The patch has no lock, because it would fail whenever the scheduler updates the pod's condition. If the pod is bound by now, the patch is invalid.
	err := n.client.Status().Patch(ctx, pod, client.MergeFrom(one.Pod))
	if err == nil {
		n.metrics.Nominated.Inc()
	}
	if client.IgnoreNotFound(err) == nil || apierrors.IsInvalid(err) {
		return nil
	}
	log.FromContext(ctx).V(1).Info("Nominating a node failed", "pod", klog.KObj(pod), "node", one.Node, "error", err.Error())
	return err
}
