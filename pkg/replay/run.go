package replay

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
)

const (
	// defaultBatch is the default of [Setup.Batch].
	defaultBatch = 10 * time.Second
	// sample is the interval at which the bound is computed. samples is the largest number of computations. Longer traces have longer intervals.
	sample  = 300 * time.Second
	samples = 500
)

// Setup is the configuration of a replay.
type Setup struct {
	// Provision plans for pending pods.
	Provision func(planner.Snapshot) planner.Plan
	// Consolidate makes the machines cheaper at the interval Every. If nil, only empty machines are removed.
	Consolidate Consolidation
	Every       time.Duration
	// Batch is how long pods are collected before they are scheduled and planned for. Costs are added up at the same interval. The default is ten seconds.
	Batch time.Duration
	// Trusting skips the check of every batch that no pod is lost and no machine is overcommitted. The time of the check grows with the trace.
	Trusting bool
	// Seen is called for each batch with its time and the price of the machines per hour. It may be nil.
	Seen func(now time.Duration, price planner.MicroUSD)
}

// Consolidation removes machines of the world, whose pods become pending, and launches replacements.
type Consolidation func(*world) (evicted int)

// Result is the outcome of a replay.
type Result struct {
	Mean planner.MicroUSD
	// Evictions counts the pods that had to move. Launched counts machines, and Peak is the most machines at a time.
	Evictions, Launched, Peak int
	// Expired counts the pods that had to move because their machine expired.
	Expired int
	// Pods is the average number of running pods.
	Pods float64
	// Unplaced counts the pods that were pending at the end of a batch, summed over all batches.
	Unplaced int
}

// Run replays a trace. It returns an error if a pod is lost or if a machine is overcommitted.
func Run(t *Trace, s Setup) (Result, error) {
	var r Result
	w := newWorld(t)
	ends := t.byEnd()
	batch := cmp.Or(s.Batch, defaultBatch)
	end, arrived, ended, consolidated := t.end(batch), 0, 0, time.Duration(0)
	var paid planner.MicroUSD
	batches := 0
	for now := time.Duration(0); now < end; now += batch {
		w.at(now)
		for ; ended < len(ends) && t.Pods[ends[ended]].Ends <= w.now; ended++ {
			if w.pods[ends[ended]].machine != nil {
				w.remove(ends[ended])
			}
		}
		w.waiting = slices.DeleteFunc(w.waiting, func(pod int) bool { return t.Pods[pod].Ends <= w.now })
		w.drop()
		for ; arrived < len(t.Pods) && t.Pods[arrived].Arrives <= w.now; arrived++ {
			if t.Pods[arrived].Ends > w.now {
				w.waiting = append(w.waiting, arrived)
			}
		}
		if err := w.settle(s); err != nil {
			return r, err
		}
		if err := w.expire(s, &r); err != nil {
			return r, err
		}
		if s.Consolidate != nil && w.now-consolidated >= s.Every && len(w.machines) > 0 {
			consolidated = w.now
			if err := w.consolidate(s, &r); err != nil {
				return r, err
			}
		}
		if !s.Trusting {
			if err := w.check(arrived); err != nil {
				return r, err
			}
		}
		r.Unplaced += len(w.waiting)
		price, pods := w.cost(), w.running()
		paid += price
		r.Pods += float64(pods)
		r.Peak = max(r.Peak, len(w.machines))
		if s.Seen != nil {
			s.Seen(w.now, price)
		}
		batches++
	}
	r.Mean = paid / planner.MicroUSD(batches)
	r.Pods /= float64(batches)
	r.Launched = w.launched
	return r, nil
}

// expire removes the machines that have lived for as long as their pool allows, one after the other, and finds places for their pods.
func (w *world) expire(s Setup, r *Result) error {
	if w.trace.Lives == nil {
		return nil
	}
	for _, m := range slices.Clone(w.machines) {
		life := w.trace.Lives[w.offerings[m.offering].Pool]
		if life == 0 || w.now-m.launched < life {
			continue
		}
		came := w.waiting
		w.waiting = nil
		r.Expired += w.restarts(m)
		w.evict([]*machine{m})
		err := w.settle(s)
		w.waiting = append(came, w.waiting...)
		if err != nil {
			return err
		}
	}
	return nil
}

// restarts returns how many pods of a machine cost something to restart.
func (w *world) restarts(m *machine) (n int) {
	for _, pod := range m.pods {
		if !w.trace.Pods[pod].Placeholder {
			n++
		}
	}
	return n
}

// byEnd returns the indices of the pods, ordered by their end.
func (t *Trace) byEnd() []int {
	pods := make([]int, len(t.Pods))
	for i := range pods {
		pods[i] = i
	}
	slices.SortStableFunc(pods, func(a, b int) int { return int(t.Pods[a].Ends - t.Pods[b].Ends) })
	return pods
}

func (w *world) running() int {
	n := 0
	for _, m := range w.machines {
		n += len(m.pods)
	}
	return n
}

// consolidate removes machines and finds places for their pods. New pods that are pending stay pending.
func (w *world) consolidate(s Setup, r *Result) error {
	came := w.waiting
	w.waiting = nil
	r.Evictions += s.Consolidate(w)
	err := w.settle(s)
	w.waiting = append(came, w.waiting...)
	w.drop()
	return err
}

// end returns when a replay in batches ends.
func (t *Trace) end(batch time.Duration) time.Duration {
	if t.End > 0 {
		return t.End
	}
	return t.last().Truncate(batch) + 2*batch
}

// last returns the arrival time of the last pod.
func (t *Trace) last() time.Duration {
	if len(t.Pods) == 0 {
		return 0
	}
	return t.Pods[len(t.Pods)-1].Arrives
}

// settle schedules pending pods and launches machines for those that do not fit, until all pods are placed. This can take several plans, because the
// scheduler need not place pods as planned.
func (w *world) settle(s Setup) error {
	for range 100 {
		w.schedule()
		if len(w.waiting) == 0 {
			return nil
		}
		snapshot := w.snapshot(false)
		plan := s.Provision(snapshot)
		if err := check.Plan(snapshot, plan); err != nil {
			return fmt.Errorf("at %v: %w", w.now, err)
		}
		if len(plan.Launches) == 0 {
			return nil
		}
		for _, l := range plan.Launches {
			w.seat(w.launch(l.Offering), l.Pods, l.GPUs)
		}
	}
	return fmt.Errorf("at %v: %d pods wait whatever is launched", w.now, len(w.waiting))
}

// Bound returns a lower bound on the mean price: at each sample, the minimum price of any set of machines for the pods of that time.
func Bound(t *Trace, search solve.Solver) planner.MicroUSD {
	var sum planner.MicroUSD
	n := planner.MicroUSD(0)
	for now := time.Duration(0); now <= t.last()+defaultBatch; now += max(sample, t.last()/samples) {
		n++
		if s := t.at(now); len(s.Classes) > 0 {
			sum += search.Plan(s).Bound
		}
	}
	return sum / n
}

// at returns the snapshot at a time if no pod had a machine.
func (t *Trace) at(now time.Duration) planner.Snapshot {
	w := newWorld(t)
	w.at(now)
	for i, p := range t.Pods {
		if p.Arrives <= now && p.Ends > now {
			w.waiting = append(w.waiting, i)
		}
	}
	return w.snapshot(false)
}
