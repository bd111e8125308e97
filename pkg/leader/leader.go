// Package leader tells from the Lease of the leader election whether a controller works. [Of] decides, and [Find] reads the Lease.
package leader

import (
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Name is the name of the Lease, in the namespace of the controller.
const Name = "karve"

// State says whether a controller works.
type State string

// States.
const (
	// Working means that a controller holds the Lease and renews it.
	Working State = "Working"
	// Stopped means that a controller has worked, and none does now.
	Stopped State = "Stopped"
	// Missing means that there is no Lease.
	Missing State = "Missing"
	// Unknown means that the Lease cannot be read.
	Unknown State = "Unknown"
)

// Leader describes whether a controller works. It does not change while a controller renews its Lease.
type Leader struct {
	State State `json:"state"`
	// Namespace is the namespace of the Lease.
	Namespace string `json:"namespace,omitempty"`
	// LastSeen is when a controller last worked. It is nil unless the controller has stopped.
	LastSeen *time.Time `json:"lastSeen,omitempty"`
	// Message is one sentence. It is "" if a controller works.
	Message string `json:"message,omitempty"`
}

// Warning returns the message if it is known that no controller works, and "" otherwise.
func (l *Leader) Warning() string {
	if l == nil || l.State != Stopped && l.State != Missing {
		return ""
	}
	return l.Message
}

// margin is how long after its end a Lease still counts as held. The controller renews it every two seconds, but its clock and that of the reader differ.
const margin = 45 * time.Second

// meaning is what it means that no controller works.
const meaning = "nothing is launched and no node is deleted until one does"

// Of returns whether a controller works at a time.
func Of(lease *coordinationv1.Lease, now time.Time) Leader {
	spec := &lease.Spec
	seen := lease.CreationTimestamp.Time
	for _, t := range []*metav1.MicroTime{spec.AcquireTime, spec.RenewTime} {
		if t != nil && t.After(seen) {
			seen = t.Time
		}
	}
	duration := time.Duration(ptr.Deref(spec.LeaseDurationSeconds, 0)) * time.Second
	if ptr.Deref(spec.HolderIdentity, "") != "" && !now.After(seen.Add(duration+margin)) {
		return Leader{State: Working, Namespace: lease.Namespace}
	}
	seen = seen.UTC()
	return Leader{
		State: Stopped, Namespace: lease.Namespace, LastSeen: &seen,
		Message: fmt.Sprintf("no controller has worked since %s: %s", clock(seen, now), meaning),
	}
}

// clock returns the time of day, with the date if that is not within a day.
func clock(t, now time.Time) string {
	layout := "15:04 UTC"
	if now.Sub(t) >= 24*time.Hour {
		layout = "2006-01-02 15:04 UTC"
	}
	return t.Format(layout)
}
