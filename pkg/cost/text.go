package cost

import (
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/table"
	"karve.sh/karve/pkg/words"
)

const microPerCent = 10_000

// Cents are amounts in cents.
type Cents struct{ Used, Idle, Overhead int64 }

// Total returns the sum.
func (c Cents) Total() int64 { return c.Used + c.Idle + c.Overhead }

// Cents returns the amounts of each row and of the totals in cents. The total is rounded. It is divided among used, idle and overhead, and each of these among the rows, so
// that rows and columns add up.
func (l *Ledger) Cents() (rows []Cents, totals Cents) {
	all := Apportion((l.Total+microPerCent/2)/microPerCent, []int64{l.Totals.Used, l.Totals.Idle, l.Totals.Overhead})
	totals = Cents{all[0], all[1], all[2]}
	used := l.apportioned(totals.Used, func(r *Row) int64 { return r.Used })
	idle := l.apportioned(totals.Idle, func(r *Row) int64 { return r.Idle })
	overhead := l.apportioned(totals.Overhead, func(r *Row) int64 { return r.Overhead })
	for i := range l.Rows {
		rows = append(rows, Cents{used[i], idle[i], overhead[i]})
	}
	return rows, totals
}

// ListCents returns the list prices of each row and of all in cents, which add up too.
func (l *Ledger) ListCents() (rows []int64, total int64) {
	total = (l.ListTotal + microPerCent/2) / microPerCent
	return l.apportioned(total, func(r *Row) int64 { return r.ListTotal }), total
}

// apportioned divides a total among the rows by an amount of each.
func (l *Ledger) apportioned(total int64, of func(*Row) int64) []int64 {
	weights := make([]int64, len(l.Rows))
	for i := range l.Rows {
		weights[i] = of(&l.Rows[i])
	}
	return Apportion(total, weights)
}

func dollars(cents int64) string { return words.Cents(cents * microPerCent) }

// Titles returns the titles of the columns that name a row.
func (g Grouping) Titles() []string {
	switch g.Dimension {
	case ByOwner:
		return []string{"namespace", "kind", "owner"}
	case ByPod:
		return []string{"namespace", "pod"}
	case ByLabel:
		return []string{g.Label}
	default:
		return []string{string(g.Dimension)}
	}
}

// Cells returns the cells of the columns that name a row. A row without a name has its reason in the last one.
func (g Grouping) Cells(k Key) []string {
	name := k.Name
	switch {
	case k.Rest != "":
		name = "(" + string(k.Rest) + ")"
	case g.Dimension == ByLabel && name == "":
		name = "(no label)"
	case name == "" && (g.Dimension == ByPool || g.Dimension == ByClass):
		name = "(none)"
	}
	switch g.Dimension {
	case ByOwner:
		return []string{k.Namespace, k.Kind, name}
	case ByPod:
		return []string{k.Namespace, name}
	case ByNamespace:
		if k.Rest == "" {
			name = k.Namespace
		}
	case ByPool, ByClass, ByLabel:
	}
	return []string{name}
}

// Text returns the ledger as a table.
func (l *Ledger) Text() string {
	by := l.grouping
	head := append([]string{fmt.Sprintf("%s, %s", l.Range, minutes(60*l.Hours()))}, l.Notes()...)
	rows, totals := l.Cents()
	var t table.Table
	for _, title := range by.Titles() {
		t.Columns = append(t.Columns, table.Column{Title: upper(by, title)})
	}
	titles := []string{"USED $", "IDLE $", "OVERHEAD $", "TOTAL $", "SHARE"}
	both := l.Discounted()
	if both {
		titles = slices.Insert(titles, 4, "LIST $")
	}
	for _, title := range titles {
		t.Columns = append(t.Columns, table.Column{Title: title, Right: true})
	}
	listed, list := l.ListCents()
	for i, r := range l.Rows {
		t.Add(append(by.Cells(r.Key), l.amounts(rows[i], listed[i], r.Total, both)...)...)
	}
	name := make([]string, len(by.Titles()))
	name[0] = "total"
	t.Add(slices.Concat(name, l.amounts(totals, list, l.Total, both))...)
	return strings.Join(head, "\n") + "\n\n" + t.String()
}

// amounts returns the cells with the amounts of a row. both adds the list price.
func (l *Ledger) amounts(c Cents, list, total int64, both bool) []string {
	all := []string{dollars(c.Used), dollars(c.Idle), dollars(c.Overhead), dollars(c.Total())}
	if both {
		all = append(all, dollars(list))
	}
	if l.Total == 0 {
		return append(all, "-")
	}
	return append(all, fmt.Sprintf("%.1f %%", 100*float64(total)/float64(l.Total)))
}

// upper returns the title of a column in capital letters, except for the key of a label.
func upper(g Grouping, title string) string {
	if g.Dimension == ByLabel {
		return "LABEL " + title
	}
	return map[string]string{"namespace": "NAMESPACE", "kind": "KIND", "owner": "OWNER", "pod": "POD", "pool": "POOL", "class": "CLASS"}[title]
}

// Notes says what is missing in the ledger.
func (l *Ledger) Notes() []string {
	var notes []string
	if text := l.Coverage.Text(); text != "" {
		notes = append(notes, text)
	}
	if l.UnpricedHours > 0 {
		notes = append(notes, fmt.Sprintf("%.1f machine hours have no price, and count as $0", l.UnpricedHours))
	}
	return notes
}

// CSV writes the ledger as CSV, in dollars with two decimals. It has no row for the total, so that a sum of the rows is right.
func (l *Ledger) CSV(w io.Writer) error {
	by := l.grouping
	out := csv.NewWriter(w)
	head := append([]string{"from", "to"}, by.Titles()...)
	if err := out.Write(append(head, "used_usd", "idle_usd", "overhead_usd", "total_usd", "list_usd")); err != nil {
		return err
	}
	rows, _ := l.Cents()
	listed, _ := l.ListCents()
	for i, r := range l.Rows {
		line := []string{l.From.Format(time.RFC3339), l.To.Format(time.RFC3339)}
		for _, cell := range by.Cells(r.Key) {
			line = append(line, plain.Line(cell))
		}
		c := rows[i]
		if err := out.Write(append(line, dollars(c.Used), dollars(c.Idle), dollars(c.Overhead), dollars(c.Total()), dollars(listed[i]))); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}
