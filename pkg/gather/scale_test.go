package gather

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planning"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// large returns a testbed with the objects of a large cluster, and a pod that runs on one of Karve's machines.
func large(tb testing.TB, nodes int) (testbed, *corev1.Pod) {
	tb.Helper()
	b := newTestbed()
	c := snapshottest.Large(nodes)
	b.follow(tb)
	var running *corev1.Pod
	for i := range c.Pods {
		b.cached.set(&c.Pods[i])
		if running == nil && c.Pods[i].Spec.NodeName != "" && facts.IsWorkload(&c.Pods[i]) {
			running = &c.Pods[i]
		}
	}
	for i := range c.Nodes {
		b.cached.set(&c.Nodes[i])
	}
	for i := range c.NodeClaims {
		b.live.set(&c.NodeClaims[i])
		b.cached.set(&c.NodeClaims[i])
	}
	for i := range c.NodePools {
		b.cached.set(&c.NodePools[i], asItIs(&c.NodePools[i], nodePool))
	}
	for i := range c.DaemonSets {
		b.cached.set(&c.DaemonSets[i])
	}
	for i := range c.Namespaces {
		b.cached.set(&c.Namespaces[i])
	}
	return b, running
}

// BenchmarkLookAfterOnePodChange reads a large cluster after one pod has changed, and builds its view.
func BenchmarkLookAfterOnePodChange(b *testing.B) {
	for _, nodes := range []int{100, 1_000, 5_000} {
		t, pod := large(b, nodes)
		version := 1_000_000
		change := func() {
			version++
			changed := pod.DeepCopy()
			changed.ResourceVersion = strconv.Itoa(version)
			changed.Labels["turn"] = changed.ResourceVersion
			t.cached.set(changed)
		}
		look := func() *facts.Cluster { return t.look(b) }
		look()
		b.Run(fmt.Sprint("look/", nodes), func(b *testing.B) {
			b.ReportAllocs()
			defer measureCPU(b)()
			for b.Loop() {
				change()
				look()
			}
		})
		b.Run(fmt.Sprint("build/", nodes), func(b *testing.B) {
			b.ReportAllocs()
			defer measureCPU(b)()
			for b.Loop() {
				change()
				view := snapshot.Build(look())
				if len(view.Classes) == 0 {
					b.Fatal("nothing waits")
				}
			}
		})
	}
}

// BenchmarkOneProcess reports what clusters of up to 500,000 pods take in one process: the memory that each node with its ten pods keeps in caches and index, the time
// to index all of them, and the time from one change to a plan for 5,000 pods in fifty shapes that wait. Memory and time are those of the heap and of the processors.
func BenchmarkOneProcess(b *testing.B) {
	for _, nodes := range []int{5_000, 50_000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) { benchmarkOneProcess(b, nodes) })
	}
}

func benchmarkOneProcess(b *testing.B, nodes int) {
	before := heap()
	t, running := cached(b, nodes, 5_000)
	version := 10_000_000
	change := func() *facts.Cluster {
		version++
		changed := running.DeepCopy()
		changed.ResourceVersion = strconv.Itoa(version)
		changed.Labels["turn"] = changed.ResourceVersion
		t.cached.set(changed)
		return t.look(b)
	}
	b.Run("index", func(b *testing.B) {
		defer measureCPU(b)()
		for b.Loop() {
			t.followed.pods.names = nil // It is not known which pods have changed, as after the start.
			t.look(b)
		}
		b.ReportMetric(float64(heap()-before)/float64(nodes), "B/node")
	})
	b.Run("look", func(b *testing.B) {
		defer measureCPU(b)()
		for b.Loop() {
			change()
		}
	})
	b.Run("build", func(b *testing.B) {
		b.ReportAllocs()
		defer measureCPU(b)()
		for b.Loop() {
			snapshot.Build(change())
		}
	})
	b.Run("plan", func(b *testing.B) {
		b.ReportAllocs()
		defer measureCPU(b)()
		for b.Loop() {
			plans := planning.Planner{Clock: clock.RealClock{}, Metrics: metrics.New(prometheus.NewRegistry()), Budget: 200 * time.Millisecond}
			generation, err := plans.Of(b.Context(), change())
			if err != nil {
				b.Fatal(err)
			}
			plan := generation.Plan(b.Context())
			if plan.Err != nil || len(plan.Placements)+len(plan.Launches) == 0 {
				b.Fatalf("%d placements, %d launches: %v", len(plan.Placements), len(plan.Launches), plan.Err)
			}
			b.ReportMetric(float64(len(plan.Launches)), "launches")
			b.ReportMetric(float64(len(plan.Placements)), "placements")
		}
	})
}

