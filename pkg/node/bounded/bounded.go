// Package bounded has a library of GPUs answer in time, also when the driver does not: a call into a driver that hangs cannot be taken back.
package bounded

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"karve.sh/karve/pkg/node/gpu"
)

const (
	// callBound is how long a call may take. Reading a GPU takes some ten calls of NVML, each far below a second.
	callBound = 15 * time.Second
	// initBound is how long opening the driver may take: without persistence mode it starts each GPU, for seconds.
	initBound = 2 * time.Minute
)

// Library passes calls on to another. One that is not answered in time ends with gpu.ErrHung, and until it is answered all others do, at once.
type Library struct {
	gpu.Library
	// Bound is how long a call may take, other than Init; 15 seconds when zero.
	Bound time.Duration

	mu sync.Mutex
	// overdue counts the calls that were not answered in time and are not yet.
	overdue int
	// late are the events that came when nobody waited for them any more.
	late []gpu.Event
}

var _ gpu.Library = (*Library)(nil)

// Err is gpu.ErrHung while the driver hangs.
func (l *Library) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.overdue > 0 {
		return gpu.ErrHung
	}
	return nil
}

// call waits for f within the bound. What f answers after it goes to late.
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
	timer := time.NewTimer(bound)
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

func (l *Library) bound() time.Duration { return cmp.Or(l.Bound, callBound) }

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

// Usage implements gpu.Library.
func (l *Library) Usage(uuid string) (gpu.Usage, error) {
	return call(l, "reading "+uuid, l.bound(), func() (gpu.Usage, error) { return l.Library.Usage(uuid) }, forget)
}

// waited is what a Wait answers.
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
