package lp

import (
	"iter"
	"math"
	"slices"
)

// Simplex finds the amounts of columns that cost least and satisfy all rows:
//
//	min Σ price·x  subject to  Σ coefficient·x ≥ demand for each row,  0 ≤ x ≤ most for each column
//
// A limit is a row with negative coefficients and a negative demand, and a value is a negative price.
//
// It is a revised simplex method for bounded variables, with a dense inverse of the basis. All methods keep a basic solution that satisfies all rows, so
// [Simplex.Solve] continues from the solution before. The zero value is a program without rows and columns.
//
// It works in floating point and is only a heuristic: no proof depends on it. Products are converted one by one, so that no compiler fuses them with a sum and
// all computers get the same result.
type Simplex struct {
	columns []column
	demand  []float64
	basis   []int       // by row: a column, or -1-r for the surplus of row r
	inverse [][]float64 // of the basis
	amounts []float64   // of the basic variables, by row
	duals   []float64
	// direction is by how much the basic variables decrease per unit of the entering variable.
	direction []float64
	work      [][]float64 // scratch of invert
	filled    []int32     // scratch of eliminate
	pivots    int
}

// column is a variable with its nonzero coefficients.
type column struct {
	price float64
	// scale is the reference for gains of the column. It is 0 if the price is.
	scale        float64
	most         float64 // +Inf if there is no bound
	rows         []int32
	coefficients []float64
	at           int // its row of the basis, or one of the constants below
}

// in returns the sum of the coefficients of a column, weighted by row.
func (c *column) in(weights []float64) float64 {
	sum, coefficients := 0.0, c.coefficients[:len(c.rows)]
	for j, r := range c.rows {
		sum += float64(weights[r] * coefficients[j])
	}
	return sum
}

// Where a nonbasic column is: at 0 or at its bound.
const (
	empty = -1
	full  = -2
)

const (
	// invertEvery is the number of pivots after which the inverse is computed again, so that rounding errors do not add up.
	invertEvery = 150
	// minPivot is the smallest pivot that is safe to divide by. minPivotInverted is that of an inversion.
	minPivot         = 1e-9
	minPivotInverted = 1e-11
	// minGain is the smallest gain of a column, relative to its price, that is not a rounding error. minDual is the smallest such dual, relative to
	// the highest price in the basis.
	minGain = 1e-9
	minDual = 1e-12
)

// Reset sets the numbers of rows and columns to 0. It keeps the memory.
func (s *Simplex) Reset() {
	s.columns, s.demand, s.basis, s.inverse = s.columns[:0], s.demand[:0], s.basis[:0], s.inverse[:0]
	s.amounts, s.duals, s.direction, s.pivots = s.amounts[:0], s.duals[:0], s.direction[:0], 0
}

// Grow allocates memory for more columns.
func (s *Simplex) Grow(columns int) { s.columns = slices.Grow(s.columns, columns) }

// Clone returns a copy that can be changed independently.
func (s *Simplex) Clone() Simplex {
	c := *s
	c.work, c.filled = nil, nil
	c.columns, c.demand, c.basis = slices.Clone(s.columns), slices.Clone(s.demand), slices.Clone(s.basis)
	c.amounts, c.duals, c.direction = slices.Clone(s.amounts), slices.Clone(s.duals), slices.Clone(s.direction)
	c.inverse = make([][]float64, len(s.inverse))
	for i := range c.inverse {
		c.inverse[i] = slices.Clone(s.inverse[i])
	}
	return c
}

// AddColumn adds a column at amount 0 and returns its index. With a price of 0 it stays there unless it has a scale. The column owns the slices.
func (s *Simplex) AddColumn(price, most float64, rows []int32, coefficients []float64) int {
	s.columns = append(s.columns, column{price: price, most: most, rows: rows, coefficients: coefficients, at: empty})
	return len(s.columns) - 1
}

