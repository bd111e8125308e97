package watchdog

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Step is a step of a round, for messages and as the value of a metric's label.
type Step string

// The steps of a round.
const (
	Gather Step = "gather"
	View   Step = "view"
	Plan   Step = "plan"
	Check  Step = "check"
	Write  Step = "write"
)

// Visit reports the object at which a step works from now on. With the kind "", that is none in particular. It does not return if the step has exceeded its limit. It must not be called while a
// result that others share is half made.
type Visit func(kind string, object metav1.Object)

const (
	// Limit is the usual limit of a step. With 5,000 nodes and 50,000 pods on two cores, each takes less than three seconds.
	Limit = 30 * time.Second
	// retries is how much less time an attempt has that looks for the class with which a plan does not end.
	retries = 6
	// share is the part of the limit that an object must take to be set aside. Otherwise no object in particular took long.
	share = 10
	// ticks is the number of ticks in which a limit is counted. Time in which the whole process is paused counts as one tick.
	ticks = 30
)

// Watchdog bounds the steps of rounds. It is safe for concurrent use. A nil Watchdog bounds nothing.
type Watchdog struct {
	// Aside has the objects that are set aside.
	Aside *Aside
	// Inject is called at each visit of a step. Tests inject work that does not end. It may be nil.
	Inject func(Step, Object)

	// limit is how long a step may take. After that it has a sixth of this time to end.
	limit time.Duration
	store Store
	// overruns counts the steps that exceeded the limit, by step. setAside is the number of entries.
	overruns *prometheus.CounterVec
	setAside prometheus.Gauge
	// stop is closed when the process must be restarted at once.
	stop chan struct{}

	// loading is locked while the stored objects are read. It guards loaded.
	loading sync.Mutex
	loaded  bool

	mu sync.Mutex
	// endless are steps and attempts that have not ended although they should have. last is when the latest of them was given up.
	endless []ended
	last    time.Time
	// stopping is the step because of which stop is closed. It is nil otherwise.
	stopping *OverrunError
	// unwritten has the objects that are not written now, and until when.
	unwritten map[Object]time.Time
}

// New returns a Watchdog with a limit for each step. It counts steps that exceed the limit, and what is set aside. It is a Runnable of the manager.
func New(limit time.Duration, store Store, overruns *prometheus.CounterVec, setAside prometheus.Gauge) *Watchdog {
	for _, step := range []Step{Gather, View, Plan, Check, Write} {
		overruns.WithLabelValues(string(step)) // A counter that begins at 1 has not increased.
	}
	return &Watchdog{Aside: &Aside{}, limit: limit, store: store, overruns: overruns, setAside: setAside, stop: make(chan struct{}), unwritten: map[Object]time.Time{}}
}

// ended is closed when a goroutine ends.
type ended <-chan struct{}

// OverrunError reports that a step exceeded its limit.
type OverrunError struct {
	Step  Step
	Limit time.Duration
	// Object is the object at which the step was for the longest time. It is zero if unknown.
	Object Object
}

func (e *OverrunError) Error() string {
	if e.Object.Name == "" {
		return fmt.Sprintf("step %s took more than %s", e.Step, e.Limit)
	}
	return fmt.Sprintf("step %s took more than %s, most of it at %s", e.Step, e.Limit, e.Object)
}

// errStopping is the error of steps that begin after one that does not end.
var errStopping = errors.New("the process restarts, because a step does not end")

// Run runs a step. If the step exceeds its limit, Run sets the object aside at which it was for the longest time, and returns an [OverrunError].
func (w *Watchdog) Run(ctx context.Context, step Step, do func(context.Context, Visit) error) error {
	if w == nil {
		return do(ctx, func(string, metav1.Object) {})
	}
	select {
	case <-w.stop:
		return errStopping // A lock may be held forever.
	default:
	}
	bounded, cancel := context.WithCancel(ctx)
	defer cancel()
	var v visits
	if w.Inject != nil {
		v.inject = func(o Object) { w.Inject(step, o) }
	}
	done, result := start(func() error { return do(bounded, v.visit) })
	if within(done, w.limit) {
		v.end()
		return result()
	}
	over := &OverrunError{Step: step, Limit: w.limit, Object: v.abandon(w.limit / share)}
	cancel()
	w.note(ctx, over)
	w.Aside.Add(over.Object, step, time.Now())
	if !within(done, w.limit/retries) {
		w.giveUp(done, over)
	}
	return over
}

