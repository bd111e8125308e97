// Package table writes text in columns.
package table

import (
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"karve.sh/karve/pkg/plain"
)

// gap separates columns.
const gap = "   "

// Column is a column of a Table.
type Column struct {
	// Title is the first cell. If all titles are empty, no line is written for them.
	Title string
	// Right aligns the cells to the right, as for numbers.
	Right bool
}

// Table is text in columns.
type Table struct {
	Columns []Column
	// Rows have a cell for each column. A cell may have colors (SGR sequences), which take no room. The rest of it is written as [plain.Line] returns it.
	Rows [][]string
}

// Add adds a row.
func (t *Table) Add(cells ...string) { t.Rows = append(t.Rows, cells) }

// Fit removes columns, in the order of their titles, until the table is not wider than a number of characters. It reports whether it is not.
func (t *Table) Fit(most int, titles ...string) bool {
	for _, title := range titles {
		if t.wide() <= most {
			return true
		}
		i := slices.IndexFunc(t.Columns, func(c Column) bool { return c.Title == title })
		if i < 0 {
			continue
		}
		t.Columns = slices.Delete(t.Columns, i, i+1)
		for j := range t.Rows {
			t.Rows[j] = slices.Delete(t.Rows[j], i, i+1)
		}
	}
	return t.wide() <= most
}

// wide returns how many characters wide the table is.
func (t *Table) wide() int {
	sum := 0
	for i, c := range t.Columns {
		widest := width(c.Title)
		for _, row := range t.Rows {
			widest = max(widest, width(clean(row[i])))
		}
		sum += widest + len(gap)
	}
	return sum - len(gap)
}

// String returns the table without trailing spaces.
func (t *Table) String() string {
	rows := t.Rows
	titles := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		titles[i] = c.Title
	}
	if strings.Join(titles, "") != "" {
		rows = append([][]string{titles}, rows...)
	}
	widths := make([]int, len(t.Columns))
	for _, row := range rows {
		for i, cell := range row {
			row[i] = clean(cell)
			cell = row[i]
			widths[i] = max(widths[i], width(cell))
		}
	}
	var out strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			blanks := strings.Repeat(" ", widths[i]-width(cell))
			if t.Columns[i].Right {
				line.WriteString(blanks + cell + gap)
			} else {
				line.WriteString(cell + blanks + gap)
			}
		}
		out.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return out.String()
}

// color matches a sequence that sets the color of the text after it.
var color = regexp.MustCompile("\x1b\\[[0-9;]*m")

// clean returns a cell as [plain.Line] does, with its colors unless it is too long.
func clean(cell string) string {
	if !strings.Contains(cell, "\x1b") || width(cell) > plain.MaxLine {
		return plain.Line(color.ReplaceAllString(cell, ""))
	}
	var out strings.Builder
	at := 0
	for _, found := range color.FindAllStringIndex(cell, -1) {
		out.WriteString(plain.Line(cell[at:found[0]]) + cell[found[0]:found[1]])
		at = found[1]
	}
	return out.String() + plain.Line(cell[at:])
}

func width(cell string) int {
	if strings.Contains(cell, "\x1b") {
		cell = color.ReplaceAllString(cell, "")
	}
	return utf8.RuneCountInString(cell)
}
