package quote

import (
	"io"
	"strings"
	"unicode/utf8"
)

// gap separates columns.
const gap = "   "

// column is a column of a table.
type column struct {
	title string
	// right aligns the cells to the right, as for numbers.
	right bool
}

// table is text in columns.
type table struct {
	columns []column
	rows    [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// write writes the table and its titles, if there are any, without trailing spaces.
func (t *table) write(w io.Writer) error {
	rows := t.rows
	titles := make([]string, len(t.columns))
	for i, c := range t.columns {
		titles[i] = c.title
	}
	if strings.Join(titles, "") != "" {
		rows = append([][]string{titles}, rows...)
	}
	widths := make([]int, len(t.columns))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			blanks := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if t.columns[i].right {
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
