package ui

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"karve.sh/karve/pkg/bill"
	"karve.sh/karve/pkg/cost"
)

// quarter returns the costs of a pool that five teams use more and more, and of which nobody knows a day.
func quarter(_ context.Context, r cost.Range, by cost.Grouping) (*cost.Ledger, error) {
	covered := slices.Repeat([]int{12}, r.Hours())
	clear(covered[r.Hours()/3 : r.Hours()/3+r.Hours()/10+1])
	m := cost.Measured{Range: r, Coverage: cost.CoverageOf(r, covered)}
	for i, span := range r.Spans() {
		missing := m.Coverage.MissingIn(span)
		days := (float64(span.Hours()) - float64(missing)/60) / 24
		used := 0.0
		for team := range 9 {
			usd := days * (40 + float64((i*(team+3))%17) + float64(30*(9-team)))
			used += usd
			m.Uses = append(m.Uses, cost.Use{Span: i, Pool: "gpu", By: keyOf(by, team), USD: usd})
		}
		m.Machines = append(m.Machines, cost.Machines{Span: i, Pool: "gpu", Class: "t4", For: bill.Used, USD: used}, cost.Machines{Span: i, Pool: "gpu", Class: "t4", For: bill.Idle, USD: used / 5, Discount: used / 10},
			cost.Machines{Span: i, Pool: "gpu", Class: "t4", For: bill.Overhead, USD: used / 50})
	}
	return cost.Build(m, by), nil
}

func keyOf(by cost.Grouping, team int) cost.Key {
	name := fmt.Sprint("team-", team)
	switch by.Dimension {
	case cost.ByOwner:
		return cost.Key{Namespace: name, Kind: "Deployment", Name: "inference-server-with-a-long-name"}
	case cost.ByLabel:
		return cost.Key{Name: name}
	default:
		return cost.Key{Namespace: name}
	}
}

func TestCostsAreDrawnSelectedLinkedAndExported(t *testing.T) {
	t.Parallel()
	tabs := browse(t)
	s := &source{costs: quarter}
	s.show(fleet(20))
	url := s.serve(t)
	p := open(t, tabs, url+"/#token="+token)
	p.untilText("nodes", "20")
	shade := func(name string) string {
		return value[string](p, fmt.Sprintf(`[...document.querySelectorAll("#legend li, #colors li")].find((li) => li.textContent === %q)?.querySelector("i").className ?? ""`, name))
	}
	namespace := value[string](p, `document.querySelector("#legend button").textContent`)
	before := shade(namespace)

	p.run(chromedp.Click("nav a:last-child", chromedp.ByQuery))
	p.until(`document.querySelectorAll("#rows tbody tr").length === 9`)
	if query := value[string](p, "location.search"); query != "" {
		t.Errorf("the address says %s before anything is chosen", query)
	}
	// The axes have units: dollars from 0 on, and days.
	levels := value[[]string](p, `[...document.querySelectorAll("#levels b")].map((b) => b.textContent)`)
	if len(levels) < 3 || levels[0] != "$0" || !strings.HasPrefix(levels[len(levels)-1], "$") || p.text("unit") != "US dollars per day" {
		t.Errorf("the levels are %q of %s", levels, p.text("unit"))
	}
	if ticks := value[[]string](p, `[...document.querySelectorAll("#times span")].map((b) => b.textContent)`); len(ticks) < 4 || len(strings.Fields(ticks[0])) != 2 {
		t.Errorf("the times are %q", ticks)
	}
	if n := value[int](p, `document.querySelectorAll(".column").length`); n < 30 || n > 31 {
		t.Errorf("there are %d columns", n)
	}
	if n := value[int](p, `document.querySelectorAll(".column.gap").length`); n < 3 || !strings.HasPrefix(p.text("notes"), "No data for ") {
		t.Errorf("%d columns have gaps: %s", n, p.text("notes"))
	}
	legend := value[[]string](p, `[...document.querySelectorAll("#colors li")].map((li) => li.textContent)`)
	if len(legend) != 9 || legend[7] != "2 others" || legend[8] != "data is missing" {
		t.Errorf("the legend is %q", legend)
	}
	// The highest column fills what the axis says.
	if high := value[float64](p, `Math.max(...[...document.querySelectorAll(".column")].map((c) => [...c.children].reduce((sum, i) => sum + i.getBoundingClientRect().height, 0))) / document.getElementById("columns").clientHeight`); high < 0.5 || high > 1.001 {
		t.Errorf("the highest column fills %.3f of the chart", high)
	}
	if titles := value[[]string](p, `[...document.querySelectorAll("#rows thead th")].map((th) => th.textContent)`); !slices.Equal(titles, []string{"namespace", "used $", "idle $", "overhead $", "total $", "list $"}) || !strings.HasSuffix(p.text("list"), " by the list") {
		t.Errorf("the columns are %q, %s", titles, p.text("list"))
	}
	picture(p, "cost")

	// A namespace keeps the color of the other page, and of the page before it was loaded again.
	colors := value[[]string](p, `[...document.querySelectorAll("#colors i")].map((i) => i.className)`)
	if slices.Contains(legend, namespace) && shade(namespace) != before || len(slices.Compact(slices.Sorted(slices.Values(colors)))) != 9 {
		t.Errorf("%s has the color %q, and had %q; all have %q", namespace, shade(namespace), before, colors)
	}
	p.load(chromedp.Reload())
	p.until(`document.querySelectorAll("#colors li").length === 9`)
	if again := value[[]string](p, `[...document.querySelectorAll("#colors i")].map((i) => i.className)`); !slices.Equal(colors, again) {
		t.Errorf("the colors were %q, and are %q", colors, again)
	}

	// What is chosen is in the address, and the back button undoes it.
	change := func(id, to string) {
		p.run(chromedp.Evaluate(fmt.Sprintf(`{ const e = document.getElementById(%q); e.value = %q; e.dispatchEvent(new Event("change", { bubbles: true })); }`, id, to), nil))
	}
	change("range", "24h")
	p.until(`document.getElementById("unit").textContent.includes("per hour") && document.querySelectorAll(".column").length === 24`)
	for i, name := range legend[:7] {
		if now := "swatch " + strings.TrimPrefix(shade(name), "swatch "); shade(name) != "" && now != colors[i] {
			t.Errorf("in another range, %s has the color %q, and had %q", name, now, colors[i])
		}
	}
	change("by", "label")
	change("label", "team")
	p.until(`location.search === "?since=24h&by=label%3Ateam" && document.querySelector("#rows th").textContent === "team"`)
	change("range", "month")
	change("month", "2026-02")
	p.until(`location.search === "?month=2026-02&by=label%3Ateam" && document.querySelectorAll(".column").length === 28`)
	p.run(chromedp.NavigateBack())
	p.until(`location.search !== "?month=2026-02&by=label%3Ateam"`)
	linked := open(t, tabs, url+"/cost.html?from=2026-03-01&to=2026-03-11&by=owner#token="+token)
	linked.until(`document.querySelectorAll(".column").length === 10 && document.getElementById("by").value === "owner" && document.getElementById("from").value === "2026-03-01"`)

	// The CSV is that of the table.
	folder := t.TempDir()
	linked.run(browser.SetDownloadBehavior(browser.SetDownloadBehaviorBehaviorAllow).WithDownloadPath(folder).WithEventsEnabled(true), chromedp.Click("export", chromedp.ByID))
	file := filepath.Join(folder, "karve-cost-2026-03-01-2026-03-11.csv")
	var text []byte
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if text, _ = os.ReadFile(file); len(text) > 0 {
			break
		}
	}
	if !strings.HasPrefix(string(text), "from,to,namespace,kind,owner,used_usd,") || strings.Count(string(text), "\n") != 10 {
		t.Errorf("the file has %q", text)
	}

	// A wrong range is told, and goes.
	wrong := open(t, tabs, url+"/cost.html?from=2026-03-11&to=2026-03-01#token="+token)
	wrong.until(`document.getElementById("problem").textContent === "from 2026-03-11 is not before to 2026-03-01" && document.getElementById("result").hidden`)
	linked.clean(url, token)
	for _, what := range p.wrong {
		t.Errorf("the browser says: %s", what)
	}
}

