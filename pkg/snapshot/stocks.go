package snapshot

import (
	"slices"
	"strings"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// addStocks adds a stock for each limit of a price and each reservation, sorted by name, with what machines and canaries leave of it.
func (v *View) addStocks(c *facts.Cluster) {
	for _, s := range records.SlotsOf(c, v.Machines, v.canaries) {
		v.Stocks = append(v.Stocks, planner.Stock{Name: s.ID, Left: s.Left + s.Ours})
	}
	for _, l := range c.PriceLimits {
		v.Stocks = append(v.Stocks, planner.Stock{Name: l.Name, Left: l.Amount})
	}
	slices.SortStableFunc(v.Stocks, func(a, b planner.Stock) int { return strings.Compare(a.Name, b.Name) })
	v.Stocks = slices.CompactFunc(v.Stocks, func(a, b planner.Stock) bool { return a.Name == b.Name }) // A rule may have the name of a reservation, of which there are still only so many slots.
	for _, machines := range [][]records.Machine{v.Machines, v.canaries} {
		for i := range machines {
			if !machines[i].Assumed.Refilled {
				planner.Take(v.Stocks, v.Draws(&machines[i]))
			}
		}
	}
	for i := range v.Stocks {
		v.Stocks[i].Left = max(0, v.Stocks[i].Left)
	}
}

// Draws returns what a machine draws from the stocks of the view.
func (v *View) Draws(m *records.Machine) []planner.Draw {
	if m.Reservation != "" {
		return v.drawn(m.Reservation, 1)
	}
	return v.drawnAt(m.Limited())
}

// drawnAt returns what a machine with a price draws from the stocks. The price is nil if it has no limit.
func (v *View) drawnAt(p *catalog.LimitedPrice) []planner.Draw {
	if p == nil {
		return nil
	}
	return v.drawn(p.Limit, p.Draws)
}

// drawn returns that an amount of a stock is drawn. It returns nothing if there is no such stock, such as for a reservation that has ended.
func (v *View) drawn(name string, amount int64) []planner.Draw {
	at, ok := slices.BinarySearchFunc(v.Stocks, name, func(s planner.Stock, name string) int { return strings.Compare(s.Name, name) })
	if !ok {
		return nil
	}
	return []planner.Draw{{Stock: at, Amount: amount}}
}
