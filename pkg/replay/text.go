package replay

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/table"
)

// Text writes the comparison as a table, and a chart of the prices over time.
func (c *Comparison) Text(w io.Writer) error {
	var out strings.Builder
	pods := "pods"
	if c.Pods == 1 {
		pods = "pod"
	}
	fmt.Fprintf(&out, "%d %s in %s, on average %.1f at a time\n\n", c.Pods, pods, hours(c.Hours), c.Running)
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
		t.Add(o.Policy, fmt.Sprintf("%.2f", usd(o.Total)), fmt.Sprintf("%.3f", usd(o.Mean)), saves, strconv.Itoa(o.Launched), strconv.Itoa(o.Peak), strconv.Itoa(o.Moved),
			fmt.Sprintf("%.2f", usd(o.Cost())))
	}
	if err := t.Write(&out); err != nil {
		return err
	}
	fmt.Fprintf(&out, "MACHINES were launched in all, and PEAK ran at a time. PODS MOVED were restarted by consolidation, each at an assumed $%.2f.\n\n", usd(c.Restart))
	if err := c.chart(&out); err != nil {
		return err
	}
	_, err := io.WriteString(w, out.String())
	return err
}

func usd(m planner.MicroUSD) float64 { return float64(m) / 1e6 }

func hours(h float64) string {
	if h >= 48 {
		return fmt.Sprintf("%.1f days", h/24)
	}
	return fmt.Sprintf("%.1f hours", h)
}

// blocks are the heights of a bar.
var blocks = []rune(" ▁▂▃▄▅▆▇█")

// highest returns the highest price of a series.
func (c *Comparison) highest() planner.MicroUSD {
	highest := planner.MicroUSD(1)
	for _, o := range c.Outcomes {
		for _, price := range o.Series {
			highest = max(highest, price)
		}
	}
	return highest
}

// chart writes a line for each policy, in which each bar is the average price of a part of the trace.
func (c *Comparison) chart(w io.Writer) error {
	highest, bars := c.highest(), 0
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
	t.Add("", fmt.Sprintf("%d bars of %s, the highest is $%.2f an hour", bars, hours(c.Hours/float64(max(1, bars))), usd(highest)))
	return t.Write(w)
}

// SVG writes the prices over time as an image.
func (c *Comparison) SVG(w io.Writer) error {
	const width, height, top, left = 720, 240, 70, 60
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", left+width+20, top+height+30)
	fmt.Fprintf(&out, `<rect width="100%%" height="100%%" fill="white"/><path d="M%d %dV%dH%d" fill="none" stroke="#888"/>`+"\n", left, top, top+height, left+width)
	highest := c.highest()
	fmt.Fprintf(&out, `<text x="4" y="%d">$%.2f/h</text><text x="40" y="%d">0</text><text x="%d" y="%d" text-anchor="end">%s</text>`+"\n",
		top+10, usd(highest), top+height, left+width, top+height+20, hours(c.Hours))
	for i, o := range c.Outcomes {
		color := []string{"#999999", "#d9822b", "#2b7bd9"}[i%3]
		fmt.Fprintf(&out, `<text x="%d" y="%d" fill="%s">%s: $%.2f</text><polyline fill="none" stroke="%s" stroke-width="2" points="`, left, 18+16*i, color, o.Policy, usd(o.Total), color)
		for j, price := range o.Series {
			fmt.Fprintf(&out, "%.1f,%.1f ", left+width*(float64(j)+0.5)/float64(len(o.Series)), top+height*(1-float64(price)/float64(highest)))
		}
		out.WriteString(`"/>` + "\n")
	}
	out.WriteString("</svg>\n")
	_, err := io.WriteString(w, out.String())
	return err
}
