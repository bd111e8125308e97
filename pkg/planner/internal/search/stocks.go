package search

import (
	"cmp"
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
)

// dualScale is the denominator of the duals of stocks.
const dualScale = 1 << 20

// charged is what machines cost for a bound, and what the bound accounts for otherwise.
//
// With duals y ≥ 0 of the stocks, a machine that draws a costs c + y·a, and a plan saves at most y·L of that, where L is what is left of the stocks: a plan at the
// price Σ c n costs at least Σ (c + y·a) n − y·L, because it draws Σ a n ≤ L.
type charged struct {
	// prices are by offer, with the duals of the stocks and without those of the cuts.
	prices []int64
	// duals are those of the stocks, in 1/[dualScale] micro-dollars. They are nil without stocks.
	duals []int64
	// sum is what the cuts contribute to the bound, less y·L.
	sum int64
	// bare reports whether no duals of cuts are charged. The duals of the stocks may then be others.
	bare bool
}

func (m *Context) prices() []int64 {
	out := make([]int64, len(m.Problem.Offers))
	for t := range out {
		out[t] = m.Problem.Offers[t].Price
	}
	return out
}

// stockDuals returns the duals of the stocks in a relaxation, rounded to integers. They are 0 without a relaxation.
func (m *Context) stockDuals(g *Master) []int64 {
	if !m.Problem.Stocked {
		return nil
	}
	duals := make([]int64, len(m.Problem.Snapshot.Stocks))
	if g != nil {
		for i, row := range g.stocks {
			if row >= 0 {
				y := g.LP.Duals()[row] / g.units[i] * dualScale
				duals[i] = int64(min(max(0, math.Round(y)), float64(planner.MaxPrice*dualScale)))
			}
		}
	}
	return duals
}

// drawn returns the worth of what one machine of an offer draws.
func drawn(o *pack.Offer, duals []int64) int64 {
	if len(duals) == 0 {
		return 0
	}
	var sum int64
	for _, d := range o.Draws {
		sum = amount.Saturating(sum, amount.MulDiv(duals[d.Stock], d.Amount, dualScale))
	}
	return sum
}

// supply returns the worth of all that is left of the stocks.
func supply(limits pack.Limits, duals []int64) int64 {
	var sum int64
	for i, y := range duals {
		if y > 0 {
			sum = amount.Saturating(sum, amount.MulDivUp(y, limits.Stock(i), dualScale))
		}
	}
	return sum
}

// Asked returns what a machine of an offer costs in a relaxation: its price, and the worth of what it draws.
func (m *Context) Asked(g *Master) func(t int) int64 {
	duals := m.stockDuals(g)
	return func(t int) int64 {
		o := &m.Problem.Offers[t]
		return amount.Saturating(o.Price, drawn(o, duals))
	}
}

// cost returns the price of a machine of an offer with the worth of what it draws, at the last duals. So the few machines that are nearly free compete with others for
// the pods that are worth most.
func (m *Context) cost(t int) int64 {
	o := &m.Problem.Offers[t]
	return amount.Saturating(o.Price, drawn(o, m.duals))
}

// linearDuals returns duals of the stocks at which no load is worth more than its machine, at worths at which that holds for offers that draw from none.
func (m *Context) linearDuals(values []int64, demand pack.Load) []int64 {
	if !m.Problem.Stocked {
		return nil
	}
	duals := make([]int64, len(m.Problem.Snapshot.Stocks))
	for t, x := range m.PriceAll(values, demand, pricing.Rough, func(int) int64 { return 0 }) {
		o := &m.Problem.Offers[t]
		if short := x.Upper/pricing.Scale + 1 - o.Price - drawn(o, duals); o.MayRunOut() && short > 0 {
			m.raise(duals, o.Draws, short)
		}
	}
	return duals
}

// farleyWithStocks returns the lower bound of [Context.farley] if offers draw from stocks. Each p gives a bound: p micro-dollars for each unit of the needed worth,
// less the most that machines that draw from stocks can save, which is by how much p times the worth of their pods exceeds their price. As a function of p, the bound
// is concave, and its slope changes only where the price of an offer is p times its worth. So the search begins at the highest p at which no offer without stocks
// saves anything, and ends when the bound falls.
func (m *Context) farleyWithStocks(c *cover, k charged) (bound int64, duals []int64) {
	if k.bare {
		k = charged{prices: m.prices(), duals: make([]int64, len(m.Problem.Snapshot.Stocks))}
	}
	var order []int
	highest := -1
	less := func(t, than int) bool {
		return amount.CompareProducts(k.prices[t], c.most[than], k.prices[than], c.most[t]) < 0
	}
	for t := range c.most {
		if c.most[t] == 0 {
			continue
		}
		if m.Problem.Offers[t].MayRunOut() {
			order = append(order, t)
		} else if highest < 0 || less(t, highest) {
			highest = t
		}
	}
	limited := slices.Clone(order)
	if highest >= 0 {
		order = append(slices.DeleteFunc(order, func(t int) bool { return !less(t, highest) }), highest)
	}
	slices.SortStableFunc(order, func(s, t int) int {
		return cmp.Or(amount.CompareProducts(k.prices[t], c.most[s], k.prices[s], c.most[t]), cmp.Compare(s, t))
	})
	bound, duals = k.sum, k.duals
	for i, at := range order {
		more := slices.Clone(k.duals)
		for _, t := range limited {
			o := &m.Problem.Offers[t]
			short := amount.MulDivUp(c.most[t], k.prices[at], c.most[at]) - k.prices[t] + drawn(o, k.duals) - drawn(o, more)
			if short > 0 {
				m.raise(more, o.Draws, short)
			}
		}
		next := amount.MulDivUp(c.need, k.prices[at], c.most[at]) + k.sum + supply(m.Problem.Limits, k.duals) - supply(m.Problem.Limits, more)
		if i > 0 && next <= bound {
			break
		}
		bound, duals = next, more
	}
	return bound, duals
}

// raise raises the dual of one of the stocks that a machine draws from so that its worth is higher by short: that of which the plan saves least.
func (m *Context) raise(duals []int64, draws []planner.Draw, short int64) {
	best := draws[0]
	for _, d := range draws[1:] {
		if amount.CompareProducts(m.Problem.Limits.Stock(d.Stock), best.Amount, m.Problem.Limits.Stock(best.Stock), d.Amount) < 0 {
			best = d
		}
	}
	duals[best.Stock] = amount.Saturating(duals[best.Stock], amount.MulDivUp(short, dualScale, best.Amount))
}
