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

func TestANodesBillHasThePodsThatHoldItsReplicas(t *testing.T) {
	t.Parallel()
	c := snapshottest.Shared()
	xlarge := snapshottest.TypeNamed("g4dn.xlarge")
	running := snapshottest.Claim("gpu-1", &c.NodePools[0], xlarge, snapshottest.Initialized(now))
	c.NodeClaims = append(c.NodeClaims, running, snapshottest.Claim("gpu-2", &c.NodePools[0], xlarge))
	c.Nodes = append(c.Nodes, snapshottest.Node(&running, xlarge, 10))
	c.Pods = append(c.Pods,
		snapshottest.Pod("one", snapshottest.Running("gpu-1")),
		snapshottest.Pod("two", snapshottest.Asking(v1alpha1.ResourceGPUShared, "2"), snapshottest.Running("gpu-1")),
		snapshottest.Pod("waits"),
		snapshottest.Pod("cpu", snapshottest.Asking("cpu", "1"), snapshottest.Running("gpu-1")),
	)
	want := []bill.Node{{
		Name: "gpu-1", NodePool: c.NodePools[0].Name, InstanceType: "g4dn.xlarge", CapacityType: "on-demand", Zone: "us-east-1a", MicroUSDPerHour: 526_000, Replicas: 10,
		Holders: []bill.Holder{{Namespace: "default", Name: "one", Replicas: 1}, {Namespace: "default", Name: "two", Replicas: 2}},
	}}
	if diff := cmp.Diff(want, bills(records.Machines(c))); diff != "" {
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
