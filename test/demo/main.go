// Command demo shows Karve on this machine: a real control plane, Karpenter's real AWS controller on a local AWS, and simulated machines. It applies
// examples/, prints events as they happen, measures what the same pods cost with Karpenter alone in the same cluster, and leaves nothing behind.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// errOrphaned ends a demo whose parent is gone. `go run` does not forward the signal that ends it.
var errOrphaned = errors.New("what started the demo has ended")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second Ctrl-C exits at once
	// `make demo | head` must leave nothing behind either. The signal itself cannot say so: writes to closed connections cause it, too. Once it is caught, a write to
	// the closed pipe returns an error instead.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	page := flag.Bool("ui", false, "serve the web page, and leave the cluster up until Ctrl-C")
	dra := flag.Bool("dra", false, "share the GPUs by Dynamic Resource Allocation")
	flag.Parse()
	d := &demo{story: newStory(readByOthers{os.Stdout, stop}), page: *page, dra: *dra}
	err := d.run(ctx)
	interrupted := ctx.Err() != nil || errors.Is(err, errOrphaned)
	stop()
	switch {
	case err == nil:
	case interrupted:
		fmt.Fprintln(os.Stderr, "\nThe demo was interrupted. Nothing of it is left.")
		os.Exit(1)
	default:
		fmt.Fprintf(os.Stderr, "\nA surprise: %v\n", err)
		if d.logs != "" {
			fmt.Fprintf(os.Stderr, "The logs of all components and the objects of the cluster as they were are in %s\n", d.logs)
		}
		os.Exit(1)
	}
}

// untilOrphaned cancels when the parent process changes.
func untilOrphaned(ctx context.Context, cancel context.CancelCauseFunc) {
	parent := os.Getppid()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if os.Getppid() != parent {
				cancel(errOrphaned)
				return
			}
		}
	}
}
