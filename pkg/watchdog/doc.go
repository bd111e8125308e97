// Package watchdog bounds how long the steps of a round may take: gather, view, plan, check and write.
//
// A step reports the object at which it works to a [Visit]. A step that exceeds its limit is canceled, and ends at the object that it visits next. The
// object that took longest is set aside: decisions are made without it until it changes, so that the next round works for all others (aside.go). A step
// that does not end even then occupies its goroutine, and perhaps locks, until the process ends. So the watchdog stores which objects are set aside
// (store.go) and has the process restarted.
//
// A plan is made of all classes of pods at once and visits none of them. It is bounded with [Watchdog.Attempt], so that the planner can try again with
// fewer classes and find out which of them to set aside.
package watchdog
