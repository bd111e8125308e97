// Command bench-groups runs a day of training jobs and single pods on a limited number of GPUs, and prints what it costs with plans that know groups and with plans that do not. The figures are the
// same on every machine.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"karve.sh/karve/test/bench/groups"
	"karve.sh/karve/test/bench/results"
)

func main() {
	jobs := flag.Int("jobs", 1000, "the number of jobs")
	out := flag.String("o", "../_output/bench-groups.json", "where to write the figures")
	flag.Parse()
	if err := run(*jobs, *out); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// row is a line of the table.
type row struct {
	GPUs int64 `json:"gpus"`
	groups.Figures
}

func run(jobs int, out string) error {
	fmt.Printf("%5s %-10s %10s %10s %10s %10s %8s %8s %8s\n", "GPUs", "plans", "machines", "waiting", "mean wait", "95 %", "gave up", "all run", "starved")
	var all []row
	for _, gpus := range []int64{8, 12, 16, 1000} {
		for _, policy := range []groups.Policy{groups.Whole, groups.Parts, groups.FirstFit} {
			f, err := groups.Run(policy, 1, jobs, gpus)
			if err != nil {
				return err
			}
			fmt.Printf("%5d %-10s %10s %10s %10s %10s %8d %8s %8d\n", gpus, f.Policy, usd(f.MachinesUSD), usd(f.IdleUSD), f.Wait.Round(time.Second), f.Long, f.GaveUp, f.Ended, f.Starved)
			all = append(all, row{gpus, f})
		}
	}
	return results.Save(out, all)
}

func usd(amount float64) string { return fmt.Sprintf("$%.2f", amount) }
