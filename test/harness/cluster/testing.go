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

// Require skips the test if the cluster's binaries are missing, and names the command that builds them. With KARVE_REQUIRE_CLUSTER=1 it fails instead,
// so that a pipeline does not pass by skipping. It builds nothing, because the first build takes minutes, longer than a test may.
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

// Long skips a test with -short, which make test sets and make test-all does not. It is for tests that take long and are about what few changes can break.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("make test-all runs it")
	}
}

// Missing returns an error that names the missing and stale binaries and the command that builds them. It is for TestMain, which cannot skip.
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

// ForTest starts a cluster that stops when the test ends. It calls Require. It keeps the logs of a failed test.
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

// RunWithAPIServer is for a package whose tests need only an API server with the CRDs:
//
//	var server *cluster.Cluster
//
//	func TestMain(m *testing.M) { os.Exit(cluster.RunWithAPIServer(m, &server)) }
//
// It starts one API server per variable for all tests of the package. If the binaries are missing, *server stays nil and the tests, which must call
// Require, skip.
func RunWithAPIServer(m *testing.M, servers ...**Cluster) int {
	return RunWith(m, Config{}, servers...)
}

// RunWith is for a package whose tests share clusters of a configuration. Otherwise it is as RunWithAPIServer.
func RunWith(m *testing.M, config Config, clusters ...**Cluster) int {
	if Missing() != nil {
		return m.Run()
	}
	code, err := 1, startAll(config, clusters)
	if err == nil {
		code = m.Run()
	}
	for _, c := range clusters {
		if *c != nil {
			err = errors.Join(err, (*c).Stop())
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// startAll starts clusters in parallel. On an error, those that have started keep running.
func startAll(config Config, clusters []**Cluster) error {
	errs := make([]error, len(clusters))
	var wg sync.WaitGroup
	for i, c := range clusters {
		wg.Go(func() { *c, errs[i] = Start(context.Background(), config) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
