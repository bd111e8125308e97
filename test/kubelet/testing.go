package kubelet

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"karve.sh/karve/test/cluster"
)

// Require skips the test where there can be no kubelet, and says what is missing. With KARVE_REQUIRE_KUBELET=1 it fails instead, so
// that a pipeline does not pass by skipping.
func Require(t testing.TB) {
	t.Helper()
	cluster.Require(t)
	err := Missing()
	switch {
	case err == nil:
	case os.Getenv("KARVE_REQUIRE_KUBELET") == "1":
		t.Fatal(err)
	default:
		t.Skip(err)
	}
}

// Missing is an error that names what a node needs and is not there.
func Missing() error {
	if os.Geteuid() != 0 {
		return errors.New("a kubelet with containers needs root")
	}
	var missing []string
	for _, name := range []string{"containerd", "runc", "ctr"} {
		if _, err := exec.LookPath(name); err != nil {
			missing = append(missing, name)
		}
	}
	for _, plugin := range []string{"ptp", "host-local", "loopback"} {
		if _, err := os.Stat("/usr/lib/cni/" + plugin); err != nil {
			missing = append(missing, "/usr/lib/cni/"+plugin)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s is missing; run tools/install-containerd", strings.Join(missing, ", "))
	}
	return nil
}

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
