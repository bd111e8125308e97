// Package table writes text in columns.
package table

import (
	"io"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
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
	// Rows have a cell for each column. A cell may have colors (SGR sequences), which take no room. Write leaves out other control characters, because
	// text from a cluster must not control the terminal.
	Rows [][]string
}

// Add adds a row.
func (t *Table) Add(cells ...string) { t.Rows = append(t.Rows, cells) }

// Write writes the table without trailing spaces. It returns the error of w.
func (t *Table) Write(w io.Writer) error {
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
		if _, err := io.WriteString(w, strings.TrimRight(line.String(), " ")+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// color matches a sequence that sets the color of the text after it.
var color = regexp.MustCompile("\x1b\\[[0-9;]*m")

// clean removes control characters that do not belong to a color.
func clean(cell string) string {
	if !strings.ContainsFunc(cell, unicode.IsControl) {
		return cell
	}
	var out strings.Builder
	for at := 0; at < len(cell); {
		if found := color.FindStringIndex(cell[at:]); found != nil && found[0] == 0 {
			out.WriteString(cell[at : at+found[1]])
			at += found[1]
			continue
		}
		r, size := utf8.DecodeRuneInString(cell[at:])
		if !unicode.IsControl(r) {
			out.WriteString(cell[at : at+size])
		}
		at += size
	}
	return out.String()
}

func width(cell string) int {
	if strings.Contains(cell, "\x1b") {
		cell = color.ReplaceAllString(cell, "")
	}
	return utf8.RuneCountInString(cell)
}
