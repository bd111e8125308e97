package snapshot_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

const (
	mib = 1 << 20
	gib = 1 << 30
	// t4 is the part of a T4's 16 GiB that the driver leaves.
	t4 = 15079 * mib
)

func TestInvalidDeviceMemoryBlocksPod(t *testing.T) {
	t.Parallel()
	for _, stated := range []string{"4 GB", "lots", "-1Gi", ""} {
		c := Shared()
		c.Pods = []corev1.Pod{Pod("a", GPUMemory(stated))}
		wantBlocked(t, c, planner.ReasonUnsupported, "annotation karve.sh/gpu-memory", "write one such as 4Gi")
	}
	c := Shared()
	c.Pods = []corev1.Pod{Pod("a", GPUMemory("8000"))}
	wantBlocked(t, c, planner.ReasonUnsupported, "annotation karve.sh/gpu-memory", `"8000" is 8,000 bytes`, "did you mean 8000Mi?")
	c.Pods = []corev1.Pod{Pod("a", GPUMemory("4Gi"))}
	if class := snapshot.Build(c).Classes[0]; class.Blocked != nil || class.GPUMemoryBytes != 4*gib {
		t.Errorf("class: %+v", class)
	}
}

func TestOfferedGPUsHaveMemoryThatDriverReports(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.DaemonSets = []appsv1.DaemonSet{DaemonSet("monitor", "nvidia.com/gpu.shared", "3")}
	for _, o := range snapshot.Build(c).Snapshot.Offerings {
		var sum int64
		for _, g := range o.GPUs {
			sum += g.Replicas
			if g.MemoryBytes != t4 {
				t.Errorf("%s: a GPU has %d bytes", o.InstanceType, g.MemoryBytes)
			}
		}
		if int64(len(o.GPUs)) != o.Physical.GPUs || sum != o.Free.Replicas {
			t.Errorf("%s with %d GPUs and %d replicas: %+v", o.InstanceType, o.Physical.GPUs, o.Free.Replicas, o.GPUs)
		}
	}
	c = Shared()
	types := c.InstanceTypes()
	for i := range types {
		types[i].GPU.Name = "of tomorrow"
	}
	if got := snapshot.Build(c).Snapshot.Offerings[0].GPUs[0].MemoryBytes; got != 16384*mib {
		t.Errorf("a GPU that nothing is told of has %d bytes", got)
	}
}

