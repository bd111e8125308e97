package search

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/lp"
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/pricing"
)

// column is a pattern: an offer and a load for one machine of it, or a node group and a load for one of its nodes.
type column struct {
	Offer int // -1-h for a node of node group h
	Load  pack.Load
}

func onNodeGroup(h int, l pack.Load) column { return column{-1 - h, l} }

// nodeGroup returns the node group of the column, and whether it has one.
func (c column) nodeGroup() (h int, ok bool) { return -1 - c.Offer, c.Offer < 0 }

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
// cover the demand. Its duals are the marginal prices of one pod of each shape. They guide all later choices, and bounds are derived from them: they are
// rounded to integers first, so no proof depends on floating point.
type Master struct {
	// LP has one row for each of rows, for each stock and for each node group with free nodes, and then one for each cut or each row of [Master.AddRow].
	LP         lp.Simplex
	p          *pack.Problem
	rows       []int // the shapes with demand
	at         []int // the row of each shape, or -1
	nodeGroups []int // the row of each node group, or -1
	// stocks are the rows of the stocks that offers draw from, or -1. Each counts in units, so that its largest coefficient is 1.
	stocks []int
	units  []float64
	// relaxed is the number of node groups with rows.
	relaxed int
	// firstCut is the row of the first cut. scale is the reference for gains of columns whose price is not: those of nodes, which have none, and of offers that
	// draw from stocks.
	firstCut int
	scale    float64
	columns  []column
	origins  []origin // by column of LP
	known    map[string]bool
	cuts     []cardinality
	// surcharge is what a machine costs in addition to its price, by offer. It is nil if there are no surcharges.
	surcharge []float64
	Values    []int64 // duals by shape, in units of 1/pricing.Scale, rounded down
}

// origin is what a column of the linear program stands for. Empty machines and mixtures of loads that no machine may be able to hold, which only proofs use,
// have no column. Artificial columns and columns of nodes have no offer.
type origin struct {
	column int // -1 if there is none
	offer  int // -1 if there is none
}

// NewMaster returns a relaxation with its initial columns.
func NewMaster(p *pack.Problem, demand pack.Load) *Master {
	m := &Master{known: map[string]bool{}}
	m.begin(p, demand, p.Limits)
	return m
}

// begin starts with one column per shape: the machine with the lowest price per pod, filled with only that shape. It reuses the memory of the previous
// relaxation.
func (m *Master) begin(p *pack.Problem, demand pack.Load, left pack.Limits) {
	m.p, m.Values, m.at = p, blank(m.Values, len(demand)), blank(m.at, len(demand))
	m.LP.Reset()
	m.rows, m.columns, m.origins, m.cuts, m.surcharge, m.nodeGroups = m.rows[:0], m.columns[:0], m.origins[:0], m.cuts[:0], nil, nil
	m.scale, m.relaxed, m.stocks, m.units = 0, 0, m.stocks[:0], m.units[:0]
	if p.Stocked {
		m.scale = float64(p.Dearest())
	}
	clear(m.known)
	for k, n := range demand {
		m.at[k] = -1
		best := -1
		for t := range p.Offers {
			if f := min(n, p.Offers[t].Fits[k]); f > 0 && !p.Offers[t].MayRunOut() && (best < 0 || cheaperFor(p, t, best, f, min(n, p.Offers[best].Fits[k]))) {
				best = t
			}
		}
		if best < 0 {
			if n > 0 && p.Shapes[k].Launchable {
				m.addShape(k, n)
			}
			continue
		}
		l := make(pack.Load, len(demand))
		l[k] = min(n, p.Offers[best].Fits[k])
		// The column has no row yet.
		m.add(column{best, l})
		first := len(m.origins) - 1
		m.at[k] = m.LP.AddRow(float64(n), func(j int) float64 {
			if j == first {
				return float64(l[k])
			}
			return 0
		}, first)
		m.rows = append(m.rows, k)
	}
	m.addStocks(left)
	m.firstCut = m.LP.Rows()
	m.setValues()
}

// addShape adds the row of a shape of which no number of machines is sure to hold all pods. An artificial column costs more than any machine.
func (m *Master) addShape(k int, n int32) {
	m.at[k], _ = m.AddRow(float64(n), float64(m.p.Worthiest/pricing.Scale))
	m.rows = append(m.rows, k)
}

