package planner

import (
	"cmp"
	"math"
	"slices"
)

// column is one way to fill one machine.
type column struct {
	offer int
	load  load
}

// key tells columns apart.
func (c column) key() string {
	key := make([]byte, 0, 64)
	key = append(key, byte(c.offer), byte(c.offer>>8), byte(c.offer>>16))
	for k, n := range c.load {
		if n > 0 {
			key = append(key, byte(k), byte(k>>8), byte(n), byte(n>>8), byte(n>>16))
		}
	}
	return string(key)
}

// master is the linear relaxation of the choice among columns: the least price at which fractions of columns cover the demand.
// Its dual is what one pod of each shape is worth at the margin, which guides every later choice, and from which bounds are proven.
//
// It is a revised simplex method in floating point, with products converted one by one so that no machine fuses them with a sum: every
// machine gets the same answer. Nothing that is proven rests on it: a proof takes its worths as they come, as integers.
type master struct {
	p       *problem
	rows    []int // the shapes with demand
	at      []int // of each shape, its row or -1
	demand  []float64
	columns []column
	entries []entry
	basis   []int // an entry, or -1-i for the surplus of row i
	known   map[string]bool
	cuts    []tally // the rows beyond those of shapes
	// surcharge is what a machine costs beyond its price, by offer; nil where nothing does.
	surcharge []float64
	inverse   [][]float64
	x         []float64
	y         []float64
	w         []float64
	work      [][]float64 // scratch of invert
	pivots    int
	values    []int64 // duals by shape, in units of valueScale, rounded down
}

// entry is a column as the simplex method sees it, or a mixture of loads that no machine may be able to hold, which only a proof uses.
type entry struct {
	rows   []int32
	counts []float64
	price  float64
	column int // -1 for a mixture
	offer  int // -1 for what only makes a start
	basic  bool
}

// in is what an entry counts in rows of such weights.
func (e *entry) in(weights []float64) float64 {
	v, counts := 0.0, e.counts[:len(e.rows)]
	for j, r := range e.rows {
		v += float64(weights[r] * counts[j])
	}
	return v
}

// refactorEvery is the number of pivots after which the inverse is computed afresh.
const refactorEvery = 150

// newMaster is a relaxation that has begun.
func newMaster(p *problem, demand load) *master {
	m := &master{known: map[string]bool{}}
	m.begin(p, demand)
	return m
}

// begin starts from one column a shape: the cheapest machine a pod, filled with that shape alone. Of what was before only the room stays.
func (m *master) begin(p *problem, demand load) {
	m.p, m.values, m.at = p, blank(m.values, len(demand)), blank(m.at, len(demand))
	m.rows, m.demand, m.basis = m.rows[:0], m.demand[:0], m.basis[:0]
	m.columns, m.entries, m.cuts = m.columns[:0], m.entries[:0], m.cuts[:0]
	m.surcharge, m.pivots = nil, 0
	clear(m.known)
	for k, n := range demand {
		m.at[k] = -1
		best := -1
		for t := range p.offers {
			if f := min(n, p.offers[t].fits[k]); f > 0 && (best < 0 || cheaperFor(p, t, best, f, min(n, p.offers[best].fits[k]))) {
				best = t
			}
		}
		if best < 0 {
			continue
		}
		m.at[k] = len(m.rows)
		m.rows = append(m.rows, k)
		m.demand = append(m.demand, float64(n))
		l := make(load, len(demand))
		l[k] = min(n, p.offers[best].fits[k])
		m.basis = append(m.basis, len(m.entries))
		m.add(column{best, l})
	}
	n := len(m.rows)
	m.x, m.y, m.w = blank(m.x, n), blank(m.y, n), blank(m.w, n)
	m.inverse = blankRows(m.inverse, n, n)
	for i := range m.inverse {
		e := &m.entries[i]
		e.basic = true
		m.inverse[i][i] = 1 / e.counts[0]
		m.x[i] = m.demand[i] / e.counts[0]
	}
	m.setValues()
}

// blank is so many zeros, in the room of a slice that is done with.
func blank[T any](room []T, n int) []T {
	room = slices.Grow(room[:0], n)[:n]
	clear(room)
	return room
}

