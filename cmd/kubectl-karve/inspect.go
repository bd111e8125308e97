package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/overview"
	"karve.sh/karve/pkg/table"
	"karve.sh/karve/pkg/words"
)

type inspectOptions struct {
	namespace string
	selection nodeSelection
	detail    bool
	output    output
	kube      *genericclioptions.ConfigFlags
}

const inspectLong = `Show the nodes with shared GPUs: their GPUs, what pods hold of each GPU, and what the nodes cost. The node agent, karve-node, reports
which pod is on which GPU. Without its report, the command shows the totals of the node, and - for unknown values.`

const inspectExample = `  # All nodes
  kubectl karve inspect

  # Which pods hold the replicas of a node?
  kubectl karve inspect ip-10-0-1-7.ec2.internal -d`

func inspectCommand(ctx context.Context, s streams) *cobra.Command {
	o := inspectOptions{kube: clusterFlags()}
	cmd := &cobra.Command{
		Use: "inspect [NODE]", Short: "Show the shared GPUs of nodes, the pods that hold them, and prices",
		Long: inspectLong, Example: inspectExample, Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := o.output.validate(); err != nil {
				return err
			}
			c, err := connect(o.kube, "")
			if err != nil {
				return err
			}
			seen, err := c.overview(ctx, o.namespace)
			if err != nil {
				return err
			}
			all, err := o.selection.apply(seen)
			if err != nil {
				return err
			}
			s.notes(seen.note)
			if len(args) == 0 && o.selection.empty() {
				seen.addBound()
			}
			return o.print(s, all, args)
		},
	}
	cmd.Flags().BoolVarP(&o.detail, "detail", "d", false, "list the containers that hold replicas of each GPU")
	o.output.addFlag(cmd.Flags(), "zone, capacity type, age and products of GPUs")
	o.selection.addFlags(cmd.Flags(), true)
	addNamespaceFlag(cmd.Flags(), &o.namespace)
	o.kube.AddFlags(cmd.Flags())
	return cmd
}

func (o *inspectOptions) print(s streams, all *overview.Overview, names []string) error {
	if len(names) > 0 {
		one, ok := all.Only(names[0])
		if !ok {
			return fmt.Errorf("no node with shared GPUs is named %q: kubectl karve inspect lists them", names[0])
		}
		all = one
	}
	s.warn(all.Controller)
	s.notes(slices.Concat(agentNotes(all.Nodes), statedNotes(all.Pods))...)
	return o.output.print(s.out, all, func() string { return o.text(all, len(names) == 0, paletteFor(s.out)) })
}

// text returns the tables of an overview. reservations adds those of reservations.
func (o *inspectOptions) text(all *overview.Overview, reservations bool, colors palette) string {
	if len(all.Nodes) == 0 {
		return "No node has shared GPUs.\n"
	}
	tables := []table.Table{inspectTable(all, o.output.wide(), colors)}
	if o.detail {
		tables = append(tables, holdersTable(all, o.output.wide()))
	}
	if len(all.Reservations) > 0 && reservations {
		tables = append(tables, reservationsTable(all))
	}
	var out strings.Builder
	for i := range tables {
		out.WriteString(tables[i].String() + "\n")
	}
	out.WriteString(colors.bold(totalsLine(&all.Totals)) + "\n")
	return out.String()
}

func reservationsTable(all *overview.Overview) table.Table {
	t := table.Table{Columns: []table.Column{
		{Title: "RESERVATION"},
		{Title: "TYPE"},
		{Title: "ZONE"},
		{Title: "USED", Right: true},
		{Title: "FREE", Right: true},
		{Title: "OTHERS", Right: true},
		{Title: "FREE $/H", Right: true},
		{Title: "WOULD HOLD"},
		{Title: "ENDS"},
	}}
	for i := range all.Reservations {
		r := &all.Reservations[i]
		free, ends := fmt.Sprint(r.Free), "never"
		if r.AsOf.IsZero() {
			free = unknown
		}
		switch {
		case !r.Leaves.IsZero():
			ends = "in " + words.Age(r.Leaves.Sub(all.AsOf)) + ", with its nodes"
		case !r.End.IsZero():
			ends = "in " + words.Age(r.End.Sub(all.AsOf))
		}
		t.Add(r.ID, r.InstanceType, r.Zone, fmt.Sprint(r.Used), free, fmt.Sprint(r.Others), price3(r.FreeMicroUSDPerHour), wouldHold(r), ends)
	}
	return t
}

