// Command kubectl-karve is a kubectl plugin. It plans which nodes would be launched for pods and what they would cost, and shows the shared GPUs of a
// cluster.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

func main() {
	klog.SetLogger(logr.Discard()) // Errors are returned, as in run.
	os.Exit(untilSignal(func(ctx context.Context) int {
		return run(ctx, os.Args[1:], streams{os.Stdin, os.Stdout, os.Stderr})
	}))
}

// grace is how long a command may take to end after a signal. Some do not end by themselves: a plan is computed to its end, and so is a read of a pipe.
const grace = 500 * time.Millisecond

// untilSignal runs a command, whose context ends with the first SIGINT or SIGTERM. It returns the exit status: that of the command, or 128 plus the number
// of the signal, at the latest when grace is over.
func untilSignal(command func(context.Context) int) int {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan int, 1)
	go func() { ended <- command(ctx) }()
	select {
	case status := <-ended:
		return status
	case s := <-signals:
		stop()
		select {
		case <-ended:
		case <-time.After(grace):
		}
		number, _ := s.(syscall.Signal)
		return 128 + int(number)
	}
}

func run(ctx context.Context, args []string, s streams) int {
	s.out, s.err = newPrinter(s.out), newPrinter(s.err)
	ctrl.SetLogger(logr.Discard()) // Errors are returned. Users should not see the logs of libraries.
	root := &cobra.Command{
		Use:         "kubectl-karve",
		Short:       "Plan and show nodes for pods that share GPUs",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl karve"},
		// The error is printed below. The usage would not help with an invalid manifest.
		SilenceErrors: true, SilenceUsage: true,
	}
	root.AddCommand(
		planCommand(ctx, s), inspectCommand(ctx, s), topCommand(ctx, s), nodesCommand(ctx, s), podsCommand(ctx, s), explainCommand(ctx, s), doctorCommand(ctx, s),
		uiCommand(ctx, s), costCommand(ctx, s), adviseCommand(ctx, s), replayCommand(ctx, s), rolloutCommand(ctx, s), layoutsCommand(ctx, s), versionCommand(ctx, s),
	)
	addCompletions(ctx, root)
	root.SetArgs(args)
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	err := root.Execute()
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		return 1 // The user ended it, and knows.
	}
	if missing := missingRights(err); missing != "" {
		err = fmt.Errorf("forbidden: %s: see docs/cli.md#permissions", missing)
	}
	s.error(err)
	return 1
}
