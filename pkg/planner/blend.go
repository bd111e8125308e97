package planner

// blend is a small linear programme: which amounts of columns are worth most together within the rows. It is solved by the simplex method and starts from
// where it ended, since mostly only the worths have changed. Like [relaxation] it only guides, and nothing that is proven rests on it.
type blend struct {
	limit []float64 // of each row
	cols  []blended
	basis []int // a column, or -1-r for what is left of row r
	x     []float64
	inv   [][]float64
	price []float64 // of each row
	w     []float64
	moves int
}

// blended is a column: what one of it takes of some rows.
type blended struct {
	value float64
	rows  []int32
	use   []float64
	basic bool
}

// freshAfter is after how many steps a blend begins anew, so that rounding does not add up.
const freshAfter = 300

// empty begins with nothing of any column.
func (b *blend) empty() {
	n := len(b.limit)
	b.basis, b.moves = make([]int, n), 0
	b.x, b.price, b.w, b.inv = append([]float64(nil), b.limit...), make([]float64, n), make([]float64, n), make([][]float64, n)
	for r := range n {
		b.basis[r] = -1 - r
		b.inv[r] = make([]float64, n)
		b.inv[r][r] = 1
	}
	for c := range b.cols {
		b.cols[c].basic = false
	}
}

// amount returns how much of a column there is.
func (b *blend) amount(c int) float64 {
	if b.cols[c].basic {
		for r, at := range b.basis {
			if at == c {
				return max(0, b.x[r])
			}
		}
	}
	return 0
}

func (b *blend) setPrices() {
	clear(b.price)
	for r, c := range b.basis {
		if c >= 0 && b.cols[c].value != 0 {
			v := b.cols[c].value
			for q, f := range b.inv[r] {
				b.price[q] += float64(v * f)
			}
		}
	}
}

// solve makes at most relaxSteps steps, and a few for each row.
func (b *blend) solve() {
	if b.moves > freshAfter {
		b.empty()
	}
	largest := 0.0
	for c := range b.cols {
		largest = max(largest, b.cols[c].value)
	}
	// A gain that is so small beside the worths is rounding.
	least := float64(1e-9 * largest)
	for range relaxSteps + 2*len(b.limit) {
		b.setPrices()
		enter, gain := 0, least
		found := false
		for c := range b.cols {
			col := &b.cols[c]
			if col.basic {
				continue
			}
			d := col.value
			for i, r := range col.rows {
				d -= float64(b.price[r] * col.use[i])
			}
			if d > gain {
				enter, gain, found = c, d, true
			}
		}
		for r, p := range b.price {
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

// move brings in a column, or what is left of a row.
func (b *blend) move(enter int) bool {
	for r, row := range b.inv {
		b.w[r] = 0
		if enter < 0 {
			b.w[r] = row[-1-enter]
			continue
		}
		col := &b.cols[enter]
		for i, q := range col.rows {
			b.w[r] += float64(row[q] * col.use[i])
		}
	}
	leave, far := -1, 0.0
	for r, w := range b.w {
		if w > pivotMin {
			if t := max(0, b.x[r]) / w; leave < 0 || t < far || t == far && w > b.w[leave] {
				leave, far = r, t
			}
		}
	}
	if leave < 0 {
		return false
	}
	if old := b.basis[leave]; old >= 0 {
		b.cols[old].basic = false
	}
	for r, w := range b.w {
		b.x[r] -= float64(w * far)
	}
	b.basis[leave], b.x[leave] = enter, far
	if enter >= 0 {
		b.cols[enter].basic = true
	}
	eliminate(b.inv, leave, b.w)
	b.moves++
	return true
}

// eliminate divides a row by its factor and takes it, each by its own factor, from the others.
func eliminate(rows [][]float64, row int, factors []float64) {
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
