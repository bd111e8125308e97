package disruption

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/fleet/layout"
	"karve.sh/karve/pkg/fleet/retention"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// BenchmarkLook is a look for a cheaper layout of a hundred machines with a thousand pods of twenty classes, and the judgement of ten marks.
func BenchmarkLook(b *testing.B) {
	c := snapshottest.Shared()
	c.NodePools[0].Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "10%"}}
	types := []string{"g4dn.xlarge", "g4dn.2xlarge", "g4dn.12xlarge"}
	for i := range 100 {
		kind := snapshottest.TypeNamed(types[i%len(types)])
		claim := snapshottest.Claim(fmt.Sprintf("m-%03d", i), &c.NodePools[0], kind, snapshottest.Initialized(c.Now.Add(-time.Hour)))
		c.NodeClaims = append(c.NodeClaims, claim)
		c.Nodes = append(c.Nodes, snapshottest.Node(&claim, kind, slots*kind.GPU.Count))
	}
	for i := range 1000 {
		pod := snapshottest.Pod(fmt.Sprintf("pod-%04d", i), snapshottest.OwnedBy("apps/v1", "ReplicaSet", "web"), snapshottest.Running(fmt.Sprintf("m-%03d", i%100)),
			snapshottest.Asking("cpu", fmt.Sprintf("%dm", 100+20*(i%20)), "memory", "500Mi", "nvidia.com/gpu.shared", "1"), func(p *corev1.Pod) {
				p.Status.StartTime = &metav1.Time{Time: c.Now.Add(-time.Hour)}
			})
		c.Pods = append(c.Pods, pod)
	}
	nobody := func([]*corev1.Pod) string { return "" }
	b.Run("propose", func(b *testing.B) {
		for b.Loop() {
			s := passOf(c)
			s.fakePods().blocker = nobody
			layout := s.lay(func(m *snapshot.Machine) string { return s.pods.Keeps(m) })
			out := propose(&layout, solve.Solver{})
			b.ReportMetric(float64(len(out.proposals)), "proposals")
		}
	})
	b.Run("see", func(b *testing.B) {
		for b.Loop() {
			passOf(c)
		}
	})
	b.Run("lay", func(b *testing.B) {
		for b.Loop() {
			view := snapshot.Build(c)
			layout.Build(&view, retention.Pods(c))
		}
	})
	b.Run("standing", func(b *testing.B) {
		for i := range 10 {
			c.NodeClaims[i].Annotations["karve.sh/replacing"] = "Underutilized"
		}
		for b.Loop() {
			s := passOf(c)
			b.ReportMetric(float64(len(s.standing(verdicts{}, func() bool { return false }).stand)), "standing")
		}
	})
}
