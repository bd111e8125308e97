package gather

import (
	"fmt"
	"strconv"
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
	if err := b.CountChanges(tb.Context(), b.cached); err != nil {
		tb.Fatal(err)
	}
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
		look := func() *snapshot.Cluster {
			c, err := t.Cluster(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			return c
		}
		look()
		b.Run(fmt.Sprint("look/", nodes), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				change()
				look()
			}
		})
		b.Run(fmt.Sprint("build/", nodes), func(b *testing.B) {
			b.ReportAllocs()
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