// Attempt calls a function and reports whether it ended within the limit. The function may only read what others use. The first attempt of a plan has
// the whole limit, and further ones a sixth of it. If the function does not end later either, the process is restarted after the round.
func (w *Watchdog) Attempt(ctx context.Context, step func() Step, first bool, do func()) bool {
	if w == nil {
		do()
		return true
	}
	limit := w.limit
	if !first {
		limit /= retries
	}
	done, result := start(func() error { do(); return nil })
	if within(done, limit) {
		_ = result() // It panics if the function did.
		return true
	}
	w.note(ctx, &OverrunError{Step: step(), Limit: limit})
	w.giveUp(done, nil)
	return false
}

// Write writes an object, for at most half of the limit. After a write that took longer, the object is not written for the time of the limit, so that the
// next rounds do not wait for it.
func (w *Watchdog) Write(ctx context.Context, kind string, object metav1.Object, do func(context.Context) error) error {
	if w == nil {
		return do(ctx)
	}
	o, now := ObjectOf(kind, object), time.Now()
	o.UID = "" // The object may not exist yet.
	w.mu.Lock()
	until := w.unwritten[o]
	w.mu.Unlock()
	if now.Before(until) {
		return fmt.Errorf("%s is not written before %s, because the last write took too long", o, until.UTC().Format("15:04:05Z"))
	}
	bounded, cancel := context.WithTimeout(ctx, w.limit/2)
	defer cancel()
	err := do(bounded)
	if err == nil || ctx.Err() != nil || bounded.Err() == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.unwritten, o)
		return err
	}
	w.note(ctx, &OverrunError{Step: Write, Limit: w.limit / 2, Object: o})
	w.Aside.Add(o, Write, time.Now())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unwritten[o] = time.Now().Add(w.limit)
	return err
}

// giveUp records a step or an attempt that does not end. stopping is the step if the process must be restarted at once.
func (w *Watchdog) giveUp(done ended, stopping *OverrunError) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.endless, w.last = append(w.endless, done), time.Now()
	if stopping != nil && w.stopping == nil {
		w.stopping = stopping
		close(w.stop)
	}
}

// restart returns why the process must be restarted, or nil if it need not be. Attempts that do not end leave time to carry out the plan that was found
// without them.
func (w *Watchdog) restart(now time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.endless = slices.DeleteFunc(w.endless, func(done ended) bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
	switch {
	case w.stopping != nil:
		return w.stopping
	case len(w.endless) > 0 && now.Sub(w.last) > w.limit:
		return fmt.Errorf("%d attempts to plan do not end", len(w.endless))
	}
	return nil
}

func (w *Watchdog) note(ctx context.Context, over *OverrunError) {
	log.FromContext(ctx).Error(over, "A step took too long", "step", over.Step, "limit", over.Limit, "kind", over.Object.Kind, "object", over.Object.Name)
	w.overruns.WithLabelValues(string(over.Step)).Inc()
}

// start calls a function in a goroutine. result returns its error once done is closed. It panics if the function panicked.
func start(do func() error) (done ended, result func() error) {
	var err error
	var panicked any
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		defer func() {
			if r := recover(); r != nil && r != (abandoned{}) {
				panicked = fmt.Sprintf("%v\n%s", r, debug.Stack())
			}
		}()
		err = do()
	}()
	return closed, func() error {
		if panicked != nil {
			panic(panicked)
		}
		return err
	}
}

// within waits until done is closed or the limit is over. It reports whether done is closed.
func within(done ended, limit time.Duration) bool {
	ticker := time.NewTicker(max(1, limit/ticks))
	defer ticker.Stop()
	for range ticks {
		select {
		case <-done:
			return true
		case <-ticker.C:
		}
	}
	select {
	case <-done:
		return true
	default:
		return false
	}
}
