package consolidate

import (
	"slices"

	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
	"karve.sh/karve/pkg/planner/internal/search"
)

// relaxed is the linear relaxation of the choice which machines stay. Each machine is divided into fractions that stay with their pods and additional ones,
// and fractions that leave. Fractions of machines are launched, and all pods have a place. The duals are the worth of a place for a pod of each shape, and how
// much more each machine costs than what it holds is worth.
//
// In addition to the rows of shapes, there is one row for each machine, which requires that it stays or leaves. A basis has as many columns as rows, so at
// most as many machines as there are shapes are fractional.
type relaxed struct {
	master *search.Master
	mixer  *search.Context
	homes  []home
	rows   []int          // by home, its row of the master
	of     map[int]choice // by column of the master's linear program
	// decided reports, by home, whether only one of its columns is left.
	decided []bool
}

// choice is a column of a home: it stays with additional pods, or leaves.
type choice struct {
	home  int
	stays bool
	more  pack.Load
	price float64
}

// newRelaxed starts with all machines gone and with each shape by itself on launched machines. This needs fewer pivots than a start from the current machines,
// which cover all shapes exactly.
func newRelaxed(m *search.Context, homes []home) *relaxed {
	r := &relaxed{mixer: m, homes: homes, of: map[int]choice{}, decided: make([]bool, len(homes)), master: search.NewMaster(m.Problem, m.Problem.Demand())}
	for i := range homes {
		price := float64(max(1, homes[i].moves))
		if homes[i].fixed {
			price = 2 * homes[i].staying(m.Problem)
		}
		row, leaves := r.master.AddRow(1, price)
		r.rows = append(r.rows, row)
		r.of[leaves] = choice{home: i, price: price}
	}
	for i := range homes {
		r.stay(i, make(pack.Load, len(m.Problem.Shapes)))
	}
	return r
}

// staying returns the price of a column in which the home stays. If the home stays in any case, the price is so high that it never stays twice.
func (x *home) staying(p *pack.Problem) float64 {
	if x.fixed {
		return 4 * float64(max(1, p.Dearest()))
	}
	return float64(x.price)
}

// stay adds the column in which a machine stays with additional pods.
func (r *relaxed) stay(i int, more pack.Load) {
	pods := slices.Clone(r.homes[i].load)
	pods.Add(more, 1)
	price := r.homes[i].staying(r.mixer.Problem)
	r.of[r.master.AddColumn(price, pods, r.rows[i])] = choice{i, true, slices.Clone(more), price}
}

// run solves the relaxation by column generation. It ends if no column has a negative reduced cost, after the given number of rounds, or if the remaining
// effort falls to until.
func (r *relaxed) run(rounds int, until int64) {
	m := r.mixer
	demand := m.Problem.Demand()
	prices := make([]float64, len(r.homes))
	for i := range r.homes {
		prices[i] = r.homes[i].staying(m.Problem)
	}
	r.pivotUntil(until)
	for range rounds {
		if m.Effort.Left <= until || m.Effort.Done() {
			return
		}
		fresh := m.AddColumns(r.master, m.PriceAll(r.master.Values, demand, pricing.Effort{Steps: 60}, func(t int) int64 { return search.Above(m.Problem.Offers[t].Price, 2000) }))
		for i := range r.homes {
			x := &r.homes[i]
			if x.node < 0 || r.decided[i] {
				continue
			}
			m.Effort.Spend(pricing.PriceCost)
			k := m.NodeKnapsacks[x.node]
			rest := slices.Clone(demand)
			rest.Add(x.load, -1)
			k.Price(r.master.Values, rest)
			value, _ := k.Search(rest, 60, 0)
			if value == 0 {
				continue
			}
			if float64(pack.Worth(r.master.Values, x.load)+value)/pricing.Scale+r.master.LP.Duals()[r.rows[i]] > float64(prices[i]*1.0001)+1 {
				r.stay(i, k.Best)
				fresh = true
			}
		}
		if !fresh {
			return
		}
		r.pivotUntil(until)
	}
}

// rowCost is the number of machine rows that cost as much as one other row. Most of them are not affected by a pivot.
const rowCost = 8

// pivotUntil solves the relaxation with its current columns, as far as the effort allows.
func (r *relaxed) pivotUntil(until int64) {
	n := int64(r.master.LP.Rows())
	cost := 1 + n*n/(rowCost*search.PivotCost)
	e := r.mixer.Effort
	e.Spend(int64(r.master.Solve(int(min(search.MaxPivots, max(0, e.Left-until)/cost)), e.Stopped)) * cost)
}

// dive decides machine by machine, starting with the one that has the largest fractional column, and solves the relaxation again after each decision.
func (r *relaxed) dive(until int64) {
	for column := r.halfway(); column >= 0; column = r.halfway() {
		r.decide(column)
		r.run(maxRelaxedAgain, until)
	}
}

// halfway returns the largest fractional column of an undecided machine, or -1 if there is none.
func (r *relaxed) halfway() (column int) {
	column = -1
	most := 1e-6
	for j, x := range r.master.LP.Basic() {
		if c, ok := r.of[j]; ok && x <= 1-1e-6 && !r.decided[c.home] && (x > most || x == most && j < column) {
			column, most = j, x
		}
	}
	return column
}

// decide makes all columns of a machine except the given one too expensive.
func (r *relaxed) decide(column int) {
	home := r.of[column].home
	r.decided[home] = true
	for j, c := range r.of {
		if j != column && c.home == home {
			r.master.LP.SetPrice(j, c.price+100*float64(max(1, r.mixer.Problem.Dearest())))
		}
	}
}

// parting returns, by machine, whether it stays because most of it stays in the relaxation. It also returns the additional load that has the largest fraction.
func (r *relaxed) parting() (stays []bool, more []pack.Load) {
	stays, more = make([]bool, len(r.homes)), make([]pack.Load, len(r.homes))
	part, most := make([]float64, len(r.homes)), make([]float64, len(r.homes))
	for j, x := range r.master.LP.Basic() {
		if c := r.of[j]; c.stays {
			part[c.home] += x
			if x > most[c.home] {
				most[c.home], more[c.home] = x, c.more
			}
		}
	}
	for i, x := range part {
		stays[i] = r.homes[i].fixed || x > 0.5
	}
	return stays, more
}
