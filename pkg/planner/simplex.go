package planner

import (
	"math/big"
	"slices"
)

// column is one way to fill one machine.
type column struct {
	offer int
	load  load
}

// key tells columns apart.
func (c column) key() string {
	key := make([]byte, 0, 4*len(c.load)+4)
	for _, n := range append(slices.Clip(c.load), int32(c.offer)) {
		key = append(key, byte(n), byte(n>>8), byte(n>>16), byte(n>>24))
	}
	return string(key)
}

// master is the linear relaxation of the choice among columns: the least price at which fractions of columns cover the demand.
// Its dual is what one pod of each shape is worth at the margin, which guides every later choice.
//
// The simplex method runs on integers: the inverse of the basis is kept as numerators over one common determinant, so that a
// pivot divides without remainder and every machine gets the same answer, which floating point does not promise.
type master struct {
	p       *problem
	rows    []int // the shapes with demand
	columns []column
	basis   []int // a column, or -1-i for the surplus of row i
	inBasis []bool
	known   map[string]bool
	inverse [][]big.Int // numerators
	x       []big.Int   // numerators of the amounts of the basis
	y       []big.Int   // numerators of the duals
	det     big.Int
	values  []int64 // duals by shape, in units of valueScale, rounded down
}

// newMaster starts from one column a shape: the cheapest machine a pod, filled with that shape alone.
func newMaster(p *problem, demand load) *master {
	m := &master{p: p, values: make([]int64, len(p.shapes)), known: map[string]bool{}}
	m.det.SetInt64(1)
	for k, n := range demand {
		best := -1
		for t := range p.offers {
			if f := min(n, p.offers[t].fits[k]); f > 0 && (best < 0 || p.cheaperFor(t, best, f, min(n, p.offers[best].fits[k]))) {
				best = t
			}
		}
		if best < 0 {
			continue
		}
		l := make(load, len(demand))
		l[k] = min(n, p.offers[best].fits[k])
		m.rows = append(m.rows, k)
		m.basis = append(m.basis, len(m.columns))
		m.add(column{best, l})
		m.inBasis[len(m.inBasis)-1] = true
		m.det.Mul(&m.det, big.NewInt(int64(l[k])))
	}
	m.inverse = make([][]big.Int, len(m.rows))
	m.x, m.y = make([]big.Int, len(m.rows)), make([]big.Int, len(m.rows))
	for i, k := range m.rows {
		m.inverse[i] = make([]big.Int, len(m.rows))
		c := m.columns[i]
		m.inverse[i][i].Quo(&m.det, big.NewInt(int64(c.load[k])))
		m.x[i].Mul(&m.inverse[i][i], big.NewInt(int64(demand[k])))
		m.y[i].Mul(&m.inverse[i][i], big.NewInt(p.offers[c.offer].price))
	}
	m.setValues()
	return m
}

// add offers a column to the relaxation, unless it has it.
func (m *master) add(c column) {
	key := c.key()
	if m.known[key] {
		return
	}
	m.known[key] = true
	m.columns = append(m.columns, c)
	m.inBasis = append(m.inBasis, false)
}

// setValues rounds the duals to integers.
func (m *master) setValues() {
	var v, scale big.Int
	scale.SetInt64(valueScale)
	for i, k := range m.rows {
		v.Mul(&m.y[i], &scale)
		v.Quo(&v, &m.det)
		m.values[k] = 0
		if v.Sign() > 0 && v.IsInt64() {
			m.values[k] = min(v.Int64(), worthiest)
		}
	}
}

// worth is the value of a load at the present duals, in units of valueScale.
func worth(values []int64, l load) int64 {
	var v int64
	for k, n := range l {
		v += values[k] * int64(n)
	}
	return v
}

// solve pivots until no column is worth more than its price, at most the given number of times.
func (m *master) solve(pivots int) {
	for ; pivots > 0; pivots-- {
		enter, cost := m.entering()
		if enter == noColumn || !m.pivot(enter, cost) {
			return
		}
		m.setValues()
	}
}

// noColumn is the answer when nothing improves the relaxation.
const noColumn = 1 << 30

