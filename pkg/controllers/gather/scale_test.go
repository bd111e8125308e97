package gather

import (
	"fmt"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/snapshot"
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
		if running == nil && c.Pods[i].Spec.NodeName != "" && snapshot.IsWorkload(&c.Pods[i]) {
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
		look := func() *snapshot.Cluster { return t.look(b) }
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
	used := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var bytes uint64
	for b.Loop() {
		all, before := make([]any, 0, len(objects)), used()
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
		bytes += used() - before
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
