package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
)

// table prints figures as they arrive, one line per workload.
type table struct{ to io.Writer }

const lineFormat = "%-68s %7s %6s %10s %16s %12s %14s %5s %5s %9s  %14s %9s %16s %12s  %s\n"

func (t table) header() {
	load, err := os.ReadFile("/proc/loadavg")
	if err == nil {
		fmt.Fprintf(t.to, "%d CPUs, load %s. A busy machine's times are not those of a quiet one, and less is found in the same time.\n\n",
			runtime.NumCPU(), strings.Join(strings.Fields(string(load))[:3], " "))
	}
	fmt.Fprintf(t.to, lineFormat, "", "", "", "", "gap in %", "", "plan", "goal", "", "over the", "final bill", "Karpenter", "Karpenter", "CA (model)", "")
	fmt.Fprintf(t.to, lineFormat, "workload", "pods", "offers", "optimal", "mean / worst", "goal", "ms / first", "ms", "MiB", "best", "once / ten", "packing", "itself, ms", "waste/price", "goals")
}

func (t table) row(r row, f figures) {
	if r.skipped != "" {
		fmt.Fprintf(t.to, "%-68s skipped: %s\n", f.Workload, r.skipped)
		return
	}
	goal := fmt.Sprintf("%.2f/%.2f", r.goal.mean, r.goal.worst)
	if r.goal.proved {
		goal = "all optimal"
	}
	verdict := "ok"
	if missed := r.missed(f); missed != "" {
		verdict = "MISS " + missed
	}
	fmt.Fprintf(t.to, lineFormat, f.Workload, fmt.Sprint(f.Pods), fmt.Sprint(f.Offerings), fmt.Sprintf("%d of %d", *f.Proved, f.Snapshots),
		number(f.GapMean, "%.2f")+" / "+number(f.GapWorst, "%.2f"), goal, number(f.Milliseconds, "%.1f")+" / "+number(f.FirstPlan, "%.1f"),
		number(f.GoalMS, "%.0f"), number(f.PeakMiB, "%.0f"), number(f.OverBest, "%.1f%%"), number(f.BillAtOnce, "%+.1f%%")+" "+number(f.BillByTen, "%+.1f%%"), number(f.FirstFit, "%+.1f%%"),
		number(f.Karpenter, "%+.1f%%")+" "+number(f.KarpenterMilliseconds, "%.0f"),
		number(f.LeastWaste, "%+.0f%%")+" "+number(f.PerPod, "%+.0f%%"), verdict)
	if f.Note != "" {
		fmt.Fprintf(t.to, "    %s\n", f.Note)
	}
}

// footer explains the columns.
func (t table) footer() {
	fmt.Fprint(t.to, `
Several snapshots are drawn of a workload; gap and times are averages over them, the worst where it says so. The gap is from the proven bound to the price.
Over the best: what the plans cost over the best ones that are known (best.csv), found by any search in any time. The difference is the plan's; the rest of the
gap is the bound's. Final bill: what all machines cost in the end over the first plan, when it is made again with each launch within the controller's 200 ms: all launched at once, and
ten at a time (a fifth of a plan of more than fifty) while all processors are busy; less where a later plan found a cheaper rest. Karpenter, packing: what firstfit.Plan, which packs as Karpenter does and knows of each GPU, costs over Karve's plans. Karpenter itself: its scheduler, as a
library, told replicas and device memory as sums of the machine, so that what it packs need not fit; each claim at its cheapest offering. CA: a model of
the Cluster Autoscaler with a group for each offering and the expanders least-waste and price. Reserved: the plan is that of an effort of about a second
on two cores, whatever the computer. Karpenter itself is a comparison of bills: reserved slots add nothing, the savings plan is paid and covers what it can of either's machines on demand, and the rest costs the list price. "-" was not measured.
`)
}

// missed returns the names of the row's goals that its figures miss, or "".
func (r row) missed(f figures) string {
	var missed []string
	note := func(goal string, isMissed bool) {
		if isMissed {
			missed = append(missed, goal)
		}
	}
	note("proof", r.goal.proved && *f.Proved < f.Snapshots)
	note("bound", f.GapMean == nil)
	note("final bill", value(f.BillAtOnce) > 0 || value(f.BillByTen) > 0)
	note("mean gap", !r.goal.proved && value(f.GapMean) > r.goal.mean)
	note("worst gap", !r.goal.proved && value(f.GapWorst) > r.goal.worst)
	note("best known", r.goal.overBest > 0 && (f.OverBest == nil || *f.OverBest > r.goal.overBest))
	note("slots", value(f.Slots) > slotsGoal)
	// Allow a tenth more, for the work that ends after the clock was checked.
	note("time", !r.owned && *f.Milliseconds > 1.1*value(f.GoalMS))
	return strings.Join(missed, ", ")
}

func number(x *float64, format string) string {
	if x == nil {
		return "-"
	}
	return fmt.Sprintf(format, *x)
}
