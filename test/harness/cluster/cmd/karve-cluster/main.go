// Command karve-cluster starts and stops local clusters that keep running after the command exits.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/cluster/builder"
)

const usage = `Usage: karve-cluster <command> [flags]

  build [--batch]                 make the binaries that are missing, minutes the first time; with --batch, those for batch jobs too
  up   [--name default] [--feature-gates NodeOverlay=true,...]
                                  start a cluster and return when it is ready
  down [--name default]           stop a cluster and remove what it left
  list                            show the clusters
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "karve-cluster:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return flag.ErrHelp
	}
	root, err := cluster.Root()
	if err != nil {
		return err
	}
	flags := flag.NewFlagSet("karve-cluster "+args[0], flag.ContinueOnError)
	name := flags.String("name", "default", "the cluster's name")
	gates := flags.String("feature-gates", "", "Karpenter's feature gates, for instance NodeOverlay=true")
	batch := flags.Bool("batch", false, "also build Kueue, the scheduler of scheduler-plugins, and the controllers of jobs")
	if err := flags.Parse(args[1:]); err != nil {
		return flag.ErrHelp // flags has printed the error
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is not expected", flags.Arg(0))
	}
	s, err := newState(root, *name)
	if err != nil {
		return err
	}
	switch args[0] {
	case "build":
		wanted := builder.Cluster
		if *batch {
			wanted = slices.Concat(wanted, builder.Kueue, builder.Coscheduling, builder.Jobs)
		}
		return builder.Build(ctx, root, os.Stderr, wanted)
	case "up":
		return up(ctx, s, *gates, os.Stdout)
	case "down":
		return down(ctx, s, os.Stdout)
	case "list":
		return list(root, os.Stdout)
	case supervise:
		return supervisor(ctx, s, *gates)
	default:
		fmt.Fprint(os.Stderr, usage)
		return fmt.Errorf("no command is called %q", args[0])
	}
}