func wouldHold(r *overview.Reservation) string {
	if len(r.Holds) == 0 {
		return unknown
	}
	var all []string
	for _, h := range r.Holds {
		all = append(all, fmt.Sprintf("%d %s in %s", h.Replicas, h.Resource, h.NodePool))
	}
	return strings.Join(all, ", ")
}

func statedNotes(pods []overview.Pod) []string {
	var notes []string
	for i := range pods {
		if p := &pods[i]; p.StatedProblem != "" {
			notes = append(notes, fmt.Sprintf("pod %s/%s: %s", p.Namespace, p.Name, p.StatedProblem))
		}
	}
	return notes
}

// inspectTable returns a table with a row for each node and a column for each GPU of the nodes.
func inspectTable(all *overview.Overview, wide bool, colors palette) table.Table {
	gpus := 0
	for i := range all.Nodes {
		gpus = max(gpus, len(all.Nodes[i].GPUs))
	}
	columns := []nodeColumn{nodeName, nodePool, nodeType}
	columns = append(append(columns, nodePrices(all)...), nodeReplicas)
	for i := range gpus {
		columns = append(columns, nodeColumn{title: fmt.Sprintf("GPU%d", i), right: true, cell: func(n *overview.Node) string { return gpuCell(n, i, colors) }})
	}
	columns = append(columns,
		nodeColumn{title: "MEM STATED", right: true, cell: func(n *overview.Node) string { return ofMemory(n.StatedMiB, n.MemoryMiB) }}, nodeState(colors),
		nodeCapacity.forWide(), nodeZone.forWide(), nodeAge(all.AsOf).forWide(), nodeColumn{title: "PRODUCT", wide: true, cell: productNames}, nodeClaim.forWide())
	return tableOf(all.Nodes, wide, columns...)
}

// gpuCell returns what is held of the i-th GPU of a node: nothing if the node has no such GPU, - without a report of the agent, and ? if the report is
// out of date.
func gpuCell(n *overview.Node, i int, colors palette) string {
	switch {
	case i >= len(n.GPUs):
		return ""
	case n.Agent.Report == overview.Stale:
		return colors.yellow("?")
	}
	gpu := &n.GPUs[i]
	if gpu.Held == nil || gpu.Replicas == nil {
		return unknown
	}
	cell := fmt.Sprintf("%d/%d", *gpu.Held, *gpu.Replicas)
	if gpu.Slots != nil {
		cell = ofMemory(slotMemory(gpu.Slots), gpu.MemoryMiB)
	}
	if gpu.Healthy != nil && !*gpu.Healthy {
		return colors.red(cell + " out")
	}
	if gpu.Cordoned {
		return colors.cyan(cell + " cordoned")
	}
	return cell
}

func slotMemory(slots []overview.Slots) int64 {
	var mib int64
	for _, s := range slots {
		mib += s.Held * s.MiB
	}
	return mib
}

// productNames returns the products of a node's GPUs, each with its number.
func productNames(n *overview.Node) string {
	var names []string
	counts := map[string]int{}
	for i := range n.GPUs {
		if name := n.GPUs[i].Product; name != "" {
			if n.GPUs[i].Profile != "" {
				name += " MIG " + n.GPUs[i].Profile
			}
			if counts[name]++; counts[name] == 1 {
				names = append(names, name)
			}
		}
	}
	for i, name := range names {
		if counts[name] > 1 {
			names[i] = fmt.Sprintf("%d × %s", counts[name], name)
		}
	}
	return cmp.Or(strings.Join(names, ", "), unknown)
}

// holdersTable returns a table with a row for each container that holds replicas of a GPU.
func holdersTable(all *overview.Overview, wide bool) table.Table {
	t := table.Table{Columns: []table.Column{
		{Title: "NODE"}, {Title: "GPU", Right: true}, {Title: "REPLICA"}, {Title: "POD"}, {Title: "CONTAINER"}, {Title: "MEM STATED", Right: true},
	}}
	if wide {
		t.Columns = append(t.Columns, table.Column{Title: "UUID"})
	}
	add := func(cells []string, uuid string) {
		if wide {
			cells = append(cells, cmp.Or(uuid, unknown))
		}
		t.Add(cells...)
	}
	on := podsOn(all)
	for i := range all.Nodes {
		n := &all.Nodes[i]
		named := map[string]bool{}
		for j := range n.GPUs {
			gpu := &n.GPUs[j]
			if n.Agent.Report == overview.Stale {
				break // Its holders may have changed.
			}
			for _, h := range gpu.Holders {
				named[h.Namespace+"/"+h.Pod] = true
				add([]string{n.Name, gpu.Name(), replicasOf(h), h.Namespace + "/" + h.Pod, h.Container, memoryText(h.StatedMiB)}, gpu.UUID)
			}
		}
		for _, p := range on[n.Name] {
			if named[p.Namespace+"/"+p.Name] {
				continue
			}
			where := unknown
			if n.Agent.Report == overview.Stale {
				where = "?"
			}
			add([]string{n.Name, where, fmt.Sprintf("- (%d)", p.Replicas), p.Namespace + "/" + p.Name, unknown, memoryText(p.StatedMiB)}, "")
		}
	}
	return t
}

