package metrics

import (
	"sync"
	"time"
)

// Event is a kind of event about which a controller decides.
type Event string

// Events, the most urgent first.
const (
	// Leaving: the cloud interrupts a machine, it is deleted, it is about to be replaced, or its launch was refused.
	Leaving Event = "Leaving"
	// Unhealthy: a machine is no longer ready, or exposes fewer replicas.
	Unhealthy Event = "Unhealthy"
	// Pending: a pod waits for replicas.
	Pending Event = "Pending"
	// Displaced: a pod lost its place to another one, and has waited for another place.
	Displaced Event = "Displaced"
	// Changed: anything else.
	Changed Event = "Changed"
)

// Arrivals records since when events have waited for a decision. It is safe for concurrent use.
type Arrivals struct {
	mu    sync.Mutex
	since map[Event]time.Time
}

// Came records the arrival of an event.
func (a *Arrivals) Came(e Event, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.since == nil {
		a.since = map[Event]time.Time{}
	}
	if _, ok := a.since[e]; !ok {
		a.since[e] = at
	}
}

// Take returns since when the events have waited, and forgets them, for a controller that is about to decide.
func (a *Arrivals) Take() map[Event]time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	since := a.since
	a.since = nil
	return since
}

// Decided records that a controller has decided about events that arrived at these times.
func (m *Metrics) Decided(controller string, since map[Event]time.Time, at time.Time) {
	for e, came := range since {
		m.decisions.WithLabelValues(controller, string(e)).Observe(at.Sub(came).Seconds())
	}
}
