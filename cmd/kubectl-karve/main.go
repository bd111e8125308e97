// Command kubectl-karve is a kubectl plugin. It plans which nodes would be launched for pods and what they would cost, and shows the shared GPUs of a
// cluster.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], streams{os.Stdin, os.Stdout, os.Stderr})
	stop()
	os.Exit(status)
}

// streams are the standard streams of a command.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// run runs the command and returns its exit status.
func run(ctx context.Context, args []string, s streams) int {
	ctrl.SetLogger(logr.Discard()) // Errors are returned. Users should not see the logs of libraries.
	root := &cobra.Command{
		Use:         "kubectl-karve",
		Short:       "Plan and show nodes for pods that share GPUs",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl karve"},
		// The error is printed below. The usage would not help with an invalid manifest.
		SilenceErrors: true, SilenceUsage: true,
	}
	root.AddCommand(
		planCommand(ctx, s), inspectCommand(ctx, s), topCommand(ctx, s), nodesCommand(ctx, s), explainCommand(ctx, s), doctorCommand(ctx, s),
		uiCommand(ctx, s), replayCommand(ctx, s), rolloutCommand(ctx, s), versionCommand(ctx, s),
	)
	addCompletions(ctx, root)
	root.SetArgs(args)
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	if err := root.Execute(); err != nil {
		if missing := missingRights(err); missing != "" {
			err = fmt.Errorf("forbidden: %s: docs/cli.md lists the permissions for each verb", missing)
		}
		fmt.Fprintf(s.err, "error: %s\n", strings.ReplaceAll(err.Error(), "\n", "\nerror: "))
		return 1
	}
	return 0
}