// cached returns a testbed with the objects of a large cluster as the caches keep them, with pods that wait, and a pod that runs on one of Karve's machines.
func cached(tb testing.TB, nodes, waiting int) (t testbed, running *corev1.Pod) {
	tb.Helper()
	t = newTestbed()
	t.Live = readyClasses{t.live}
	t.follow(tb)
	trim := Trim()
	set := func(o client.Object) {
		// What comes from the API server was decoded, so its parts are not shared.
		if _, err := trim(o); err != nil {
			tb.Fatal(err)
		}
		t.cached.set(o)
	}
	const part = 1_000
	for first := 0; first < nodes; first += part {
		c := snapshottest.LargePart(first, part)
		for i := range c.Pods {
			pod := c.Pods[i].DeepCopy()
			set(pod)
			if running == nil && facts.IsWorkload(pod) {
				running = pod
			}
		}
		for i := range c.Nodes {
			set(c.Nodes[i].DeepCopy())
		}
		for i := range c.NodeClaims {
			claim := c.NodeClaims[i].DeepCopy()
			t.live.set(claim)
			set(claim)
		}
		if first > 0 {
			continue
		}
		for i := range c.NodePools {
			c.NodePools[i].Spec.Limits = nil // The machines exceed those of the small cluster.
			t.cached.set(&c.NodePools[i], asItIs(&c.NodePools[i], nodePool))
		}
		for i := range c.DaemonSets {
			t.cached.set(&c.DaemonSets[i])
		}
		for i := range c.Namespaces {
			t.cached.set(&c.Namespaces[i])
		}
	}
	for i := range waiting {
		pod := snapshottest.Pod(fmt.Sprintf("waits-%05d", i), snapshottest.OwnedBy("apps/v1", "ReplicaSet", fmt.Sprint("waits-", i%50)),
			snapshottest.Asking("cpu", fmt.Sprintf("%dm", 100+20*(i%50)), "memory", "1Gi", "nvidia.com/gpu.shared", "1"))
		set(&pod)
	}
	return t, running
}

// readyClasses is a store in which each node class of the cloud is Ready.
type readyClasses struct{ *store }

func (r readyClasses) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return r.store.Get(ctx, key, o, options...)
	}
	u.SetName(key.Name)
	return unstructured.SetNestedSlice(u.Object, []any{map[string]any{"type": status.ConditionReady, "status": "True"}}, "status", "conditions")
}

// heap returns the bytes of all live objects.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// measureCPU returns a function that reports the CPU time of each iteration since the call. Unlike wall time, it does not depend on other load.
func measureCPU(b *testing.B) func() {
	b.Helper()
	used := func() int64 {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return u.Utime.Nano() + u.Stime.Nano()
	}
	before := used()
	return func() { b.ReportMetric(float64(used()-before)/float64(b.N), "cpu-ns/op") }
}

// BenchmarkBytesKept reports the memory that pods and nodes of a large cluster use, as they come from the API server and trimmed.
func BenchmarkBytesKept(b *testing.B) {
	c := snapshottest.Large(1_000)
	for name, trim := range map[string]func(any) (any, error){"whole": func(o any) (any, error) { return o, nil }, "trimmed": Trim()} {
		b.Run(name+"/pods", func(b *testing.B) {
			b.ReportMetric(heldBytes(b, trim, c.Pods, func() *corev1.Pod { return &corev1.Pod{} }), "B/object")
		})
		b.Run(name+"/nodes", func(b *testing.B) {
			b.ReportMetric(heldBytes(b, trim, c.Nodes, func() *corev1.Node { return &corev1.Node{} }), "B/object")
		})
	}
}

// heldBytes returns the bytes that each object uses after it was decoded and trimmed.
func heldBytes[T any, P interface {
	*T
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}](b *testing.B, trim func(any) (any, error), objects []T, empty func() P) float64 {
	b.Helper()
	var bytes uint64
	for b.Loop() {
		all, before := make([]any, 0, len(objects)), heap()
		for i := range objects {
			text, err := P(&objects[i]).Marshal()
			if err != nil {
				b.Fatal(err)
			}
			o := empty()
			if err := o.Unmarshal(text); err != nil {
				b.Fatal(err)
			}
			trimmed, err := trim(o)
			if err != nil {
				b.Fatal(err)
			}
			all = append(all, trimmed)
		}
		bytes += heap() - before
		runtime.KeepAlive(all)
	}
	return float64(bytes) / float64(b.N*len(objects))
}

// BenchmarkTrim trims a pod that was just decoded.
func BenchmarkTrim(b *testing.B) {
	c, trim := snapshottest.Large(100), Trim()
	pods := make([]*corev1.Pod, b.N)
	for i := range pods {
		pods[i] = c.Pods[i%len(c.Pods)].DeepCopy()
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range pods {
		if _, err := trim(pods[i]); err != nil {
			b.Fatal(err)
		}
	}
}
