package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"karve.sh/karve/test/harness/cluster/builder"
)

// Require skips the test when the cluster's binaries have not been built, and says how to build them. With
// KARVE_REQUIRE_CLUSTER=1 it fails instead, so that a pipeline does not pass by skipping. It builds nothing: that takes
// minutes the first time, longer than a test may.
func Require(t testing.TB) {
	t.Helper()
	err := Missing()
	switch {
	case err == nil:
	case os.Getenv("KARVE_REQUIRE_CLUSTER") == "1":
		t.Fatal(err)
	default:
		t.Skip(err)
	}
}

// Missing is an error that names the binaries that have not been built, or were from other versions than are pinned now,
// and the command that builds them. It is for TestMain, where nothing can be skipped.
func Missing() error {
	root, err := Root()
	if err != nil {
		return err
	}
	stale, err := builder.Stale(root, builder.Cluster)
	if err != nil {
		return err
	}
	if len(stale) > 0 {
		return fmt.Errorf("%s is missing or stale in %s; run `make cluster-bin`", strings.Join(stale, ", "), binDir)
	}
	return nil
}

// ForTest starts a cluster that stops when the test ends. It calls Require. The logs of a test that failed are kept.
func ForTest(t testing.TB, config Config) *Cluster {
	t.Helper()
	Require(t)
	c, err := Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() && c.temporary {
			c.temporary = false
			t.Logf("The logs of the cluster are in %s", c.dir)
		}
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// RunWithAPIServer is for a package whose tests need an API server with the CRDs and nothing else:
//
//	var server *cluster.Cluster
//
//	func TestMain(m *testing.M) { os.Exit(cluster.RunWithAPIServer(m, &server)) }
//
// It starts one for all tests of the package, or as many as there are variables for them. Where the binaries are missing *server
// stays nil and the tests, which must call Require, skip.
func RunWithAPIServer(m *testing.M, servers ...**Cluster) int {
	if Missing() != nil {
		return m.Run()
	}
	code, err := 1, startAll(servers)
	if err == nil {
		code = m.Run()
	}
	for _, server := range servers {
		if *server != nil {
			err = errors.Join(err, (*server).Stop())
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// startAll starts API servers together. On an error those that did start are left running.
func startAll(servers []**Cluster) error {
	errs := make([]error, len(servers))
	var wg sync.WaitGroup
	for i, server := range servers {
		wg.Go(func() { *server, errs[i] = Start(context.Background(), Config{}) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
