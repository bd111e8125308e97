package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"

	"github.com/go-logr/logr"

	"karve.sh/karve/pkg/node/mps"
)

// mpsCommand is the argument that makes karve-node run the MPS daemons of a node instead of the agent.
const mpsCommand = "mps-daemon"

// parseMPS parses the arguments after mpsCommand.
func parseMPS(args []string, env func(string) (string, bool), stderr io.Writer) (dir string, level slog.Level, err error) {
	or := func(name, otherwise string) string {
		if value, ok := env(name); ok && value != "" {
			return value
		}
		return otherwise
	}
	set := flag.NewFlagSet("karve-node "+mpsCommand, flag.ContinueOnError)
	set.SetOutput(stderr)
	set.StringVar(&dir, "mps-dir", or("MPS_DIR", mps.Dir), "directory on the host that the agent and containers share with this program, at the same path [MPS_DIR]")
	said := set.String("log-level", or("LOG_LEVEL", "info"), "debug, info, warn or error [LOG_LEVEL]")
	if err := set.Parse(args); err != nil {
		return "", 0, err
	}
	if set.NArg() > 0 {
		return "", 0, fmt.Errorf("unexpected argument %q; see karve-node %s --help", set.Arg(0), mpsCommand)
	}
	if err := level.UnmarshalText([]byte(*said)); err != nil {
		return "", 0, fmt.Errorf("--log-level: is %q, and can be debug, info, warn, error", *said)
	}
	return dir, level, nil
}

// superviseMPS runs the daemons that the agent wants until ctx ends.
func superviseMPS(ctx context.Context, dir string, library mps.Library) error {
	logr.FromContextOrDiscard(ctx).Info("Running MPS daemons", "dir", dir)
	return (&mps.Supervisor{Dir: dir, Program: mps.Program, Library: library}).Run(ctx)
}
