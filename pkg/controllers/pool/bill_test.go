package pool

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/bill"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

func TestMachinesAreBilledFromTheirLaunchWithThePodsThatHoldReplicas(t *testing.T) {
	t.Parallel()
	c := snapshottest.Shared()
	xlarge := snapshottest.TypeNamed("g4dn.xlarge")
	running := snapshottest.Claim("gpu-1", &c.NodePools[0], xlarge, snapshottest.Initialized(now))
	cordoned := snapshottest.Claim("gpu-4", &c.NodePools[0], xlarge, snapshottest.Initialized(now))
	canary := snapshottest.Claim("gpu-5", &c.NodePools[0], xlarge, snapshottest.Initialized(now), func(nc *karpv1.NodeClaim) { nc.Labels[v1alpha1.CanaryLabel] = "rollout" })
	c.NodeClaims = append(c.NodeClaims, running, snapshottest.Claim("gpu-2", &c.NodePools[0], xlarge), snapshottest.Claim("gpu-3", &c.NodePools[0], xlarge, snapshottest.Launched(now)), cordoned, canary)
	off := snapshottest.Node(&cordoned, xlarge, 10)
	off.Spec.Unschedulable = true
	c.Nodes = append(c.Nodes, snapshottest.Node(&running, xlarge, 10), off, snapshottest.Node(&canary, xlarge, 10))
	two := snapshottest.Pod("two", snapshottest.Asking(v1alpha1.ResourceGPUShared, "2"), snapshottest.Running("gpu-1"), snapshottest.OwnedBy("apps/v1", "StatefulSet", "db"))
	two.Labels = map[string]string{"team": "red", "app": "db"}
	c.Pods = append(c.Pods,
		snapshottest.Pod("daemon", snapshottest.Running("gpu-1"), snapshottest.OwnedBy("apps/v1", "DaemonSet", "exporter")),
		snapshottest.Pod("one", snapshottest.Running("gpu-1")),
		two,
		snapshottest.Pod("waits"),
		snapshottest.Pod("cpu", snapshottest.Asking("cpu", "1"), snapshottest.Running("gpu-1")),
	)
	node := func(name string, takes bool, holders ...bill.Holder) bill.Node {
		return bill.Node{
			Name: name, NodePool: c.NodePools[0].Name, GPUNodeClass: "gpu-shared", InstanceType: "g4dn.xlarge", CapacityType: "on-demand", Zone: "us-east-1a", MicroUSDPerHour: 526_000, ListMicroUSDPerHour: 526_000, Replicas: 10,
			TakesPods: takes, Holders: holders,
		}
	}
	want := []bill.Node{
		node("gpu-1", true,
			bill.Holder{Namespace: "default", Name: "daemon", Owner: bill.Owner{Kind: "DaemonSet", Name: "exporter"}, Daemon: true, Labels: []string{""}, Replicas: 1},
			bill.Holder{Namespace: "default", Name: "one", Owner: bill.Owner{Kind: "Pod", Name: "one"}, Labels: []string{""}, Replicas: 1},
			bill.Holder{Namespace: "default", Name: "two", Owner: bill.Owner{Kind: "StatefulSet", Name: "db"}, Labels: []string{"red"}, Replicas: 2},
		),
		node("", false), // It is launched, and has not registered.
		node("gpu-4", false),
		node("", false), // The canary.
	}
	if diff := cmp.Diff(want, bills(records.Machines(c), records.Canaries(c), []string{"team"})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLimitsAreMeasuredBesideWhatCountsAgainstThem(t *testing.T) {
	t.Parallel()
	np := &karpv1.NodePool{}
	np.Spec.Limits = karpv1.Limits{"nvidia.com/gpu": resource.MustParse("20"), "memory": resource.MustParse("1Gi"), "example.com/fpga": resource.MustParse("1")}
	np.Status.Resources = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("4"), "memory": resource.MustParse("512Mi"), "cpu": resource.MustParse("1500m")}
	want := map[string]metrics.Limit{"nvidia.com/gpu": {Limit: 20, Used: 4}, "memory": {Limit: 1 << 30, Used: 1 << 29}, "example.com/fpga": {Limit: 1}}
	if diff := cmp.Diff(want, limits(np)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