// replicasOf returns the replicas or slots that a container holds.
func replicasOf(h overview.Holder) string {
	if len(h.Slots) > 0 {
		return strings.Join(h.Slots, ",")
	}
	return numbers(h.Replicas)
}

// numbers formats the numbers of replicas, with ranges for consecutive ones. It returns "all" for an unshared GPU.
func numbers(all []int) string {
	if len(all) == 0 {
		return "all"
	}
	var parts []string
	for i := 0; i < len(all); {
		j := i
		for j+1 < len(all) && all[j+1] == all[j]+1 {
			j++
		}
		switch j - i {
		case 0:
			parts = append(parts, strconv.Itoa(all[i]))
		case 1:
			parts = append(parts, strconv.Itoa(all[i]), strconv.Itoa(all[j]))
		default:
			parts = append(parts, fmt.Sprintf("%d-%d", all[i], all[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}

// hoursPerMonth is the number of hours that clouds bill for a month.
const hoursPerMonth = 730

// totalsLine returns the last line: nodes, replicas, prices and the bound.
func totalsLine(t *overview.Totals) string {
	parts := []string{words.Count(t.Nodes, "node"), fmt.Sprintf("%d/%d replicas", t.ReplicasHeld, t.Replicas)}
	if t.Replicas > 0 {
		parts[1] += fmt.Sprintf(" (%d %%)", 100*t.ReplicasHeld/t.Replicas)
	}
	if t.UnpricedNodes < t.Nodes {
		parts = append(parts, "$"+words.USD(t.MicroUSDPerHour)+"/h"+listPrice(t), fmt.Sprintf("$%d/month", (t.MicroUSDPerHour*hoursPerMonth+500_000)/1_000_000))
	}
	if t.UnpricedNodes > 0 {
		parts = append(parts, fmt.Sprintf("%s of unknown price", words.Count(t.UnpricedNodes, "node")))
	}
	if t.BoundMicroUSDPerHour != nil {
		parts = append(parts, "bound $"+words.USD(*t.BoundMicroUSDPerHour)+"/h")
	}
	return strings.Join(parts, "  ")
}

// listPrice returns the price of the nodes in the cloud's list in parentheses, or "" if it is their price.
func listPrice(t *overview.Totals) string {
	if t.ListMicroUSDPerHour == t.MicroUSDPerHour {
		return ""
	}
	return " (list $" + words.USD(t.ListMicroUSDPerHour) + "/h)"
}

// agentNotes lists the nodes without a valid report of the agent.
func agentNotes(nodes []overview.Node) []string {
	counts := map[overview.ReportState]int{}
	truncated := 0
	for i := range nodes {
		n := &nodes[i]
		if n.Running() {
			counts[n.Agent.Report]++
		}
		if n.Agent.Truncated {
			truncated++
		}
	}
	var notes []string
	for _, c := range []struct {
		n    int
		text string
	}{
		{counts[overview.Missing], "no agent reports which pods hold the GPUs of %s: install or upgrade karve-node"},
		{counts[overview.Stale], "the agents of %s have not reported for " + words.Age(nodecontract.HoldersFresh) + ", so their GPUs are shown as ?"},
		{counts[overview.Invalid], "the annotation " + nodecontract.HoldersAnnotation + " of %s cannot be read: its agent rewrites it when a pod starts or ends"},
		{truncated, "the agents of %s do not name the pods on their GPUs: there are too many for an annotation"},
	} {
		if c.n > 0 {
			notes = append(notes, fmt.Sprintf(c.text, words.Count(c.n, "node")))
		}
	}
	return notes
}

func podsOn(all *overview.Overview) map[string][]*overview.Pod {
	on := map[string][]*overview.Pod{}
	for i := range all.Pods {
		on[all.Pods[i].Node] = append(on[all.Pods[i].Node], &all.Pods[i])
	}
	return on
}
