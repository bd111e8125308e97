package consolidate_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"karve.sh/karve/pkg/planner/consolidate"
	"karve.sh/karve/pkg/planner/plantest/workload"
	"karve.sh/karve/pkg/planner/solve"
)

// spent returns the CPU time of this process. Unlike wall time, it does not depend on other load.
func spent() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkCheaper measures one decision about a thinned fleet. It reports wall time and CPU time in milliseconds per decision, the number of pods and nodes,
// the gap between the fleet after the steps and the bound in percent, and the number of moved pods.
func BenchmarkCheaper(b *testing.B) {
	types := workload.Types(workload.G4to6, 10)
	for _, c := range []struct {
		pods   int
		memory bool
	}{{1000, false}, {1000, true}, {2000, false}, {2000, true}} {
		name := fmt.Sprint(c.pods/2, "Pods")
		if c.memory {
			name += "WithGPUMemory"
		}
		s := workload.Snapshot(workload.Mixed(1, workload.Mix{Pods: c.pods, Shapes: 20, GPUMemory: c.memory}, types), types)
		l := workload.Thinned(s, solve.Plan(s), 0.5, 20_000, 101)
		b.Run(name, func(b *testing.B) {
			var o consolidate.Outlook
			before := spent()
			for b.Loop() {
				o = consolidate.Plan(solve.Solver{}, l)
			}
			pods, moved, price := 0, 0, o.Price
			for _, m := range l.Machines {
				pods += len(m.Pods)
			}
			for _, step := range o.Steps {
				price -= step.Saving
				for _, i := range step.Leave {
					moved += len(l.Machines[i].Pods)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N), "ms/decision")
			b.ReportMetric(float64((spent()-before).Microseconds())/1000/float64(b.N), "cpu-ms/decision")
			b.ReportMetric(float64(pods), "pods")
			b.ReportMetric(float64(len(l.Machines)), "nodes")
			b.ReportMetric(100*float64(price-o.Bound)/float64(max(1, o.Bound)), "%over")
			b.ReportMetric(float64(moved), "moved")
			b.ReportMetric(0, "ns/op")
		})
	}
}
