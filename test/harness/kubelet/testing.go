package kubelet

import (
	"context"
	"errors"
	"os"
	"testing"

	"karve.sh/karve/test/harness/cluster"
)

// Require skips the test if a kubelet cannot run here, and says why. With KARVE_REQUIRE_KUBELET=1 it fails instead, so that a pipeline does not pass by
// skipping.
func Require(t testing.TB) {
	t.Helper()
	cluster.Require(t)
	err := Missing()
	switch {
	case err == nil:
	case Required():
		t.Fatal(err)
	default:
		t.Skip(err)
	}
}

// Required reports whether tests that need a kubelet must not be skipped.
func Required() bool { return os.Getenv("KARVE_REQUIRE_KUBELET") == "1" }

// ForTest starts a cluster with one node. Both stop when the test ends. It calls Require. It keeps the logs of a failed test.
func ForTest(t testing.TB, config Config) *Node {
	t.Helper()
	Require(t)
	return OnCluster(t, cluster.ForTest(t, cluster.Config{Components: []cluster.Component{cluster.Scheduler, cluster.ControllerManager}}), config)
}

// OnCluster starts a node of a cluster. The node stops and leaves the cluster when the test ends. It keeps the logs of a failed test.
func OnCluster(t testing.TB, c *cluster.Cluster, config Config) *Node {
	t.Helper()
	n, err := Start(t.Context(), c, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			n.keep = true
			t.Logf("The logs of the node are in %s", n.dir)
		}
		if err := errors.Join(n.Stop(), n.Leave(context.WithoutCancel(t.Context()))); err != nil {
			t.Error(err)
		}
	})
	return n
}
