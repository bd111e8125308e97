package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Markdown returns the report for people: what failed first.
func (r Report) Markdown() string {
	var out strings.Builder
	product := "No GPU"
	if r.Product != "" {
		product = fmt.Sprintf("%d × %s", r.GPUs, r.Product)
	}
	fmt.Fprintf(&out, "# %s\n\n%d checks passed, %d failed, %d were not possible here.\n\n", product, r.Count(Passed), r.Count(Failed), r.Count(NotPossible))
	for _, line := range [][2]string{
		{"began", r.Began.UTC().Format(time.RFC3339)},
		{"took", (time.Duration(r.Seconds) * time.Second).String()},
		{"Karve", r.Karve},
		{"driver", r.Driver},
		{"CUDA", r.CUDA},
		{"memory", fmt.Sprintf("%d MiB", r.MemoryMiB)},
		{"compute capability", r.ComputeCapability},
		{"kernel", r.Kernel},
		{"CPUs", fmt.Sprint(r.CPUs)},
	} {
		if line[1] != "" && line[1] != "0" && line[1] != "0 MiB" {
			fmt.Fprintf(&out, "- %s: %s\n", line[0], line[1])
		}
	}
	for _, part := range []struct {
		result Result
		title  string
	}{{Failed, "Failed"}, {NotPossible, "Not possible here"}, {Passed, "Passed"}} {
		if r.Count(part.result) == 0 {
			continue
		}
		fmt.Fprintf(&out, "\n## %s\n\n| check | s | %s |\n|---|---|---|\n", part.title, map[bool]string{true: "measured", false: "why"}[part.result == Passed])
		for i, c := range r.Checks {
			if c.Result != part.result || r.parent(i) {
				continue
			}
			fmt.Fprintf(&out, "| %s | %.1f | %s |\n", cell(strings.ReplaceAll(c.Name, "_", " ")), c.Seconds, cell(c.Why+c.measured()))
		}
	}
	return out.String()
}

// measured returns the values that are short enough for a table.
func (c Check) measured() string {
	const most, long = 3, 120
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(c.Measured)) {
		values := c.Measured[name]
		if name == MachineAttribute {
			continue
		}
		if len(values) > most || len(values[0]) > long {
			parts = append(parts, fmt.Sprintf("%s: %d rows", name, len(values)))
			continue
		}
		for _, v := range values {
			parts = append(parts, fmt.Sprintf("%s: %s", name, v))
		}
	}
	return strings.Join(parts, "; ")
}

func cell(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`), "<", "&lt;")
}
