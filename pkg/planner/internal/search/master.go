package search

import (
	"cmp"
	"math"
	"slices"

	"karve.sh/karve/pkg/planner/internal/lp"
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
)

// column is a pattern: an offer and a load for one machine of it.
type column struct {
	Offer int
	Load  pack.Load
}

// key returns a string that identifies the column.
func (c column) key() string {
	key := make([]byte, 0, 64)
	key = append(key, byte(c.Offer), byte(c.Offer>>8), byte(c.Offer>>16))
	for k, n := range c.Load {
		if n > 0 {
			key = append(key, byte(k), byte(k>>8), byte(n), byte(n>>8), byte(n>>16))
		}
	}
	return string(key)
}

// Master is the restricted master problem: the linear relaxation of the choice among the known columns. It minimizes the price at which fractions of columns
// cover the demand. Its duals are the marginal prices of one pod of each shape. They guide all later choices, and bounds are derived from them.
//
// It is solved by a revised simplex method in floating point. Products are converted one by one, so that no compiler fuses them with a sum and all computers
// get the same result. No proof depends on it: bounds are computed from duals that are rounded to integers.
type Master struct {
	p       *pack.Problem
	Rows    []int // the shapes with demand
	At      []int // the row of each shape, or -1
	Demand  []float64
	columns []column
	Entries []Entry
	Basis   []int // an entry, or -1-i for the surplus of row i
	known   map[string]bool
	cuts    []cardinality // the rows in addition to those of shapes
	// surcharge is what a machine costs in addition to its price, by offer. It is nil if there are no surcharges.
	surcharge []float64
	Inverse   [][]float64
	X         []float64
	Y         []float64
	W         []float64
	work      [][]float64 // scratch of invert
	pivots    int
	Values    []int64 // duals by shape, in units of 1/pricing.Scale, rounded down
}

// Entry is a column of the simplex method. It can also be a mixture of loads that no machine may be able to hold, which only proofs use.
type Entry struct {
	Rows   []int32
	Counts []float64
	Price  float64
	Column int // -1 for a mixture
	Offer  int // -1 for an artificial column
	Basic  bool
}

// in returns the sum of the entry's coefficients, weighted by row.
func (e *Entry) in(weights []float64) float64 {
	v, counts := 0.0, e.Counts[:len(e.Rows)]
	for j, r := range e.Rows {
		v += float64(weights[r] * counts[j])
	}
	return v
}

// refactorEvery is the number of pivots after which the inverse is computed again.
const refactorEvery = 150

// NewMaster returns a relaxation with its initial columns.
func NewMaster(p *pack.Problem, demand pack.Load) *Master {
	m := &Master{known: map[string]bool{}}
	m.begin(p, demand)
	return m
}

// begin starts with one column per shape: the machine with the lowest price per pod, filled with only that shape. It reuses the memory of the previous
// relaxation.
func (m *Master) begin(p *pack.Problem, demand pack.Load) {
	m.p, m.Values, m.At = p, blank(m.Values, len(demand)), blank(m.At, len(demand))
	m.Rows, m.Demand, m.Basis = m.Rows[:0], m.Demand[:0], m.Basis[:0]
	m.columns, m.Entries, m.cuts = m.columns[:0], m.Entries[:0], m.cuts[:0]
	m.surcharge, m.pivots = nil, 0
	clear(m.known)
	for k, n := range demand {
		m.At[k] = -1
		best := -1
		for t := range p.Offers {
			if f := min(n, p.Offers[t].Fits[k]); f > 0 && (best < 0 || cheaperFor(p, t, best, f, min(n, p.Offers[best].Fits[k]))) {
				best = t
			}
		}
		if best < 0 {
			continue
		}
		m.At[k] = len(m.Rows)
		m.Rows = append(m.Rows, k)
		m.Demand = append(m.Demand, float64(n))
		l := make(pack.Load, len(demand))
		l[k] = min(n, p.Offers[best].Fits[k])
		m.Basis = append(m.Basis, len(m.Entries))
		m.add(column{best, l})
	}
	n := len(m.Rows)
	m.X, m.Y, m.W = blank(m.X, n), blank(m.Y, n), blank(m.W, n)
	m.Inverse = blankRows(m.Inverse, n, n)
	for i := range m.Inverse {
		e := &m.Entries[i]
		e.Basic = true
		m.Inverse[i][i] = 1 / e.Counts[0]
		m.X[i] = m.Demand[i] / e.Counts[0]
	}
	m.setValues()
}

// blank returns n zeros, in the memory of a slice that is not used any more.
func blank[T any](room []T, n int) []T {
	room = slices.Grow(room[:0], n)[:n]
	clear(room)
	return room
}