// addStocks adds the rows of the stocks that offers draw from, of which so much is left.
func (m *Master) addStocks(left pack.Limits) {
	if !m.p.Stocked {
		return
	}
	m.units = blank(m.units, len(m.p.Snapshot.Stocks))
	for t := range m.p.Offers {
		for _, d := range m.p.Offers[t].Draws {
			m.units[d.Stock] = max(m.units[d.Stock], float64(d.Amount))
		}
	}
	for i, unit := range m.units {
		row := -1
		if unit > 0 {
			row = m.LP.AddRow(-float64(left.Stock(i))/unit, func(int) float64 { return 0 }, -1)
		}
		m.stocks = append(m.stocks, row)
	}
}

// addNodeGroups adds the rows of the node groups, of which free has the number of nodes that the relaxation may use, and those of the shapes that only nodes hold. holds
// reports whether a node of any group holds pods of a shape.
func (m *Master) addNodeGroups(demand pack.Load, free []int64, holds func(k int) bool) {
	for k, n := range demand {
		if n > 0 && m.at[k] < 0 && holds(k) {
			m.addShape(k, n)
		}
	}
	m.nodeGroups, m.scale = slices.Repeat([]int{-1}, len(free)), max(1, float64(m.p.Dearest()))
	for h, n := range free {
		if n > 0 {
			m.nodeGroups[h] = m.LP.AddRow(float64(-n), func(int) float64 { return 0 }, -1)
			m.relaxed++
		}
	}
	m.firstCut = m.LP.Rows()
	m.setValues()
}

// blank returns n zeros, in the memory of a slice that is no longer used.
func blank[T any](room []T, n int) []T {
	room = slices.Grow(room[:0], n)[:n]
	clear(room)
	return room
}

// clone returns a copy that can be changed independently.
func (m *Master) clone() *Master {
	c := *m
	c.LP = m.LP.Clone()
	c.columns, c.origins, c.cuts = slices.Clone(m.columns), slices.Clone(m.origins), slices.Clone(m.cuts)
	c.known, c.Values, c.stocks, c.units = maps.Clone(m.known), slices.Clone(m.Values), slices.Clone(m.stocks), slices.Clone(m.units)
	return &c
}

// add adds a column to the relaxation unless it has it, and reports whether it was new. It adds no columns of nodes that are not free.
func (m *Master) add(c column) bool {
	if h, ok := c.nodeGroup(); ok && (len(m.nodeGroups) == 0 || m.nodeGroups[h] < 0) {
		return false
	}
	key := c.key()
	if m.known[key] {
		return false
	}
	m.known[key] = true
	rows, counts := m.limits(c.Offer, len(c.Load))
	for k, n := range c.Load {
		if n > 0 && m.at[k] >= 0 {
			rows, counts = append(rows, int32(m.at[k])), append(counts, float64(n))
		}
	}
	m.addColumn(origin{len(m.columns), max(-1, c.Offer)}, m.price(c.Offer), rows, counts)
	m.columns = append(m.columns, c)
	return true
}

// addColumn adds a column to the linear program and returns its index.
func (m *Master) addColumn(of origin, price float64, rows []int32, counts []float64) int {
	m.origins = append(m.origins, of)
	at := m.LP.AddColumn(price, math.Inf(1), rows, counts)
	if price == 0 || of.offer >= 0 && m.p.Offers[of.offer].MayRunOut() {
		m.LP.SetScale(at, m.scale)
	}
	return at
}

// price returns the price of a machine of an offer, with its surcharge, or 0 for a node.
func (m *Master) price(offer int) float64 {
	if offer < 0 {
		return 0
	}
	price := float64(m.p.Offers[offer].Price)
	if m.surcharge != nil {
		price += m.surcharge[offer]
	}
	return price
}

