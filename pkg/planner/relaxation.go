package planner

// relaxedRows is how many constraints the relaxation of one machine has: its dimensions.
const relaxedRows = dims

// relaxSteps bounds the steps of a machine's relaxation; any prices that it ends with give valid bounds.
const relaxSteps = 60

// relaxation is a small linear programme: which fractions of columns are worth most within the rows, each column up to its limit. It is solved
// by the simplex method for bounded variables and starts from where it ended, since mostly only the worths have changed.
//
// It works in floating point and only guides: whatever its prices are, the bounds that are drawn from them are valid. Products are
// converted one by one, so that no machine fuses them with a sum and decides otherwise.
type relaxation struct {
	rows  int
	limit [relaxedRows]float64 // of each row
	cols  []relaxedColumn
	basis [relaxedRows]int // a column, or -1-r for what is left of row r
	x     [relaxedRows]float64
	inv   [relaxedRows][relaxedRows]float64
	price [relaxedRows]float64 // of each row
}

type relaxedColumn struct {
	value float64
	use   [relaxedRows]float64
	most  float64
	full  bool // not in the basis, and at its limit
	basic bool
}

// pivotMin is the least pivot that is safe to divide by.
const pivotMin = 1e-9

// empty begins with nothing of any column.
func (l *relaxation) empty() {
	for r := range l.rows {
		l.basis[r] = -1 - r
		l.x[r] = l.limit[r]
		l.inv[r] = [relaxedRows]float64{}
		l.inv[r][r] = 1
	}
	for c := range l.cols {
		l.cols[c].full, l.cols[c].basic = false, false
	}
}

// amount returns how much of a column there is.
func (l *relaxation) amount(c int) float64 {
	col := &l.cols[c]
	switch {
	case col.full:
		return col.most
	case !col.basic:
		return 0
	}
	for r := range l.rows {
		if l.basis[r] == c {
			return l.x[r]
		}
	}
	return 0
}

func (l *relaxation) setPrices() {
	l.price = [relaxedRows]float64{}
	for r := range l.rows {
		if b := l.basis[r]; b >= 0 {
			v := l.cols[b].value
			for q := range l.rows {
				l.price[q] += float64(v * l.inv[r][q])
			}
		}
	}
}

// solve makes at most relaxSteps steps.
func (l *relaxation) solve() {
	largest := 0.0
	for c := range l.cols {
		largest = max(largest, l.cols[c].value)
	}
	// A gain that is so small beside the worths is rounding.
	least := float64(1e-9 * largest)
	for range relaxSteps {
		l.setPrices()
		enter, gain, down := -1-relaxedRows, 0.0, false
		for c := range l.cols {
			col := &l.cols[c]
			if col.basic || col.most <= 0 {
				continue
			}
			d := col.value
			for r := range l.rows {
				d -= float64(l.price[r] * col.use[r])
			}
			if col.full {
				d = -d
			}
			if d > least && float64(d*col.most) > gain {
				enter, gain, down = c, float64(d*col.most), col.full
			}
		}
		for r := range l.rows {
			if d := -l.price[r]; d > least && float64(d*l.limit[r]) > gain {
				enter, gain, down = -1-r, float64(d*l.limit[r]), false
			}
		}
		if gain <= 0 || !l.move(enter, down) {
			break
		}
	}
	l.setPrices()
}

// leaving returns the row of the basis that is first at a limit, at its top or at nothing, and how far that is; -1 when it is not within far.
func (l *relaxation) leaving(w *[relaxedRows]float64, sign, far float64) (leave int, until float64, atTop bool) {
	leave = -1
	for r := range l.rows {
		d := float64(sign * w[r])
		b := l.basis[r]
		if d > pivotMin {
			if t := max(0, l.x[r]) / d; t < far {
				far, leave, atTop = t, r, false
			}
		} else if d < -pivotMin && b >= 0 {
			if t := max(0, l.cols[b].most-l.x[r]) / -d; t < far {
				far, leave, atTop = t, r, true
			}
		}
	}
	return leave, far, atTop
}

// direction is how the amounts of the basis fall with what enters.
func (l *relaxation) direction(enter int) (w [relaxedRows]float64) {
	for r := range l.rows {
		if enter < 0 {
			w[r] = l.inv[r][-1-enter]
			continue
		}
		for q := range l.rows {
			w[r] += float64(l.inv[r][q] * l.cols[enter].use[q])
		}
	}
	return w
}

// move changes the amount of one column, up or down, until it or one of the basis is at a limit.
func (l *relaxation) move(enter int, down bool) bool {
	w := l.direction(enter)
	far := 1e300
	if enter >= 0 {
		far = l.cols[enter].most
	}
	sign := 1.0
	if down {
		sign = -1
	}
	leave, far, atTop := l.leaving(&w, sign, far)
	if far >= 1e299 {
		return false
	}
	for r := range l.rows {
		l.x[r] -= float64(float64(sign*w[r]) * far)
	}
	if leave < 0 {
		l.cols[enter].full = !down
		return true
	}
	if old := l.basis[leave]; old >= 0 {
		l.cols[old].basic, l.cols[old].full = false, atTop
	}
	at := far
	if down {
		at = l.cols[enter].most - far
	}
	l.basis[leave], l.x[leave] = enter, at
	if enter >= 0 {
		l.cols[enter].basic, l.cols[enter].full = true, false
	}
	f := 1 / w[leave]
	for q := range l.rows {
		l.inv[leave][q] = float64(l.inv[leave][q] * f)
	}
	for r := range l.rows {
		if r != leave && w[r] != 0 {
			for q := range l.rows {
				l.inv[r][q] -= float64(w[r] * l.inv[leave][q])
			}
		}
	}
	return true
}
