package watchdog

import (
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// abandoned is the panic with which a canceled step ends at its next visit.
type abandoned struct{}

// visits measures for how long a step works at each object.
type visits struct {
	mu sync.Mutex
	// current is the object at which the step is since the time since.
	current Object
	since   time.Time
	// longest is the object at which it was for the longest time.
	longest struct {
		object Object
		time   time.Duration
	}
	over, stopped bool
	// inject is called at each visit. It may be nil.
	inject func(Object)
}

// visit is the [Visit] of a step.
func (v *visits) visit(kind string, object metav1.Object) {
	var o Object
	if kind != "" {
		o = ObjectOf(kind, object)
	}
	if v.begin(o) && v.inject != nil {
		v.inject(o)
	}
}

// begin begins the visit of an object. It returns false if the step is over. It does not return if the step was abandoned.
func (v *visits) begin(o Object) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.over {
		return false // The view is used after its step.
	}
	if v.stopped {
		panic(abandoned{})
	}
	v.endCurrent()
	v.current = o
	return true
}

// endCurrent ends the visit of the current object.
func (v *visits) endCurrent() {
	now := time.Now()
	if took := now.Sub(v.since); v.current.Name != "" && took > v.longest.time {
		v.longest.object, v.longest.time = v.current, took
	}
	v.since = now
}

// end makes later visits do nothing.
func (v *visits) end() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.over = true
}

// abandon makes the next visit end the step. It returns the object that was visited for the longest time, or none if that was less than minTime.
func (v *visits) abandon(minTime time.Duration) Object {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.endCurrent()
	v.stopped = true
	if v.longest.time < minTime {
		return Object{}
	}
	return v.longest.object
}
