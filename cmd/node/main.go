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

func runMPS(args []string) error {
	o, err := parseMPS(args, os.LookupEnv, os.Stderr)
	if err != nil {
		return err
	}
	log := logr.FromSlogHandler(slog.NewJSONHandler(plain.Writer{W: os.Stderr}, &slog.HandlerOptions{Level: o.level}))
	ctx, stop := signal.NotifyContext(logr.NewContext(context.Background(), log), syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	defer stop()
	return superviseMPS(ctx, o, nvml.New(nvml.Options{}))
}

func runMIG(args []string) error {
	o, err := parseMIG(args, os.LookupEnv, os.Stderr)
	if err != nil {
		return err
	}
	log := logr.FromSlogHandler(slog.NewJSONHandler(plain.Writer{W: os.Stderr}, &slog.HandlerOptions{Level: o.level}))
	ctx, stop := signal.NotifyContext(logr.NewContext(context.Background(), log), syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	defer stop()
	node, err := nodeapi.InCluster(o.nodeName)
	if err != nil {
		return err
	}
	root := driverRoot
	if _, err := os.Stat(root); err != nil {
		root = "" // The dynamic loader finds the library.
	}
	return newMIGApply(o, node, nvml.New(nvml.Options{DriverRoot: root})).run(ctx)
}

func run() error {
	if len(os.Args) == 2 && os.Args[1] == nodecontract.CheckCommand {
		return check(nvml.New(nvml.Options{}), os.Stdout)
	}
	if len(os.Args) > 1 && os.Args[1] == mpsCommand {
		return runMPS(os.Args[2:])
	}
	if len(os.Args) > 1 && os.Args[1] == migCommand {
		return runMIG(os.Args[2:])
	}
	o, err := parse(os.Args[1:], os.LookupEnv, os.Stderr)
	if err != nil {
		return err
	}
	log := logr.FromSlogHandler(slog.NewJSONHandler(plain.Writer{W: os.Stderr}, &slog.HandlerOptions{Level: o.level}))
	ctx, stop := signal.NotifyContext(logr.NewContext(context.Background(), log), syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	defer stop()
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGHUP)
	var node *nodeapi.Client
	if o.nodeName != "" {
		node, err = nodeapi.InCluster(o.nodeName)
		if err != nil && !errors.Is(err, nodeapi.ErrNotInCluster) {
			return err
		}
	}
	a, err := newAgent(ctx, o, func(root string) gpu.Library {
		return nvml.New(nvml.Options{DriverRoot: root, Skipped: func(err error) { log.Info("A GPU cannot be used", "error", err.Error()) }})
	}, node)
	if err != nil {
		return err
	}
	return a.run(ctx, again)
}
