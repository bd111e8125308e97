package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"karve.sh/karve/pkg/overview"
	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/table"
	"karve.sh/karve/pkg/words"
)

// view is the content of the live view. Its methods depend only on its fields.
type view struct {
	all    *overview.Overview
	colors palette
	// wide shows more columns of nodes.
	wide bool
	// now is the time. updated is when the cluster was last read. err is why it could not be read since.
	now, updated  time.Time
	err           error
	width, height int
	// pods shows pods instead of nodes. order is the index of the order in orders, and top the number of rows above the first shown row.
	pods       bool
	order, top int
}

// order is a way to sort nodes and pods. Equal ones are sorted by name.
type order struct {
	name  string
	nodes func(a, b *overview.Node) int
	pods  func(a, b *overview.Pod) int
}

var orders = []order{
	{"name", func(_, _ *overview.Node) int { return 0 }, func(_, _ *overview.Pod) int { return 0 }},
	{
		"replicas held", func(a, b *overview.Node) int { return cmp.Compare(b.ReplicasHeld, a.ReplicasHeld) },
		func(a, b *overview.Pod) int { return cmp.Compare(b.Replicas, a.Replicas) },
	},
	{
		"price", func(a, b *overview.Node) int {
			return cmp.Compare(number(b.MicroUSDPerHour), number(a.MicroUSDPerHour))
		},
		func(a, b *overview.Pod) int { return cmp.Compare(number(b.MicroUSDPerHour), number(a.MicroUSDPerHour)) },
	},
	{"age", func(a, b *overview.Node) int { return b.Created.Compare(a.Created) }, func(a, b *overview.Pod) int { return b.Started.Compare(a.Started) }},
	{
		"state", func(a, b *overview.Node) int { return cmp.Compare(urgency[a.Severity], urgency[b.Severity]) },
		func(a, b *overview.Pod) int { return cmp.Compare(number(b.UnusedSeconds), number(a.UnusedSeconds)) },
	},
}

var urgency = map[overview.Severity]int{overview.Bad: 0, overview.Busy: 1, overview.Idle: 2, overview.Good: 3}

// press changes the view according to a key, with bubbletea's names. It reports whether the user quits.
func (v *view) press(key string) (quit bool) {
	page := max(1, v.room()-1)
	switch key {
	case "q", "Q", "esc", "ctrl+c", "ctrl+d":
		return true
	case "s", "S":
		v.order = (v.order + 1) % len(orders)
	case "p", "P":
		v.pods, v.top = !v.pods, 0
	case "up", "k":
		v.top--
	case "down", "j":
		v.top++
	case "pgup":
		v.top -= page
	case "pgdown", "space":
		v.top += page
	case "home", "g":
		v.top = 0
	case "end", "G":
		v.top = len(v.all.Nodes) + len(v.all.Pods)
	}
	v.top = v.clamped()
	return false
}

// clamped returns top, limited so that no more rows than necessary are above.
func (v *view) clamped() int {
	rows := len(v.all.Nodes)
	if v.pods {
		rows = len(v.all.Pods)
	}
	return max(0, min(v.top, rows-v.room()))
}

// otherLines is the number of lines of a frame that are neither rows nor the summary: a blank one, the titles, and the keys.
const otherLines = 3

// room returns how many rows fit.
func (v *view) room() int { return max(1, v.height-otherLines-len(v.summary())) }

// frame returns the lines of the view on a terminal. Like a [printer], it shows what objects contain as plain text.
func (v *view) frame() string {
	head, rows := v.lines()
	top := v.clamped()
	shown := rows[min(len(rows), top):]
	if len(shown) > v.room() {
		shown = shown[:v.room()]
	}
	lines := slices.Concat(head, shown)
	for len(lines) < v.height-1 {
		lines = append(lines, "")
	}
	lines = append(lines, v.footer(top, len(rows)))
	for i := range lines {
		lines[i] = ansi.Truncate(v.colors.show(lines[i]), v.width, "")
	}
	return strings.Join(lines, "\n")
}

// text returns the view as text, with all rows and without keys.
func (v *view) text() string {
	head, rows := v.lines()
	return strings.Join(slices.Concat(head, rows), "\n") + "\n"
}

