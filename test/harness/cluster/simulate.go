package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"karve.sh/karve/test/harness/aws"
	"karve.sh/karve/test/harness/cluster/builder"
	"karve.sh/karve/test/harness/cluster/machines"
	"karve.sh/karve/test/harness/cluster/simulator"
)

// goroutine is a component that runs in this process.
type goroutine struct {
	cancel context.CancelFunc
	synced <-chan struct{}
	done   chan struct{}
	err    error // read after done
}

// inside runs a component in this process, with a log file like the others.
func (c *Cluster) inside(ctx context.Context, name Component, run func(context.Context) error, synced <-chan struct{}) (running, error) {
	log, err := os.OpenFile(c.Log(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, logr.FromSlogHandler(slog.NewTextHandler(log, nil))))
	g := &goroutine{cancel: cancel, synced: synced, done: make(chan struct{})}
	go func() {
		defer close(g.done)
		defer func() { _ = log.Close() }()
		g.err = run(ctx)
	}()
	return g, nil
}

func (c *Cluster) simulator() *part {
	return &part{name: Simulator, launch: func(ctx context.Context) (running, error) {
		s, err := simulator.New(c.RESTConfig(), time.Now)
		if err != nil {
			return nil, err
		}
		return c.inside(ctx, Simulator, s.Run, s.Synced())
	}}
}

// localAWS returns the local AWS. It forgets its instances when it is restarted.
func (c *Cluster) localAWS(port int) *part {
	return &part{name: AWS, launch: func(ctx context.Context) (running, error) {
		config := c.config.AWS
		config.Address, config.ClusterEndpoint = fmt.Sprintf("%s:%d", loopback, port), c.url
		if config.KubernetesVersion == "" {
			var err error
			if config.KubernetesVersion, err = builder.KubernetesMinor(ctx, c.bin("kube-apiserver")); err != nil {
				return nil, err
			}
		}
		ctx, cancel := context.WithCancel(ctx)
		server, err := aws.Start(ctx, config)
		if err != nil {
			cancel()
			return nil, err
		}
		// Write the environment for programs that are started by hand, as lines that a shell reads.
		if err := os.WriteFile(filepath.Join(c.dir, "aws.env"), []byte(strings.Join(server.KarpenterEnv(), "\n")+"\n"), 0o600); err != nil {
			cancel()
			return nil, err
		}
		c.aws = server // StartComponent holds the lock
		ready := make(chan struct{})
		close(ready)
		g := &goroutine{cancel: cancel, synced: ready, done: make(chan struct{})}
		context.AfterFunc(ctx, func() { close(g.done) })
		return g, nil
	}}
}

func (c *Cluster) fleet() *part {
	return &part{name: Machines, launch: func(ctx context.Context) (running, error) {
		if c.aws == nil { // StartComponent holds the lock
			return nil, fmt.Errorf("it needs the component %s", AWS)
		}
		f, err := machines.New(c.RESTConfig(), c.aws, c.config.NodeDelay)
		if err != nil {
			return nil, err
		}
		c.machines = f
		return c.inside(ctx, Machines, f.Run, f.Synced())
	}}
}

func (g *goroutine) stop(time.Duration) { g.kill() }

func (g *goroutine) kill() {
	g.cancel()
	<-g.done
}

func (g *goroutine) ended() (<-chan struct{}, func() error) {
	return g.done, func() error { return orNil(g.err) }
}

func (g *goroutine) waitReady(ctx context.Context, _ func(context.Context) error) error {
	select {
	case <-g.synced:
		return nil
	case <-g.done:
		return fmt.Errorf("it ended: %w", orNil(g.err))
	case <-ctx.Done():
		return fmt.Errorf("it has not seen the cluster: %w", ctx.Err())
	}
}
