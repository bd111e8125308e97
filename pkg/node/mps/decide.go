package mps

import "time"

// action is what the supervisor does next with a GPU's daemon.
type action string

const (
	nothing action = ""
	// start starts it, stop ends it and gives the GPU back its compute mode, and kill ends one that is to be started anew.
	start action = "start"
	stop  action = "stop"
	kill  action = "kill"
	// ask asks whether it answers, and tells it its limits if it does not have them.
	ask action = "ask"
)

const (
	// missesLeft is how many questions in a row a daemon may leave unanswered.
	missesLeft = 3
	// firstBackoff and lastBackoff are between starts of a daemon that ends. A daemon that has run for steady starts at once.
	firstBackoff, lastBackoff, steady = time.Second, 5 * time.Second, time.Minute
)

// state is what the supervisor knows of a daemon.
type state struct {
	running bool
	// multiUser is how it was started, and told are the limits that it was told.
	multiUser bool
	told      Limits
	answers   bool
	// misses is how many questions in a row it did not answer, since it first did or since it started.
	misses         int
	started, asked time.Time
	// notBefore is when it may be started again.
	notBefore time.Time
	backoff   time.Duration
}

// next returns what to do. wanted is nil if the GPU needs no daemon.
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

// ended returns the state of a daemon that has ended. The first start after it ran for a while is at once.
func (s state) ended(now time.Time) state {
	next := state{started: s.started, notBefore: now, backoff: firstBackoff}
	if now.Sub(s.started) < steady {
		next.notBefore = now.Add(s.backoff)
		next.backoff = min(max(firstBackoff, 2*s.backoff), lastBackoff)
	}
	return next
}
