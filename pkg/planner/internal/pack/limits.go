package pack

import (
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/amount"
)

// Charge is what a machine counts against the limits of its pool, and what it draws from stocks.
type Charge struct {
	Pool  int
	Uses  amount.Usage
	Draws []planner.Draw
}

// ChargeOf returns the charge of a machine of an offering.
func ChargeOf(o planner.Offering) Charge {
	return Charge{Pool: o.Pool, Uses: amount.UsageOf(o.Physical), Draws: o.Draws}
}

// Limits are what pools may still launch, and what is left of stocks.
type Limits struct {
	pools  []amount.Usage
	stocks []int64
}

// LimitsOf returns the limits of a snapshot.
func LimitsOf(s planner.Snapshot) Limits {
	var l Limits
	for _, p := range s.Pools {
		l.pools = append(l.pools, amount.UsageOf(p.Remaining))
	}
	for _, x := range s.Stocks {
		l.stocks = append(l.stocks, x.Left)
	}
	return l
}

// Clone returns a copy that can be changed independently.
func (l Limits) Clone() Limits { return Limits{slices.Clone(l.pools), slices.Clone(l.stocks)} }

// Nothing returns limits that allow nothing of what these limit.
func (l Limits) Nothing() Limits {
	none := Limits{make([]amount.Usage, len(l.pools)), make([]int64, len(l.stocks))}
	for i := range l.pools {
		for d, most := range l.pools[i] {
			if most == planner.Unlimited {
				none.pools[i][d] = most
			}
		}
	}
	return none
}

// Admits reports whether a machine may still be launched.
func (l Limits) Admits(c *Charge) bool {
	return l.pools[c.Pool].Admits(c.Uses) && l.Supplies(c.Draws)
}

// Supplies reports whether enough is left of the stocks.
func (l Limits) Supplies(draws []planner.Draw) bool {
	for _, d := range draws {
		if l.stocks[d.Stock] < d.Amount {
			return false
		}
	}
	return true
}

// Pool returns what a pool may still launch.
func (l Limits) Pool(pool int) amount.Usage { return l.pools[pool] }

// Stock returns what is left of a stock.
func (l Limits) Stock(stock int) int64 { return l.stocks[stock] }

// Launch charges a machine.
func (l Limits) Launch(c *Charge) {
	l.pools[c.Pool].Launch(c.Uses)
	l.Draw(c.Draws, 1)
}

// GiveBack undoes a launch that was within the limits.
func (l Limits) GiveBack(c *Charge) {
	l.pools[c.Pool].GiveBack(c.Uses)
	l.Draw(c.Draws, -1)
}

// Draw takes what a number of machines draw from stocks. A negative number gives it back.
func (l Limits) Draw(draws []planner.Draw, machines int64) {
	for _, d := range draws {
		l.stocks[d.Stock] -= d.Amount * machines
	}
}

// Kept reports whether machines that were charged to limits leave nothing below zero. Limits that were exceeded before do not count, unless they were exceeded further.
func (l Limits) Kept(before Limits) bool {
	for i := range l.pools {
		for d, x := range l.pools[i] {
			if x < 0 && x < before.pools[i][d] {
				return false
			}
		}
	}
	for i, x := range l.stocks {
		if x < 0 && x < before.stocks[i] {
			return false
		}
	}
	return true
}

// Exceeded reports whether the limits that a machine is charged to are exceeded.
func (l Limits) Exceeded(c *Charge) bool {
	return slices.ContainsFunc(c.Draws, func(d planner.Draw) bool { return l.stocks[d.Stock] < 0 }) ||
		slices.Min(l.pools[c.Pool][:]) < 0
}

// MayRunOut reports whether a machine of an offer draws from a stock.
func (o *Offer) MayRunOut() bool { return len(o.Draws) > 0 }