// blankRows are so many rows of zeros, in the room of rows that are done with.
func blankRows(room [][]float64, rows, columns int) [][]float64 {
	room = slices.Grow(room[:0], rows)[:rows]
	for i := range room {
		room[i] = blank(room[i], columns)
	}
	return room
}

// add offers a column to the relaxation, unless it has it, and reports whether it was new.
func (m *master) add(c column) bool {
	key := c.key()
	if m.known[key] {
		return false
	}
	m.known[key] = true
	e := m.entry(c.offer)
	e.column = len(m.columns)
	shapes := 0
	for _, n := range c.load {
		if n > 0 {
			shapes++
		}
	}
	e.rows, e.counts = slices.Grow(e.rows, shapes), slices.Grow(e.counts, shapes)
	for k, n := range c.load {
		if n > 0 && m.at[k] >= 0 {
			e.rows = append(e.rows, int32(m.at[k]))
			e.counts = append(e.counts, float64(n))
		}
	}
	m.columns = append(m.columns, c)
	m.entries = append(m.entries, e)
	return true
}

// expect makes room for so many more columns.
func (m *master) expect(columns int) {
	m.columns, m.entries = slices.Grow(m.columns, columns), slices.Grow(m.entries, columns)
}

// mix offers a mixture of loads at the price of an offer, and reports whether it is worth more than that.
func (m *master) mix(offer int, amounts []float64) bool {
	value := 0.0
	e := m.entry(offer)
	for i, r := range e.rows {
		value += float64(m.y[r] * e.counts[i])
	}
	for k, n := range amounts {
		if n > 1e-9 && m.at[k] >= 0 {
			e.rows = append(e.rows, int32(m.at[k]))
			e.counts = append(e.counts, n)
			value += float64(m.y[m.at[k]] * n)
		}
	}
	if value <= float64(e.price*1.0001) {
		return false
	}
	m.entries = append(m.entries, e)
	return true
}

// price is the price of what is in row i of the basis.
func (m *master) price(i int) float64 {
	if b := m.basis[i]; b >= 0 {
		return m.entries[b].price
	}
	return 0
}

// total is the price of the relaxation.
func (m *master) total() float64 {
	t := 0.0
	for i := range m.basis {
		t += float64(m.price(i) * m.x[i])
	}
	return t
}

func (m *master) setDuals() {
	clear(m.y)
	for i, row := range m.inverse {
		if c := m.price(i); c != 0 {
			for j, v := range row {
				m.y[j] += float64(c * v)
			}
		}
	}
}

// setValues rounds the duals to integers.
func (m *master) setValues() {
	m.setDuals()
	for i, k := range m.rows {
		v := math.Floor(float64(m.y[i] * valueScale))
		m.values[k] = int64(min(max(v, 0), float64(m.p.worthiest)))
	}
}

// solve pivots until no column is worth more than its price, at most the given number of times and unless it is stopped, and returns how many it made.
func (m *master) solve(most int, stopped func() bool) int {
	m.setDuals()
	for pivot := range most {
		enter := m.entering()
		if enter == noEntry || stopped() || !m.pivot(enter) {
			m.setValues()
			return pivot
		}
	}
	m.setValues()
	return most
}

// noEntry is the answer when nothing improves the relaxation.
const noEntry = 1 << 30

// entering returns the entry, or surplus, with the most to gain for its price.
func (m *master) entering() int {
	best, gain := noEntry, 1e-9
	for i := range m.entries {
		e := &m.entries[i]
		if e.basic {
			continue
		}
		v := e.in(m.y)
		if v <= e.price {
			continue
		}
		if g := v/e.price - 1; g > gain {
			best, gain = i, g
		}
	}
	if best != noEntry {
		return best
	}
	// A negative dual means that covering the row exactly costs more than covering more than it.
	least := -1e-6
	for i, y := range m.y {
		if y < least {
			best, least = -1-i, y
		}
	}
	return best
}

// reduced is the price of an entry less the worth of what it covers; that of a surplus is the worth that it gives up.
func (m *master) reduced(enter int) float64 {
	if enter < 0 {
		return m.y[-1-enter]
	}
	e := &m.entries[enter]
	v, counts := e.price, e.counts[:len(e.rows)]
	for j, r := range e.rows {
		v -= float64(m.y[r] * counts[j])
	}
	return v
}