// entering returns the column, or surplus, with the most to gain, and the numerator of its reduced cost, which is negative.
func (m *master) entering() (int, *big.Int) {
	best, gain := noColumn, int64(0)
	for c, col := range m.columns {
		if !m.inBasis[c] {
			if g := worth(m.values, col.load) - m.p.offers[col.offer].price*valueScale; g > gain {
				best, gain = c, g
			}
		}
	}
	for i := range m.rows {
		if m.y[i].Sign() < 0 {
			// A negative dual means that covering the row exactly costs more than covering more than it.
			var v big.Int
			v.Mul(&m.y[i], big.NewInt(-valueScale))
			v.Quo(&v, &m.det)
			if best == noColumn || v.IsInt64() && v.Int64() > gain {
				best = -1 - i
				if v.IsInt64() {
					gain = max(gain, v.Int64())
				}
			}
		}
	}
	if best == noColumn {
		return best, nil
	}
	reduced := new(big.Int)
	if best < 0 {
		reduced.Set(&m.y[-1-best])
		return best, reduced
	}
	var t big.Int
	col := m.columns[best]
	reduced.Mul(&m.det, t.SetInt64(m.p.offers[col.offer].price))
	for i, k := range m.rows {
		if n := col.load[k]; n > 0 {
			reduced.Sub(reduced, t.Mul(&m.y[i], big.NewInt(int64(n))))
		}
	}
	if reduced.Sign() >= 0 {
		return noColumn, nil
	}
	return best, reduced
}

// entered returns the numerators of a column, or of a surplus, in terms of the basis.
func (m *master) entered(enter int) []big.Int {
	w := make([]big.Int, len(m.rows))
	var t, u big.Int
	for i := range w {
		if enter < 0 {
			w[i].Neg(&m.inverse[i][-1-enter])
			continue
		}
		for j, k := range m.rows {
			if n := m.columns[enter].load[k]; n > 0 {
				w[i].Add(&w[i], t.Mul(&m.inverse[i][j], u.SetInt64(int64(n))))
			}
		}
	}
	return w
}

// leaving returns the row with the least amount for its share of what enters, the first of several, or -1.
func (m *master) leaving(w []big.Int) int {
	leave := -1
	var t, u big.Int
	for i := range w {
		if w[i].Sign() > 0 && (leave < 0 || t.Mul(&m.x[i], &w[leave]).Cmp(u.Mul(&m.x[leave], &w[i])) < 0) {
			leave = i
		}
	}
	return leave
}

// pivot brings a column into the basis. It reports false where none can leave.
func (m *master) pivot(enter int, reduced *big.Int) bool {
	w := m.entered(enter)
	leave := m.leaving(w)
	if leave < 0 {
		return false
	}
	var t big.Int
	// Each numerator v becomes (v·pivot − its row's factor · the pivot row's) / old determinant, which leaves no remainder.
	update := func(v, factor, of *big.Int) {
		v.Mul(v, &w[leave])
		if factor.Sign() != 0 && of.Sign() != 0 {
			v.Sub(v, t.Mul(factor, of))
		}
		v.Quo(v, &m.det)
	}
	negated := new(big.Int).Neg(reduced)
	for j := range m.rows {
		update(&m.y[j], negated, &m.inverse[leave][j])
	}
	for i := range m.rows {
		if i == leave {
			continue
		}
		for j := range m.rows {
			if m.inverse[i][j].Sign() != 0 || m.inverse[leave][j].Sign() != 0 && w[i].Sign() != 0 {
				update(&m.inverse[i][j], &w[i], &m.inverse[leave][j])
			}
		}
		update(&m.x[i], &w[i], &m.x[leave])
	}
	m.det.Set(&w[leave])
	if old := m.basis[leave]; old >= 0 {
		m.inBasis[old] = false
	}
	m.basis[leave] = enter
	if enter >= 0 {
		m.inBasis[enter] = true
	}
	return true
}

// whole returns how many whole machines of each column the relaxation buys, and the column of which it buys the largest fraction
// besides, or -1.
func (m *master) whole() (times map[int]int32, most int) {
	times, most = map[int]int32{}, -1
	var v, fraction, largest big.Int
	for i, b := range m.basis {
		if b < 0 || m.x[i].Sign() <= 0 {
			continue
		}
		if v.QuoRem(&m.x[i], &m.det, &fraction); v.IsInt64() && v.Int64() > 0 {
			times[b] = int32(min(v.Int64(), 1<<30))
		}
		if c := fraction.Cmp(&largest); c > 0 || c == 0 && fraction.Sign() > 0 && b < most {
			most = b
			largest.Set(&fraction)
		}
	}
	return times, most
}
