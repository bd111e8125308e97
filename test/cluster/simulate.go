package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"karve.sh/karve/test/cluster/simulator"
)

// goroutine is a component of this process.
type goroutine struct {
	cancel context.CancelFunc
	synced <-chan struct{}
	done   chan struct{}
	err    error // read after done
}

func (c *Cluster) simulator() *part {
	return &part{name: Simulator, launch: func(ctx context.Context) (running, error) {
		s, err := simulator.New(c.RESTConfig(), time.Now)
		if err != nil {
			return nil, err
		}
		log, err := os.OpenFile(c.Log(Simulator), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithCancel(klog.NewContext(ctx, logr.FromSlogHandler(slog.NewTextHandler(log, nil))))
		g := &goroutine{cancel: cancel, synced: s.Synced(), done: make(chan struct{})}
		go func() {
			defer close(g.done)
			defer func() { _ = log.Close() }()
			g.err = s.Run(ctx)
		}()
		return g, nil
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
