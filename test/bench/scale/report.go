package scale

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
)

// Row holds the figures of all programs at one size.
type Row struct {
	Size Size
	All  []Figures
}

// key returns the JSON name of a program's column. Karve's columns have no prefix; others have the program's name, as in karpenterIdleCores.
func key(of string, c Column) string {
	if of == "karve" {
		return string(c)
	}
	return of + strings.ToUpper(string(c[:1])) + string(c[1:])
}

// MarshalJSON writes a missing figure as null and its reason below the key reasons.
func (r Row) MarshalJSON() ([]byte, error) {
	row, reasons := map[string]any{"nodes": r.Size.Nodes, "pods": r.Size.Pods}, map[string]string{}
	for _, f := range r.All {
		for _, c := range Columns {
			if v, ok := f.Values[c]; ok {
				row[key(f.Of, c)] = math.Round(v*1000) / 1000
				continue
			}
			row[key(f.Of, c)] = nil
			reasons[key(f.Of, c)] = f.Reasons[c]
		}
	}
	if len(reasons) > 0 {
		row["reasons"] = reasons
	}
	return json.Marshal(row)
}

// Print writes the rows as a Markdown table. Below the table it lists the reasons of missing figures.
func Print(out io.Writer, rows []Row) {
	line := func(cells ...string) { _, _ = fmt.Fprintf(out, "| %s |\n", strings.Join(cells, " | ")) }
	head, rule := []string{"nodes/pods"}, []string{"---"}
	for _, r := range rows {
		for _, f := range r.All {
			head, rule = append(head, fmt.Sprintf("%s, %s", r.Size, f.Of)), append(rule, "---")
		}
	}
	line(head...)
	line(rule...)
	var notes []string
	for _, c := range Columns {
		cells := []string{string(c)}
		for _, r := range rows {
			for _, f := range r.All {
				cells = append(cells, cell(f, c))
				if reason := f.Reasons[c]; reason != "" {
					notes = append(notes, fmt.Sprintf("%s of %s at %s: %s", c, f.Of, r.Size, reason))
				}
			}
		}
		line(cells...)
	}
	for _, note := range notes {
		_, _ = fmt.Fprintln(out, note)
	}
}

func cell(f Figures, c Column) string {
	v, ok := f.Values[c]
	switch {
	case !ok:
		return "-"
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 1:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.3f", v)
	}
}
