package snapshot_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// ResourcesOf returns the amounts by the names of their quotas.
func ResourcesOf(s *planner.Snapshot, list []planner.Amount) map[string]int64 {
	byName := map[string]int64{}
	for _, a := range list {
		byName[s.Quotas[a.Quota].Name] = a.Count
	}
	return byName
}

const fpga = "example.com/fpga"

// withFPGAs gives the g4dn.xlarge two FPGAs.
func withFPGAs(c *facts.Cluster) {
	types := c.InstanceTypes()
	for i := range types {
		if types[i].Name == "g4dn.xlarge" {
			types[i].Extended = map[string]int64{fpga: 2}
		}
	}
}

func TestExtendedResourcesBecomeQuotas(t *testing.T) {
	t.Parallel()
	c := machine(Initialized(Now), 10, withFPGAs, node(func(n *corev1.Node) {
		n.Status.Allocatable[fpga] = Amounts(fpga, "3")[fpga]
	}))
	second := Claim("n", &c.NodePools[0], xlarge)
	c.NodeClaims = append(c.NodeClaims, second)
	c.DaemonSets = []appsv1.DaemonSet{DaemonSet("agent", fpga, "1")}
	asks := Asking("nvidia.com/gpu.shared", "1", fpga, "1")
	c.Pods = []corev1.Pod{
		Pod("a", asks), Pod("b"), Pod("runs", asks, Running("m")), Pod("agent-1", Asking(fpga, "1"), Running("m"), OwnedBy("apps/v1", "DaemonSet", "agent")),
	}
	view := snapshot.Build(c)
	if diff := cmp.Diff([]planner.Quota{{Name: fpga}}, view.Quotas); diff != "" {
		t.Fatalf("quotas (-want +got):\n%s", diff)
	}
	for i, want := range []map[string]int64{{fpga: 1}, {}} {
		if diff := cmp.Diff(want, ResourcesOf(&view.Snapshot, view.Classes[classOf(view, []string{"a", "b"}[i])].Quotas)); diff != "" {
			t.Errorf("class %d takes (-want +got):\n%s", i, diff)
		}
	}
	for _, o := range view.Snapshot.Offerings {
		want := map[string]int64{}
		if o.InstanceType == "g4dn.xlarge" {
			want[fpga] = 1
		}
		if diff := cmp.Diff(want, ResourcesOf(&view.Snapshot, o.Quotas)); diff != "" {
			t.Errorf("%s has (-want +got):\n%s", o.InstanceType, diff)
		}
	}
	for i, want := range []int64{1, 1} {
		if got := ResourcesOf(&view.Snapshot, view.Nodes[i].Quotas); got[fpga] != want {
			t.Errorf("node %s has %v left", view.Nodes[i].Name, got)
		}
	}
}

// classOf returns the index of a pod's class.
func classOf(view snapshot.View, pod string) int {
	for i, class := range view.Classes {
		if slices.Contains(class.Pods, "default/"+pod) {
			return i
		}
	}
	panic("no class has pod " + pod)
}

