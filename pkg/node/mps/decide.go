package mps

import "time"

// action is what the supervisor does next with a GPU's daemon.
type action string

const (
	nothing action = ""
	// start starts the daemon, stop ends it and restores the GPU's compute mode, and kill ends a daemon that is to be restarted.
	start action = "start"
	stop  action = "stop"
	kill  action = "kill"
	// ask asks whether the daemon answers, and tells it its limits if it does not have them.
	ask action = "ask"
)

const (
	// missesLeft is how many consecutive questions a daemon may leave unanswered.
	missesLeft = 3
	// firstBackoff and lastBackoff are the delays between starts of a daemon that ends. A daemon that has run for steady restarts immediately.
	firstBackoff, lastBackoff, steady = time.Second, 5 * time.Second, time.Minute
)

// state is what the supervisor knows about a daemon.
type state struct {
	running bool
	// multiUser is the mode in which the daemon was started. told are the limits that it has been told, and memory is its answer about
	// the limit of memory then.
	multiUser bool
	told      Limits
	memory    string
	answers   bool
	// misses counts consecutive unanswered questions, since the daemon first answered or since it started.
	misses         int
	started, asked time.Time
	// notBefore is the earliest time of the next start.
	notBefore time.Time
	backoff   time.Duration
}

// next returns the next action. wanted is nil if the GPU needs no daemon.
func (s state) next(wanted *Limits, now time.Time) action {
	switch {
	case wanted == nil:
		return stop
	case !s.running && now.Before(s.notBefore):
		return nothing
	case !s.running:
		return start
	case s.multiUser != wanted.MultiUser, s.misses >= missesLeft && now.Sub(s.started) >= missesLeft*AskEvery:
		return kill
	case !s.answers || s.told != *wanted || now.Sub(s.asked) >= AskEvery:
		return ask
	default:
		return nothing
	}
}

// ended returns the state of a daemon that has ended. If it has run for a while, it restarts immediately.
func (s state) ended(now time.Time) state {
	next := state{started: s.started, notBefore: now, backoff: firstBackoff}
	if now.Sub(s.started) < steady {
		next.notBefore = now.Add(s.backoff)
		next.backoff = min(max(firstBackoff, 2*s.backoff), lastBackoff)
	}
	return next
}
