package node

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/node/health"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/plain"
)

const (
	// The burst is enough for 16 GPUs that all fail at once. After it, one event per minute is written.
	eventBurst, eventEvery = 24, time.Minute
	// eventQueue is the largest number of events that wait for the API server.
	eventQueue = 32
)

// recorder writes Kubernetes events at a limited rate. An event that cannot be written is only logged.
type recorder struct {
	record func(context.Context, nodeapi.Event) error
	clock  clock.PassiveClock
	queue  chan nodeapi.Event
	limit  *rate.Limiter
}

func newRecorder(record func(context.Context, nodeapi.Event) error, c clock.PassiveClock) *recorder {
	return &recorder{record: record, clock: c, queue: make(chan nodeapi.Event, eventQueue), limit: rate.NewLimiter(rate.Every(eventEvery), eventBurst)}
}

// tell logs an event and queues it without blocking. A nil recorder, as used outside of a cluster, only logs it.
func (r *recorder) tell(ctx context.Context, e health.Event) {
	e.Message = plain.Line(e.Message)
	logr.FromContextOrDiscard(ctx).Info(e.Message, "reason", e.Reason)
	if r == nil {
		return
	}
	select {
	case r.queue <- nodeapi.Event{Warning: e.Warning, Reason: e.Reason, Message: e.Message, At: r.clock.Now()}:
	default:
		logr.FromContextOrDiscard(ctx).Info("An event is not written: too many wait", "reason", e.Reason)
	}
}

// run writes queued events until ctx ends.
func (r *recorder) run(ctx context.Context) {
	log := logr.FromContextOrDiscard(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-r.queue:
			if !r.limit.AllowN(r.clock.Now(), 1) {
				log.Info("An event is not written: there were many", "reason", e.Reason)
				continue
			}
			if err := r.record(ctx, e); err != nil && ctx.Err() == nil {
				log.Info("An event is not written", "reason", e.Reason, "error", err.Error())
			}
		}
	}
}
