// Command bench-consolidation replays pods that come and go, and fleets that lose half of their pods. It compares Karve's consolidation, a model of
// Karpenter's, and none. It prints a table and writes it as JSON. Costs and moves are the same on every machine.
package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"

	"karve.sh/karve/test/bench/replay"
	"karve.sh/karve/test/bench/results"
)

func main() {
	only := flag.String("run", "", "measure only the rows whose offerings, scheduler and policy, with slashes between, match this regular expression")
	trace := flag.String("trace", "../../shared/data/openb-shared-pods.csv.gz", "the pods of the openb trace that share GPUs")
	out := flag.String("o", "../_output/bench-consolidation.json", "where to write the figures")
	flag.Parse()
	if err := run(*only, *trace, *out); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(only, trace, out string) error {
	wanted, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	all := []replay.Figures{}
	header()
	for row := range replay.Rows(trace, func(skipped string) { fmt.Println(skipped) }) {
		if !wanted.MatchString(row.Offerings + "/" + row.Scheduler + "/" + row.Policy) {
			continue
		}
		f, err := row.Measure()
		if err != nil {
			return fmt.Errorf("%s, %s, %s: %w", row.Offerings, row.Scheduler, row.Policy, err)
		}
		line(f)
		all = append(all, f)
		// Save after each row, because all rows together take long.
		if err := results.Save(out, all); err != nil {
			return err
		}
	}
	return nil
}

const format = "%-46s %-15s %-61s %5s %9s %8s %7s %9s %8s %7s %9s %9s\n"

func header() {
	fmt.Printf(format, "pods and offerings", "scheduler", "policy", "move", "USD/h", "bound", "over %", "evictions", "launched", "waited", "decision", "events/s")
}

func line(f replay.Figures) {
	move := "-"
	if f.Move > 0 {
		move = fmt.Sprintf("$%.2f", float64(f.Move)/1e6)
	}
	fmt.Printf(format, f.Offerings, f.Scheduler, f.Policy, move, fmt.Sprintf("%.2f", float64(f.Mean)/1e6), fmt.Sprintf("%.2f", float64(f.Bound)/1e6), fmt.Sprintf("%.1f", f.Over),
		fmt.Sprint(f.Evictions), fmt.Sprint(f.Launched), fmt.Sprintf("%.1f s", f.Waited), fmt.Sprintf("%.0f ms", f.Decision), fmt.Sprintf("%.0f", f.EventsPerSecond))
}
