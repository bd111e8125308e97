package provisioning

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"karve.sh/karve/pkg/controllers/nomination"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
)

const (
	// withdrawMost is how many nominations are taken back in one round at most, about what the client may send while a plan waits for it.
	withdrawMost = 200
	// firstPause is how long plans have no use for a nomination before it is taken back. It doubles each time, up to longestPause, where somebody writes it again and again.
	firstPause, longestPause = 5 * time.Second, 10 * time.Minute
)

// withdraw takes back the nominations that a plan has no use for. That one cannot be written never fails a reconcile. It returns when those that are left are due, 0 when
// none is.
func (c *Controller) withdraw(ctx context.Context, view *snapshot.View, plan planner.Plan) time.Duration {
	if !c.Nominations {
		return 0
	}
	now := c.Clock.Now()
	var due []snapshot.Nomination
	var next time.Duration
	for _, n := range view.Withdrawn(plan) {
		if wait := c.withdrawn.left(n, now); wait <= 0 {
			due = append(due, n)
		} else if next == 0 || wait < next {
			next = wait
		}
	}
	round := due[:min(len(due), withdrawMost)]
	done, lost := nomination.Write(ctx, c.Client, c.Metrics, round)
	left := len(due) - len(round)
	for i := range round {
		if done[i] {
			c.withdrawn.note(round[i], now)
		} else {
			left++
		}
	}
	switch {
	case lost:
		return time.Second // Nobody answered, so it is tried again in the next round.
	case left > 0:
		return soon
	}
	return next
}

// withdrawals are the nominations that plans have no use for.
type withdrawals map[types.UID]withdrawal

type withdrawal struct {
	node  string
	at    time.Time
	pause time.Duration
}

// left is how long a nomination that a plan has no use for is kept. A plan may be older than a nomination, and the scheduler is about to bind most pods that have one: what
// is taken back at once is tried again, and has the scheduler try all others again.
func (w withdrawals) left(n snapshot.Nomination, now time.Time) time.Duration {
	last, ok := w[n.Pod.UID]
	if node := n.Pod.Status.NominatedNodeName; !ok || last.node != node {
		last = withdrawal{node, now, firstPause}
		w[n.Pod.UID] = last
	}
	return last.at.Add(last.pause).Sub(now)
}

// note notes that a nomination was taken back.
func (w withdrawals) note(n snapshot.Nomination, now time.Time) {
	last := w[n.Pod.UID]
	w[n.Pod.UID] = withdrawal{last.node, now, min(2*last.pause, longestPause)}
}

// forget forgets nominations that were taken back long ago.
func (w withdrawals) forget(now time.Time) {
	for pod, last := range w {
		if now.After(last.at.Add(2 * longestPause)) {
			delete(w, pod)
		}
	}
}
