package kubelet

import (
	"os"
	"testing"

	"karve.sh/karve/test/harness/cluster"
)

// Require skips the test where there can be no kubelet, and says why. With KARVE_REQUIRE_KUBELET=1 it fails instead, so
// that a pipeline does not pass by skipping.
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

// Required says that what needs a kubelet must not be skipped.
func Required() bool { return os.Getenv("KARVE_REQUIRE_KUBELET") == "1" }

// ForTest starts a cluster with one node; both stop when the test ends. It calls Require. The logs of a test that failed are kept.
func ForTest(t testing.TB, config Config) *Node {
	t.Helper()
	Require(t)
	c := cluster.ForTest(t, cluster.Config{Components: []cluster.Component{cluster.Scheduler, cluster.ControllerManager}})
	n, err := Start(t.Context(), c, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			n.keep = true
			t.Logf("The logs of the node are in %s", n.dir)
		}
		if err := n.Stop(); err != nil {
			t.Error(err)
		}
	})
	return n
}
