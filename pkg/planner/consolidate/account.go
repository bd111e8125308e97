package consolidate

import (
	"cmp"
	"slices"
	"time"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/amount"
)

// Account is the excess cost of machines since steps to a cheaper layout became possible, less the restarts that it has paid for. A step begins once
// the account covers the restart costs of its pods. This is the ski rental rule: whatever happens, machines and restarts cost at most twice as much as
// with knowledge of the future (Karlin, Manasse, Rudolph and Sleator, Competitive Snoopy Caching, Algorithmica 1988).
type Account struct {
	// Wasted is the balance.
	Wasted planner.MicroUSD
	// Saving is how much less the machines would cost per hour with the steps that were possible at the last look.
	Saving planner.MicroUSD
}

// Look returns the account after the time that has passed since the last look. saving is the hourly saving of the steps that are possible now, and
// restarts the restart costs of all known steps. The smaller of the savings at both looks counts for the time between. The balance never exceeds
// restarts, so the account is empty once no step is known.
func (a Account) Look(passed time.Duration, saving, restarts planner.MicroUSD) Account {
	wasted := a.Wasted + wastedIn(passed, min(a.Saving, saving))
	return Account{Wasted: min(wasted, restarts), Saving: saving}
}

// maxCounted is the longest time between two looks that counts as waste.
const maxCounted = 24 * time.Hour

// wastedIn returns the amount of an hourly saving over a time.
func wastedIn(passed time.Duration, saving planner.MicroUSD) planner.MicroUSD {
	ms := min(max(0, passed), maxCounted).Milliseconds()
	hour := time.Hour.Milliseconds()
	return saving/planner.MicroUSD(hour)*planner.MicroUSD(ms) + saving%planner.MicroUSD(hour)*planner.MicroUSD(ms)/planner.MicroUSD(hour)
}

const (
	// foresight is how long a step is expected to save, as a multiple of the time that its pods have run: the longer they have run, the longer they will.
	// If moves were free in the search, it would make all moves that save anything, and do at the wrong time what is known to save only later.
	foresight = 2
	// shortest and longest bound the time in which a step has to save its restart costs.
	shortest, longest = time.Minute, 24 * time.Hour
)

// Move returns the cost of moving a pod in the search for a cheaper layout, given the pod's restart cost and how long it has run. It is per hour, and
// at least 1, so that of two equal savings the one with fewer moves wins.
func Move(restart planner.MicroUSD, ran time.Duration) planner.MicroUSD {
	expected := min(max(shortest, foresight*min(ran, longest)), longest)
	return max(1, planner.MicroUSD(float64(restart)/expected.Hours()))
}

// Settled reports whether a pod may move after it has run for a time on a machine with an hourly price: the machine must have cost as much as the
// restart of the pod. No earlier restart can have paid off.
func Settled(ran time.Duration, price, restart planner.MicroUSD) bool {
	return ran.Hours()*float64(price) >= float64(restart)
}

// Worth is the hourly saving of a step, and the one-time restart costs of its pods.
type Worth struct{ Saving, Restarts planner.MicroUSD }

// Ranked returns the indices of steps in the order in which an account pays for them: the highest saving per restart cost first.
func Ranked(steps []Worth) []int {
	order := make([]int, len(steps))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int {
		a, b := steps[x], steps[y]
		return cmp.Or(amount.CompareProducts(int64(b.Saving), int64(a.Restarts), int64(a.Saving), int64(b.Restarts)), cmp.Compare(a.Restarts, b.Restarts))
	})
	return order
}
