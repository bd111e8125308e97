// Command bench-scale measures the CPU time, the memory and the latency of Karve, and of Karpenter for comparison, on clusters of three sizes. It prints a
// table and writes the figures as JSON.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"karve.sh/karve/test/bench/results"
	"karve.sh/karve/test/bench/scale"
	"karve.sh/karve/test/harness/karve"
)

func main() {
	only := flag.String("run", "", "measure only the sizes and programs, such as 100/1000/karve, that match this regular expression")
	costs := flag.Bool("costs", false, "measure only what one object of each sort costs Karve")
	verbs := flag.Bool("verbs", false, "measure only the commands of kubectl karve, on clusters without a controller")
	keep := flag.Bool("keep", false, "with -verbs, keep each cluster until an interrupt, and print the path of its kubeconfig")
	out := flag.String("o", "../_output/bench-scale.json", "where to write the figures")
	flag.Parse()
	ctrl.SetLogger(logr.Discard()) // The watches log lost connections, which are expected here.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var err error
	if *verbs {
		err = commands(ctx, *only, *keep)
	} else {
		err = run(ctx, *only, *out, *costs)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, only, out string, costs bool) error {
	wanted, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	ours, karpenter := scale.Karve(karve.Options{}), scale.Karpenter()
	programs := slices.DeleteFunc([]scale.Program{ours, karpenter}, func(p scale.Program) bool {
		return !slices.ContainsFunc(scale.Sizes, func(size scale.Size) bool { return matches(wanted, size, p) })
	})
	if costs {
		programs = []scale.Program{ours}
	}
	for _, program := range programs {
		fmt.Printf("building %s\n", program.Name)
		if _, err := program.Build(ctx); err != nil {
			return err
		}
	}
	if _, err := scale.BuildPlugin(ctx); err != nil && !costs {
		return err
	}
	began := time.Now()
	if costs {
		all, err := scale.Costs(ctx, func(format string, args ...any) {
			fmt.Printf("%4.0fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
		})
		for _, c := range all {
			fmt.Printf("%-55s %12.0f bytes\n", c.Of, c.Bytes)
		}
		return err
	}
	var rows []scale.Row
	for _, size := range scale.Sizes {
		row := scale.Row{Size: size}
		for _, program := range programs {
			if !matches(wanted, size, program) {
				continue
			}
			figures, err := scale.Measure(ctx, size, program, scale.Full, func(format string, args ...any) {
				fmt.Printf("%4.0fs  %s, %s: %s\n", time.Since(began).Seconds(), size, program.Name, fmt.Sprintf(format, args...))
			})
			if err != nil && ctx.Err() == nil {
				figures.Fail(err)
				fmt.Println(err)
			}
			row.All = append(row.All, figures)
		}
		if len(row.All) == 0 {
			continue
		}
		rows = append(rows, row)
		// Save after each size: measuring all of them takes long.
		if err := results.Save(out, rows); err != nil {
			return err
		}
	}
	scale.Print(os.Stdout, rows)
	return ctx.Err()
}

// commands measures the commands on the sizes that match.
func commands(ctx context.Context, only string, keep bool) error {
	wanted, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	if _, err := scale.BuildPlugin(ctx); err != nil {
		return err
	}
	for _, size := range scale.Sizes {
		if !wanted.MatchString(size.String()) {
			continue
		}
		if err := scale.Commands(ctx, size, func(kubeconfig string) {
			if keep {
				fmt.Printf("export KUBECONFIG=%s\n", kubeconfig)
				<-ctx.Done()
			}
		}, func(format string, args ...any) { fmt.Printf("%s: %s\n", size, fmt.Sprintf(format, args...)) }); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// matches reports whether a program is to be measured at a size.
func matches(wanted *regexp.Regexp, size scale.Size, p scale.Program) bool {
	return wanted.MatchString(size.String() + "/" + p.Name)
}
