// Package bounded adds timeouts to a GPU library, because a call into a hanging driver cannot be canceled.
package bounded

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"karve.sh/karve/pkg/node/gpu"
)

const (
	// callTimeout is the timeout of a call. Reading a GPU takes about ten NVML calls, each of which takes far less than a second.
	callTimeout = 15 * time.Second
	// initBound is the timeout of Init. Without persistence mode, opening the driver starts each GPU, which takes seconds.
	initBound = 2 * time.Minute
)

// Library passes calls to another library. A call that is not answered in time returns gpu.ErrHung. Until that call returns, all other calls return
// gpu.ErrHung immediately.
type Library struct {
	gpu.Library
	// Bound is the timeout of calls other than Init. Zero means 15 seconds.
	Bound time.Duration

	mu sync.Mutex
	// overdue is the number of calls that have timed out and have not returned.
	overdue int
	// late are the events that arrived after the call of Wait had timed out.
	late []gpu.Event
}

var _ gpu.Library = (*Library)(nil)

// Err returns gpu.ErrHung while the driver hangs, or nil otherwise.
func (l *Library) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.overdue > 0 {
		return gpu.ErrHung
	}
	return nil
}

// call calls f and returns its result if it is ready within the bound. A later result is passed to late.
func call[T any](l *Library, what string, bound time.Duration, f func() (T, error), late func(T)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	var none T
	if err := l.Err(); err != nil {
		return none, fmt.Errorf("%s: %w", what, err)
	}
	answers := make(chan answer, 1)
	go func() {
		value, err := f()
		answers <- answer{value, err}
	}()
	timer := time.NewTimer(bound) //nolint:forbidigo // It bounds a call of a library, and no test waits for it.
	defer timer.Stop()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-timer.C:
	}
	l.mu.Lock()
	l.overdue++
	l.mu.Unlock()
	go func() {
		a := <-answers
		l.mu.Lock()
		defer l.mu.Unlock()
		l.overdue--
		if a.err == nil {
			late(a.value)
		}
	}()
	return none, fmt.Errorf("%s: %w", what, gpu.ErrHung)
}

func forget[T any](T) {}

func (l *Library) bound() time.Duration { return cmp.Or(l.Bound, callTimeout) }

// Init implements gpu.Library.
func (l *Library) Init() (gpu.Driver, error) {
	return call(l, "opening the driver", cmp.Or(l.Bound, initBound), l.Library.Init, forget)
}

// Shutdown implements gpu.Library.
func (l *Library) Shutdown() error {
	_, err := call(l, "closing the driver", l.bound(), func() (struct{}, error) { return struct{}{}, l.Library.Shutdown() }, forget)
	return err
}

// Devices implements gpu.Library.
func (l *Library) Devices() ([]gpu.Device, error) {
	return call(l, "listing the GPUs", l.bound(), l.Library.Devices, forget)
}

// Links implements gpu.Library.
func (l *Library) Links() ([]gpu.Link, error) {
	return call(l, "reading the links of the GPUs", l.bound(), l.Library.Links, forget)
}

// Usage implements gpu.Library.
func (l *Library) Usage(uuid string) (gpu.Usage, error) {
	return call(l, "reading "+uuid, l.bound(), func() (gpu.Usage, error) { return l.Library.Usage(uuid) }, forget)
}

// Recovery implements gpu.Library.
func (l *Library) Recovery(uuid string) (gpu.Recovery, error) {
	return call(l, "asking what "+uuid+" needs", l.bound(), func() (gpu.Recovery, error) { return l.Library.Recovery(uuid) }, forget)
}

// waited is the result of Wait.
type waited struct {
	event gpu.Event
	ok    bool
}

// Wait implements gpu.Library.
func (l *Library) Wait(timeout time.Duration) (gpu.Event, bool, error) {
	if e, ok := l.takeLate(); ok {
		return e, true, nil
	}
	w, err := call(l, "waiting for events", max(timeout, 0)+l.bound(), func() (waited, error) {
		e, ok, err := l.Library.Wait(timeout)
		return waited{e, ok}, err
	}, func(w waited) {
		if w.ok {
			l.late = append(l.late, w.event)
		}
	})
	return w.event, w.ok, err
}

func (l *Library) takeLate() (gpu.Event, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.late) == 0 {
		return gpu.Event{}, false
	}
	e := l.late[0]
	l.late = l.late[1:]
	return e, true
}
