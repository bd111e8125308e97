package advice_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/advice"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/catalog/builtin"
	"karve.sh/karve/pkg/manifests"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/replay"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
)

const week = 7 * 24 * time.Hour

// pool is a NodePool with a GPUNodeClass of the same name.
type pool struct {
	name, families string
	// sharing is the sharing of the class in YAML, which may be followed by other fields.
	sharing string
	// expireAfter is that of the NodePool, or "".
	expireAfter string
}

const objects = `
apiVersion: karve.sh/v1alpha1
kind: GPUNodeClass
metadata: {name: %[1]s}
spec:
  nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: gpu}
  sharing: %[3]s
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: %[1]s}
spec:
  template:
    metadata: {labels: {pool: %[1]s}}
    spec:
      nodeClassRef: {group: karve.sh, kind: GPUNodeClass, name: %[1]s}
      requirements:
      - {key: karpenter.k8s.aws/instance-family, operator: In, values: [%[2]s]}
      - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
      taints: [{key: nvidia.com/gpu.shared, effect: NoSchedule}]
      expireAfter: %[4]s
---
`

const nodeClass = `
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: {name: gpu}
spec:
  amiSelectorTerms: [{alias: al2023@latest}]
  role: node
  subnetSelectorTerms: [{tags: {a: b}}]
  securityGroupSelectorTerms: [{tags: {a: b}}]
`

// clusterOf returns a cluster with pools and EC2's instance types.
func clusterOf(t *testing.T, pools []pool) *facts.Cluster {
	t.Helper()
	var text strings.Builder
	for _, p := range pools {
		fmt.Fprintf(&text, objects, p.name, p.families, p.sharing, cmp.Or(p.expireAfter, "Never"))
	}
	c, skipped, err := manifests.Read(t.Context(), []manifests.File{{Name: "cluster.yaml", Content: []byte(text.String() + nodeClass)}})
	if err != nil {
		t.Fatal(err)
	}
	types, err := builtin.InstanceTypes()
	if err != nil {
		t.Fatal(err)
	}
	if err := skipped.UseInstanceTypes(c, catalog.Listing{InstanceTypes: types}); err != nil {
		t.Fatal(err)
	}
	c.Now = time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC)
	return c
}

// app is a workload. It requests waste times what it uses of CPU and memory.
type app struct {
	kind, name, pool string
	pods             int
	// cores and gibs are what a pod uses, busy the share of a GPU's time, and device the GiB of its memory.
	cores, gibs, busy, device float64
	cpuWaste, memoryWaste     float64
	// gpu is the resource, of which it requests a number. states is what it states of device memory, or "".
	gpu    string
	number int64
	states string
	// reserves reports whether the device memory is a reservation, and contended whether others kept the GPU busy.
	reserves, contended bool
	// office reports whether the pods run in office hours only.
	office bool
}

func (a *app) template() corev1.Pod {
	of := func(used, waste float64, scale float64) resource.Quantity {
		return *resource.NewQuantity(int64(used*max(1, waste)*scale), resource.BinarySI)
	}
	milli := of(a.cores, a.cpuWaste, 1000)
	gpu := *resource.NewQuantity(max(1, a.number), resource.DecimalSI)
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: a.name + "-0", Annotations: map[string]string{}},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"pool": a.pool},
			Tolerations:  []corev1.Toleration{{Key: "nvidia.com/gpu.shared", Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{
					corev1.ResourceCPU: *resource.NewMilliQuantity(milli.Value(), resource.DecimalSI), corev1.ResourceMemory: of(a.gibs*1.15, a.memoryWaste, 1<<30), corev1.ResourceName(a.gpu): gpu,
				},
				Limits: corev1.ResourceList{corev1.ResourceName(a.gpu): gpu},
			}}},
		},
	}
	if a.states != "" {
		pod.Annotations[v1alpha1.GPUMemoryAnnotation] = a.states
	}
	return pod
}

// use returns what is measured every five minutes of something that is used to this degree.
func use(of float64, hours float64) advice.Use {
	return advice.Use{Samples: int(hours * 12), Mean: of * 0.6, P95: of, Max: of}
}

// workload returns what is measured of an app in a week.
func (a *app) workload(random *rand.Rand) advice.Workload {
	w := advice.Workload{Namespace: "ml", Kind: a.kind, Name: a.name, Pool: a.pool, Template: a.template(), Pods: a.pods, Most: a.pods, Containers: map[string]advice.Container{}}
	for range a.pods {
		if !a.office {
			w.Runs = append(w.Runs, advice.Run{From: 0, To: week})
			continue
		}
		for day := range 7 {
			from := time.Duration(day)*24*time.Hour + 8*time.Hour + time.Duration(random.IntN(12))*5*time.Minute
			w.Runs = append(w.Runs, advice.Run{From: from, To: from + 9*time.Hour})
		}
	}
	hours := 0.0
	for _, r := range w.Runs {
		hours += (r.To - r.From).Hours()
	}
	w.Containers["main"] = advice.Container{CPU: use(a.cores, hours), Memory: use(a.gibs*(1<<30), hours)}
	w.GPU = advice.GPU{Busy: use(a.busy, hours), Bytes: use(a.device*(1<<30), hours), Share: use(a.device/15, hours)}
	if a.reserves {
		w.GPU.Share.Mean = w.GPU.Share.Max
	}
	if a.contended {
		w.GPU.Contended = w.GPU.Busy.Samples * 3
	}
	return w
}

