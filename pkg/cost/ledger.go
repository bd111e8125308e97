// Package cost divides what machines cost in a range of time among those who used them. It computes in micro-dollars, and every division adds up to the bills of
// the machines.
package cost

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"karve.sh/karve/pkg/bill"
)

// Dimension is by what costs are divided.
type Dimension string

// Dimensions.
const (
	ByNamespace Dimension = "namespace"
	ByOwner     Dimension = "owner"
	ByPool      Dimension = "pool"
	ByClass     Dimension = "class"
	ByPod       Dimension = "pod"
	ByLabel     Dimension = "label"
)

// Grouping is a dimension, with the key of the label for ByLabel.
type Grouping struct {
	Dimension Dimension
	Label     string
}

// ParseGrouping parses namespace, owner, pool, class, pod, or label:KEY.
func ParseGrouping(text string) (Grouping, error) {
	if key, ok := strings.CutPrefix(text, string(ByLabel)+":"); ok && key != "" {
		return Grouping{ByLabel, key}, nil
	}
	if slices.Contains([]Dimension{ByNamespace, ByOwner, ByPool, ByClass, ByPod}, Dimension(text)) {
		return Grouping{Dimension: Dimension(text)}, nil
	}
	return Grouping{}, fmt.Errorf("costs are divided by namespace, owner, pool, class, pod or label:KEY, not by %q", text)
}

// String returns the text that ParseGrouping parses.
func (g Grouping) String() string {
	if g.Dimension == ByLabel {
		return string(ByLabel) + ":" + g.Label
	}
	return string(g.Dimension)
}

// Machines is what the machines of a pool cost in a span, for one purpose.
type Machines struct {
	Span        int
	Pool, Class string
	For         bill.Purpose
	// USD is the price, and Discount what the cloud's list has more.
	USD, Discount float64
}

// Use is the part of a pool's price in a span that somebody used.
type Use struct {
	Span int
	Pool string
	// By is the namespace, the owner or the value of a label.
	By            Key
	USD, Discount float64
}

// PodUse is the part of a pool's price in a span that a pod used, in any unit: only ratios within a namespace count.
type PodUse struct {
	Span                 int
	Pool, Namespace, Pod string
	Amount, Discount     float64
}

// Measured is what was recorded of a cluster in a range. Several entries about the same count together.
type Measured struct {
	Range    Range
	Coverage Coverage
	// UnpricedHours is the number of machine hours without a price, which count as $0.
	UnpricedHours float64
	Machines      []Machines
	// Uses are by the grouping, or by namespace for ByPod. Pods are for ByPod only.
	Uses []Use
	Pods []PodUse
}

// Key names a row of a ledger.
type Key struct {
	Namespace string `json:"namespace,omitempty"`
	// Kind is that of an owner.
	Kind string `json:"kind,omitempty"`
	// Name is that of an owner, a pod, a pool or a class, or the value of a label.
	Name string `json:"name,omitempty"`
	// Rest marks a row for what has no name.
	Rest Rest `json:"rest,omitempty"`
}

// Rest is why a row has no name.
type Rest string

const (
	// Unused is the idle and overhead part of pools that nobody used in a span.
	Unused Rest = "unused"
	// Unknown is what was used by somebody whom the metrics do not name.
	Unknown Rest = "unknown"
)

// Compare orders keys by name, and those without a name last.
func (k Key) Compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Rest, other.Rest), cmp.Compare(k.Namespace, other.Namespace), cmp.Compare(k.Kind, other.Kind), cmp.Compare(k.Name, other.Name))
}

// Amounts are micro-dollars by what they were for.
type Amounts struct {
	Used     int64 `json:"usedMicroUSD"`
	Idle     int64 `json:"idleMicroUSD"`
	Overhead int64 `json:"overheadMicroUSD"`
}

// Total returns the sum.
func (a Amounts) Total() int64 { return a.Used + a.Idle + a.Overhead }

func (a Amounts) plus(b Amounts) Amounts {
	return Amounts{a.Used + b.Used, a.Idle + b.Idle, a.Overhead + b.Overhead}
}

// Row is what somebody has cost.
type Row struct {
	Key
	Amounts
	Total int64 `json:"totalMicroUSD"`
	// List is what the same machines cost in the cloud's list, divided in the same way.
	List      Amounts `json:"list"`
	ListTotal int64   `json:"listTotalMicroUSD"`
}

