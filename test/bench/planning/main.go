// Command bench plans fixed workloads with Karve and with its peers, prints a table, and writes it as JSON. Times depend on the machine that it runs on.
// All else is reproducible, except what a time-limited search finds.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"

	"karve.sh/karve/test/bench/results"
)

func main() {
	only := flag.String("run", "", "measure only the workloads whose names match this regular expression")
	trace := flag.String("trace", "../../shared/data/openb-shared-pods.csv.gz", "the pods of the openb trace that share GPUs")
	out := flag.String("o", "../_output/bench.json", "where to write the figures")
	flag.Parse()
	if err := run(context.Background(), *only, *trace, *out); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, only, trace, out string) error {
	wanted, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	var all []figures
	table{os.Stdout}.header()
	for _, r := range rows(trace) {
		if !wanted.MatchString(r.name) {
			continue
		}
		f, err := measure(ctx, r)
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