// generated is a cluster, and the same without its waste.
type generated struct {
	pools, leanPools []pool
	apps, lean       []app
	// untouched are objects that no change may name.
	untouched []string
}

// measured returns what was measured of apps in pools.
func measured(t *testing.T, pools []pool, apps []app) advice.Measured {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	to := time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC)
	m := advice.Measured{From: to.Add(-week), To: to, Cluster: clusterOf(t, pools), GPUBusy: -1}
	for _, a := range apps {
		m.Workloads = append(m.Workloads, a.workload(random))
	}
	return m
}

// priceOf replays what was measured, independently of the package.
func priceOf(t *testing.T, m *advice.Measured) planner.MicroUSD {
	t.Helper()
	var templates []corev1.Pod
	var pods []replay.Pod
	for i, w := range m.Workloads {
		templates = append(templates, w.Template)
		for _, r := range w.Runs {
			pods = append(pods, replay.Pod{Shape: i, Arrives: r.From, Ends: r.To})
		}
	}
	for _, p := range snapshot.Pools(m.Cluster) { // Its headroom holds as much room as these pods do.
		for _, h := range p.Class.Spec.Headroom {
			if h.Schedule != "" {
				continue
			}
			share, memory := p.ReplicaShare()
			requests := corev1.ResourceList{
				corev1.ResourceCPU: *resource.NewMilliQuantity(share.MilliCPU, resource.DecimalSI), corev1.ResourceMemory: *resource.NewQuantity(share.MemoryBytes, resource.BinarySI), shared: resource.MustParse("1"),
			}
			for range h.Replicas {
				pods = append(pods, replay.Pod{Shape: len(templates), Ends: m.To.Sub(m.From), Placeholder: true})
			}
			templates = append(templates, corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.GPUMemoryAnnotation: fmt.Sprint(memory)}},
				Spec: corev1.PodSpec{
					NodeSelector: map[string]string{"pool": p.NodePool.Name}, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
					Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: requests, Limits: corev1.ResourceList{shared: resource.MustParse("1")}}}},
				},
			})
		}
	}
	slices.SortStableFunc(pods, func(a, b replay.Pod) int { return int(a.Arrives - b.Arrives) })
	trace, why := replay.Of(m.Cluster, templates, pods, m.To.Sub(m.From))
	for i, w := range why {
		if w != "" {
			t.Fatalf("pod %d has no place: %s", i, w)
		}
	}
	price, err := replay.Total(&trace, 5*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return price
}

// apply applies a patch as kubectl does.
func apply(t *testing.T, m *advice.Measured, p advice.Patch) {
	t.Helper()
	words := strings.Fields(p.Command)
	if len(words) < 4 || words[1] != "patch" {
		t.Fatalf("the command is %q", p.Command)
	}
	patch, err := yaml.YAMLToJSON([]byte(p.YAML))
	if err != nil {
		t.Fatal(err)
	}
	kind, name := words[2], words[3]
	if kind == "gpunodeclass" || kind == "nodepool" {
		for i := range m.Cluster.GPUNodeClasses {
			if c := &m.Cluster.GPUNodeClasses[i]; kind == "gpunodeclass" && c.Name == name {
				merge(t, c, patch)
			}
		}
		for i := range m.Cluster.NodePools {
			if np := &m.Cluster.NodePools[i]; kind == "nodepool" && np.Name == name {
				merge(t, np, patch)
			}
		}
		return
	}
	for i := range m.Workloads {
		w := &m.Workloads[i]
		if w.Name != name {
			continue
		}
		var in map[string]any
		if err := json.Unmarshal(patch, &in); err != nil {
			t.Fatal(err)
		}
		spec := in["spec"].(map[string]any)
		if kind == "cronjob" {
			spec = spec["jobTemplate"].(map[string]any)["spec"].(map[string]any)
		}
		part, err := json.Marshal(spec["template"])
		if err != nil {
			t.Fatal(err)
		}
		before, err := json.Marshal(w.Template)
		if err != nil {
			t.Fatal(err)
		}
		after, err := strategicpatch.StrategicMergePatch(before, part, corev1.Pod{})
		if err != nil {
			t.Fatal(err)
		}
		w.Template = corev1.Pod{}
		if err := json.Unmarshal(after, &w.Template); err != nil {
			t.Fatal(err)
		}
	}
}

// merge applies a merge patch to an object.
func merge(t *testing.T, object any, patch []byte) {
	t.Helper()
	before, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	after, err := jsonMerge(before, patch)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(after, object); err != nil {
		t.Fatal(err)
	}
}
