package lp

import "karve.sh/karve/pkg/planner/internal/amount"

// relaxedRows is the number of constraints of the relaxation of one machine: its dimensions.
const relaxedRows = amount.Dims

// relaxSteps bounds the pivots of a machine's relaxation. Any duals that it ends with give valid bounds.
const relaxSteps = 60

// Bounded is a small linear program: it chooses fractional amounts of columns with the greatest total value, within the limits of rows and columns. It is
// solved by the simplex method for bounded variables, and starts from the previous basis, because usually only the values have changed.
//
// It works in floating point and is only a heuristic: bounds that are derived from its duals are valid whatever these are. Products are converted one by one,
// so that no compiler fuses them with a sum and all computers decide alike.
type Bounded struct {
	Rows  int
	Limit [relaxedRows]float64 // of each row
	Cols  []BoundedColumn
	basis [relaxedRows]int // a column, or -1-r for the slack of row r
	x     [relaxedRows]float64
	inv   [relaxedRows][relaxedRows]float64
	Price [relaxedRows]float64 // the dual of each row
}

type BoundedColumn struct {
	Value float64
	Use   [relaxedRows]float64
	Most  float64
	full  bool // nonbasic at its limit
	basic bool
}

// PivotMin is the smallest pivot that is safe to divide by.
const PivotMin = 1e-9

// Empty resets the basis to the slacks, with all columns at 0.
func (l *Bounded) Empty() {
	for r := range l.Rows {
		l.basis[r] = -1 - r
		l.x[r] = l.Limit[r]
		l.inv[r] = [relaxedRows]float64{}
		l.inv[r][r] = 1
	}
	for c := range l.Cols {
		l.Cols[c].full, l.Cols[c].basic = false, false
	}
}

// Amount returns the amount of a column in the solution.
func (l *Bounded) Amount(c int) float64 {
	col := &l.Cols[c]
	switch {
	case col.full:
		return col.Most
	case !col.basic:
		return 0
	}
	for r := range l.Rows {
		if l.basis[r] == c {
			return l.x[r]
		}
	}
	return 0
}

func (l *Bounded) setPrices() {
	l.Price = [relaxedRows]float64{}
	for r := range l.Rows {
		if b := l.basis[r]; b >= 0 {
			v := l.Cols[b].Value
			for q := range l.Rows {
				l.Price[q] += float64(v * l.inv[r][q])
			}
		}
	}
}

// Solve makes at most relaxSteps pivots.
func (l *Bounded) Solve() {
	largest := 0.0
	for c := range l.Cols {
		largest = max(largest, l.Cols[c].Value)
	}
	// A gain that is this small relative to the values is a rounding error.
	least := float64(1e-9 * largest)
	for range relaxSteps {
		l.setPrices()
		enter, gain, down := -1-relaxedRows, 0.0, false
		for c := range l.Cols {
			col := &l.Cols[c]
			if col.basic || col.Most <= 0 {
				continue
			}
			d := col.Value
			for r := range l.Rows {
				d -= float64(l.Price[r] * col.Use[r])
			}
			if col.full {
				d = -d
			}
			if d > least && float64(d*col.Most) > gain {
				enter, gain, down = c, float64(d*col.Most), col.full
			}
		}
		for r := range l.Rows {
			if d := -l.Price[r]; d > least && float64(d*l.Limit[r]) > gain {
				enter, gain, down = -1-r, float64(d*l.Limit[r]), false
			}
		}
		if gain <= 0 || !l.move(enter, down) {
			break
		}
	}
	l.setPrices()
}

// leaving returns the row of the basis whose variable first reaches a limit, how far the entering variable moves until then, and whether the limit is the
// upper one. The row is -1 if none does within far.
func (l *Bounded) leaving(w *[relaxedRows]float64, sign, far float64) (leave int, until float64, atTop bool) {
	leave = -1
	for r := range l.Rows {
		d := float64(sign * w[r])
		b := l.basis[r]
		if d > PivotMin {
			if t := max(0, l.x[r]) / d; t < far {
				far, leave, atTop = t, r, false
			}
		} else if d < -PivotMin && b >= 0 {
			if t := max(0, l.Cols[b].Most-l.x[r]) / -d; t < far {
				far, leave, atTop = t, r, true
			}
		}
	}
	return leave, far, atTop
}

// direction returns by how much the basic variables decrease per unit of the entering one.
func (l *Bounded) direction(enter int) (w [relaxedRows]float64) {
	for r := range l.Rows {
		if enter < 0 {
			w[r] = l.inv[r][-1-enter]
			continue
		}
		for q := range l.Rows {
			w[r] += float64(l.inv[r][q] * l.Cols[enter].Use[q])
		}
	}
	return w
}

// move changes the amount of one column, up or down, until it or a basic variable reaches a limit. It returns false if there is no such limit.
func (l *Bounded) move(enter int, down bool) bool {
	w := l.direction(enter)
	far := 1e300
	if enter >= 0 {
		far = l.Cols[enter].Most
	}
	sign := 1.0
	if down {
		sign = -1
	}
	leave, far, atTop := l.leaving(&w, sign, far)
	if far >= 1e299 {
		return false
	}
	for r := range l.Rows {
		l.x[r] -= float64(float64(sign*w[r]) * far)
	}
	if leave < 0 {
		l.Cols[enter].full = !down
		return true
	}
	if old := l.basis[leave]; old >= 0 {
		l.Cols[old].basic, l.Cols[old].full = false, atTop
	}
	at := far
	if down {
		at = l.Cols[enter].Most - far
	}
	l.basis[leave], l.x[leave] = enter, at
	if enter >= 0 {
		l.Cols[enter].basic, l.Cols[enter].full = true, false
	}
	f := 1 / w[leave]
	for q := range l.Rows {
		l.inv[leave][q] = float64(l.inv[leave][q] * f)
	}
	for r := range l.Rows {
		if r != leave && w[r] != 0 {
			for q := range l.Rows {
				l.inv[r][q] -= float64(w[r] * l.inv[leave][q])
			}
		}
	}
	return true
}