// setDirection computes how the amounts of the basis fall with what enters.
func (m *master) setDirection(enter int) {
	if enter < 0 {
		for i := range m.w {
			m.w[i] = -m.inverse[i][-1-enter]
		}
		return
	}
	e := &m.entries[enter]
	for i, row := range m.inverse {
		m.w[i] = e.in(row)
	}
}

// leaving returns the row whose amount is used up first, and how much enters until then; -1 when none ever is.
func (m *master) leaving() (leave int, least float64) {
	leave = -1
	for i, v := range m.w {
		if v > pivotMin {
			if t := max(0, m.x[i]) / v; leave < 0 || t < least || t == least && v > m.w[leave] {
				leave, least = i, t
			}
		}
	}
	return leave, least
}

// pivot brings an entry into the basis. It reports false where none can leave.
func (m *master) pivot(enter int) bool {
	gain := m.reduced(enter)
	m.setDirection(enter)
	leave, least := m.leaving()
	if leave < 0 {
		return false
	}
	m.exchange(enter, leave, gain, least)
	if m.pivots++; m.pivots%refactorEvery == 0 {
		m.refactor()
		m.setDuals()
	}
	return true
}

// exchange has so much of an entry in the basis, in the place of what is in a row, for a gain.
func (m *master) exchange(enter, leave int, gain, amount float64) {
	if old := m.basis[leave]; old >= 0 {
		m.entries[old].basic = false
	}
	m.basis[leave] = enter
	if enter >= 0 {
		m.entries[enter].basic = true
	}
	for i := range m.x {
		m.x[i] -= float64(m.w[i] * amount)
	}
	m.x[leave] = amount
	eliminate(m.inverse, leave, m.w)
	for j, v := range m.inverse[leave] {
		m.y[j] += float64(gain * v)
	}
}

// refactor computes the inverse of the basis and its amounts afresh.
func (m *master) refactor() {
	if !m.invert() {
		return
	}
	m.setAmounts(m.demand)
	for i, v := range m.x {
		m.x[i] = max(0, v)
	}
}

// setAmounts computes what the basis buys for a demand.
func (m *master) setAmounts(demand []float64) {
	for i, row := range m.inverse {
		m.x[i] = 0
		for j, d := range demand {
			m.x[i] += float64(row[j] * d)
		}
	}
}

// invert computes the inverse of the basis, by elimination with the largest pivots; where one is too small it leaves it as it was and reports false.
func (m *master) invert() bool {
	n := len(m.demand)
	m.work = blankRows(m.work, n, 2*n)
	work := m.work
	for i := range work {
		work[i][n+i] = 1
	}
	for j, b := range m.basis {
		if b < 0 {
			work[-1-b][j] = -1
			continue
		}
		e := &m.entries[b]
		for q, r := range e.rows {
			work[r][j] = e.counts[q]
		}
	}
	factors := m.w
	for j := range n {
		top := j
		for i := j + 1; i < n; i++ {
			if math.Abs(work[i][j]) > math.Abs(work[top][j]) {
				top = i
			}
		}
		if math.Abs(work[top][j]) < 1e-11 {
			return false
		}
		work[j], work[top] = work[top], work[j]
		for i := range factors {
			factors[i] = work[i][j]
		}
		eliminate(work, j, factors)
	}
	for i := range n {
		copy(m.inverse[i], work[i][n:])
	}
	return true
}

// whole returns how many whole machines of each column the relaxation buys, and the columns of which it buys fractions besides, the largest first.
func (m *master) whole() (times map[int]int32, parts []int) {
	times = map[int]int32{}
	part := map[int]float64{}
	for i, b := range m.basis {
		if b < 0 || m.x[i] <= 0 || m.entries[b].column < 0 {
			continue
		}
		c := m.entries[b].column
		n := math.Floor(m.x[i] + 1e-6)
		if n > 0 {
			times[c] = int32(min(n, 1<<30))
		}
		if f := m.x[i] - n; f > 1e-6 {
			parts, part[c] = append(parts, c), f
		}
	}
	slices.SortFunc(parts, func(a, b int) int { return cmp.Or(cmp.Compare(part[b], part[a]), cmp.Compare(a, b)) })
	return times, parts
}
