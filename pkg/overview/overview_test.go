package overview_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/overview"
	"karve.sh/karve/pkg/overview/overviewtest"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

var update = flag.Bool("update", false, "rewrite what is in testdata, for the diff to be reviewed")

func TestAnOverviewHasWhatThereIs(t *testing.T) {
	t.Parallel()
	got, err := json.MarshalIndent(overview.Build(overviewtest.Example()), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", "example.json")
	if *update {
		if err := os.WriteFile(file, append(got, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.TrimSpace(string(want)), string(got)); diff != "" {
		t.Errorf("(-want +got; -update accepts it)\n%s", diff)
	}
}

func node(t *testing.T, o *overview.Overview, name string) *overview.Node {
	t.Helper()
	for i := range o.Nodes {
		if o.Nodes[i].Name == name {
			return &o.Nodes[i]
		}
	}
	t.Fatalf("there is no node %s", name)
	return nil
}

func TestPodsAndWhatIsIdleAddUpToThePriceOfANode(t *testing.T) {
	t.Parallel()
	o := overview.Build(overviewtest.Example())
	sums := map[string]int64{}
	for _, p := range o.Pods {
		if p.MicroUSDPerHour != nil {
			sums[p.Node] += *p.MicroUSDPerHour
		}
	}
	priced := 0
	for _, n := range o.Nodes {
		if n.MicroUSDPerHour == nil {
			if n.NodeClaim != "" || n.IdleMicroUSDPerHour != nil || sums[n.Name] != 0 {
				t.Errorf("node %s has no price, and its pods pay %d", n.Name, sums[n.Name])
			}
			continue
		}
		priced++
		if sum := sums[n.Name] + *n.IdleMicroUSDPerHour; sum != *n.MicroUSDPerHour {
			t.Errorf("node %s costs %d, and its pods and what is idle %d", n.Name, *n.MicroUSDPerHour, sum)
		}
	}
	if priced != len(o.Nodes)-1 || o.Totals.UnpricedNodes != 1 {
		t.Errorf("%d nodes have a price, and %d have none", priced, o.Totals.UnpricedNodes)
	}
}

func TestHugeAmountsInAnnotationsAreNotShown(t *testing.T) {
	t.Parallel()
	for _, stated := range []string{"1e2000000000", "0e2000000000", "1e-2000000000", strings.Repeat("9", 10_000), "-1Gi"} {
		c := overviewtest.Example()
		for i := range c.Pods {
			metav1.SetMetaDataAnnotation(&c.Pods[i].ObjectMeta, v1alpha1.GPUMemoryAnnotation, stated)
		}
		o := overview.Build(c)
		for _, p := range o.Pods {
			if p.StatedMiB != nil {
				t.Fatalf("%.20s: pod %s states %d MiB", stated, p.Name, *p.StatedMiB)
			}
		}
		if len(o.Pods) == 0 {
			t.Fatal("there are no pods")
		}
	}
}

func TestStatesAreInWords(t *testing.T) {
	t.Parallel()
	ago := func(d time.Duration) string { return overviewtest.Now.Add(-d).Format(time.RFC3339) }
	condition := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason string) func(*corev1.Node) {
		return func(n *corev1.Node) {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: kind, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(overviewtest.Now.Add(-90 * time.Second))})
		}
	}
	for name, c := range map[string]struct {
		edit     func(*corev1.Node)
		state    lifecycle.State
		message  string
		severity overview.Severity
	}{
		"a node that has nothing to say":  {func(*corev1.Node) {}, lifecycle.Started, "Ready", overview.Good},
		"a node whose idle time is over":  {func(n *corev1.Node) { n.Annotations[v1alpha1.IdleSinceAnnotation] = ago(9 * time.Minute) }, lifecycle.Started, "idle 9m", overview.Idle},
		"a node that is not ready":        {condition(corev1.NodeReady, corev1.ConditionFalse, "KubeletNotReady"), lifecycle.Unhealthy, "not ready 90s", overview.Bad},
		"a GPU out of service":            {condition(nodecontract.HardwareCondition, corev1.ConditionFalse, nodecontract.ReasonLost), lifecycle.Unhealthy, "GPULost 90s", overview.Bad},
		"a configuration that is refused": {condition(nodecontract.SharingCondition, corev1.ConditionFalse, nodecontract.ReasonRefused), lifecycle.Unhealthy, "ConfigurationRefused 90s", overview.Bad},
		"a node that lacks replicas": {
			func(n *corev1.Node) { n.Status.Allocatable = snapshottest.Amounts(v1alpha1.ResourceGPUShared, "7") }, lifecycle.Started, "exposes 7 of 10 replicas", overview.Bad,
		},
		"a node that is cordoned": {func(n *corev1.Node) { n.Spec.Unschedulable = true }, lifecycle.Started, "cordoned", overview.Busy},
		"a node that is tainted to leave": {func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: v1alpha1.DisruptingTaintKey, Effect: corev1.TaintEffectNoSchedule})
			n.Annotations[v1alpha1.DisruptingSinceAnnotation] = ago(8 * time.Second)
		}, lifecycle.Disrupting, "disrupting 8s", overview.Busy},
		"a node that is being deleted": {func(n *corev1.Node) { n.DeletionTimestamp = new(metav1.NewTime(overviewtest.Now)) }, lifecycle.Draining, "draining", overview.Busy},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := overviewtest.Example()
			for i := range cluster.Nodes {
				if cluster.Nodes[i].Name == "garbled" {
					cluster.Nodes[i].Status.Conditions = nil
					c.edit(&cluster.Nodes[i])
				}
			}
			n := node(t, overview.Build(cluster), "garbled")
			if n.State != c.state || n.Message != c.message || n.Severity != c.severity {
				t.Errorf("%s, %q, %s; want %s, %q, %s", n.State, n.Message, n.Severity, c.state, c.message, c.severity)
			}
		})
	}
}

