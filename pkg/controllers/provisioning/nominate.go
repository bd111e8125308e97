package provisioning

import (
	"context"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
)

const (
	// maxWithdrawn is the largest number of nominations that are withdrawn in one round. The client can send about as many requests in the time for which
	// a plan can wait.
	maxWithdrawn = 200
	// withdrawFor is how long one round starts new requests.
	withdrawFor = time.Second
	// firstPause is how long plans must not use a nomination before it is withdrawn. It doubles, up to maxPause, each time that the same nomination is
	// set again.
	firstPause, maxPause = 5 * time.Second, 10 * time.Minute
)

// withdraw removes the nominations that a plan does not use. It does not return failures. It returns when the remaining ones are due, or 0 if there are
// none.
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
	round := due[:min(len(due), maxWithdrawn)]
	done, lost := c.nominator.Write(ctx, round, withdrawFor)
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
		return time.Second // Requests failed without an answer, so the next round retries them.
	case left > 0:
		return soon
	}
	return next
}

// withdrawals has the nominations that plans do not use, by the UIDs of their pods.
type withdrawals map[types.UID]withdrawal

type withdrawal struct {
	node  string
	at    time.Time
	pause time.Duration
}

// left returns how long to keep a nomination that a plan does not use. A plan may be older than a nomination, and the scheduler is about to bind most
// nominated pods. If their nominations were removed immediately, the scheduler would retry them, and then all others.
func (w withdrawals) left(n snapshot.Nomination, now time.Time) time.Duration {
	last, ok := w[n.Pod.UID]
	if node := n.Pod.Status.NominatedNodeName; !ok || last.node != node {
		last = withdrawal{node, now, firstPause}
		w[n.Pod.UID] = last
	}
	return last.at.Add(last.pause).Sub(now)
}

// note records that a nomination was withdrawn.
func (w withdrawals) note(n snapshot.Nomination, now time.Time) {
	last := w[n.Pod.UID]
	w[n.Pod.UID] = withdrawal{last.node, now, min(2*last.pause, maxPause)}
}

// forget removes nominations that were withdrawn long ago.
func (w withdrawals) forget(now time.Time) {
	maps.DeleteFunc(w, func(_ types.UID, last withdrawal) bool { return now.After(last.at.Add(2 * maxPause)) })
}
