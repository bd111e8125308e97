package lp

// Packing is a small linear program: it chooses fractional amounts of columns with the greatest total value, within the limits of rows. It is solved by the
// simplex method and starts from the previous basis, because usually only the values have changed. Like [Bounded] it is only a heuristic, and no proof depends
// on it.
type Packing struct {
	Limit []float64 // of each row
	Cols  []Column
	Basis []int // a column, or -1-r for the slack of row r
	x     []float64
	inv   [][]float64
	Price []float64 // the dual of each row
	w     []float64
	moves int
}

// Column is a column: its value, and what one unit of it uses of some rows.
type Column struct {
	Value float64
	Rows  []int32
	Use   []float64
	Basic bool
}

// freshAfter is the number of pivots after which the solver starts again from the empty basis, so that rounding errors do not add up.
const freshAfter = 300

// Empty resets the basis to the slacks, with all columns at 0.
func (b *Packing) Empty() {
	n := len(b.Limit)
	b.Basis, b.moves = make([]int, n), 0
	b.x, b.Price, b.w, b.inv = append([]float64(nil), b.Limit...), make([]float64, n), make([]float64, n), make([][]float64, n)
	for r := range n {
		b.Basis[r] = -1 - r
		b.inv[r] = make([]float64, n)
		b.inv[r][r] = 1
	}
	for c := range b.Cols {
		b.Cols[c].Basic = false
	}
}

// Amount returns the amount of a column in the solution.
func (b *Packing) Amount(c int) float64 {
	if b.Cols[c].Basic {
		for r, at := range b.Basis {
			if at == c {
				return max(0, b.x[r])
			}
		}
	}
	return 0
}

func (b *Packing) setPrices() {
	clear(b.Price)
	for r, c := range b.Basis {
		if c >= 0 && b.Cols[c].Value != 0 {
			v := b.Cols[c].Value
			for q, f := range b.inv[r] {
				b.Price[q] += float64(v * f)
			}
		}
	}
}

// Solve makes at most relaxSteps pivots, and two more for each row.
func (b *Packing) Solve() {
	if b.moves > freshAfter {
		b.Empty()
	}
	largest := 0.0
	for c := range b.Cols {
		largest = max(largest, b.Cols[c].Value)
	}
	// A gain that is this small relative to the values is a rounding error.
	least := float64(1e-9 * largest)
	for range relaxSteps + 2*len(b.Limit) {
		b.setPrices()
		enter, gain := 0, least
		found := false
		for c := range b.Cols {
			col := &b.Cols[c]
			if col.Basic {
				continue
			}
			d := col.Value
			for i, r := range col.Rows {
				d -= float64(b.Price[r] * col.Use[i])
			}
			if d > gain {
				enter, gain, found = c, d, true
			}
		}
		for r, p := range b.Price {
			if -p > gain {
				enter, gain, found = -1-r, -p, true
			}
		}
		if !found || !b.move(enter) {
			break
		}
	}
	b.setPrices()
}

// move brings a column or the slack of a row into the basis. It returns false if nothing can leave.
func (b *Packing) move(enter int) bool {
	for r, row := range b.inv {
		b.w[r] = 0
		if enter < 0 {
			b.w[r] = row[-1-enter]
			continue
		}
		col := &b.Cols[enter]
		for i, q := range col.Rows {
			b.w[r] += float64(row[q] * col.Use[i])
		}
	}
	leave, far := -1, 0.0
	for r, w := range b.w {
		if w > PivotMin {
			if t := max(0, b.x[r]) / w; leave < 0 || t < far || t == far && w > b.w[leave] {
				leave, far = r, t
			}
		}
	}
	if leave < 0 {
		return false
	}
	if old := b.Basis[leave]; old >= 0 {
		b.Cols[old].Basic = false
	}
	for r, w := range b.w {
		b.x[r] -= float64(w * far)
	}
	b.Basis[leave], b.x[leave] = enter, far
	if enter >= 0 {
		b.Cols[enter].Basic = true
	}
	Eliminate(b.inv, leave, b.w)
	b.moves++
	return true
}

// Eliminate divides a row by its factor, and subtracts it from each other row times that row's factor.
func Eliminate(rows [][]float64, row int, factors []float64) {
	of := rows[row]
	f := 1 / factors[row]
	for j := range of {
		of[j] = float64(of[j] * f)
	}
	for i, to := range rows {
		if f := factors[i]; i != row && f != 0 {
			for j, v := range of {
				to[j] -= float64(f * v)
			}
		}
	}
}