func TestANodeThatWaitsForItsPoolToDecideNeverLeaves(t *testing.T) {
	t.Parallel()
	c := overviewtest.Example()
	c.GPUNodeClasses[0].Spec.Consolidation.IdleAfter = v1alpha1.IdleNever
	if n := node(t, overview.Build(c), "idle"); n.LeavesAt != nil || n.Message != "idle 3m" {
		t.Errorf("%q, leaves at %v", n.Message, n.LeavesAt)
	}
}

func TestOnlyOneNode(t *testing.T) {
	t.Parallel()
	o := overview.Build(overviewtest.Example())
	one, ok := o.Only("busy")
	if !ok || len(one.Nodes) != 1 || len(one.Pods) != 3 || one.Totals.ReplicasHeld != 4 || len(one.Pools) != 1 || one.Pools[0].Totals.Nodes != 1 {
		t.Errorf("%t, %+v", ok, one)
	}
	if o.Pools[0].Totals.Nodes == 1 {
		t.Error("the overview has changed")
	}
	if _, ok := o.Only("nowhere"); ok {
		t.Error("there is a node nowhere")
	}
}

func TestAPodConcernsTheOverviewIfItRequestsGPUs(t *testing.T) {
	t.Parallel()
	gpu, plain := snapshottest.Pod("gpu"), snapshottest.Pod("plain", snapshottest.Asking("cpu", "1"))
	if !overview.Concerns(&gpu) || overview.Concerns(&plain) {
		t.Error("a pod without GPUs concerns the overview, or one with GPUs does not")
	}
}

const metrics = `# TYPE karve_gpu_memory_used_bytes gauge
karve_gpu_memory_used_bytes{gpu="GPU-busy",index="0",product="Tesla T4"} 7.65460480e+09
karve_gpu_memory_used_bytes{gpu="GPU-x",index="1",product="Tesla T4"} NaN
# TYPE karve_gpu_utilization_ratio gauge
karve_gpu_utilization_ratio{gpu="GPU-busy",index="0",product="Tesla T4"} 0.31
# TYPE karve_pod_gpu_memory_used_bytes gauge
karve_pod_gpu_memory_used_bytes{namespace="team",pod="infer-0",container="main",gpu="GPU-busy"} 1.073741824e+09
karve_pod_gpu_memory_used_bytes{namespace="team",pod="infer-0",container="side",gpu="GPU-busy"} 1.048576e+06
# TYPE karve_pod_gpu_sm_ratio gauge
karve_pod_gpu_sm_ratio{namespace="team",pod="infer-0",container="main",gpu="GPU-busy"} 0.29
# TYPE karve_node_devices gauge
karve_node_devices{resource="nvidia.com/gpu.shared",health="healthy"} 10
`

func TestMetricsOfAgentsAreAdded(t *testing.T) {
	t.Parallel()
	m, err := overview.ParseMetrics(strings.NewReader(metrics))
	if err != nil {
		t.Fatal(err)
	}
	o := overview.Build(overviewtest.Example())
	o.Measure(map[string]overview.Measured{"busy": m})
	busy := node(t, o, "busy")
	if use := busy.Use(); use.UsedMiB == nil || *use.UsedMiB != 7300 || use.SMPercent == nil || *use.SMPercent != 31 {
		t.Errorf("busy uses %+v", use)
	}
	for _, p := range o.Pods {
		known := p.UsedMiB != nil && p.SMPercent != nil
		if known != (p.Name == "infer-0") || known && (*p.UsedMiB != 1025 || *p.SMPercent != 29) {
			t.Errorf("pod %s uses %v, %v", p.Name, p.UsedMiB, p.SMPercent)
		}
	}
	if use := node(t, o, "silent").Use(); use.UsedMiB != nil || use.SMPercent != nil {
		t.Errorf("silent uses %+v", use)
	}
}

