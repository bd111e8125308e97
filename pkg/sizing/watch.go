package sizing

import "time"

const (
	// warnPercent and calmPercent are the percentages of the limit above which memory is short, and below which it no longer is.
	warnPercent, calmPercent = 85, 75
	// warnAfter is how long memory must be short before there is a warning. A burst that is over by then needs none.
	warnAfter = 5 * time.Minute
)

// Watch decides when to warn that the memory is short. The zero value is for a process that has not been checked yet.
type Watch struct {
	// since is when the memory became short. It is zero if it is not short.
	since time.Time
	// warned reports whether there has been a warning since then.
	warned bool
}

// Next returns the watch after a check of the memory in use, in bytes, and whether to warn. It warns once while the memory stays short.
func (w Watch) Next(used, limit int64, now time.Time) (after Watch, warn bool) {
	short := used > limit/100*warnPercent
	switch {
	case !short && (!w.warned || used < limit/100*calmPercent):
		return Watch{}, false
	case w.since.IsZero():
		return Watch{since: now}, false
	case !short || w.warned || now.Sub(w.since) < warnAfter:
		return w, false
	}
	w.warned = true
	return w, true
}