// AddRow adds a row and returns its index. coefficient returns the coefficient of a column. If the solution does not satisfy the row, the column cover is
// increased until it does; it has no coefficient in any other row. cover is -1 if the solution satisfies the row.
func (s *Simplex) AddRow(demand float64, coefficient func(column int) float64, cover int) int {
	r := len(s.demand)
	s.inverse = slices.Grow(s.inverse, 1)[:r+1]
	s.inverse[r] = blank(s.inverse[r], r+1)
	row, surplus := s.inverse[r], -demand
	for i, b := range s.basis {
		s.inverse[i] = append(s.inverse[i], 0)
		if b < 0 {
			continue
		}
		if f := coefficient(b); f != 0 {
			surplus += float64(f * s.amounts[i])
			for j, v := range s.inverse[i] {
				row[j] += float64(f * v)
			}
		}
	}
	for j := range s.columns {
		c := &s.columns[j]
		if f := coefficient(j); f != 0 {
			// Clones share the memory.
			c.rows, c.coefficients = append(slices.Clip(c.rows), int32(r)), append(slices.Clip(c.coefficients), f)
			if c.at == full {
				surplus += float64(f * c.most)
			}
		}
	}
	enters, f := -1-r, -1.0
	if surplus < 0 {
		enters, f = cover, coefficient(cover)
		s.columns[cover].at = r
	}
	for j := range row {
		row[j] /= -f
	}
	row[r] = 1 / f
	s.basis, s.amounts, s.demand = append(s.basis, enters), append(s.amounts, -surplus/f), append(s.demand, demand)
	s.duals, s.direction = append(s.duals, 0), append(s.direction, 0)
	s.raiseDuals(r, s.price(r))
	return r
}

// Rows returns the number of rows.
func (s *Simplex) Rows() int { return len(s.demand) }

// SetPrice changes the price of a column.
func (s *Simplex) SetPrice(column int, price float64) { s.columns[column].price = price }

// SetScale sets the reference for gains of a column without a price.
func (s *Simplex) SetScale(column int, scale float64) { s.columns[column].scale = scale }

// SetMax changes the bound of a column. If the column is not at amount 0, all columns are set to 0, which must satisfy all rows.
func (s *Simplex) SetMax(column int, most float64) {
	c := &s.columns[column]
	if c.most != most && c.at != empty {
		s.clear()
	}
	c.most = most
}

// clear sets all amounts to 0.
func (s *Simplex) clear() {
	for j := range s.columns {
		s.columns[j].at = empty
	}
	for r, demand := range s.demand {
		clear(s.inverse[r])
		s.inverse[r][r] = -1
		s.basis[r], s.amounts[r] = -1-r, -demand
	}
}

// Duals returns the increase of the cost per unit of demand, by row. It is valid until the program changes.
func (s *Simplex) Duals() []float64 { return s.duals }

// Cost returns the cost of the solution, without columns at their bounds.
func (s *Simplex) Cost() float64 {
	t := 0.0
	for i, x := range s.amounts {
		t += float64(s.price(i) * x)
	}
	return t
}

// Basic returns the columns of the basis with their amounts.
func (s *Simplex) Basic() iter.Seq2[int, float64] {
	return func(yield func(int, float64) bool) {
		for i, b := range s.basis {
			if b >= 0 && !yield(b, s.amounts[i]) {
				return
			}
		}
	}
}

// Amount returns the amount of a column.
func (s *Simplex) Amount(column int) float64 {
	switch c := &s.columns[column]; c.at {
	case empty:
		return 0
	case full:
		return c.most
	default:
		return s.amounts[c.at]
	}
}

// Solve pivots until the solution is optimal, until it has made most pivots, or until it is stopped. It returns the number of pivots. If stopped is
// nil, it is never stopped.
func (s *Simplex) Solve(most int, stopped func() bool) (pivots int) {
	s.setDuals()
	for ; pivots < most; pivots++ {
		enter, ok := s.entering()
		if !ok || stopped != nil && stopped() || !s.pivot(enter) {
			break
		}
	}
	s.setDuals()
	return pivots
}