// limits returns the coefficients of a machine in the rows of stocks and in the cuts, or of a node in the row of its node group, with memory for more.
func (m *Master) limits(offer, more int) (rows []int32, counts []float64) {
	if h, ok := (column{Offer: offer}).nodeGroup(); ok {
		rows, counts = append(rows, int32(m.nodeGroups[h])), append(counts, -1)
		return slices.Grow(rows, more), slices.Grow(counts, more)
	}
	rows, counts = m.draws(m.p.Offers[offer].Draws, rows, counts)
	for i, c := range m.cuts {
		if c.serves[offer] {
			rows, counts = append(rows, int32(m.firstCut+i)), append(counts, c.sign)
		}
	}
	return slices.Grow(rows, more), slices.Grow(counts, more)
}

// draws adds the coefficients of a machine in the rows of the stocks. A stock that no offer draws from has none.
func (m *Master) draws(draws []planner.Draw, rows []int32, counts []float64) ([]int32, []float64) {
	for _, d := range draws {
		if d.Stock < len(m.stocks) && m.stocks[d.Stock] >= 0 {
			rows, counts = append(rows, int32(m.stocks[d.Stock])), append(counts, -float64(d.Amount)/m.units[d.Stock])
		}
	}
	return rows, counts
}

// expect allocates memory for more columns.
func (m *Master) expect(columns int) {
	m.columns, m.origins = slices.Grow(m.columns, columns), slices.Grow(m.origins, columns)
	m.LP.Grow(columns)
}

// mix adds a mixture of loads at the price of an offer, or for a node, and reports whether its reduced cost is negative.
func (m *Master) mix(offer int, amounts []float64) bool {
	if h, ok := (column{Offer: offer}).nodeGroup(); ok && (len(m.nodeGroups) == 0 || m.nodeGroups[h] < 0) {
		return false
	}
	value, duals := 0.0, m.LP.Duals()
	rows, counts := m.limits(offer, len(amounts))
	for k, n := range amounts {
		if n > 1e-9 && m.at[k] >= 0 {
			rows, counts = append(rows, int32(m.at[k])), append(counts, n)
		}
	}
	for i, r := range rows {
		value += float64(duals[r] * counts[i])
	}
	price := m.price(offer)
	least := float64(price * 1.0001)
	if offer < 0 || m.p.Offers[offer].MayRunOut() {
		least = price + float64(m.scale*minMixed)
	}
	if value <= least {
		return false
	}
	m.addColumn(origin{-1, max(-1, offer)}, price, rows, counts)
	return true
}

// minMixed is the smallest gain of a mixture for a node or for an offer that draws from stocks, as a fraction of the scale.
const minMixed = 1e-4

// setValues rounds the duals down to integers.
func (m *Master) setValues() {
	for _, k := range m.rows {
		v := math.Floor(float64(m.LP.Duals()[m.at[k]] * pricing.Scale))
		m.Values[k] = int64(min(max(v, 0), float64(m.p.Worthiest)))
	}
}

// Solve pivots until no column has a negative reduced cost, until it has made most pivots, or until it is stopped. It returns the number of pivots.
func (m *Master) Solve(most int, stopped func() bool) int {
	pivots := m.LP.Solve(most, stopped)
	m.setValues()
	return pivots
}

// whole returns the integral part of each column in the solution, and the columns with a fractional part, the largest first.
func (m *Master) whole() (times map[int]int32, parts []int) {
	times = map[int]int32{}
	part := map[int]float64{}
	for j, x := range m.LP.Basic() {
		c := m.origins[j].column
		if x <= 0 || c < 0 {
			continue
		}
		n := math.Floor(x + 1e-6)
		if n > 0 {
			times[c] = int32(min(n, 1<<30))
		}
		if f := x - n; f > 1e-6 {
			parts, part[c] = append(parts, c), f
		}
	}
	slices.SortFunc(parts, func(a, b int) int { return cmp.Or(cmp.Compare(part[b], part[a]), cmp.Compare(a, b)) })
	return times, parts
}

// launched returns how many machines of each offer the relaxation launches.
func (m *Master) launched() []float64 {
	n := make([]float64, len(m.p.Offers))
	for j, x := range m.LP.Basic() {
		if t := m.origins[j].offer; t >= 0 {
			n[t] += x
		}
	}
	return n
}

