// Command bench plans fixed workloads with Karve and with its peers, prints a table, and writes it as JSON. Times depend on the machine that it runs on.
// All else is reproducible, except what a time-limited search finds.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"time"

	"karve.sh/karve/pkg/planner/plantest/workload"
	"karve.sh/karve/test/bench/results"
)

func main() {
	only := flag.String("run", "", "measure only the workloads whose names match this regular expression")
	trace := flag.String("trace", "../../shared/data/openb-shared-pods.csv.gz", "the pods of the openb trace that share GPUs")
	out := flag.String("o", "../_output/bench.json", "where to write the figures")
	long := flag.Duration("best", 0, "do not measure, but search for better plans than the best known ones for this long each, and write their prices to bench/planning/best.csv")
	flag.Parse()
	if err := run(context.Background(), *only, *trace, *out, *long); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, only, trace, out string, long time.Duration) error {
	wanted, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	known, err := readBest()
	if err != nil {
		return err
	}
	if long > 0 {
		for _, r := range manyShapes(workload.Types(workload.G4to6, 10)) {
			if wanted.MatchString(r.name) {
				if err := errors.Join(known.improve(r, long), known.save("bench/planning/best.csv")); err != nil {
					return err
				}
			}
		}
		return nil
	}
	var all []figures
	table{os.Stdout}.header()
	for _, r := range rows(trace) {
		if !wanted.MatchString(r.name) {
			continue
		}
		f, err := measure(ctx, r, known)
		if err != nil {
			return err
		}
		f.compareWithExact(r, all)
		all = append(all, f)
		table{os.Stdout}.row(r, f)
	}
	table{os.Stdout}.footer()
	return results.Save(out, all)
}