// entering returns the column with the greatest gain relative to its price or scale. If there is none, it returns the surplus of the row with the least
// dual: covering the demand of such a row exactly costs more than covering more. ok is false if nothing reduces the cost.
func (s *Simplex) entering() (enter int, ok bool) {
	gain := minGain
	for j := range s.columns {
		c := &s.columns[j]
		if c.at >= 0 || c.most == 0 || c.price == 0 && c.scale == 0 {
			continue
		}
		v := c.in(s.duals)
		if (v > c.price) == (c.at == full) {
			continue
		}
		g := math.Abs(v/c.price - 1)
		if c.scale > 0 {
			g = math.Abs(v-c.price) / c.scale
		}
		if g > gain {
			enter, gain, ok = j, g, true
		}
	}
	if ok {
		return enter, true
	}
	highest := 0.0
	for r := range s.basis {
		highest = max(highest, math.Abs(s.price(r)))
	}
	least := -minDual * highest
	for r, y := range s.duals {
		if y < least {
			enter, least, ok = -1-r, y, true
		}
	}
	return enter, ok
}

// price returns the price of the basic variable of a row.
func (s *Simplex) price(row int) float64 {
	if b := s.basis[row]; b >= 0 {
		return s.columns[b].price
	}
	return 0
}

// bound returns the greatest amount of the basic variable of a row.
func (s *Simplex) bound(row int) float64 {
	if b := s.basis[row]; b >= 0 {
		return s.columns[b].most
	}
	return math.Inf(1)
}

func (s *Simplex) setDuals() {
	clear(s.duals)
	for i := range s.inverse {
		s.raiseDuals(i, s.price(i))
	}
}

// raiseDuals adds a row of the inverse times f to the duals.
func (s *Simplex) raiseDuals(row int, f float64) {
	if f != 0 {
		for j, v := range s.inverse[row] {
			s.duals[j] += float64(f * v)
		}
	}
}

// reduced returns the reduced cost of a column, or of the surplus of a row.
func (s *Simplex) reduced(enter int) float64 {
	if enter < 0 {
		return s.duals[-1-enter]
	}
	c := &s.columns[enter]
	cost, coefficients := c.price, c.coefficients[:len(c.rows)]
	for j, r := range c.rows {
		cost -= float64(s.duals[r] * coefficients[j])
	}
	return cost
}

func (s *Simplex) setDirection(enter int) {
	if enter < 0 {
		for i := range s.direction {
			s.direction[i] = -s.inverse[i][-1-enter]
		}
		return
	}
	c := &s.columns[enter]
	for i, row := range s.inverse {
		s.direction[i] = c.in(row)
	}
}

// leaving returns the row whose basic variable first reaches a limit if the entering variable changes in the direction of sign, the change until then,
// and whether the limit is the upper one. The row is -1 if no limit is reached before the change is far.
func (s *Simplex) leaving(sign, far float64) (leave int, change float64, atMost bool) {
	leave = -1
	for i, v := range s.direction {
		v = sign * v
		var t float64
		switch {
		case v > minPivot:
			t = max(0, s.amounts[i]) / v
		case v < -minPivot:
			t = max(0, s.bound(i)-s.amounts[i]) / -v
		default:
			continue
		}
		if t < far || leave >= 0 && t == far && math.Abs(v) > math.Abs(s.direction[leave]) {
			leave, far, atMost = i, t, v < 0
		}
	}
	return leave, far, atMost
}

// pivot changes the amount of a column or surplus until it or a basic variable reaches a limit. It returns false if there is no such limit.
func (s *Simplex) pivot(enter int) bool {
	sign, from, far := 1.0, 0.0, math.Inf(1)
	if enter >= 0 {
		c := &s.columns[enter]
		if far = c.most; c.at == full {
			sign, from = -1, c.most
		}
	}
	s.setDirection(enter)
	leave, change, atMost := s.leaving(sign, far)
	if math.IsInf(change, 1) {
		return false
	}
	if leave < 0 {
		s.move(float64(sign * change))
		s.columns[enter].at = empty + full - s.columns[enter].at
		return true
	}
	to := empty
	if atMost {
		to = full
	}
	s.exchange(enter, leave, from, float64(sign*change), to)
	if s.pivots == invertEvery {
		s.refresh()
		for i, x := range s.amounts {
			// Small violations of limits are rounding errors.
			s.amounts[i] = min(max(0, x), s.bound(i))
		}
	}
	return true
}