func (m *Master) require(c cardinality) {
	if c.sign > 0 {
		for t, serves := range c.serves {
			if serves {
				// Empty machines also satisfy the row, so that no dual exceeds a price.
				rows, counts := m.limits(t, 1)
				m.addColumn(origin{-1, t}, m.price(t), rows, counts)
			}
		}
	}
	cover := m.addColumn(origin{-1, -1}, 2*float64(m.p.Dearest()), nil, nil)
	m.LP.AddRow(float64(c.sign*float64(c.machines)), func(j int) float64 {
		switch t := m.origins[j].offer; {
		case j == cover:
			return 1
		case t >= 0 && c.serves[t]:
			return c.sign
		}
		return 0
	}, cover)
	m.cuts = append(m.cuts, c)
	m.setValues()
}

// restrict restricts a relaxation to the given numbers of machines: each machine beyond them costs extra times its price in addition.
func (m *Master) restrict(numbers []int64, extra float64) {
	m.surcharge = make([]float64, len(numbers))
	for t, n := range numbers {
		if n == 0 {
			m.surcharge[t] = float64(extra * m.reference(t))
		}
	}
	for j, of := range m.origins {
		if of.offer >= 0 {
			m.LP.SetPrice(j, m.price(of.offer))
		}
	}
	for t, n := range numbers {
		if n > 0 {
			serves := make([]bool, len(numbers))
			serves[t] = true
			m.require(cardinality{serves, -1, n})
			m.addColumn(origin{-1, -1}, float64(extra*m.reference(t)), []int32{int32(m.LP.Rows() - 1)}, []float64{1})
		}
	}
}

// reference returns the price of an offer, or the highest price if it draws from a stock: it may cost next to nothing.
func (m *Master) reference(t int) float64 {
	if m.p.Offers[t].MayRunOut() {
		return m.scale
	}
	return float64(m.p.Offers[t].Price)
}

// AddRow adds a row with a demand, and an artificial column that covers it at a price. It returns the row and the column.
func (m *Master) AddRow(demand, price float64) (row, column int) {
	cover := m.addColumn(origin{-1, -1}, price, nil, nil)
	return m.LP.AddRow(demand, func(j int) float64 {
		if j == cover {
			return 1
		}
		return 0
	}, cover), cover
}

// AddColumn adds a column that launches nothing. It has a price, counts once in a row of [Master.AddRow], draws from stocks, and covers pods. It returns its index
// in LP.
func (m *Master) AddColumn(price float64, draws []planner.Draw, pods pack.Load, row int) int {
	rows, counts := m.draws(draws, []int32{int32(row)}, []float64{1})
	for k, n := range pods {
		if n > 0 && m.at[k] >= 0 {
			rows, counts = append(rows, int32(m.at[k])), append(counts, float64(n))
		}
	}
	return m.addColumn(origin{-1, -1}, price, rows, counts)
}

// cheaperFor reports whether offer a has a lower price per pod than b if they hold fa and fb pods. At the same price per pod, the one that holds more wins,
// which gives fewer machines.
func cheaperFor(p *pack.Problem, a, b int, fa, fb int32) bool {
	switch amount.CompareProducts(p.Offers[a].Price, int64(fb), p.Offers[b].Price, int64(fa)) {
	case -1:
		return true
	case 0:
		return fa > fb
	}
	return false
}

// AddColumns adds the loads that were found as columns, and reports whether any was new.
func (m *Context) AddColumns(g *Master, found []pricing.Priced) bool {
	fresh := false
	for t := range found {
		for _, l := range found[t].Loads {
			if g.add(column{t, l}) {
				fresh = true
			}
		}
	}
	return fresh
}

// addNodeColumns adds the loads that were found for node groups as columns, and reports whether any was new.
func addNodeColumns(g *Master, found []pricing.Priced) bool {
	fresh := false
	for h := range found {
		for _, l := range found[h].Loads {
			fresh = g.add(onNodeGroup(h, l)) || fresh
		}
	}
	return fresh
}

// reoptimise solves the relaxation with its current columns and returns the number of pivots.
func (m *Context) reoptimise(g *Master) (pivots int) {
	n := int64(len(g.rows) + g.relaxed)
	pivots = g.Solve(MaxPivots, m.Effort.Stopped)
	m.Effort.Spend(int64(pivots) * (1 + n*n/PivotCost))
	m.duals = m.stockDuals(g)
	return pivots
}
