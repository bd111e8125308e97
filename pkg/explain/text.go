package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/table"
	"karve.sh/karve/pkg/words"
)

const unknown = "-"

// Text returns the answer as text. Times are relative to now. If wide is true, it includes the planner's messages and the rules of the pod.
func (a *PodAnswer) Text(now time.Time, wide bool) string {
	parts := []string{a.Pod, string(a.State) + sinceWords(a.Since, now)}
	if a.Wants.Resource != "" {
		wants := fmt.Sprintf("wants %d %s", a.Wants.Replicas, a.Wants.Resource)
		if a.Wants.GPUMemoryBytes > 0 {
			wants += fmt.Sprintf(", %s of GPU memory", bytesText(a.Wants.GPUMemoryBytes))
		}
		parts = append(parts, wants)
	}
	var out page
	out.line(strings.Join(parts, "   "))
	if len(a.Pools) == 0 || wide {
		out.line("It " + withStop(a.Summary))
	}
	if a.Help != nil {
		out.section(table.Table{Columns: []table.Column{{Title: "WHAT WOULD HELP"}, {Title: "$/H", Right: true}}, Rows: [][]string{{a.Help.words(), words.USD(a.Help.Price)}}})
	}
	out.section(a.pools(wide))
	if nodes := a.nodes(); nodes != "" {
		out.line("")
		out.line(fmt.Sprintf("NODES   %s", nodes))
	}
	out.section(a.machine(now))
	out.section(a.place())
	if a.Move != nil {
		out.line("")
		out.line(fmt.Sprintf("CONSOLIDATION   %s", a.Move.words()))
	}
	if wide || a.Place != nil {
		rules := table.Table{Columns: []table.Column{{Title: "RULE"}, {}}}
		for _, r := range a.Rules {
			rules.Add(r.Kind, r.Text)
		}
		out.section(rules)
	}
	return out.String()
}

func (a *PodAnswer) pools(wide bool) table.Table {
	t := table.Table{Columns: []table.Column{{Title: "NODEPOOL"}, {Title: "REASON"}, {Title: "WHAT WOULD HELP"}, {Title: "$/H", Right: true}}}
	if wide {
		t.Columns = append(t.Columns, table.Column{Title: "MESSAGE"})
	}
	for _, p := range a.Pools {
		change, price := unknown, unknown
		if p.Help != nil {
			change, price = p.Help.words(), words.USD(p.Help.Price)
		}
		row := []string{p.NodePool, string(p.Reason), change, price}
		if wide {
			row = append(row, p.Message)
		}
		t.Add(row...)
	}
	return t
}

