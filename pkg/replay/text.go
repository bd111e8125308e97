package replay

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/table"
	"karve.sh/karve/pkg/words"
)

// Text returns the comparison as a table, and a chart of the prices over time.
func (c *Comparison) Text() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s in %s, on average %.1f at a time\n\n", words.Count(c.Pods, "pod"), words.Span(hours(c.Hours)), c.Running)
	t := table.Table{Columns: []table.Column{
		{},
		{Title: "$", Right: true},
		{Title: "$/H", Right: true},
		{Title: "KARVE SAVES", Right: true},
		{Title: "MACHINES", Right: true},
		{Title: "PEAK", Right: true},
		{Title: "PODS MOVED", Right: true},
		{Title: "$ WITH RESTARTS", Right: true},
	}}
	for i, o := range c.Outcomes {
		saves := ""
		if i < len(c.Outcomes)-1 {
			saves = fmt.Sprintf("%d %%", int(math.Round(c.Saving(i))))
		}
		t.Add(o.Policy, words.Cents(o.Total), words.USD(o.Mean), saves, strconv.Itoa(o.Launched), strconv.Itoa(o.Peak), strconv.Itoa(o.Moved),
			words.Cents(o.Cost()))
	}
	out.WriteString(t.String())
	fmt.Fprintf(&out, "MACHINES were launched in all, and PEAK ran at a time. PODS MOVED were restarted by consolidation, each at an assumed $%s.\n\n", words.Cents(c.Restart))
	return out.String() + c.chart()
}

func hours(h float64) time.Duration { return time.Duration(h * float64(time.Hour)) }

// blocks are the heights of a bar.
var blocks = []rune(" ▁▂▃▄▅▆▇█")

// chart returns a line for each policy, in which each bar is the average price of a part of the trace.
func (c *Comparison) chart() string {
	highest, bars := planner.MicroUSD(1), 0
	for _, o := range c.Outcomes {
		for _, price := range o.Series {
			highest = max(highest, price)
		}
	}
	t := table.Table{Columns: []table.Column{{}, {}}}
	for _, o := range c.Outcomes {
		var line strings.Builder
		for _, price := range o.Series {
			height := int((int64(price)*int64(len(blocks)-1) + int64(highest) - 1) / int64(highest))
			line.WriteRune(blocks[height])
		}
		bars = max(bars, len(o.Series))
		t.Add(o.Policy, strings.TrimRight(line.String(), " "))
	}
	t.Add("", fmt.Sprintf("%d bars of %s, the highest is $%s an hour", bars, words.Age(hours(c.Hours/float64(max(1, bars)))), words.USD(highest)))
	return t.String()
}
