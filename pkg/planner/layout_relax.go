package planner

import "slices"

// relaxed is the choice of who stays, as a linear relaxation: fractions of machines stay with their pods and what else they have room for, fractions of
// them leave, fractions are launched, and all pods have a place. Its duals say what a place for a pod of each shape is worth, and how much dearer each
// machine is than what it holds.
//
// Beside the rows of shapes there is one row a machine, which says that it stays or leaves. A basis has as many columns as rows, so all but a few
// of the machines, no more than there are shapes, do one or the other as a whole.
type relaxed struct {
	master *master
	mixer  *mixer
	homes  []home
	of     map[int]stay // by entry
	// decided is by home whether only one of its columns is left.
	decided []bool
}

// stay is a column: a home stays with more pods than its own.
type stay struct {
	home int
	more load
}

// newRelaxed begins with all machines gone, and each shape by itself on machines that are launched: from there it is fewer pivots to the end than from the
// machines as they are, where all shapes are covered exactly.
func newRelaxed(m *mixer, homes []home) *relaxed {
	r := &relaxed{mixer: m, homes: homes, of: map[int]stay{}, decided: make([]bool, len(homes)), master: newMaster(m.problem, m.problem.demand())}
	shapes := len(r.master.rows)
	n := shapes + len(homes)
	for i := range r.master.inverse {
		r.master.inverse[i] = append(r.master.inverse[i], make([]float64, len(homes))...)
	}
	for i := range homes {
		row := make([]float64, n)
		row[shapes+i] = 1
		price := float64(max(1, homes[i].moves))
		if homes[i].fixed {
			price = 2 * homes[i].staying(m.problem)
		}
		r.master.inverse, r.master.x, r.master.demand = append(r.master.inverse, row), append(r.master.x, 1), append(r.master.demand, 1)
		r.master.basis = append(r.master.basis, len(r.master.entries))
		r.master.entries = append(r.master.entries, entry{price: price, column: -1, offer: -1, rows: []int32{int32(shapes + i)}, counts: []float64{1}, basic: true})
	}
	r.master.y, r.master.w = make([]float64, n), make([]float64, n)
	for i := range homes {
		r.stay(i, make(load, len(m.problem.shapes)))
	}
	return r
}

// staying is what it costs that a home stays. Where it stays in any case, that is so much that it does not pay twice.
func (x *home) staying(p *problem) float64 {
	if x.fixed {
		return 4 * float64(max(1, p.dearest()))
	}
	return float64(x.price)
}

// stay offers a machine with more pods than it has.
func (r *relaxed) stay(i int, more load) {
	e := entry{price: r.homes[i].staying(r.mixer.problem), column: -1, offer: -1, rows: []int32{int32(len(r.master.rows) + i)}, counts: []float64{1}}
	for k, n := range more {
		if n += r.homes[i].load[k]; n > 0 && r.master.at[k] >= 0 {
			e.rows, e.counts = append(e.rows, int32(r.master.at[k])), append(e.counts, float64(n))
		}
	}
	r.of[len(r.master.entries)] = stay{i, slices.Clone(more)}
	r.master.entries = append(r.master.entries, e)
}

// run solves the relaxation, and adds columns while there are any that are worth more than their price, for so many rounds at most and as long as more
// effort is left than said.
func (r *relaxed) run(rounds int, until int64) {
	m := r.mixer
	demand := m.problem.demand()
	prices := make([]float64, len(r.homes))
	for i := range r.homes {
		prices[i] = r.homes[i].staying(m.problem)
	}
	r.pivotUntil(until)
	for range rounds {
		if m.effort.left <= until || m.effort.done() {
			return
		}
		fresh := m.take(r.master, m.priceAll(r.master.values, demand, care{steps: 60}, func(t int) int64 { return above(m.problem.offers[t].price, 2000) }))
		for i := range r.homes {
			x := &r.homes[i]
			if x.node < 0 || r.decided[i] {
				continue
			}
			m.effort.spend(priceCost)
			k := m.noded[x.node]
			rest := slices.Clone(demand)
			rest.add(x.load, -1)
			k.price(r.master.values, rest)
			value, _ := k.search(rest, 60, 0)
			if value == 0 {
				continue
			}
			if float64(worth(r.master.values, x.load)+value)/valueScale+r.master.y[len(r.master.rows)+i] > float64(prices[i]*1.0001)+1 {
				r.stay(i, k.best)
				fresh = true
			}
		}
		if !fresh {
			return
		}
		r.pivotUntil(until)
	}
}

// rowCost is what so many of a machine's rows count of what others do: most of them have nothing to do with a pivot.
const rowCost = 8

// pivotUntil solves the relaxation with the columns that it has, as far as the effort goes.
func (r *relaxed) pivotUntil(until int64) {
	n := int64(len(r.master.demand))
	cost := 1 + n*n/(rowCost*pivotCost)
	e := r.mixer.effort
	e.spend(int64(r.master.solve(int(min(maxPivots, max(0, e.left-until)/cost)), e.stopped)) * cost)
}

// dive decides for one machine after the other, the one of which it does the largest part of one thing first, and has the others make the best of that.
func (r *relaxed) dive(until int64) {
	for home, entry := r.halfway(); home >= 0; home, entry = r.halfway() {
		r.decide(home, entry)
		r.run(maxRelaxedAgain, until)
	}
}

// halfway is the undecided machine with the largest part of one column that is not a whole one, and the entry of that; -1 where there is none.
func (r *relaxed) halfway() (home, entry int) {
	home, entry = -1, -1
	most := 1e-6
	for i, b := range r.master.basis {
		if b < 0 || r.master.x[i] > 1-1e-6 {
			continue
		}
		if h := r.home(b); h >= 0 && !r.decided[h] && (r.master.x[i] > most || r.master.x[i] == most && b < entry) {
			home, entry, most = h, b, r.master.x[i]
		}
	}
	return home, entry
}

// home is whose column an entry is; less than 0 for launches.
func (r *relaxed) home(entry int) int {
	if rows := r.master.entries[entry].rows; len(rows) > 0 {
		return int(rows[0]) - len(r.master.rows)
	}
	return -1
}

// decide makes all columns of a machine but one too dear.
func (r *relaxed) decide(home, entry int) {
	r.decided[home] = true
	for i := range r.master.entries {
		if i != entry && r.home(i) == home {
			r.master.entries[i].price += 100 * float64(max(1, r.mixer.problem.dearest()))
		}
	}
}

// parting is by machine whether it stays, because most of it does, and what it takes most of when it stays.
func (r *relaxed) parting() (stays []bool, more []load) {
	stays, more = make([]bool, len(r.homes)), make([]load, len(r.homes))
	part, most := make([]float64, len(r.homes)), make([]float64, len(r.homes))
	for i, b := range r.master.basis {
		if b < 0 {
			continue
		}
		if s, ok := r.of[b]; ok {
			part[s.home] += r.master.x[i]
			if r.master.x[i] > most[s.home] {
				most[s.home], more[s.home] = r.master.x[i], s.more
			}
		}
	}
	for i, x := range part {
		stays[i] = r.homes[i].fixed || x > 0.5
	}
	return stays, more
}
