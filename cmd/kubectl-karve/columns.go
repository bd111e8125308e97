package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"karve.sh/karve/pkg/overview"
	"karve.sh/karve/pkg/table"
	"karve.sh/karve/pkg/words"
)

// column is a column of a table with a row for each T. Columns that are wide are for -o wide only.
type column[T any] struct {
	title string
	right bool
	wide  bool
	cell  func(T) string
}

func (c column[T]) forWide() column[T] {
	c.wide = true
	return c
}

func tableOf[T any](all []T, wide bool, columns ...column[*T]) table.Table {
	var t table.Table
	shown := columns[:0:0]
	for _, c := range columns {
		if wide || !c.wide {
			shown = append(shown, c)
			t.Columns = append(t.Columns, table.Column{Title: c.title, Right: c.right})
		}
	}
	for i := range all {
		row := make([]string, len(shown))
		for j, c := range shown {
			row[j] = c.cell(&all[i])
		}
		t.Add(row...)
	}
	return t
}

// nodePrices returns the columns with the prices of nodes: those in the cloud's list too if any of them differs.
func nodePrices(all *overview.Overview) []nodeColumn {
	differs := func(n overview.Node) bool { return price3(n.ListMicroUSDPerHour) != price3(n.MicroUSDPerHour) }
	if all.Totals.ListMicroUSDPerHour == all.Totals.MicroUSDPerHour && !slices.ContainsFunc(all.Nodes, differs) {
		return []nodeColumn{nodePrice}
	}
	return []nodeColumn{nodePrice, {title: "LIST $/H", right: true, cell: func(n *overview.Node) string { return price3(n.ListMicroUSDPerHour) }}}
}

type (
	nodeColumn = column[*overview.Node]
	podColumn  = column[*overview.Pod]
)

var (
	nodeName     = nodeColumn{title: "NODE", cell: func(n *overview.Node) string { return n.Name }}
	nodePool     = nodeColumn{title: "POOL", cell: func(n *overview.Node) string { return cmp.Or(n.Pool, unknown) }}
	nodeType     = nodeColumn{title: "TYPE", cell: func(n *overview.Node) string { return cmp.Or(n.InstanceType, unknown) }}
	nodeCapacity = nodeColumn{title: "CAPACITY", cell: func(n *overview.Node) string { return cmp.Or(n.CapacityType, unknown) }}
	nodeZone     = nodeColumn{title: "ZONE", cell: func(n *overview.Node) string { return cmp.Or(n.Zone, unknown) }}
	nodeClaim    = nodeColumn{title: "NODECLAIM", cell: func(n *overview.Node) string { return cmp.Or(n.NodeClaim, unknown) }}
	nodePrice    = nodeColumn{title: "$/H", right: true, cell: func(n *overview.Node) string { return price3(n.MicroUSDPerHour) }}
	nodeReplicas = nodeColumn{title: "REPLICAS", right: true, cell: func(n *overview.Node) string { return fmt.Sprintf("%d/%d", n.ReplicasHeld, n.Replicas) }}
)

func nodeAge(now time.Time) nodeColumn {
	return nodeColumn{title: "AGE", right: true, cell: func(n *overview.Node) string { return words.Age(now.Sub(n.Created)) }}
}

func nodeState(colors palette) nodeColumn {
	return nodeColumn{title: "STATE", cell: func(n *overview.Node) string { return stateColor(n, colors) }}
}

var (
	podName     = podColumn{title: "POD", cell: func(p *overview.Pod) string { return p.Namespace + "/" + p.Name }}
	podReplicas = podColumn{title: "REPLICAS", right: true, cell: func(p *overview.Pod) string { return strconv.FormatInt(p.Replicas, 10) }}
	podPrice    = podColumn{title: "$/H", right: true, cell: func(p *overview.Pod) string { return price3(p.MicroUSDPerHour) }}
	podUnused   = podColumn{title: "UNUSED", right: true, cell: unusedFor}
)

func podAge(now time.Time) podColumn {
	return podColumn{title: "AGE", right: true, cell: func(p *overview.Pod) string { return words.Age(now.Sub(p.Started)) }}
}

func price3(micro *int64) string {
	if micro == nil {
		return unknown
	}
	return words.USD(*micro)
}

func stateColor(n *overview.Node, colors palette) string {
	switch n.Severity {
	case overview.Good:
		return colors.green(n.Message)
	case overview.Bad:
		return colors.red(n.Message)
	case overview.Idle:
		return colors.yellow(n.Message)
	case overview.Busy:
		return colors.cyan(n.Message)
	}
	return n.Message
}

func unusedFor(p *overview.Pod) string {
	if p.UnusedSeconds == nil {
		return unknown
	}
	return words.Age(time.Duration(*p.UnusedSeconds) * time.Second)
}

func memoryText(mib *int64) string {
	if mib == nil {
		return unknown
	}
	return gib(*mib) + "Gi"
}

// ofMemory formats a part of an amount that may be unknown.
func ofMemory(part int64, all *int64) string {
	if all == nil {
		return gib(part) + "/" + unknown
	}
	return gib(part) + "/" + gib(*all) + "Gi"
}

// gib formats MiB as GiB with at most one decimal.
func gib(mib int64) string {
	tenths := (mib*10 + 512) / 1024
	if tenths%10 == 0 {
		return strconv.FormatInt(tenths/10, 10)
	}
	return fmt.Sprintf("%d.%d", tenths/10, tenths%10)
}

// number returns a value, or -1 if it is unknown.
func number[T int64 | float64](value *T) float64 {
	if value == nil {
		return -1
	}
	return float64(*value)
}
