// Command node shares the GPUs of a machine. It is a device plugin for the kubelet that replaces NVIDIA's.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"

	"karve.sh/karve/pkg/node"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/node/nvml"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/plain"
)

func main() {
	if err := run(); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(plain.Writer{W: os.Stderr}, "karve-node:", err)
		os.Exit(1)
	}
}

// untilSignal returns a context with a logger, which ends when the process is to end.
func untilSignal(level slog.Level) (context.Context, context.CancelFunc) {
	log := logr.FromSlogHandler(slog.NewJSONHandler(plain.Writer{W: os.Stderr}, &slog.HandlerOptions{Level: level}))
	return signal.NotifyContext(logr.NewContext(context.Background(), log), syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
}

func runMPS(args []string) error {
	o, err := node.ParseMPS(args, os.LookupEnv, os.Stderr)
	if err != nil {
		return err
	}
	ctx, stop := untilSignal(o.Level)
	defer stop()
	return node.SuperviseMPS(ctx, o, nvml.New(nvml.Options{}))
}

func runMIG(args []string) error {
	o, err := node.ParseMIG(args, os.LookupEnv, os.Stderr)
	if err != nil {
		return err
	}
	ctx, stop := untilSignal(o.Level)
	defer stop()
	api, err := nodeapi.InCluster(o.NodeName)
	if err != nil {
		return err
	}
	root := node.DriverRoot
	if _, err := os.Stat(root); err != nil {
		root = "" // The dynamic loader finds the library.
	}
	return node.NewMIGApply(o, api, nvml.New(nvml.Options{DriverRoot: root})).Run(ctx)
}

func run() error {
	if len(os.Args) == 2 && os.Args[1] == nodecontract.CheckCommand {
		return node.Check(nvml.New(nvml.Options{}), os.Stdout)
	}
	if len(os.Args) > 1 && os.Args[1] == node.MPSCommand {
		return runMPS(os.Args[2:])
	}
	if len(os.Args) > 1 && os.Args[1] == node.MIGCommand {
		return runMIG(os.Args[2:])
	}
	o, err := node.Parse(os.Args[1:], os.LookupEnv, os.Stderr)
	if err != nil {
		return err
	}
	ctx, stop := untilSignal(o.Level)
	defer stop()
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGHUP)
	var api *nodeapi.Client
	if o.NodeName != "" {
		api, err = nodeapi.InCluster(o.NodeName)
		if err != nil && !errors.Is(err, nodeapi.ErrNotInCluster) {
			return err
		}
	}
	a, err := node.New(ctx, o, func(root string) gpu.Library {
		return nvml.New(nvml.Options{DriverRoot: root, Skipped: func(err error) { logr.FromContextOrDiscard(ctx).Info("A GPU cannot be used", "error", err.Error()) }})
	}, api)
	if err != nil {
		return err
	}
	return a.Run(ctx, again)
}
