package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/leader"
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

func rowsOf(all *overview.Overview) []podRow {
	on := map[string]string{}
	for i := range all.Nodes {
		on[all.Nodes[i].Name] = all.Nodes[i].Resource
	}
	rows := make([]podRow, 0, len(all.Pods)+len(all.Waiting))
	for _, p := range all.Pods {
		rows = append(rows, podRow{Pod: p, resource: on[p.Node]})
	}
	for _, w := range all.Waiting {
		rows = append(rows, podRow{
			Pod:   overview.Pod{Namespace: w.Namespace, Name: w.Name, Node: w.Nominated, Replicas: w.Replicas, StatedMiB: w.StatedMiB, Started: w.Since},
			waits: cmp.Or(w.Reason, "Waiting"), resource: w.Resource,
		})
	}
	slices.SortFunc(rows, func(a, b podRow) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return rows
}

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
		v.top = len(v.all.Nodes) + len(v.all.Pods) + len(v.all.Waiting)
	}
	v.top = v.clamped()
	return false
}

// clamped returns top, limited so that no more rows than necessary are above.
func (v *view) clamped() int {
	rows := len(v.all.Nodes)
	if v.pods {
		rows = len(v.all.Pods) + len(v.all.Waiting)
	}
	return max(0, min(v.top, rows-v.room()))
}

// otherLines is the number of lines of a frame that are neither rows nor the summary: a blank one, the titles, and the keys.
const otherLines = 3

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

// dropped are the columns that a narrow terminal loses first, in this order. The others are more useful: name, replicas, price and state, and for pods the node.
var (
	droppedOfNodes = []string{"CAPACITY", "AGE", "TYPE", "POOL"}
	droppedOfPods  = []string{"MEM STATED", "GPU", "AGE", "UNUSED", "NODE"}
)

// lines returns the summary with the titles, and a row for each node or pod.
func (v *view) lines() (head, rows []string) {
	t := v.fitting()
	rows = strings.Split(strings.TrimSuffix(t.String(), "\n"), "\n")
	head = append(v.summary(), "", v.colors.faint(rows[0]))
	return head, rows[1:]
}

// fitting returns the table of nodes or pods, with as many columns as the terminal is wide enough for.
func (v *view) fitting() table.Table {
	of, dropped := v.nodeTable, droppedOfNodes
	if v.pods {
		of, dropped = v.podTable, droppedOfPods
	}
	t := of(full)
	if v.width == 0 || t.Fit(v.width, dropped...) {
		return t
	}
	t = of(short)
	t.Fit(v.width, dropped...)
	return t
}

// form is how much room cells take.
type form int

const (
	full form = iota
	// short is without bars, and with names of nodes without their domain.
	short
)

// name returns the name of a node, which may be "".
func (f form) name(node string) string {
	if f == short && node != "" {
		node, _, _ = strings.Cut(node, ".")
	}
	return node
}

func (v *view) summary() []string {
	t := &v.all.Totals
	first := v.colors.bold(totalsLine(t)) + "  " + v.bar(t.ReplicasHeld, t.Replicas, summaryBar)
	idle := "  idle $" + words.USD(t.IdleMicroUSDPerHour) + "/h"
	if v.pods {
		first, idle = v.colors.bold(podsLine(v.all.Pods)), ""
	}
	second := "no pods waiting"
	if n := len(v.all.Waiting); n > 0 {
		second = v.colors.yellow(fmt.Sprintf("%s, the longest for %s", words.Count(n, "pod")+" waiting", words.Age(v.all.AsOf.Sub(v.all.Waiting[0].Since))))
	}
	lines := []string{first, second + idle}
	if text := v.all.Controller.Warning(); text != "" {
		lines = append([]string{v.colors.red("warning: " + plain.Line(text))}, lines...)
	}
	return lines
}

func podsLine(pods []overview.Pod) string {
	var replicas, micro int64
	unpriced := 0
	for i := range pods {
		replicas = amount.Add(replicas, pods[i].Replicas)
		if p := pods[i].MicroUSDPerHour; p != nil {
			micro = amount.Add(micro, *p)
		} else {
			unpriced++
		}
	}
	line := fmt.Sprintf("%s with %s", words.Count(len(pods), "pod"), words.Count(int(replicas), "replica"))
	if unpriced < len(pods) {
		line += "  $" + words.USD(micro) + "/h"
	}
	if unpriced > 0 {
		line += fmt.Sprintf("  %s of unknown price", words.Count(unpriced, "pod"))
	}
	return line
}

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

func (v *view) nodeTable(f form) table.Table {
	nodes := slices.Clone(v.all.Nodes)
	slices.SortStableFunc(nodes, func(a, b overview.Node) int { return orders[v.order].nodes(&a, &b) })
	name, replicas := nodeName, nodeReplicas
	name.cell = func(n *overview.Node) string { return f.name(n.Name) }
	columns := []nodeColumn{name, nodePool}
	if f == full {
		columns = append(columns, nodeColumn{title: replicas.title, cell: func(n *overview.Node) string { return v.bar(n.ReplicasHeld, n.Replicas, nodeBar) }})
		replicas.title = ""
	}
	columns = slices.Concat(columns, []nodeColumn{replicas}, nodePrices(v.all),
		[]nodeColumn{nodeType, nodeCapacity, nodeAge(v.all.AsOf), nodeState(v.colors), nodeZone.forWide(), nodeClaim.forWide()})
	return tableOf(nodes, v.wide, columns...)
}

func (v *view) podTable(f form) table.Table {
	rows := rowsOf(v.all)
	slices.SortStableFunc(rows, func(a, b podRow) int { return orders[v.order].pods(&a, &b) })
	return tableOf(rows, v.wide,
		column[*podRow]{title: "POD", cell: func(p *podRow) string { return p.Namespace + "/" + p.Name }},
		column[*podRow]{title: "STATE", cell: v.podState},
		column[*podRow]{title: "NODE", cell: func(p *podRow) string { return cmp.Or(f.name(p.Node), unknown) }},
		column[*podRow]{title: "GPU", cell: func(p *podRow) string { return indexList(p.GPUs) }},
		ofRow(podReplicas), column[*podRow]{title: "MEM STATED", right: true, cell: func(p *podRow) string { return memoryText(p.StatedMiB) }},
		ofRow(podPrice), ofRow(podAge(v.all.AsOf)), ofRow(podUnused),
		column[*podRow]{title: "POOL", wide: true, cell: func(p *podRow) string { return cmp.Or(p.Pool, unknown) }},
		column[*podRow]{title: "RESOURCE", wide: true, cell: func(p *podRow) string { return cmp.Or(p.resource, unknown) }})
}

// podState returns what a pod does: it runs, or waits for a reason.
func (v *view) podState(p *podRow) string {
	switch {
	case p.waits != "":
		return v.colors.yellow(p.waits)
	case p.Started.IsZero():
		return v.colors.cyan("Starting")
	}
	return v.colors.green("Running")
}

func ofRow(c podColumn) column[*podRow] {
	return column[*podRow]{c.title, c.right, c.wide, func(p *podRow) string { return c.cell(&p.Pod) }}
}

func (v *view) data() any {
	if !v.pods {
		return v.all
	}
	return struct {
		AsOf       time.Time          `json:"asOf"`
		Pods       []overview.Pod     `json:"pods"`
		Waiting    []overview.Waiting `json:"waiting"`
		Controller *leader.Leader     `json:"controller,omitempty"`
	}{v.all.AsOf, v.all.Pods, v.all.Waiting, v.all.Controller}
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