func (a *PodAnswer) nodes() string {
	var parts []string
	for _, n := range a.Nodes {
		part := fmt.Sprintf("%d %s", n.Count, n.Why)
		if n.Example != "" {
			part += fmt.Sprintf(" (%s has %s)", n.Example, n.Left)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

func (a *PodAnswer) machine(now time.Time) table.Table {
	t := table.Table{Columns: []table.Column{{Title: "MACHINE"}, {Title: "NODEPOOL"}, {Title: "TYPE"}, {Title: "ZONE"}, {Title: "CAPACITY"}, {Title: "STATE"}, {Title: "AGE"}, {Title: "LIMIT"}, {Title: "$/H", Right: true}}}
	if m := a.Machine; m != nil {
		state, limit := string(m.State), unknown
		if m.Name == "" {
			state = "planned"
		}
		if m.Until != nil {
			limit = "in " + words.Age(m.Until.Sub(now))
		}
		t.Add(cmp.Or(m.Name, unknown), cmp.Or(m.NodePool, unknown), cmp.Or(m.InstanceType, unknown), cmp.Or(m.Zone, unknown), cmp.Or(m.CapacityType, unknown), cmp.Or(state, unknown), ageOf(m.Since, now), limit, dollarsOr(&m.Price)+listOr(&m.Price, &m.ListPrice))
	}
	return t
}

func (a *PodAnswer) place() table.Table {
	t := table.Table{Columns: []table.Column{{Title: "NODE"}, {Title: "NODEPOOL"}, {Title: "TYPE"}, {Title: "ZONE"}, {Title: "CAPACITY"}, {Title: "GPU", Right: true}, {Title: "REPLICAS", Right: true}, {Title: "$/H", Right: true}, {Title: "NODE $/H", Right: true}}}
	if p := a.Place; p != nil {
		gpu, replicas := unknown, strconv.FormatInt(p.Replicas, 10)
		if len(p.GPUs) > 0 {
			gpu = strings.Trim(strings.ReplaceAll(fmt.Sprint(p.GPUs), " ", ","), "[]")
		}
		if p.NodeReplicas > 0 {
			replicas += "/" + strconv.FormatInt(p.NodeReplicas, 10)
		}
		t.Add(p.Node, cmp.Or(p.NodePool, unknown), cmp.Or(p.InstanceType, unknown), cmp.Or(p.Zone, unknown), cmp.Or(p.CapacityType, unknown), gpu, replicas, dollarsOr(p.Price), dollarsOr(p.NodePrice)+listOr(p.NodePrice, p.NodeListPrice))
	}
	return t
}

// words describes the change with the object to change.
func (h *Help) words() string {
	if h.On == "pod" {
		return h.Change + " (pod)"
	}
	return h.Change
}

// words describes briefly whether the pod moves.
func (m *Move) words() string {
	var parts []string
	if m.Kept != "" {
		parts = append(parts, "the pod stays: "+m.Kept)
	} else {
		parts = append(parts, "the pod moves once it has room elsewhere")
	}
	if m.Cost != nil {
		parts = append(parts, fmt.Sprintf("its restart costs $%s", words.USD(*m.Cost)))
	}
	return sentence(parts...)
}

// Text returns the answer as text. Times are relative to now. If wide is true, it also includes the reasons that the node does not have.
func (a *NodeAnswer) Text(now time.Time, wide bool) string {
	var out page
	name := cmp.Or(a.Node, a.NodeClaim)
	if a.State == "" {
		out.line(fmt.Sprintf("%s   %s", name, a.Summary))
		return out.String()
	}
	out.line(strings.Join([]string{
		name, a.NodePool, cmp.Or(a.InstanceType, unknown), cmp.Or(a.Zone, unknown), cmp.Or(a.CapacityType, unknown), "$" + dollarsOr(a.Price) + "/h" + listOr(a.Price, a.ListPrice), fmt.Sprintf("%d/%d replicas", a.Held, a.Replicas), string(a.State) + sinceWords(a.Since, now),
	}, "   "))
	out.line("It " + withStop(a.Summary))
	if a.Cordon != "" {
		out.line("")
		out.line("GPUS    " + withStop(a.Cordon))
	}
	if a.Next != "" {
		out.line("")
		out.line(fmt.Sprintf("NEXT    %s", a.Next))
		limit := a.Late
		if a.Until != nil {
			limit += fmt.Sprintf(" (%s)", inWords(*a.Until, now))
		}
		out.line(fmt.Sprintf("LIMIT   %s", limit))
	}
	t := table.Table{Columns: []table.Column{{Title: "REASON"}, {Title: "APPLIES"}, {Title: "SINCE"}, {Title: "DUE"}, {Title: "WHY"}, {Title: "KEPT BY"}}}
	for _, c := range a.Causes {
		if !c.Applies && !wide && c.Due == nil {
			continue
		}
		applies, due := "no", unknown
		if c.Applies {
			applies = "yes"
		}
		if c.Due != nil {
			due = inWords(*c.Due, now)
		}
		t.Add(string(c.Reason), applies, ageOf(c.Since, now), due, cmp.Or(c.Message, unknown), cmp.Or(c.Kept, unknown))
	}
	out.section(t)
	return out.String()
}

// page is a text of lines and tables.
type page struct{ strings.Builder }

func (p *page) line(text string) { p.WriteString(strings.TrimRight(plain.Line(text), " ") + "\n") }

// section adds a table after an empty line, unless it has no rows. Columns without a known value are left out.
func (p *page) section(t table.Table) {
	if len(t.Rows) == 0 {
		return
	}
	for i := len(t.Columns) - 1; i > 0; i-- {
		if t.Columns[i].Title == "" || slices.ContainsFunc(t.Rows, func(row []string) bool { return row[i] != unknown }) {
			continue
		}
		t.Columns = slices.Delete(t.Columns, i, i+1)
		for j := range t.Rows {
			t.Rows[j] = slices.Delete(t.Rows[j], i, i+1)
		}
	}
	p.WriteString("\n" + t.String())
}

// withStop ends a text with a full stop.
func withStop(text string) string {
	text = strings.TrimRight(text, " .:")
	if strings.HasSuffix(text, "?") {
		return text
	}
	return text + "."
}

func sinceWords(since *time.Time, now time.Time) string {
	if since == nil {
		return ""
	}
	return " " + age(now, *since)
}

func ageOf(since *time.Time, now time.Time) string {
	if since == nil {
		return unknown
	}
	return age(now, *since)
}

func inWords(t, now time.Time) string {
	if !t.After(now) {
		return "now"
	}
	return "in " + words.Age(t.Sub(now))
}

func dollarsOr(m *planner.MicroUSD) string {
	if m == nil || *m == 0 {
		return unknown
	}
	return words.USD(*m)
}

// listOr returns the price in the cloud's list in parentheses, or "" if it is the price that is paid or is unknown.
func listOr(own, list *planner.MicroUSD) string {
	if own == nil || list == nil || *list == 0 || *list == *own {
		return ""
	}
	return " (list " + words.USD(*list) + ")"
}
