// Command bench-bill replays weeks of pods that come and go, and adds up what machines and restarts cost: with Karve at the default of restartCost, with a model of
// Karpenter, and with the policy that Karve had before. It prints a table and writes it as JSON. The figures are the same on every machine.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"regexp"

	"karve.sh/karve/test/bench/bill"
	"karve.sh/karve/test/bench/results"
)

func main() {
	only := flag.String("run", "", "measure only the rows whose names match this regular expression")
	trace := flag.String("trace", "../../shared/data/openb-shared-pods.csv.gz", "the pods of the openb trace that share GPUs")
	out := flag.String("o", "../_output/bench-bill.json", "where to write the figures")
	flag.Parse()
	if err := run(*only, *trace, *out); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

const format = "%-36s %10s %8s %10s %8s %10s %20s %20s %28s\n"

func run(only, trace, out string) error {
	wanted, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	all := []bill.Figures{}
	fmt.Printf(format, "row", "machines", "moves", "sum", "% over", "bound", "Karpenter (model)", "$0.05/h a move", "best rate in hindsight")
	for _, row := range bill.Rows(trace) {
		if !wanted.MatchString(row.Name) {
			continue
		}
		f, err := row.Measure()
		switch {
		case errors.Is(err, fs.ErrNotExist):
			fmt.Printf("%-36s skipped: %v\n", row.Name, err)
			continue
		case err != nil:
			return fmt.Errorf("%s: %w", row.Name, err)
		}
		fmt.Printf(format, f.Row, usd(f.Karve.Machines), fmt.Sprint(f.Karve.Moves), usd(f.Karve.Sum), fmt.Sprintf("%.1f", 100*(f.Karve.Sum/f.Bound-1)), usd(f.Bound),
			other(f.Karpenter, f.Karve), other(f.AtRate, f.Karve), fmt.Sprintf("$%.3f: %s", f.BestRate, other(f.Best, f.Karve)))
		all = append(all, f)
		// Save after each row, because all rows together take long.
		if err := results.Save(out, all); err != nil {
			return err
		}
	}
	return nil
}

func usd(amount float64) string { return fmt.Sprintf("$%.2f", amount) }

// other returns the sum of another policy, and by how much that of Karve is above it.
func other(o, karve bill.Bill) string {
	return fmt.Sprintf("%s (%+.1f %%)", usd(o.Sum), 100*(karve.Sum/o.Sum-1))
}