// Ledger says what the machines of a cluster cost in a range, and who used them. Rows add up to Totals, and their list prices to List.
type Ledger struct {
	Range
	By string `json:"by"`
	// Rows are sorted by their total, the most expensive first.
	Rows          []Row    `json:"rows"`
	Totals        Amounts  `json:"totals"`
	Total         int64    `json:"totalMicroUSD"`
	List          Amounts  `json:"list"`
	ListTotal     int64    `json:"listTotalMicroUSD"`
	Coverage      Coverage `json:"coverage"`
	UnpricedHours float64  `json:"unpricedMachineHours,omitempty"`

	grouping Grouping
	// spans are the spans of the range, with what each key has cost in each.
	spans []Range
	cells cells
}

// Build returns the ledger of what was measured. In each span, the idle and overhead parts of a pool are divided among those who used it, by what they used.
func Build(m Measured, by Grouping) *Ledger {
	l := &Ledger{Range: m.Range, By: by.String(), grouping: by, Rows: []Row{}, Coverage: m.Coverage, UnpricedHours: m.UnpricedHours, spans: m.Range.Spans()}
	l.cells = cellsOf(&m, by, len(l.spans))
	listed := l.cells
	if m.discounted() {
		at := m.listed()
		listed = cellsOf(&at, by, len(l.spans))
	}
	sums, totals := summed(l.cells)
	list, listTotals := summed(listed)
	l.Totals, l.List = totals, listTotals
	for key, a := range list {
		if _, ok := sums[key]; !ok && a != (Amounts{}) {
			sums[key] = Amounts{} // It costs nothing, but has a price in the list.
		}
	}
	for key, a := range sums {
		l.Rows = append(l.Rows, Row{key, a, a.Total(), list[key], list[key].Total()})
	}
	slices.SortFunc(l.Rows, func(a, b Row) int { return cmp.Or(cmp.Compare(b.Total, a.Total), a.Key.Compare(b.Key)) })
	l.Total, l.ListTotal = l.Totals.Total(), l.List.Total()
	return l
}

// Discounted reports whether a row has another price in the cloud's list.
func (l *Ledger) Discounted() bool {
	return slices.ContainsFunc(l.Rows, func(r Row) bool { return r.List != r.Amounts })
}

// cells are what each key has cost in each span.
type cells []map[Key]Amounts

// cellsOf divides what was measured.
func cellsOf(m *Measured, by Grouping, spans int) cells {
	all := make(cells, spans)
	for i := range all {
		all[i] = map[Key]Amounts{}
	}
	switch by.Dimension {
	case ByPool, ByClass:
		for place, a := range billed(m.Machines, spans) {
			name := place.pool
			if by.Dimension == ByClass {
				name = place.class
			}
			all.add(place.span, Key{Name: name}, a)
		}
	case ByPod:
		pods := groupPods(m.Pods)
		for place, a := range divided(m, spans) {
			all.addPods(place, a, pods[place])
		}
	default:
		for place, a := range divided(m, spans) {
			all.add(place.span, place.key, a)
		}
	}
	return all
}

func (c cells) add(span int, key Key, a Amounts) {
	if a != (Amounts{}) {
		c[span][key] = c[span][key].plus(a)
	}
}

func summed(all cells) (sums map[Key]Amounts, totals Amounts) {
	sums = map[Key]Amounts{}
	for _, cell := range all {
		for key, a := range cell {
			sums[key] = sums[key].plus(a)
			totals = totals.plus(a)
		}
	}
	return sums, totals
}

// place is a pool, with its class, in a span.
type place struct {
	span        int
	pool, class string
}

func billed(all []Machines, spans int) map[place]Amounts {
	sums := map[place]Amounts{}
	for _, m := range all {
		if m.Span < 0 || m.Span >= spans {
			continue
		}
		at, micro := place{m.Span, m.Pool, m.Class}, microUSD(m.USD)
		a := sums[at]
		switch m.For {
		case bill.Used:
			a.Used += micro
		case bill.Idle:
			a.Idle += micro
		case bill.Overhead:
			a.Overhead += micro
		}
		sums[at] = a
	}
	return sums
}

// used is a key that has used a pool in a span.
type used struct {
	span int
	pool string
	key  Key
}

// divided divides the bills of each pool in each span among those who used it.
func divided(m *Measured, spans int) map[used]Amounts {
	bills := map[place]Amounts{}
	for at, a := range billed(m.Machines, spans) {
		at.class = ""
		bills[at] = bills[at].plus(a)
	}
	uses := map[place][]weighted{}
	for _, u := range m.Uses {
		at := place{span: u.Span, pool: u.Pool}
		uses[at] = append(uses[at], weighted{u.By, weight(u.USD)})
	}
	all := map[used]Amounts{}
	for at, a := range bills {
		shares := uses[at]
		if a.Used == 0 {
			shares = nil
		}
		if missing := missingOf(a.Used, shares); missing > 0 {
			shares = append(shares, weighted{Key{Rest: Unknown}, missing})
		}
		if len(shares) == 0 {
			shares = []weighted{{Key{Rest: Unused}, 1}}
		}
		for i, part := range divide(a, shares) {
			key := used{at.span, at.pool, shares[i].key}
			all[key] = all[key].plus(part)
		}
	}
	return all
}