// lines returns the summary with the titles, and a row for each node or pod.
func (v *view) lines() (head, rows []string) {
	t := v.nodeTable()
	if v.pods {
		t = v.podTable()
	}
	if v.width > 0 {
		t.Fit(v.width, "CAPACITY", "AGE", "TYPE", "POOL", "MEM STATED", "GPU") // The state is more useful than they are.
	}
	var text strings.Builder
	_ = t.Write(&text) // Writing to memory does not fail.
	rows = strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	head = append(v.summary(), "", v.colors.faint(rows[0]))
	return head, rows[1:]
}

func (v *view) summary() []string {
	t := &v.all.Totals
	first := v.colors.bold(totalsLine(t)) + "  " + v.bar(t.ReplicasHeld, t.Replicas, summaryBar)
	second := "no pods waiting"
	if n := len(v.all.Waiting); n > 0 {
		second = v.colors.yellow(fmt.Sprintf("%s, the longest for %s", words.Count(n, "pod")+" waiting", words.Age(v.all.AsOf.Sub(v.all.Waiting[0].Since))))
	}
	lines := []string{first, second + "  idle $" + words.USD(t.IdleMicroUSDPerHour) + "/h"}
	if text := v.all.Controller.Warning(); text != "" {
		lines = append([]string{v.colors.red("warning: " + plain.Line(text))}, lines...)
	}
	return lines
}

// Widths of bars.
const summaryBar, nodeBar = 20, 10

// bar draws how many of all replicas are held, in width characters.
func (v *view) bar(held, all int64, width int) string {
	full := 0
	if all > 0 {
		full = int(min(held*int64(width)/all, int64(width)))
		if held > 0 {
			full = max(1, full)
		}
	}
	color := v.colors.green
	if full == 0 {
		color = v.colors.yellow
	}
	return color(strings.Repeat("█", full)) + v.colors.faint(strings.Repeat("░", width-full))
}

func (v *view) nodeTable() table.Table {
	nodes := slices.Clone(v.all.Nodes)
	slices.SortStableFunc(nodes, func(a, b overview.Node) int { return orders[v.order].nodes(&a, &b) })
	replicas := nodeReplicas
	replicas.title = ""
	columns := slices.Concat([]nodeColumn{
		nodeName, nodePool, {title: "REPLICAS", cell: func(n *overview.Node) string { return v.bar(n.ReplicasHeld, n.Replicas, nodeBar) }}, replicas,
	}, nodePrices(v.all), []nodeColumn{nodeType, nodeCapacity, nodeAge(v.all.AsOf), nodeState(v.colors), nodeZone.forWide(), nodeClaim.forWide()})
	return tableOf(nodes, v.wide, columns...)
}

func (v *view) podTable() table.Table {
	pods := slices.Clone(v.all.Pods)
	slices.SortStableFunc(pods, func(a, b overview.Pod) int { return orders[v.order].pods(&a, &b) })
	return tableOf(pods, v.wide, podName, podColumn{title: "NODE", cell: func(p *overview.Pod) string { return p.Node }},
		podColumn{title: "GPU", cell: func(p *overview.Pod) string { return indexList(p.GPUs) }}, podReplicas,
		podColumn{title: "MEM STATED", right: true, cell: func(p *overview.Pod) string { return memoryText(p.StatedMiB) }}, podPrice, podAge(v.all.AsOf), podUnused)
}

// stale is the age from which the view shows that it is out of date.
const stale = 30 * time.Second

func (v *view) footer(top, rows int) string {
	other := "p pods"
	if v.pods {
		other = "p nodes"
	}
	keys := fmt.Sprintf("q quit  s sort (by %s)  %s", orders[v.order].name, other)
	if rows > v.room() {
		keys += fmt.Sprintf("  ↑↓ %d-%d of %d", top+1, min(rows, top+v.room()), rows)
	}
	age := v.now.Sub(v.updated)
	if v.err != nil || age > stale {
		why := ""
		if v.err != nil {
			why = ": " + plain.Line(cmp.Or(missingRights(v.err), strings.ReplaceAll(v.err.Error(), "\n", "; ")))
		}
		return v.colors.red("not updated for "+words.Age(age)+why) + "  " + v.colors.faint(keys)
	}
	return v.colors.faint(keys)
}