// blankRows returns rows of zeros, in the memory of rows that are not used any more.
func blankRows(room [][]float64, rows, columns int) [][]float64 {
	room = slices.Grow(room[:0], rows)[:rows]
	for i := range room {
		room[i] = blank(room[i], columns)
	}
	return room
}

// add adds a column to the relaxation unless it has it, and reports whether it was new.
func (m *Master) add(c column) bool {
	key := c.key()
	if m.known[key] {
		return false
	}
	m.known[key] = true
	e := m.entry(c.Offer)
	e.Column = len(m.columns)
	shapes := 0
	for _, n := range c.Load {
		if n > 0 {
			shapes++
		}
	}
	e.Rows, e.Counts = slices.Grow(e.Rows, shapes), slices.Grow(e.Counts, shapes)
	for k, n := range c.Load {
		if n > 0 && m.At[k] >= 0 {
			e.Rows = append(e.Rows, int32(m.At[k]))
			e.Counts = append(e.Counts, float64(n))
		}
	}
	m.columns = append(m.columns, c)
	m.Entries = append(m.Entries, e)
	return true
}

// expect allocates memory for more columns.
func (m *Master) expect(columns int) {
	m.columns, m.Entries = slices.Grow(m.columns, columns), slices.Grow(m.Entries, columns)
}

// mix adds a mixture of loads at the price of an offer, and reports whether its reduced cost is negative.
func (m *Master) mix(offer int, amounts []float64) bool {
	value := 0.0
	e := m.entry(offer)
	for i, r := range e.Rows {
		value += float64(m.Y[r] * e.Counts[i])
	}
	for k, n := range amounts {
		if n > 1e-9 && m.At[k] >= 0 {
			e.Rows = append(e.Rows, int32(m.At[k]))
			e.Counts = append(e.Counts, n)
			value += float64(m.Y[m.At[k]] * n)
		}
	}
	if value <= float64(e.Price*1.0001) {
		return false
	}
	m.Entries = append(m.Entries, e)
	return true
}

// price returns the price of the basic variable of row i.
func (m *Master) price(i int) float64 {
	if b := m.Basis[i]; b >= 0 {
		return m.Entries[b].Price
	}
	return 0
}

// total returns the price of the relaxation.
func (m *Master) total() float64 {
	t := 0.0
	for i := range m.Basis {
		t += float64(m.price(i) * m.X[i])
	}
	return t
}

func (m *Master) setDuals() {
	clear(m.Y)
	for i, row := range m.Inverse {
		if c := m.price(i); c != 0 {
			for j, v := range row {
				m.Y[j] += float64(c * v)
			}
		}
	}
}

// setValues rounds the duals down to integers.
func (m *Master) setValues() {
	m.setDuals()
	for i, k := range m.Rows {
		v := math.Floor(float64(m.Y[i] * pricing.Scale))
		m.Values[k] = int64(min(max(v, 0), float64(m.p.Worthiest)))
	}
}

