package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"syscall"

	"karve.sh/karve/test/harness/cluster"
)

// supervise is the command that `up` starts in the background. It is internal.
const supervise = "supervise"

// supervisorReady is what the supervisor writes to the pipe of `up` when the cluster is ready. Anything else is an error.
const supervisorReady = "ready"

// supervisor runs the cluster until it is told to end. The child processes die with it, however it ends.
func supervisor(ctx context.Context, s state, gates string) error {
	pipe, lock := os.NewFile(3, "ready"), os.NewFile(4, "lock")
	if _, err := lock.Stat(); err != nil {
		return fmt.Errorf("%s is what `up` starts: %w", supervise, err)
	}
	// The child processes must not inherit these: otherwise the lock would outlive this process.
	syscall.CloseOnExec(3)
	syscall.CloseOnExec(4)
	defer func() { _ = lock.Close() }()
	c, err := begin(ctx, s, gates)
	if err != nil {
		_, _ = pipe.WriteString(err.Error())
		_ = pipe.Close()
		return err
	}
	_, _ = pipe.WriteString(supervisorReady)
	_ = pipe.Close()
	slog.Info("The cluster is ready", "name", s.name, "featureGates", gates)
	<-ctx.Done()
	slog.Info("Stopping the cluster", "name", s.name)
	return c.Stop()
}

func begin(ctx context.Context, s state, gates string) (*cluster.Cluster, error) {
	c, err := cluster.Start(ctx, cluster.Config{
		Dir: s.dir, Components: cluster.Everything(), FeatureGates: gates,
		OnExit: func(name cluster.Component, err error) {
			slog.Error("A component ended", "component", name, "err", err)
		},
	})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(s.readyFile(), nil, 0o600); err != nil {
		return nil, err
	}
	return c, nil
}
