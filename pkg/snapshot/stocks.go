package snapshot

import (
	"slices"
	"strings"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// stockAt maps the limits of prices to the stocks of a snapshot.
type stockAt map[string]int

// addStocks adds a stock for each limit of a price, with what machines and canaries leave of it.
func (v *View) addStocks(c *facts.Cluster) stockAt {
	at := stockAt{}
	for _, l := range c.PriceLimits {
		v.Stocks = append(v.Stocks, planner.Stock{Name: l.Name, Left: l.Amount})
	}
	slices.SortFunc(v.Stocks, func(a, b planner.Stock) int { return strings.Compare(a.Name, b.Name) })
	for i := range v.Stocks {
		at[v.Stocks[i].Name] = i
	}
	for _, machines := range [][]records.Machine{v.Machines, v.canaries} {
		for i := range machines {
			planner.Take(v.Stocks, at.drawnBy(machines[i].Limited()))
		}
	}
	for i := range v.Stocks {
		v.Stocks[i].Left = max(0, v.Stocks[i].Left)
	}
	return at
}

// drawnBy returns what a machine with a price draws. The price is nil if it has no limit.
func (at stockAt) drawnBy(p *catalog.LimitedPrice) []planner.Draw {
	if p == nil {
		return nil
	}
	return []planner.Draw{{Stock: at[p.Limit], Amount: p.Draws}}
}

// Draws returns what a machine draws from the stocks of the view.
func (v *View) Draws(m *records.Machine) []planner.Draw {
	at := stockAt{}
	for i := range v.Stocks {
		at[v.Stocks[i].Name] = i
	}
	return at.drawnBy(m.Limited())
}
