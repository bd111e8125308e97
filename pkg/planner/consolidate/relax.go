package consolidate

import (
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
	"karve.sh/karve/pkg/planner/internal/search"
)

// relaxed is the linear relaxation of the choice of which machines stay. Each machine is divided into fractions that stay with their pods and
// additional ones, and fractions that leave. Fractions of machines are launched, and all pods have a place. The duals are the worth of a place for a
// pod of each shape, and how much more each machine costs than the worth of what it holds.
//
// In addition to the rows of shapes, there is one row for each machine, which requires that it stays or leaves. A basis has as many columns as rows, so
// at most as many machines as there are shapes are fractional.
type relaxed struct {
	master   *search.Master
	ctx      *search.Context
	existing []existing
	rows     []int          // by machine, its row of the master
	of       map[int]choice // by column of the master's linear program
	// decided reports, by machine, whether only one of its columns is left.
	decided []bool
}

// choice is a column of a machine: it stays with additional pods, or leaves.
type choice struct {
	machine int
	stays   bool
	more    pack.Load
	price   float64
}

// newRelaxed starts with all machines gone and with each shape by itself on launched machines. This needs fewer pivots than a start from the current machines,
// which cover all shapes exactly.
func newRelaxed(m *search.Context, machines []existing) *relaxed {
	r := &relaxed{ctx: m, existing: machines, of: map[int]choice{}, decided: make([]bool, len(machines)), master: search.NewMaster(m.Problem, m.Problem.Demand())}
	for i := range machines {
		price := float64(max(1, machines[i].moves))
		if machines[i].fixed {
			price = 2 * machines[i].staying(m.Problem)
		}
		row, leaves := r.master.AddRow(1, price)
		r.rows = append(r.rows, row)
		r.of[leaves] = choice{machine: i, price: price}
	}
	for i := range machines {
		r.stay(i, make(pack.Load, len(m.Problem.Shapes)))
	}
	return r
}

// staying returns the price of a column in which the machine stays. If the machine is fixed, the price is so high that it never stays twice.
func (x *existing) staying(p *pack.Problem) float64 {
	if x.fixed {
		return 4 * float64(max(1, p.Dearest()))
	}
	return float64(x.price)
}

// stay adds the column in which a machine stays with additional pods.
func (r *relaxed) stay(i int, more pack.Load) {
	pods := slices.Clone(r.existing[i].load)
	pods.Add(more, 1)
	price := r.existing[i].staying(r.ctx.Problem)
	var draws []planner.Draw
	if c := r.existing[i].charge; c != nil {
		draws = c.Draws
	}
	r.of[r.master.AddColumn(price, draws, pods, r.rows[i])] = choice{i, true, slices.Clone(more), price}
}

// run solves the relaxation by column generation. It ends if no column has a negative reduced cost, after the given number of rounds, or if the remaining
// effort falls to until.
func (r *relaxed) run(rounds int, until int64) {
	m := r.ctx
	demand := m.Problem.Demand()
	prices := make([]float64, len(r.existing))
	for i := range r.existing {
		prices[i] = r.existing[i].staying(m.Problem)
	}
	r.pivotUntil(until)
	for range rounds {
		if m.Effort.Left <= until || m.Effort.Done() {
			return
		}
		asked := m.Asked(r.master)
		fresh := m.AddColumns(r.master, m.PriceAll(r.master.Values, demand, pricing.Effort{Steps: 60}, func(t int) int64 { return search.Above(asked(t), 2000) }))
		for i := range r.existing {
			x := &r.existing[i]
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

// rowCost is the number of machine rows that cost as much as one other row. A pivot does not affect most of them.
const rowCost = 8

// pivotUntil solves the relaxation with its current columns, as far as the effort allows.
func (r *relaxed) pivotUntil(until int64) {
	n := int64(r.master.LP.Rows())
	cost := 1 + n*n/(rowCost*search.PivotCost)
	e := r.ctx.Effort
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
		if c, ok := r.of[j]; ok && x <= 1-1e-6 && !r.decided[c.machine] && (x > most || x == most && j < column) {
			column, most = j, x
		}
	}
	return column
}

// decide makes all columns of a machine except the given one too expensive.
func (r *relaxed) decide(column int) {
	machine := r.of[column].machine
	r.decided[machine] = true
	for j, c := range r.of {
		if j != column && c.machine == machine {
			r.master.LP.SetPrice(j, c.price+100*float64(max(1, r.ctx.Problem.Dearest())))
		}
	}
}

// rounded reports, by machine, whether it stays because most of it stays in the relaxation. It also returns the additional load with the largest
// fraction.
func (r *relaxed) rounded() (stays []bool, more []pack.Load) {
	stays, more = make([]bool, len(r.existing)), make([]pack.Load, len(r.existing))
	part, most := make([]float64, len(r.existing)), make([]float64, len(r.existing))
	for j, x := range r.master.LP.Basic() {
		if c := r.of[j]; c.stays {
			part[c.machine] += x
			if x > most[c.machine] {
				most[c.machine], more[c.machine] = x, c.more
			}
		}
	}
	for i, x := range part {
		stays[i] = r.existing[i].fixed || x > 0.5
	}
	return stays, more
}