func TestCostsFitAPhone(t *testing.T) {
	t.Parallel()
	tabs := browse(t)
	s := &source{costs: quarter}
	s.show(fleet(20))
	url := s.serve(t)
	p := open(t, tabs, "about:blank")
	p.load(emulation.SetDeviceMetricsOverride(360, 740, 2, true), chromedp.Navigate(url+"/cost.html?since=90d&by=owner#token="+token))
	p.until(`document.querySelectorAll(".column").length >= 90`)
	picture(p, "cost-on-a-phone")
	if wide := value[int](p, "document.documentElement.scrollWidth"); wide > 360 {
		t.Errorf("the page is %d pixels wide", wide)
	}
	for _, id := range []string{"range", "by", "export", "theme", "columns", "colors", "rows"} {
		box := value[[]float64](p, fmt.Sprintf(`(() => { const b = document.getElementById(%q).getBoundingClientRect(); return [b.left, b.right, b.height]; })()`, id))
		if box[0] < 0 || id != "rows" && box[1] > 360 || box[2] == 0 {
			t.Errorf("%s is at %v", id, box)
		}
	}
	if n := value[int](p, `[...document.querySelectorAll("#times span")].filter((s) => s.scrollWidth > s.clientWidth).length`); n > 0 {
		t.Errorf("%d times are cut off", n)
	}
	// The first and the last day are cut.
	if thin := value[float64](p, `Math.min(...[...document.querySelectorAll(".column")].slice(1, -1).map((c) => c.getBoundingClientRect().width))`); thin < 1 {
		t.Errorf("a column is %.2f pixels wide", thin)
	}
}

// TestWithoutAPrometheusThePageOfCostsSaysSo opens the page of a server that knows no Prometheus, and asks for a token first.
func TestWithoutAPrometheusThePageOfCostsSaysSo(t *testing.T) {
	t.Parallel()
	tabs := browse(t)
	url, _ := serve(t, fleet(3))
	p := open(t, tabs, url+"/cost.html")
	p.until(`!document.getElementById("login").hidden && document.getElementById("app").hidden`)
	p.run(chromedp.SendKeys("token", token+"\r", chromedp.ByID))
	p.until(`document.getElementById("problem").textContent.startsWith("This page does not know a Prometheus")`)
}
