package solve_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"karve.sh/karve/pkg/planner/plantest/workload"
	"karve.sh/karve/pkg/planner/solve"
)

func TestZZProf(t *testing.T) {
	effort, _ := strconv.ParseInt(os.Getenv("EFF"), 10, 64)
	types := workload.Types(workload.G4to6, 10)
	for seed := int64(1); seed <= 2; seed++ {
		for _, n := range ns() {
			pods := 3000
			if n == 20 {
				pods = 300
			}
			s := workload.Snapshot(workload.Mixed(seed, workload.Mix{Pods: pods, Shapes: n, GPUMemory: true, Pinned: true}, types), types)
			at := time.Now()
			p := solve.Solver{Effort: effort}.Plan(s)
			fmt.Printf("%d shapes seed %d: %.4f bound %.4f  %v\n", n, seed, float64(p.Price)/1e6, float64(p.Bound)/1e6, time.Since(at).Round(time.Millisecond))
		}
		s := workload.Snapshot(workload.Deployments(seed, deps(), types), types)
		at := time.Now()
		p := solve.Solver{Effort: effort}.Plan(s)
		fmt.Printf("deps seed %d: %.4f bound %.4f  %v\n", seed, float64(p.Price)/1e6, float64(p.Bound)/1e6, time.Since(at).Round(time.Millisecond))
	}
}

func ns() (out []int) {
	for _, f := range strings.Fields(os.Getenv("NS")) {
		n, _ := strconv.Atoi(f)
		out = append(out, n)
	}
	return out
}

func deps() int { n, _ := strconv.Atoi(os.Getenv("DEPS")); return max(n, 10) }
