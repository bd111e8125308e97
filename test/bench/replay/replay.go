package replay

import (
	"fmt"
	"slices"
	"time"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
)

const (
	// batch is how long pods are collected before they are scheduled and planned for; what is paid is added up as often.
	batch = 10 * time.Second
	// sample is how often the bound is looked at.
	sample = 300 * time.Second
)

// Setup is what a trace is replayed with.
type Setup struct {
	Scheduler Scheduler
	// Provision plans for the pods that wait.
	Provision func(planner.Snapshot) planner.Plan
	// Window is how long the first of the pods that find no room waits for some before machines are launched for all of them. Pods that had to move do not.
	Window time.Duration
	// Consolidate makes the machines cheaper, every so often; nil does without, but for empty machines.
	Consolidate Consolidation
	Every       time.Duration
}

// Consolidation gives machines of the world back, whose pods then wait, and launches others in their stead.
type Consolidation func(*world, Scheduler) (evicted int)

// Result is what a replay came to.
type Result struct {
	Mean planner.MicroUSD
	// Evictions are pods that had to move, Launched and Peak machines.
	Evictions, Launched, Peak int
	// Pods are how many ran on average.
	Pods float64
	// Unplaced are pods that were left waiting at the end of a batch, each batch counted.
	Unplaced int
	// Waited is how long a pod waited for room on average, those that found some at once included.
	Waited time.Duration
	// Events are pods that came, went or moved; Took is how long the replay took, and Decision and Planning the longest that one consolidation, one plan took.
	Events                   int
	Took, Decision, Planning time.Duration
}

// Run replays a trace. It fails where a pod is lost, or a machine holds more than it has.
func Run(t *Trace, s Setup) (Result, error) {
	var r Result
	begin := time.Now()
	w := newWorld(t)
	ends := t.byEnd()
	last, arrived, ended, consolidated := t.last(), 0, 0, time.Duration(0)
	var paid planner.MicroUSD
	batches := 0
	for w.now = 0; w.now <= last+batch; w.now += batch {
		for ; ended < len(ends) && t.Pods[ends[ended]].Ends <= w.now; ended++ {
			if w.pods[ends[ended]].machine != nil {
				w.remove(ends[ended])
				r.Events++
			}
		}
		w.waiting = slices.DeleteFunc(w.waiting, func(pod int) bool { return t.Pods[pod].Ends <= w.now })
		w.drop()
		for ; arrived < len(t.Pods) && t.Pods[arrived].Arrives <= w.now; arrived++ {
			if t.Pods[arrived].Ends > w.now {
				w.waiting = append(w.waiting, arrived)
				r.Events++
			}
		}
		if s.Scheduler.schedule(w); w.due(s.Window) {
			if err := w.settle(s, &r); err != nil {
				return r, err
			}
		}
		if s.Consolidate != nil && w.now-consolidated >= s.Every && len(w.machines) > 0 {
			consolidated = w.now
			if err := w.consolidate(s, &r); err != nil {
				return r, err
			}
		}
		if err := w.check(arrived); err != nil {
			return r, err
		}
		r.Unplaced += len(w.waiting)
		paid += w.cost()
		r.count(w)
		batches++
	}
	r.Mean = paid / planner.MicroUSD(batches)
	r.Pods /= float64(batches)
	r.Waited = time.Duration(r.Unplaced) * batch / time.Duration(max(1, len(t.Pods)))
	r.Launched = w.launched
	r.Took = time.Since(begin)
	return r, nil
}

// byEnd are the pods, the one that ends first first.
func (t *Trace) byEnd() []int {
	pods := make([]int, len(t.Pods))
	for i := range pods {
		pods[i] = i
	}
	slices.SortStableFunc(pods, func(a, b int) int { return int(t.Pods[a].Ends - t.Pods[b].Ends) })
	return pods
}

// count counts what runs.
func (r *Result) count(w *world) {
	r.Peak = max(r.Peak, len(w.machines))
	for _, m := range w.machines {
		r.Pods += float64(len(m.pods))
	}
}

// due reports whether a pod that came waits for room as long as it may.
func (w *world) due(window time.Duration) bool {
	return slices.ContainsFunc(w.waiting, func(pod int) bool { return w.now-w.trace.Pods[pod].Arrives >= window })
}

// consolidate gives machines back, and finds places for their pods. Pods that came and wait for room are left waiting.
func (w *world) consolidate(s Setup, r *Result) error {
	came := w.waiting
	w.waiting = nil
	start := time.Now()
	n := s.Consolidate(w, s.Scheduler)
	r.Decision = max(r.Decision, time.Since(start))
	r.Evictions, r.Events = r.Evictions+n, r.Events+n
	err := w.settle(s, r)
	w.waiting = append(came, w.waiting...)
	w.drop()
	return err
}

// last is when the last pod comes.
func (t *Trace) last() time.Duration {
	if len(t.Pods) == 0 {
		return 0
	}
	return t.Pods[len(t.Pods)-1].Arrives
}

// settle schedules the pods that wait, and plans for those that found no room, until all have a place or the plan has none. The scheduler puts pods
// where it likes, so the machines of one plan may not do.
func (w *world) settle(s Setup, r *Result) error {
	for range 100 {
		s.Scheduler.schedule(w)
		if len(w.waiting) == 0 {
			return nil
		}
		start := time.Now()
		snapshot := w.snapshot(false)
		plan := s.Provision(snapshot)
		r.Planning = max(r.Planning, time.Since(start))
		if err := check.Plan(snapshot, plan); err != nil {
			return fmt.Errorf("at %v: %w", w.now, err)
		}
		if len(plan.Launches) == 0 {
			return nil
		}
		for _, l := range plan.Launches {
			w.seat(w.launch(l.Offering), l.Pods, l.GPUs, s.Scheduler)
		}
	}
	return fmt.Errorf("at %v: %d pods wait whatever is launched", w.now, len(w.waiting))
}

// Bound is the mean over samples of what any machines for all pods of the trace that are there at the time cost at least.
func Bound(t *Trace, search solve.Solver) planner.MicroUSD {
	var sum planner.MicroUSD
	samples := 0
	for now := time.Duration(0); now <= t.last()+batch; now += sample {
		samples++
		w := newWorld(t)
		for i, p := range t.Pods {
			if p.Arrives <= now && p.Ends > now {
				w.waiting = append(w.waiting, i)
			}
		}
		if len(w.waiting) > 0 {
			sum += search.Plan(w.snapshot(false)).Bound
		}
	}
	return sum / planner.MicroUSD(samples)
}