// Solve pivots until no column has a negative reduced cost, at most most times and until it is stopped. It returns the number of pivots.
func (m *Master) Solve(most int, stopped func() bool) int {
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

// noEntry is returned if nothing improves the relaxation.
const noEntry = 1 << 30

// entering returns the entry or surplus to enter the basis, or noEntry.
func (m *Master) entering() int {
	best, gain := noEntry, 1e-9
	for i := range m.Entries {
		e := &m.Entries[i]
		if e.Basic {
			continue
		}
		v := e.in(m.Y)
		if v <= e.Price {
			continue
		}
		if g := v/e.Price - 1; g > gain {
			best, gain = i, g
		}
	}
	if best != noEntry {
		return best
	}
	// A negative dual means that covering the row exactly costs more than covering more than the demand.
	least := -1e-6
	for i, y := range m.Y {
		if y < least {
			best, least = -1-i, y
		}
	}
	return best
}

// reduced returns the reduced cost of an entry, or of the surplus of a row.
func (m *Master) reduced(enter int) float64 {
	if enter < 0 {
		return m.Y[-1-enter]
	}
	e := &m.Entries[enter]
	v, counts := e.Price, e.Counts[:len(e.Rows)]
	for j, r := range e.Rows {
		v -= float64(m.Y[r] * counts[j])
	}
	return v
}

// setDirection computes by how much the basic variables decrease per unit of the entering one.
func (m *Master) setDirection(enter int) {
	if enter < 0 {
		for i := range m.W {
			m.W[i] = -m.Inverse[i][-1-enter]
		}
		return
	}
	e := &m.Entries[enter]
	for i, row := range m.Inverse {
		m.W[i] = e.in(row)
	}
}

// leaving returns the row whose basic variable reaches 0 first, and how much enters until then. The row is -1 if there is none.
func (m *Master) leaving() (leave int, least float64) {
	leave = -1
	for i, v := range m.W {
		if v > lp.PivotMin {
			if t := max(0, m.X[i]) / v; leave < 0 || t < least || t == least && v > m.W[leave] {
				leave, least = i, t
			}
		}
	}
	return leave, least
}

// pivot brings an entry into the basis. It returns false if nothing can leave.
func (m *Master) pivot(enter int) bool {
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

// exchange replaces the basic variable of a row by an amount of an entry, and updates the duals for its reduced cost.
func (m *Master) exchange(enter, leave int, gain, amount float64) {
	if old := m.Basis[leave]; old >= 0 {
		m.Entries[old].Basic = false
	}
	m.Basis[leave] = enter
	if enter >= 0 {
		m.Entries[enter].Basic = true
	}
	for i := range m.X {
		m.X[i] -= float64(m.W[i] * amount)
	}
	m.X[leave] = amount
	lp.Eliminate(m.Inverse, leave, m.W)
	for j, v := range m.Inverse[leave] {
		m.Y[j] += float64(gain * v)
	}
}

// refactor computes the inverse of the basis and the amounts again.
func (m *Master) refactor() {
	if !m.invert() {
		return
	}
	m.setAmounts(m.Demand)
	for i, v := range m.X {
		m.X[i] = max(0, v)
	}
}

// setAmounts computes the amounts of the basic variables for a demand.
func (m *Master) setAmounts(demand []float64) {
	for i, row := range m.Inverse {
		m.X[i] = 0
		for j, d := range demand {
			m.X[i] += float64(row[j] * d)
		}
	}
}

// invert computes the inverse of the basis by elimination with the largest pivots. If a pivot is too small, it keeps the old inverse and returns false.
func (m *Master) invert() bool {
	n := len(m.Demand)
	m.work = blankRows(m.work, n, 2*n)
	work := m.work
	for i := range work {
		work[i][n+i] = 1
	}
	for j, b := range m.Basis {
		if b < 0 {
			work[-1-b][j] = -1
			continue
		}
		e := &m.Entries[b]
		for q, r := range e.Rows {
			work[r][j] = e.Counts[q]
		}
	}
	factors := m.W
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
		lp.Eliminate(work, j, factors)
	}
	for i := range n {
		copy(m.Inverse[i], work[i][n:])
	}
	return true
}

// whole returns the integral part of each column in the solution, and the columns with a fractional part, the largest first.
func (m *Master) whole() (times map[int]int32, parts []int) {
	times = map[int]int32{}
	part := map[int]float64{}
	for i, b := range m.Basis {
		if b < 0 || m.X[i] <= 0 || m.Entries[b].Column < 0 {
			continue
		}
		c := m.Entries[b].Column
		n := math.Floor(m.X[i] + 1e-6)
		if n > 0 {
			times[c] = int32(min(n, 1<<30))
		}
		if f := m.X[i] - n; f > 1e-6 {
			parts, part[c] = append(parts, c), f
		}
	}
	slices.SortFunc(parts, func(a, b int) int { return cmp.Or(cmp.Compare(part[b], part[a]), cmp.Compare(a, b)) })
	return times, parts
}

// AddRow adds an empty row with a demand ≥ 0, which an artificial column at a price covers. It returns the row.
func (m *Master) AddRow(demand, price float64) int {
	r := len(m.Demand)
	for i := range m.Inverse {
		m.Inverse[i] = append(m.Inverse[i], 0)
	}
	row := make([]float64, r+1)
	row[r] = 1
	m.Inverse, m.X, m.Demand = append(m.Inverse, row), append(m.X, demand), append(m.Demand, demand)
	m.Basis, m.Y, m.W = append(m.Basis, len(m.Entries)), append(m.Y, 0), append(m.W, 0)
	m.Entries = append(m.Entries, Entry{Price: price, Column: -1, Offer: -1, Rows: []int32{int32(r)}, Counts: []float64{1}, Basic: true})
	return r
}

// AddColumn adds a column that launches nothing. It has a price, counts once in a row of [Master.AddRow], and covers pods. It returns its entry.
func (m *Master) AddColumn(price float64, pods pack.Load, row int) int {
	e := Entry{Price: price, Column: -1, Offer: -1, Rows: []int32{int32(row)}, Counts: []float64{1}}
	for k, n := range pods {
		if n > 0 && m.At[k] >= 0 {
			e.Rows, e.Counts = append(e.Rows, int32(m.At[k])), append(e.Counts, float64(n))
		}
	}
	m.Entries = append(m.Entries, e)
	return len(m.Entries) - 1
}
