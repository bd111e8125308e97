package disruption

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// thinned returns a cluster with the given number of machines of three types. Each machine runs ten pods, and there are twenty pod shapes.
func thinned(machines int) *facts.Cluster {
	c := snapshottest.Shared()
	c.NodePools[0].Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "10%"}}
	types := []string{"g4dn.xlarge", "g4dn.2xlarge", "g4dn.12xlarge"}
	for i := range machines {
		kind := snapshottest.TypeNamed(types[i%len(types)])
		claim := snapshottest.Claim(fmt.Sprintf("m-%04d", i), &c.NodePools[0], kind, snapshottest.Initialized(c.Now.Add(-time.Hour)))
		c.NodeClaims = append(c.NodeClaims, claim)
		c.Nodes = append(c.Nodes, snapshottest.Node(&claim, kind, perXlarge*kind.GPU.Count))
	}
	for i := range 10 * machines {
		pod := snapshottest.Pod(fmt.Sprintf("pod-%05d", i), snapshottest.OwnedBy("apps/v1", "ReplicaSet", fmt.Sprint("web-", i%97)), snapshottest.Running(fmt.Sprintf("m-%04d", i%machines)),
			snapshottest.Asking("cpu", fmt.Sprintf("%dm", 100+20*(i%20)), "memory", "500Mi", "nvidia.com/gpu.shared", "1"), func(p *corev1.Pod) {
				p.Status.StartTime = &metav1.Time{Time: c.Now.Add(-time.Hour)}
			})
		c.Pods = append(c.Pods, pod)
	}
	return c
}

// BenchmarkLook measures the parts of a look of the controller for fleets of different sizes: a pass, the search of one slice for a cheaper layout, the
// question whether a tenth of the machines can be removed, and the check of ten marks.
func BenchmarkLook(b *testing.B) {
	for _, machines := range []int{100, 1000, 5000} {
		c := thinned(machines)
		c.Index = c.Indexed()
		pass := func() *pass {
			s := passOf(c)
			s.fakePods().blocker = nothingBlocks
			return s
		}
		b.Run(fmt.Sprint("pass/", machines), func(b *testing.B) {
			for b.Loop() {
				pass()
			}
		})
		b.Run(fmt.Sprint("search/", machines), func(b *testing.B) {
			s := pass()
			var r rounds
			for b.Loop() {
				names, _ := r.next(claimsOf(s.machines))
				began := time.Now()
				layout := s.lay(s.searcher().part(names), func(m *records.Machine) string { return s.pods.Keeps(m) })
				out := propose(&layout, solve.Solver{Stop: func() bool { return time.Since(began) >= layoutFor }})
				b.ReportMetric(float64(len(out.Proposals)), "proposals")
			}
		})
		b.Run(fmt.Sprint("questions/", machines), func(b *testing.B) {
			for b.Loop() {
				s := pass()
				names := claimsOf(s.machines)[:machines/10]
				s.whatIf.expect(asIs, names)
				_, going := greedy(s.whatIf.place, names)
				b.ReportMetric(float64(len(going)), "going")
			}
		})
		b.Run(fmt.Sprint("marks/", machines), func(b *testing.B) {
			for i := range 10 {
				c.NodeClaims[i].Annotations["karve.sh/replacing"] = "Underutilized"
			}
			c.Index = nil
			c.Index = c.Indexed()
			for b.Loop() {
				b.ReportMetric(float64(len(pass().standing(verdicts{}, func() bool { return false }).stand)), "standing")
			}
		})
	}
}