// missingOf returns the weight of what was used and is in none of the shares: a label may not have been exported for some of the time. Sums of floating-point
// numbers differ in the last digits, which is nothing.
func missingOf(micro int64, shares []weighted) int64 {
	if micro == 0 {
		return 0
	}
	var known uint64
	for _, s := range shares {
		known = plus(known, s.weight)
	}
	all := micro * nanoPerMicro
	if known >= uint64(all) || uint64(all)-known <= uint64(nanoPerMicro*(len(shares)+1))+uint64(all)/1e6 {
		return 0
	}
	return all - int64(known)
}

type weighted struct {
	key    Key
	weight int64
}

// divide divides amounts by weights. It sorts the keys, so that the result does not depend on their order.
func divide(a Amounts, shares []weighted) []Amounts {
	slices.SortFunc(shares, func(a, b weighted) int { return a.key.Compare(b.key) })
	weights := make([]int64, len(shares))
	for i, s := range shares {
		weights[i] = s.weight
	}
	parts := make([]Amounts, len(shares))
	use, idle, overhead := Apportion(a.Used, weights), Apportion(a.Idle, weights), Apportion(a.Overhead, weights)
	for i := range parts {
		parts[i] = Amounts{use[i], idle[i], overhead[i]}
	}
	return parts
}

// groupPods returns the pods of each namespace in each pool and span.
func groupPods(all []PodUse) map[used][]weighted {
	pods := map[used][]weighted{}
	for _, p := range all {
		at := used{p.Span, p.Pool, Key{Namespace: p.Namespace}}
		pods[at] = append(pods[at], weighted{Key{Namespace: p.Namespace, Name: p.Pod}, weight(p.Amount)})
	}
	return pods
}

// addPods divides what a namespace has cost among its pods.
func (c cells) addPods(at used, a Amounts, pods []weighted) {
	if !slices.ContainsFunc(pods, func(w weighted) bool { return w.weight > 0 }) {
		key := at.key
		key.Rest = cmp.Or(key.Rest, Unknown)
		c.add(at.span, key, a)
		return
	}
	for i, part := range divide(a, pods) {
		c.add(at.span, pods[i].key, part)
	}
}

const (
	nanoPerMicro = 1000
	nanoPerUSD   = 1e9
)

// limit is the largest amount of dollars in a span that counts. It keeps sums far from an overflow.
const limit = 1e8

func bounded(usd float64) float64 {
	if math.IsNaN(usd) {
		return 0
	}
	return min(limit, max(0, usd))
}

func microUSD(usd float64) int64 { return int64(math.Round(bounded(usd) * 1e6)) }

// weight returns an amount of dollars in nano-dollars.
func weight(usd float64) int64 { return int64(math.Round(bounded(usd) * 1e6 * nanoPerMicro)) }

// Chart has what the most expensive rows have cost in each span, for display over time.
type Chart struct {
	// Spans have the start of each span, and End is the end of the last one.
	Spans []Range `json:"spans"`
	// Lines are the rows, in the order of the ledger, with the others last, and the micro-dollars of each in each span.
	Lines []Line `json:"lines"`
}

// Line is what somebody has cost over time.
type Line struct {
	Key
	// Others is the number of rows that this line sums. It is 0 for the line of a single row.
	Others int     `json:"others,omitempty"`
	Micro  []int64 `json:"microUSD"`
}

// Chart returns the costs over time of the first rows, and the sum of the others.
func (l *Ledger) Chart(rows int) Chart {
	c := Chart{Spans: l.spans, Lines: []Line{}}
	at := map[Key]int{}
	for i, r := range l.Rows {
		if i >= rows {
			c.Lines = append(c.Lines, Line{Others: len(l.Rows) - rows, Micro: make([]int64, len(l.spans))})
			break
		}
		at[r.Key] = i
		c.Lines = append(c.Lines, Line{Key: r.Key, Micro: make([]int64, len(l.spans))})
	}
	for span, cells := range l.cells {
		for key, a := range cells {
			i, ok := at[key]
			if !ok {
				i = rows
			}
			c.Lines[i].Micro[span] += a.Total()
		}
	}
	return c
}