// TestInstancesAreNotCountedAsGPUs checks that the MIG instances of a GPU are listed one by one, and count as one GPU.
func TestInstancesAreNotCountedAsGPUs(t *testing.T) {
	t.Parallel()
	c := overviewtest.Example()
	before := overview.Build(c).Totals.GPUs
	had := int64(len(node(t, overview.Build(c), "busy").GPUs))
	report := nodecontract.HoldersReport{AsOf: overviewtest.Now}
	for gpu := range 2 {
		for i := range 3 {
			report.GPUs = append(report.GPUs, nodecontract.HeldGPU{
				UUID: fmt.Sprintf("MIG-%d-%d", gpu, i), Index: gpu, Instance: new(i), Profile: "2g.10gb", MemoryMiB: 9856, Replicas: 1, Health: nodecontract.GPUInService,
			})
		}
	}
	for i := range c.Nodes {
		if c.Nodes[i].Name == "busy" {
			c.Nodes[i].Annotations[nodecontract.HoldersAnnotation] = report.String()
		}
	}
	o := overview.Build(c)
	busy := node(t, o, "busy")
	if len(busy.GPUs) != 6 || busy.GPUs[4].Name() != "1:1" || busy.GPUs[4].Profile != "2g.10gb" || o.Totals.GPUs != before-had+2 {
		t.Errorf("%d GPUs in all, before %d; on the node %+v", o.Totals.GPUs, before, busy.GPUs)
	}
	m, err := overview.ParseMetrics(strings.NewReader("# TYPE karve_gpu_instance_memory_used_bytes gauge\n" +
		`karve_gpu_instance_memory_used_bytes{gpu="GPU-1",index="1",mig="MIG-1-1",profile="2g.10gb"} 104857600` + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	o.Measure(map[string]overview.Measured{"busy": m})
	for _, g := range busy.GPUs {
		if used := g.UsedMiB; (used != nil) != (g.UUID == "MIG-1-1") || used != nil && *used != 100 {
			t.Errorf("%s uses %v MiB", g.Name(), used)
		}
	}
}

func FuzzParseMetrics(f *testing.F) {
	f.Add(metrics)
	f.Add("karve_gpu_memory_used_bytes{index=\"0\"} 1e300\n")
	f.Add("#0\n{}") // Prometheus' parser panics.
	f.Fuzz(func(t *testing.T, text string) {
		m, err := overview.ParseMetrics(strings.NewReader(text))
		if err != nil {
			return
		}
		for index, use := range m.GPUs {
			if use.UsedMiB != nil && *use.UsedMiB < 0 || use.SMPercent != nil && *use.SMPercent < 0 {
				t.Errorf("GPU %d uses %+v", index, use)
			}
		}
	})
}

func TestWhateverIsOnANodeTheOverviewIsMade(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := overviewtest.Example()
		for i := range c.Nodes {
			for _, key := range []string{nodecontract.HoldersAnnotation, nodecontract.UnusedSinceAnnotation, nodecontract.GPUsAnnotation, v1alpha1.PriceAnnotation, v1alpha1.IdleSinceAnnotation} {
				if rapid.Bool().Draw(t, "changed") {
					if c.Nodes[i].Annotations == nil {
						c.Nodes[i].Annotations = map[string]string{}
					}
					c.Nodes[i].Annotations[key] = rapid.OneOf(rapid.String(), rapid.Just(`{"asOf":"2026-03-01T12:00:00Z","gpus":[{"held":3,"holders":[{"pod":"team/infer-0","ids":[1]}]}]}`),
						rapid.Just("9223372036854775807")).Draw(t, "value")
				}
			}
		}
		o := overview.Build(c)
		if len(o.Nodes) < len(c.Nodes) || o.Totals.ReplicasHeld != 24 {
			t.Fatalf("%d nodes, %d replicas held", len(o.Nodes), o.Totals.ReplicasHeld)
		}
	})
}

// BenchmarkBuild has 5,000 nodes, of which 1,250 are Karve's, and 55,000 pods, as kubectl karve keeps them.
func BenchmarkBuild(b *testing.B) {
	c := snapshottest.Large(5000)
	all := c.Pods
	for b.Loop() {
		c.Pods = nil
		for i := range all {
			if overview.Concerns(&all[i]) {
				c.Pods = append(c.Pods, all[i])
			}
		}
		if o := overview.Build(c); len(o.Pods) != 10_000 {
			b.Fatalf("%d pods", len(o.Pods))
		}
	}
}

func TestOverviewNamesPodsThatStateWrongMemory(t *testing.T) {
	t.Parallel()
	c := snapshottest.Shared()
	c.NodeClaims = append(c.NodeClaims, snapshottest.Claim("a", &c.NodePools[0], snapshottest.TypeNamed("g4dn.xlarge"), snapshottest.Initialized(snapshottest.Now)))
	c.Nodes = append(c.Nodes, snapshottest.Node(&c.NodeClaims[0], snapshottest.TypeNamed("g4dn.xlarge"), 10))
	for stated, want := range map[string]string{"4Gi": "", "lots": `"lots" is no amount`, "8000": "did you mean 8000Mi?", "200Gi": "200Gi is more than the 15079Mi of a GPU of its node"} {
		c.Pods = []corev1.Pod{snapshottest.Pod("x", snapshottest.Running("a"), snapshottest.GPUMemory(stated))}
		if got := overview.Build(c).Pods[0].StatedProblem; got == "" != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", stated, got, want)
		}
	}
}
