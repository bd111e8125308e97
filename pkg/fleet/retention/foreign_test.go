package retention_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/fleet/retention"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

var xlarge = TypeNamed("g4dn.xlarge")

// withForeignPods returns a cluster with the given number of machines, each with one foreign pod, and with other nodes and pods.
func withForeignPods(machines, nodes, pods int) *facts.Cluster {
	c := Shared()
	foreign := []func(*corev1.Pod){OwnedBy("apps/v1", "ReplicaSet", "web"), Asking("cpu", "100m")}
	for i := range machines {
		claim := Claim(fmt.Sprintf("m-%04d", i), &c.NodePools[0], xlarge, Initialized(Now))
		c.NodeClaims, c.Nodes = append(c.NodeClaims, claim), append(c.Nodes, Node(&claim, xlarge, 10))
		c.Pods = append(c.Pods, Pod(fmt.Sprintf("foreign-%d", i), append(foreign, Running(claim.Name), func(p *corev1.Pod) { delete(p.Spec.Containers[0].Resources.Requests, "nvidia.com/gpu.shared") })...))
	}
	for i := range nodes {
		n := corev1.Node{}
		n.Name = fmt.Sprintf("cpu-%04d", i)
		n.Status.Allocatable = Amounts("cpu", "16", "memory", "64Gi", "pods", "110")
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		c.Nodes = append(c.Nodes, n)
	}
	for i := range pods {
		c.Pods = append(c.Pods, Pod(fmt.Sprintf("web-%d", i), append(foreign, Running(c.Nodes[machines+i%nodes].Name))...))
	}
	return c
}

// BenchmarkPods asks for each machine of a large cluster whether its foreign pod has another place.
func BenchmarkPods(b *testing.B) {
	for _, machines := range []int{10, 20, 40, 400} {
		b.Run(fmt.Sprint(machines, " machines"), func(b *testing.B) {
			c := withForeignPods(machines, 500, 50_000)
			all := records.Machines(c)
			for b.Loop() {
				keeps := retention.Pods(c)
				for i := range all {
					if why := keeps(&all[i]); why != "" {
						b.Fatal(why)
					}
				}
			}
		})
	}
}

// TestPodsReadsClusterOnceForManyMachines checks that only the first machine costs a read of the cluster. Each further machine costs only the work
// for its own pods.
func TestPodsReadsClusterOnceForManyMachines(t *testing.T) { // Not parallel: it counts allocations.
	c := withForeignPods(40, 50, 1000)
	machines := records.Machines(c)
	cost := func(n int) float64 {
		return testing.AllocsPerRun(1, func() {
			keeps := retention.Pods(c)
			for i := range machines[:n] {
				if why := keeps(&machines[i]); why != "" {
					t.Error(why)
				}
			}
		})
	}
	if one, all := cost(1), cost(40); all > 2*one {
		t.Errorf("asking of 40 machines costs %.0f allocations, of one %.0f", all, one)
	}
}

// The room that one foreign pod takes is not available to the next, but is free again for the next question.
func TestForeignPodsOfSeveralMachinesShareFreeCapacity(t *testing.T) {
	t.Parallel()
	c := withForeignPods(2, 1, 0)
	c.Nodes[2].Status.Allocatable = Amounts("cpu", "150m", "memory", "64Gi", "pods", "110")
	machines, others := records.Machines(c), retention.NewOtherNodes(c)
	both := []*records.Machine{&machines[0], &machines[1]}
	for range 2 {
		if why := others.Hold(both, nil); why == "" {
			t.Error("two pods have a place where there is room for one")
		}
		if why := others.Hold(both[:1], map[string]planner.Resources{"cpu-0000": {MilliCPU: 100}, "m-0001": {MilliCPU: 1_000_000}}); why == "" {
			t.Error("a pod has the place that another one is to have")
		}
	}
	for i := range both {
		if why := others.Hold(both[i:i+1], nil); why != "" {
			t.Errorf("one pod alone has no place: %s", why)
		}
	}
}

func TestPodThatIsTooLargeToBeReadKeepsItsMachine(t *testing.T) {
	t.Parallel()
	c := withForeignPods(2, 1, 0)
	c.Pods = append(c.Pods, Pod("shared", OwnedBy("apps/v1", "ReplicaSet", "web"), Asking("nvidia.com/gpu.shared", "1"), Running(c.NodeClaims[1].Name)))
	for machine, pod := range map[int]int{0: 0, 1: 2} {
		keeps := func() string { return retention.Pods(c)(&records.Machines(c)[machine]) }
		if why := keeps(); why != "" {
			t.Fatalf("the machine stays before: %s", why)
		}
		c.Pods[pod].Annotations = map[string]string{facts.CutAnnotation: "labels of more than 8 KiB"}
		if why := keeps(); !strings.Contains(why, "has labels of more than 8 KiB") {
			t.Errorf("machine %d stays because of %q", machine, why)
		}
	}
}
