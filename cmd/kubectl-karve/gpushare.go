package main

import (
	"fmt"
	"io"
	"strings"

	"karve.sh/karve/pkg/overview"
	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/table"
)

// gpushareFormat is the output format with the columns of `kubectl inspect gpushare`.
const gpushareFormat = "gpushare"

// printGPUShare writes an overview in the format of `kubectl inspect gpushare`, in GiB, or in MiB if a slot is not a whole number of GiB. As there,
// memory that pods hold on unknown GPUs is PENDING.
func (o *inspectOptions) printGPUShare(out io.Writer, all *overview.Overview) error {
	unit := unitOf(all)
	var text strings.Builder
	var err error
	if o.detail {
		err = gpushareDetail(&text, all, unit)
	} else {
		nodes := gpushareTable(all, unit)
		err = nodes.Write(&text)
	}
	if err != nil {
		return err
	}
	var allocated, total int64
	for i := range all.Nodes {
		n := &all.Nodes[i]
		allocated += unit.of(n.StatedMiB)
		total += unit.of(memoryIn(n))
	}
	fmt.Fprintf(&text, "---------------------------------------------------------------------\nAllocated/Total GPU Memory In Cluster:\n%d/%d (%d%%)\n", allocated, total, percentOf(allocated, total))
	_, err = io.WriteString(out, text.String())
	return err
}

// memoryUnit is the unit of a table: GiB or MiB.
type memoryUnit struct {
	name string
	mib  int64
}

// of returns an amount in the unit, rounded down.
func (u memoryUnit) of(mib int64) int64 { return mib / u.mib }

// unitOf returns GiB, or MiB if a pod holds memory that is not a whole number of GiB.
func unitOf(all *overview.Overview) memoryUnit {
	gib := memoryUnit{"GiB", 1 << 10}
	for i := range all.Pods {
		if mib := all.Pods[i].StatedMiB; mib != nil && *mib%gib.mib != 0 {
			return memoryUnit{"MiB", 1}
		}
	}
	return gib
}

func percentOf(part, all int64) int64 {
	if all == 0 {
		return 0
	}
	return 100 * part / all
}

func memoryIn(n *overview.Node) int64 {
	if n.MemoryMiB == nil {
		return 0
	}
	return *n.MemoryMiB
}

// placed returns the memory in MiB that pods hold on the GPUs of a node according to its agent, by GPU, and the remaining memory, whose GPUs are
// unknown.
func placed(n *overview.Node) (on []int64, pending int64) {
	on, pending = make([]int64, len(n.GPUs)), n.StatedMiB
	for i := range n.GPUs {
		if stated := n.GPUs[i].StatedMiB; stated != nil && n.Agent.Report != overview.Stale {
			on[i] = *stated
			pending -= *stated
		}
	}
	return on, max(0, pending)
}

func gpushareTable(all *overview.Overview, unit memoryUnit) table.Table {
	t := table.Table{Columns: []table.Column{{Title: "NAME"}, {Title: "IPADDRESS"}}}
	gpus, waits := 0, false
	for i := range all.Nodes {
		gpus = max(gpus, len(all.Nodes[i].GPUs))
		_, pending := placed(&all.Nodes[i])
		waits = waits || pending > 0
	}
	for i := range gpus {
		t.Columns = append(t.Columns, table.Column{Title: fmt.Sprintf("GPU%d(Allocated/Total)", i)})
	}
	if waits {
		t.Columns = append(t.Columns, table.Column{Title: "PENDING(Allocated)"})
	}
	t.Columns = append(t.Columns, table.Column{Title: "GPU Memory(" + unit.name + ")"})
	for i := range all.Nodes {
		n := &all.Nodes[i]
		on, pending := placed(n)
		row := []string{n.Name, orUnknown(n.Address)}
		for j := range gpus {
			row = append(row, gpushareCell(n, j, on, unit))
		}
		if waits {
			cell := ""
			if pending > 0 {
				cell = fmt.Sprint(unit.of(pending))
			}
			row = append(row, cell)
		}
		t.Add(append(row, fmt.Sprintf("%d/%d", unit.of(n.StatedMiB), unit.of(memoryIn(n))))...)
	}
	return t
}

// gpushareCell returns the allocated memory of the i-th GPU of a node and its total memory, or 0/0 if the node has no such GPU.
func gpushareCell(n *overview.Node, i int, on []int64, unit memoryUnit) string {
	if i >= len(n.GPUs) {
		return "0/0"
	}
	return fmt.Sprintf("%d/%d", unit.of(on[i]), unit.of(gpuMemory(n, i)))
}

// gpuMemory returns the memory of the i-th GPU of a node from its agent's report, or else an equal part of the node's memory.
func gpuMemory(n *overview.Node, i int) int64 {
	if mib := n.GPUs[i].MemoryMiB; mib != nil {
		return *mib
	}
	return memoryIn(n) / int64(len(n.GPUs))
}

// gpushareDetail writes a table of the pods of each node.
func gpushareDetail(out io.Writer, all *overview.Overview, unit memoryUnit) error {
	pods := podsOn(all)
	for i := range all.Nodes {
		n := &all.Nodes[i]
		fmt.Fprintf(out, "\nNAME:       %s\nIPADDRESS:  %s\n\n", plain.Line(n.Name), plain.Line(orUnknown(n.Address)))
		t := table.Table{Columns: []table.Column{{Title: "NAME"}, {Title: "NAMESPACE"}}}
		for j := range n.GPUs {
			t.Columns = append(t.Columns, table.Column{Title: fmt.Sprintf("GPU%d(Allocated)", j)})
		}
		_, pending := placed(n)
		if pending > 0 {
			t.Columns = append(t.Columns, table.Column{Title: "Pending(Allocated)"})
		}
		for _, p := range pods[n.Name] {
			t.Add(podRow(n, p, pending > 0, unit)...)
		}
		if err := t.Write(out); err != nil {
			return err
		}
		allocated, total := unit.of(n.StatedMiB), unit.of(memoryIn(n))
		fmt.Fprintf(out, "Allocated : %d (%d%%)\nTotal :     %d\n", allocated, percentOf(allocated, total), total)
	}
	return nil
}

// podRow returns what a pod holds of each GPU of its node.
func podRow(n *overview.Node, p *overview.Pod, waits bool, unit memoryUnit) []string {
	row := []string{p.Name, p.Namespace}
	left := int64(0)
	if p.StatedMiB != nil {
		left = *p.StatedMiB
	}
	for j := range n.GPUs {
		held := heldBy(n, j, p)
		left -= held
		row = append(row, fmt.Sprint(unit.of(held)))
	}
	if waits {
		row = append(row, fmt.Sprint(unit.of(max(0, left))))
	}
	return row
}

// heldBy returns the memory in MiB that a pod holds of the i-th GPU of a node, according to its agent.
func heldBy(n *overview.Node, i int, p *overview.Pod) int64 {
	if n.Agent.Report == overview.Stale {
		return 0
	}
	var mib int64
	for _, h := range n.GPUs[i].Holders {
		if h.Namespace != p.Namespace || h.Pod != p.Name || h.StatedMiB == nil {
			continue
		}
		if len(h.Slots) == 0 { // The annotation applies to the pod, not to each container.
			return *h.StatedMiB
		}
		mib += *h.StatedMiB
	}
	return mib
}
