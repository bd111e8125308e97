package scale

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
)

// Churn replaces pods for the duration d, at perSecond pod changes per second. A pod without a GPU takes three changes: it is deleted, its successor is
// created, and the successor becomes running. A pod with a GPU takes a fourth: its successor is bound.
func (w *World) Churn(ctx context.Context, d time.Duration, perSecond int) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	limit := rate.NewLimiter(rate.Limit(perSecond), 4)
	random := rand.New(rand.NewPCG(1, 2))
	pods := w.chosen(random, len(w.books()))
	work := make(chan *podRecord)
	defer close(work)
	for range 8 {
		w.running.Go(func() {
			for r := range work {
				w.replace(w.ctx, r) // Finish a replacement after the deadline.
			}
		})
	}
	began, all := time.Now(), 0
	for _, r := range pods {
		changes := 3
		if r.shape.replicas > 0 {
			changes = 4
		}
		if limit.WaitN(ctx, changes) != nil {
			break
		}
		select {
		case work <- r:
			all += changes
		case <-ctx.Done():
		}
	}
	<-ctx.Done()
	w.log("%.1f changes of pods a second", float64(all)/time.Since(began).Seconds())
	return nil
}

// replace deletes a pod and creates its successor. A successor without a GPU gets the same node.
func (w *World) replace(ctx context.Context, r *podRecord) {
	w.finish(ctx, []*podRecord{r})
	next := w.successor(r)
	if r.shape.replicas == 0 {
		next.node = r.node
	}
	w.add(ctx, []*podRecord{next})
}

// Burst creates n pods, with each of the shapes in turn.
func (w *World) Burst(ctx context.Context, n int, shapes ...shape) error {
	records := make([]*podRecord, n)
	for i := range records {
		app := fmt.Sprintf("burst-%02d", i%len(shapes))
		records[i] = newPod(namespaceName(i), fmt.Sprintf("%s-5d8f6c7b49-%d", app, w.serial.Add(1)), app, shapes[i%len(shapes)])
	}
	w.add(ctx, records)
	return ctx.Err()
}

// EndHalf deletes half of the pods.
func (w *World) EndHalf(ctx context.Context) error {
	random := rand.New(rand.NewPCG(3, 4))
	w.finish(ctx, w.chosen(random, len(w.books())/2))
	return ctx.Err()
}

func (w *World) books() []*podRecord {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]*podRecord, 0, len(w.pods))
	for _, r := range w.pods {
		all = append(all, r)
	}
	return all
}

// chosen returns n pods in random order.
func (w *World) chosen(random *rand.Rand, n int) []*podRecord {
	all := w.books()
	slices.SortFunc(all, func(a, b *podRecord) int { return strings.Compare(a.key.String(), b.key.String()) })
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:n]
}

// UntilPlaced waits until each pod has a node or the time has passed. It returns the number of pods without a node.
func (w *World) UntilPlaced(ctx context.Context, within time.Duration) int {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	told := time.Now()
	for {
		w.mu.Lock()
		n, claims := len(w.waiting)+len(w.owed), w.claimsSince(time.Time{})
		w.mu.Unlock()
		if n == 0 || ctx.Err() != nil {
			return n
		}
		if time.Since(told) > 10*time.Second {
			told = time.Now()
			w.log("  %d pods wait, %d NodeClaims were created", n, claims)
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// claimsSince returns the number of NodeClaims that were created after t. It never counts the initial ones.
func (w *World) claimsSince(t time.Time) int {
	n := 0
	for _, c := range w.claims {
		if c.seen.After(t) {
			n++
		}
	}
	return n
}

// lastClaim returns the time at which the latest NodeClaim was created.
func (w *World) lastClaim() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	var last time.Time
	for _, c := range w.claims {
		if c.seen.After(last) {
			last = c.seen
		}
	}
	return last
}

// launches returns the median and the longest of the times that the cloud took to launch machines. The API server may be so busy that it takes longer than asked.
func (w *World) launches() (median, most time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []time.Duration
	for _, c := range w.claims {
		if c.launch > 0 {
			all = append(all, c.launch)
		}
	}
	if len(all) == 0 {
		return 0, 0
	}
	slices.Sort(all)
	return all[len(all)/2], all[len(all)-1]
}

// Claims returns the names of the existing NodeClaims.
func (w *World) Claims() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var names []string
	for _, c := range w.claims {
		if !c.gone {
			names = append(names, c.name)
		}
	}
	return names
}

// Empty returns the names of the GPU nodes without pods other than the DaemonSet's, and of the new NodeClaims without a node.
func (w *World) Empty() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	used := map[string]bool{}
	for _, r := range w.pods {
		used[r.node] = true
	}
	var empty []string
	for name := range w.rooms {
		if !used[name] {
			empty = append(empty, name)
		}
	}
	for _, c := range w.claims {
		if !c.gone && !c.seen.IsZero() && w.rooms[c.name] == nil {
			empty = append(empty, c.name)
		}
	}
	return empty
}
