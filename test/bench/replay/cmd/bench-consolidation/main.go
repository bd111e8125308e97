// Command bench-consolidation takes fleets that have lost half of their pods, and makes them cheaper until no step is left. It compares Karve's consolidation, a model
// of Karpenter's, and none. It prints a table and writes it as JSON. Costs and moves are the same on every machine.
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
	only := flag.String("run", "", "measure only the rows whose offerings and policy, with a slash between, match this regular expression")
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
		if !wanted.MatchString(row.Offerings + "/" + row.Policy) {
			continue
		}
		f, err := row.Measure()
		if err != nil {
			return fmt.Errorf("%s, %s: %w", row.Offerings, row.Policy, err)
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

const format = "%-46s %-36s %9s %9s %7s %9s %9s\n"

func header() {
	fmt.Printf(format, "pods and offerings", "policy", "USD/h", "bound", "over %", "evictions", "decision")
}

func line(f replay.Figures) {
	fmt.Printf(format, f.Offerings, f.Policy, fmt.Sprintf("%.2f", float64(f.Mean)/1e6), fmt.Sprintf("%.2f", float64(f.Bound)/1e6), fmt.Sprintf("%.1f", f.Over),
		fmt.Sprint(f.Evictions), fmt.Sprintf("%.0f ms", f.Decision))
}
