// Command kubectl-karve is a plugin of kubectl: kubectl karve plan says what would be launched for pods, and what it would cost.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
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

// streams are where a command reads and writes.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// run is the command with its exit status.
func run(ctx context.Context, args []string, s streams) int {
	ctrl.SetLogger(logr.Discard()) // What goes wrong is returned; libraries that log are not for the user.
	root := &cobra.Command{
		Use:         "kubectl-karve",
		Short:       "Plan nodes for pods that share GPUs",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl karve"},
		// Errors are written below, once; how to use a command is not the answer to a manifest that is wrong.
		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.AddCommand(planCommand(ctx, s), versionCommand(s.out))
	root.SetArgs(args)
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	if err := root.Execute(); err != nil {
		fmt.Fprintf(s.err, "error: %s\n", strings.ReplaceAll(err.Error(), "\n", "\nerror: "))
		return 1
	}
	return 0
}

func versionCommand(out io.Writer) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			version := "unknown"
			if info, ok := debug.ReadBuildInfo(); ok {
				version = info.Main.Version
			}
			_, err := fmt.Fprintln(out, version)
			return err
		},
	}
}