func TestRunningPodsAreAssignedToGPUsAsAgentDoes(t *testing.T) {
	t.Parallel()
	started := func(minute int) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.CreationTimestamp = metav1.NewTime(Now.Add(time.Duration(minute) * time.Minute))
		}
	}
	replicas := func(n string) func(*corev1.Pod) { return Asking("nvidia.com/gpu.shared", n) }
	full := planner.GPU{Replicas: 10, MemoryBytes: t4}
	for name, tc := range map[string]struct {
		pods []corev1.Pod
		edit func(*corev1.Node)
		want []planner.GPU
	}{
		"none": {nil, nil, []planner.GPU{full, full, full, full}},
		"pods without memory take turns": {
			Pods("p", 5, Running("m")), nil,
			[]planner.GPU{{Replicas: 8, MemoryBytes: t4}, {Replicas: 9, MemoryBytes: t4}, {Replicas: 9, MemoryBytes: t4}, {Replicas: 9, MemoryBytes: t4}},
		},
		"pods with memory go where most memory is free": {
			[]corev1.Pod{Pod("z", Running("m"), GPUMemory("4Gi")), Pod("a", Running("m"), GPUMemory("1Gi"), started(1)), Pod("b", Running("m"), started(2))},
			nil,
			[]planner.GPU{{Replicas: 9, MemoryBytes: t4 - 4*gib}, {Replicas: 9, MemoryBytes: t4 - gib}, {Replicas: 9, MemoryBytes: t4}, full},
		},
		"several replicas with memory share one GPU": {
			[]corev1.Pod{Pod("a", Running("m"), replicas("3"), GPUMemory("4Gi"))},
			nil,
			[]planner.GPU{{Replicas: 7, MemoryBytes: t4 - 4*gib}, full, full, full},
		},
		"several replicas without memory spread over GPUs": {
			[]corev1.Pod{Pod("a", Running("m"), replicas("3"))},
			nil,
			[]planner.GPU{{Replicas: 9, MemoryBytes: t4}, {Replicas: 9, MemoryBytes: t4}, {Replicas: 9, MemoryBytes: t4}, full},
		},
		"pods with more memory than exists": {
			[]corev1.Pod{Pod("a", Running("m"), GPUMemory("40Gi"))}, nil, []planner.GPU{{Replicas: 9}, full, full, full},
		},
		"pods with invalid memory or without a GPU": {
			[]corev1.Pod{Pod("a", Running("m"), GPUMemory("?")), Pod("b", Running("m"), Asking("cpu", "1"), GPUMemory("4Gi"))},
			nil,
			[]planner.GPU{{Replicas: 9, MemoryBytes: t4}, full, full, full},
		},
		"a node with a memory label": {
			nil, func(n *corev1.Node) { n.Labels["nvidia.com/gpu.memory"] = "15360" },
			slices.Repeat([]planner.GPU{{Replicas: 10, MemoryBytes: 15360 * mib}}, 4),
		},
		"a node with more replicas than promised": {
			nil, func(n *corev1.Node) { n.Status.Allocatable = Amounts("nvidia.com/gpu.shared", "46") },
			slices.Repeat([]planner.GPU{{Replicas: 12, MemoryBytes: t4}}, 4),
		},
		"a node with a cordoned GPU": {
			[]corev1.Pod{Pod("a", Running("m"), GPUMemory("4Gi"))}, CordonedGPUs(30), []planner.GPU{{Replicas: 9, MemoryBytes: t4 - 4*gib}, full, full, {}},
		},
		"a node with cordoned GPUs only": {Pods("p", 5, Running("m")), CordonedGPUs(0), make([]planner.GPU, 4)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Shared()
			t12 := TypeNamed("g4dn.12xlarge")
			c.NodeClaims = append(c.NodeClaims, Claim("m", &c.NodePools[0], t12, Initialized(Now)))
			c.Nodes = append(c.Nodes, Node(&c.NodeClaims[0], t12, 40))
			if tc.edit != nil {
				tc.edit(&c.Nodes[0])
			}
			c.Pods = tc.pods
			if diff := cmp.Diff(tc.want, snapshot.Build(c).Nodes[0].GPUs); diff != "" {
				t.Errorf("GPUs (-want +got):\n%s", diff)
			}
			// The same node without a NodeClaim of Karve: its labels count.
			if exposed := c.Nodes[0].Status.Allocatable["nvidia.com/gpu.shared"]; exposed.IsZero() {
				return // Nobody can tell that it has GPUs.
			}
			c.NodeClaims, c.Nodes[0].Labels["nvidia.com/gpu.count"], c.Nodes[0].Labels["nvidia.com/gpu.replicas"] = nil, "4", "10"
			if diff := cmp.Diff(tc.want, snapshot.Build(c).Nodes[0].GPUs); diff != "" {
				t.Errorf("GPUs of a node that is not ours (-want +got):\n%s", diff)
			}
		})
	}
}

func TestStartingMachineHasExpectedGPUs(t *testing.T) {
	t.Parallel()
	c := machine(Launched(Now), 0, noNode)
	c.DaemonSets = []appsv1.DaemonSet{DaemonSet("monitor", "nvidia.com/gpu.shared", "1")}
	if diff := cmp.Diff([]planner.GPU{{Replicas: 9, MemoryBytes: t4}}, snapshot.Build(c).Nodes[0].GPUs); diff != "" {
		t.Errorf("GPUs (-want +got):\n%s", diff)
	}
}

func TestForeignNodeHasUnknownGPUs(t *testing.T) {
	t.Parallel()
	c := machine(Initialized(Now), 10, node(func(n *corev1.Node) { n.Labels = map[string]string{} }))
	c.NodeClaims = nil
	if got := snapshot.Build(c).Nodes[0].GPUs; got != nil {
		t.Errorf("GPUs: %+v", got)
	}
}
