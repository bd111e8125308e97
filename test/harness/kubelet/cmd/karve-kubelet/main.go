// Command karve-kubelet prepares the tests on a real kubelet and reports whether this machine can run them.
//
//	karve-kubelet build    builds the missing binaries; does nothing without root, which the tests need
//	karve-kubelet check    prints why the tests are skipped here, if they are; fails then with KARVE_REQUIRE_KUBELET=1
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/cluster/builder"
	"karve.sh/karve/test/harness/kubelet"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "karve-kubelet:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("usage: karve-kubelet build|check")

func run(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errUsage
	}
	switch args[0] {
	case "build":
		if os.Geteuid() != 0 && !kubelet.Required() {
			return nil
		}
		root, err := cluster.Root()
		if err != nil {
			return err
		}
		return builder.Build(ctx, root, os.Stderr, builder.Containers)
	case "check":
		err := kubelet.Missing()
		if err == nil || kubelet.Required() {
			return err
		}
		fmt.Fprintf(os.Stderr, "\n*** THE TESTS ON A REAL KUBELET WERE SKIPPED: %v\n\n", err)
		return nil
	default:
		return errUsage
	}
}
