package snapshot_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// busy returns a cluster with objects of all kinds.
func busy() *facts.Cluster {
	c := Recipe()
	c.GPUNodeClasses = append(c.GPUNodeClasses, Class("renamed", 4))
	c.NodePools = append(c.NodePools,
		Pool("renamed", "renamed", Tainted(v1alpha1.ResourceGPUShared), Requiring("team", corev1.NodeSelectorOpIn, "red", "blue")),
		Pool("broken", "nowhere"), KarpenterPool("stock", Requiring(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, "us-east-1a")), KarpenterPool("stock-2"))
	renamed := &c.NodePools[2]
	c.NodeClaims = []karpv1.NodeClaim{
		Claim("m-1", renamed, xlarge), Claim("m-2", renamed, xlarge, Registered(Now)), Claim("m-3", renamed, xlarge, Initialized(Now)),
	}
	for i := 1; i < 3; i++ {
		c.Nodes = append(c.Nodes, Node(&c.NodeClaims[i], xlarge, 10))
	}
	for _, name := range []string{"f-1", "f-2"} {
		c.Nodes = append(c.Nodes, Node(&c.NodeClaims[2], xlarge, 3, func(n *corev1.Node) { n.Name, n.Spec.ProviderID = name, "" }))
	}
	bound("data", zonal("us-east-1a"))(c)
	c.DaemonSets = []appsv1.DaemonSet{DaemonSet("a", "cpu", "100m"), DaemonSet("b", "memory", "1Gi")}
	overlay := func(n string) karpv1alpha1.NodeOverlay {
		return karpv1alpha1.NodeOverlay{Spec: karpv1alpha1.NodeOverlaySpec{Capacity: Amounts("nvidia.com/gpu", n)}}
	}
	c.NodeOverlays = []karpv1alpha1.NodeOverlay{overlay("2"), overlay("6")}
	c.Refused["renamed"] = []v1alpha1.RefusedOffering{
		{InstanceType: "g4dn.xlarge", Zone: "us-east-1a", CapacityType: "on-demand", Failures: 1, NotBefore: metav1.NewTime(Now.Add(time.Hour))},
		{InstanceType: "g4dn.2xlarge", Zone: "us-east-1a", CapacityType: "on-demand", Failures: 2, NotBefore: metav1.NewTime(Now.Add(time.Hour))},
	}
	c.Pods = slices.Concat(
		Pods("renamed", 3), Pods("red", 2, Selecting("team", "red")), Pods("two", 2, Asking("nvidia.com/gpu.shared", "2")),
		Pods("whole", 2, Asking("nvidia.com/gpu", "1"), Selecting("jina.ai/node-type", "gpu"), Tolerating("nvidia.com/gpu")),
		Pods("left", 2, Asking("nvidia.com/gpu", "6"), Tolerating("nvidia.com/gpu", "nvidia.com/gpu-shared")),
		Pods("nowhere", 2, Selecting("team", "green"), Selecting("shape", "round")),
		Pods("spread", 2, inApp("web"), spreadOver(corev1.LabelTopologyZone, "web"), GPUMemory("2Gi")),
		Pods("apart", 2, inApp("db"), away(corev1.LabelHostname, "db", "web"), HostPort(8080)),
		Pods("near", 2, inApp("cache"), near(corev1.LabelTopologyZone, "db"), Claiming("data")), Pods("likes", 2, func(pod *corev1.Pod) { pod.Spec.Affinity = preferences() }),
		Pods("runs-apart", 1, inApp("web"), away(corev1.LabelHostname, "db"), HostPort(8080), Running("m-2")),
		Pods("runs", 3, Running("m-3")), Pods("runs-elsewhere", 2, Running("f-1")),
	)
	return c
}

func shuffle[T any](t *rapid.T, what string, s []T) []T {
	if len(s) < 2 {
		return s
	}
	return rapid.Permutation(s).Draw(t, what)
}

func TestSnapshotDoesNotDependOnOrderOfObjects(t *testing.T) {
	t.Parallel()
	want := snapshot.Build(busy())
	rapid.Check(t, func(t *rapid.T) {
		c := busy()
		c.NodePools, c.GPUNodeClasses = shuffle(t, "pools", c.NodePools), shuffle(t, "classes", c.GPUNodeClasses)
		c.NodeClaims, c.Nodes = shuffle(t, "claims", c.NodeClaims), shuffle(t, "nodes", c.Nodes)
		c.Pods, c.DaemonSets = shuffle(t, "pods", c.Pods), shuffle(t, "daemonsets", c.DaemonSets)
		types := shuffle(t, "types", c.InstanceTypes())
		c.NodeOverlays = shuffle(t, "overlays", c.NodeOverlays)
		c.Refused["renamed"] = shuffle(t, "refused", c.Refused["renamed"])
		c.PersistentVolumes = shuffle(t, "volumes", c.PersistentVolumes)
		for i := range types {
			types[i].Offerings = shuffle(t, "offerings", types[i].Offerings)
		}
		c.UseInstanceTypes(types)
		got := snapshot.Build(c)
		if diff := cmp.Diff(want.Snapshot, got.Snapshot); diff != "" {
			t.Fatalf("snapshot (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want.Machines, got.Machines, cmp.Transformer("name", func(t *catalog.InstanceType) string { return t.Name }), cmpopts.IgnoreUnexported(records.Machine{})); diff != "" {
			t.Fatalf("machines (-want +got):\n%s", diff)
		}
	})
}

func TestBuildDoesNotModifyCluster(t *testing.T) {
	t.Parallel()
	c := busy()
	snapshot.Build(c)
	if diff := cmp.Diff(busy(), c); diff != "" {
		t.Errorf("cluster (-before +after):\n%s", diff)
	}
}

// TestSnapshotMeetsPlannerAssumptions checks the planner's assumptions, and that a plan for a busy cluster keeps every rule.
func TestSnapshotMeetsPlannerAssumptions(t *testing.T) {
	t.Parallel()
	view := snapshot.Build(busy())
	if len(view.Offerings) != len(view.Snapshot.Offerings) || len(view.Pools) != len(view.Snapshot.Pools) {
		t.Errorf("%d offerings of %d, %d pools of %d", len(view.Offerings), len(view.Snapshot.Offerings), len(view.Pools), len(view.Snapshot.Pools))
	}
	pods := map[string]bool{}
	for _, class := range view.Classes {
		if !slices.IsSorted(class.Pods) || !slices.IsSorted(class.Offerings) || !slices.IsSorted(class.Nodes) || class.Requests.Pods != 1 {
			t.Errorf("class %+v", class)
		}
		for _, pod := range class.Pods {
			if pods[pod] || view.Pods[pod] == nil {
				t.Errorf("pod %s is in two classes or has no object", pod)
			}
			pods[pod] = true
		}
	}
	if err := planner.Validate(view.Snapshot); err != nil {
		t.Fatal(err)
	}
	plan := solve.Plan(view.Snapshot)
	if err := check.Plan(view.Snapshot, plan); err != nil {
		t.Error(err)
	}
}

func TestEmptyClusterGivesEmptySnapshot(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff(planner.Snapshot{}, snapshot.Build(&facts.Cluster{}).Snapshot); diff != "" {
		t.Errorf("snapshot (-want +got):\n%s", diff)
	}
}