// move changes the basic variables for a change of the entering one.
func (s *Simplex) move(change float64) {
	for i, v := range s.direction {
		s.amounts[i] -= float64(v * change)
	}
}

// exchange changes the entering variable and puts it into the basis in place of that of a row, which goes to one of its limits.
func (s *Simplex) exchange(enter, leave int, from, change float64, to int) {
	cost := s.reduced(enter)
	s.move(change)
	if old := s.basis[leave]; old >= 0 {
		s.columns[old].at = to
	}
	if enter >= 0 {
		s.columns[enter].at = leave
	}
	s.basis[leave], s.amounts[leave] = enter, from+change
	s.eliminate(s.inverse, leave, s.direction)
	s.raiseDuals(leave, cost)
	s.pivots++
}

// refresh computes the inverse of the basis, the amounts and the duals again.
func (s *Simplex) refresh() {
	s.invert()
	s.pivots = 0
	demand := slices.Clone(s.demand)
	for j := range s.columns {
		if c := &s.columns[j]; c.at == full {
			for i, r := range c.rows {
				demand[r] -= float64(c.most * c.coefficients[i])
			}
		}
	}
	for i, row := range s.inverse {
		x := 0.0
		for j, d := range demand {
			x += float64(row[j] * d)
		}
		s.amounts[i] = x
	}
	s.setDuals()
}

// invert computes the inverse of the basis by elimination with the largest pivots. If a pivot is too small, it keeps the old inverse.
func (s *Simplex) invert() {
	n := len(s.demand)
	s.work = blankRows(s.work, n, 2*n)
	for i, row := range s.work {
		row[n+i] = 1
	}
	for j, b := range s.basis {
		if b < 0 {
			s.work[-1-b][j] = -1
			continue
		}
		c := &s.columns[b]
		for i, r := range c.rows {
			s.work[r][j] = c.coefficients[i]
		}
	}
	factors := s.direction
	for j := range n {
		top := j
		for i := j + 1; i < n; i++ {
			if math.Abs(s.work[i][j]) > math.Abs(s.work[top][j]) {
				top = i
			}
		}
		if math.Abs(s.work[top][j]) < minPivotInverted {
			return
		}
		s.work[j], s.work[top] = s.work[top], s.work[j]
		for i := range factors {
			factors[i] = s.work[i][j]
		}
		s.eliminate(s.work, j, factors)
	}
	for i, row := range s.work {
		copy(s.inverse[i], row[n:])
	}
}

// eliminate divides a row by its factor, and subtracts it from each other row times that row's factor. Many rows of large programs are mostly 0.
func (s *Simplex) eliminate(rows [][]float64, row int, factors []float64) {
	of := rows[row]
	f := 1 / factors[row]
	s.filled = s.filled[:0]
	for j := range of {
		if of[j] = float64(of[j] * f); of[j] != 0 {
			s.filled = append(s.filled, int32(j))
		}
	}
	sparse := 2*len(s.filled) < len(of)
	for i, to := range rows {
		f := factors[i]
		switch {
		case i == row || f == 0:
		case sparse:
			for _, j := range s.filled {
				to[j] -= float64(f * of[j])
			}
		default:
			for j, v := range of {
				to[j] -= float64(f * v)
			}
		}
	}
}

// blank returns n zeros, in the memory of a slice that is no longer used.
func blank[T any](room []T, n int) []T {
	room = slices.Grow(room[:0], n)[:n]
	clear(room)
	return room
}

// blankRows returns rows of zeros, in the memory of rows that are no longer used.
func blankRows(room [][]float64, rows, columns int) [][]float64 {
	room = slices.Grow(room[:0], rows)[:rows]
	for i := range room {
		room[i] = blank(room[i], columns)
	}
	return room
}