func TestHostPortsBecomeQuotasOfOne(t *testing.T) {
	t.Parallel()
	always := corev1.ContainerRestartPolicyAlways
	c := machine(Initialized(Now), 10)
	c.NodeClaims = append(c.NodeClaims, Claim("n", &c.NodePools[0], xlarge))
	c.DaemonSets = []appsv1.DaemonSet{DaemonSet("agent", "cpu", "1m")}
	c.DaemonSets[0].Spec.Template.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 9100, Protocol: corev1.ProtocolTCP}}
	c.Pods = []corev1.Pod{
		Pod("a", HostPort(8080), HostPort(8080), HostPort(9100), func(pod *corev1.Pod) {
			pod.Spec.InitContainers = []corev1.Container{
				{RestartPolicy: &always, Ports: []corev1.ContainerPort{{HostPort: 53, Protocol: corev1.ProtocolUDP, HostIP: "10.0.0.1"}}},
				{Ports: []corev1.ContainerPort{{HostPort: 54, Protocol: corev1.ProtocolUDP}}},
			}
		}),
		Pod("b", HostPort(8081)), Pod("runs", Asking("cpu", "1"), HostPort(8080), Running("m")),
	}
	view := snapshot.Build(c)
	want := map[string]int64{"host port 8080/TCP": 1, "host port 9100/TCP": 1, "host port 53/UDP": 1}
	if diff := cmp.Diff(want, ResourcesOf(&view.Snapshot, view.Classes[classOf(view, "a")].Quotas)); diff != "" {
		t.Errorf("the pod takes (-want +got):\n%s", diff)
	}
	for _, q := range view.Quotas {
		if q.Each != 1 {
			t.Errorf("a machine has %d of %s", q.Each, q.Name)
		}
	}
	for what, tc := range map[string]struct {
		got  []planner.Amount
		want map[string]int64
	}{
		"a new machine":      {view.Snapshot.Offerings[0].Quotas, map[string]int64{"host port 9100/TCP": 0}},
		"a node":             {view.Nodes[0].Quotas, map[string]int64{"host port 8080/TCP": 0}},
		"a starting machine": {view.Nodes[1].Quotas, map[string]int64{"host port 9100/TCP": 0}},
	} {
		if diff := cmp.Diff(tc.want, ResourcesOf(&view.Snapshot, tc.got)); diff != "" {
			t.Errorf("%s has (-want +got):\n%s", what, diff)
		}
	}
}

func TestStartingMachineHasVolumeLimitOfItsType(t *testing.T) {
	t.Parallel()
	c := machine(Registered(Now), 0, bound("data", zonal("us-east-1a")))
	c.Nodes = append(c.Nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "older", Labels: map[string]string{corev1.LabelInstanceTypeStable: "g4dn.xlarge"}}})
	c.CSINodes = []storagev1.CSINode{{ObjectMeta: metav1.ObjectMeta{Name: "older"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
		{Name: ebs, Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(7))}},
	}}}}
	c.Pods = []corev1.Pod{Pod("a", Claiming("data"))}
	view := snapshot.Build(c)
	if got := ResourcesOf(&view.Snapshot, view.Nodes[0].Quotas); got["volumes of "+ebs] != 7 {
		t.Errorf("the node has %v left", got)
	}
}

func TestVolumeLimitsComeFromCSINodes(t *testing.T) {
	t.Parallel()
	c := machine(Initialized(Now), 10, bound("data", zonal("us-east-1a")), bound("cache", zonal("us-east-1a")), bound("other", zonal("us-east-1a")))
	limit := func(node string, n int32) storagev1.CSINode {
		return storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
			{Name: ebs, Allocatable: &storagev1.VolumeNodeResources{Count: &n}}, {Name: "unlimited"},
		}}}
	}
	c.Pods = []corev1.Pod{Pod("a", Claiming("data", "cache", "cache")), Pod("runs", Running("m"), Claiming("other")), Pod("runs-too", Running("m"), Claiming("other", "gone"))}
	view := snapshot.Build(c)
	if diff := cmp.Diff([]planner.Quota{{Name: "volumes of " + ebs, Each: planner.Unlimited}}, view.Quotas); diff != "" {
		t.Fatalf("quotas (-want +got):\n%s", diff)
	}
	if got := view.Classes[0].Quotas; len(got) != 1 || got[0].Count != 2 {
		t.Errorf("the pod takes %+v", got)
	}
	if view.Nodes[0].Quotas != nil || view.Snapshot.Offerings[0].Quotas != nil {
		t.Errorf("limits that nobody told of: %+v, %+v", view.Nodes[0].Quotas, view.Snapshot.Offerings[0].Quotas)
	}
	c.CSINodes = []storagev1.CSINode{limit("m", 25), limit("elsewhere", 3)}
	view = snapshot.Build(c)
	for i, o := range view.Snapshot.Offerings {
		want := "map[]"
		if o.InstanceType == "g4dn.xlarge" {
			want = "map[volumes of " + ebs + ":25]"
		}
		if got := fmt.Sprint(ResourcesOf(&view.Snapshot, o.Quotas)); got != want {
			t.Errorf("offering %d, a %s, has %s", i, o.InstanceType, got)
		}
	}
	if got := ResourcesOf(&view.Snapshot, view.Nodes[0].Quotas); got["volumes of "+ebs] != 24 {
		t.Errorf("the node has %v left", got)
	}
}
