package cost

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// styles tell the modes apart by color, dash and marker. The colors are those of Okabe and Ito that have a contrast of at least 3:1 to white and to black.
var styles = map[string]struct{ color, dash string }{
	TimeSlicing: {"#d55e00", ""}, "timeSlicingShort": {"#cc79a7", "1 3"}, "timeSlicingMedium": {"#cc79a7", "4 4"}, "timeSlicingLong": {"#cc79a7", "9 3"}, MPS: {"#0072b2", "7 4"}, MPSThreads: {"#009e73", "2 3"},
}

// grey is legible on white and on black.
const grey = "#7d7d7d"

// Sizes in pixels: of the area of a chart, of the margin around it, and of the legend above all charts.
const (
	chartWidth, chartHeight = 300.0, 150.0
	left, right, top, under = 62.0, 18.0, 30.0, 40.0
	legend                  = 30.0
)

// Picture returns an SVG with a chart for each load, two in a line: the p99 latency by the number of clients, on a logarithmic scale, with a line for each mode.
func Picture(rows []Row) string {
	modes := present(Modes, rows, func(r Row) string { return r.Mode })
	loads := present(Loads, rows, func(r Row) string { return r.Load })
	width := 2 * (left + chartWidth + right)
	height := legend + float64((len(loads)+1)/2)*(top+chartHeight+under)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%g" height="%g" font-family="sans-serif" font-size="12" fill="%s" role="img">`+"\n", width, height, width, height, grey)
	b.WriteString("<title>p99 latency by the number of clients of a GPU</title>\n")
	for i, mode := range modes {
		x := left + 220*float64(i)
		fmt.Fprintf(&b, `<polyline points="%g,16 %g,16" %s/>`+"\n", x, x+36, stroke(mode))
		marker(&b, mode, x+18, 16)
		fmt.Fprintf(&b, `<text x="%g" y="20">%s</text>`+"\n", x+44, titles[mode])
	}
	for i, load := range loads {
		fmt.Fprintf(&b, `<g transform="translate(%g %g)">`+"\n", left+float64(i%2)*(left+chartWidth+right), legend+top+float64(i/2)*(top+chartHeight+under))
		chart(&b, rows, modes, load)
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// chart writes a chart whose area begins at 0, 0.
func chart(b *strings.Builder, rows []Row, modes []string, load string) {
	ns := counts(rows)
	low, high := math.Inf(1), math.Inf(-1) // powers of ten
	for _, r := range rows {
		if r.Load == load && r.P99us > 0 {
			low, high = min(low, math.Floor(math.Log10(r.P99us))), max(high, math.Ceil(math.Log10(r.P99us)))
		}
	}
	if low > high {
		return
	}
	high = max(high, low+1)
	x := func(n int) float64 {
		return round(chartWidth * (float64(slices.Index(ns, n)) + 0.5) / float64(len(ns)))
	}
	y := func(us float64) float64 { return round(chartHeight * (high - math.Log10(us)) / (high - low)) }
	fmt.Fprintf(b, `<text x="0" y="-10" font-weight="bold">%s</text>`+"\n", titles[load])
	for power := low; power <= high; power++ {
		at := y(math.Pow(10, power))
		fmt.Fprintf(b, `<line x1="0" y1="%g" x2="%g" y2="%g" stroke="%s" stroke-opacity="0.4"/><text x="-6" y="%g" text-anchor="end">%s</text>`+"\n", at, chartWidth, at, grey, at+4, duration(math.Pow(10, power)))
	}
	for _, n := range ns {
		fmt.Fprintf(b, `<text x="%g" y="%g" text-anchor="middle">%d</text>`+"\n", x(n), chartHeight+16, n)
	}
	fmt.Fprintf(b, `<text x="%g" y="%g" text-anchor="middle">clients</text>`+"\n", chartWidth/2, chartHeight+30)
	for _, mode := range modes {
		var points []string
		for _, n := range ns {
			if r, ok := find(rows, mode, load, n); ok && r.P99us > 0 {
				points = append(points, fmt.Sprintf("%g,%g", x(n), y(r.P99us)))
				marker(b, mode, x(n), y(r.P99us))
			}
		}
		fmt.Fprintf(b, `<polyline points="%s" %s/>`+"\n", strings.Join(points, " "), stroke(mode))
	}
}

func stroke(mode string) string {
	s := styles[mode]
	dash := ""
	if s.dash != "" {
		dash = fmt.Sprintf(` stroke-dasharray="%s"`, s.dash)
	}
	return fmt.Sprintf(`fill="none" stroke="%s" stroke-width="2"%s`, s.color, dash)
}

// marker writes a circle, a square or a triangle.
func marker(b *strings.Builder, mode string, x, y float64) {
	color := styles[mode].color
	switch mode {
	case TimeSlicing:
		fmt.Fprintf(b, `<circle cx="%g" cy="%g" r="4" fill="%s"/>`+"\n", x, y, color)
	case MPS:
		fmt.Fprintf(b, `<rect x="%g" y="%g" width="7" height="7" fill="%s"/>`+"\n", x-3.5, y-3.5, color)
	default:
		fmt.Fprintf(b, `<polygon points="%g,%g %g,%g %g,%g" fill="%s"/>`+"\n", x, y-5, x+4.5, y+3.5, x-4.5, y+3.5, color)
	}
}

func round(v float64) float64 { return math.Round(v*10) / 10 }
