package replay_test

import (
	"fmt"
	"math"
	"math/rand"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/firstfit"
	"karve.sh/karve/pkg/planner/plantest/workload"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/replay"
)

// churn configures synthetic.
type churn struct {
	Pods int
	// Mix provides the shapes. Its number of pods only weighs them.
	Mix workload.Mix
	// Between is the mean time between arrivals. Median is the median lifetime of pods. A tenth of the pods live more than twenty times as long.
	Between, Median time.Duration
}

// synthetic draws a trace from a seed.
func synthetic(seed int64, c churn, types []workload.Type) replay.Trace {
	shapes := workload.Mixed(seed, c.Mix, types)
	t := replay.Trace{Name: fmt.Sprintf("synthetic %d", seed), Snapshot: empty(workload.Snapshot(shapes, types))}
	r := rand.New(rand.NewSource(seed))
	var weights []int
	for i, s := range shapes {
		weights = append(weights, slices.Repeat([]int{i}, s.Count)...)
	}
	at := time.Duration(0)
	for range c.Pods {
		at += time.Duration(r.ExpFloat64() * float64(c.Between))
		lasts := time.Duration(math.Exp(r.NormFloat64()*math.Log(20)/1.28) * float64(c.Median))
		t.Pods = append(t.Pods, replay.Pod{Shape: weights[r.Intn(len(weights))], Arrives: at, Ends: at + max(time.Second, lasts)})
	}
	return t
}

// empty returns the snapshot without its pods.
func empty(s planner.Snapshot) planner.Snapshot {
	for i := range s.Classes {
		s.Classes[i].Pods = nil
	}
	return s
}

// short returns a trace of a few minutes.
func short(seed int64, pods int) replay.Trace {
	return synthetic(seed, churn{
		Pods: pods, Mix: workload.Mix{Shapes: 6, Pods: 60, GPUMemory: true}, Between: 10 * time.Second, Median: 4 * time.Minute,
	}, workload.Types(workload.G4dn, 10))
}

func plans(s planner.Snapshot) planner.Plan { return solve.Solver{Effort: 2000}.Plan(s) }

func karve() replay.Consolidation {
	return (&replay.Karve{Search: solve.Solver{Effort: 2000}, Restart: 10_000}).Consolidate
}

// run replays a trace. Run itself fails if a pod is lost or duplicated, or if a machine is overcommitted.
func run(t *testing.T, trace replay.Trace, s replay.Setup) replay.Result {
	t.Helper()
	s.Every = time.Minute
	r, err := replay.Run(&trace, s)
	if err != nil {
		t.Fatal(err)
	}
	if r.Unplaced > 0 {
		t.Errorf("pods wait in %d batches though machines can be had for all", r.Unplaced)
	}
	return r
}

func TestConsolidationIsCheaper(t *testing.T) {
	t.Parallel()
	trace := short(1, 250)
	bound := replay.Bound(&trace, solve.Solver{Effort: 2000})
	none := run(t, trace, replay.Setup{Provision: plans})
	ours := run(t, trace, replay.Setup{Provision: plans, Consolidate: karve()})
	peer := run(t, trace, replay.Setup{Provision: firstfit.Plan, Consolidate: replay.Karpenter})
	t.Logf("bound %d, none %+v, Karve %+v, model of Karpenter %+v", bound, none, ours, peer)
	if none.Evictions != 0 || ours.Evictions == 0 || ours.Mean >= none.Mean {
		t.Errorf("%d with %d evictions, %d without consolidation", ours.Mean, ours.Evictions, none.Mean)
	}
	for _, r := range []replay.Result{none, ours, peer} {
		if r.Mean < bound {
			t.Errorf("machines cost %d, less than the bound of %d", r.Mean, bound)
		}
	}
}

func TestReplayIsDeterministic(t *testing.T) {
	t.Parallel()
	trace := short(2, 120)
	once := func() replay.Result {
		return run(t, trace, replay.Setup{Provision: plans, Consolidate: karve()})
	}
	if a, b := once(), once(); a != b {
		t.Errorf("once %+v, then %+v", a, b)
	}
}

func TestReplayLosesNoPods(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		trace := synthetic(rapid.Int64().Draw(t, "seed"), churn{
			Pods:    rapid.IntRange(1, 40).Draw(t, "pods"),
			Mix:     workload.Mix{Shapes: rapid.IntRange(1, 5).Draw(t, "shapes"), Pods: 50, GPUMemory: rapid.Bool().Draw(t, "GPU memory")},
			Between: time.Duration(rapid.IntRange(1, 60).Draw(t, "between")) * time.Second, Median: time.Duration(rapid.IntRange(1, 600).Draw(t, "median")) * time.Second,
		}, workload.Types(workload.G4dn, 10))
		s := replay.Setup{Provision: plans, Every: time.Minute, Consolidate: replay.Karpenter}
		if rapid.Bool().Draw(t, "Karve") {
			s.Consolidate = karve()
		}
		r, err := replay.Run(&trace, s)
		if err != nil {
			t.Fatal(err)
		}
		if r.Unplaced > 0 {
			t.Errorf("pods wait in %d batches", r.Unplaced)
		}
	})
}

func TestTraceIsSortedByArrival(t *testing.T) {
	t.Parallel()
	trace := short(3, 500)
	if !slices.IsSortedFunc(trace.Pods, func(a, b replay.Pod) int { return int(a.Arrives - b.Arrives) }) {
		t.Error("pods are not in the order in which they come")
	}
	for i, p := range trace.Pods {
		if p.Ends <= p.Arrives {
			t.Errorf("pod %d ends before it comes", i)
		}
	}
}

func TestPodsRunOnlyOnMachinesThatAdmitThem(t *testing.T) {
	t.Parallel()
	trace := replay.Trace{Name: "two", Snapshot: empty(workload.Snapshot([]workload.Pods{{Name: "one", Replicas: 1}, {Name: "other", Replicas: 1}}, sizes)), End: time.Hour}
	trace.Pods = []replay.Pod{{Shape: 0, Ends: time.Hour}, {Shape: 1, Arrives: time.Minute, Ends: time.Hour}}
	for _, c := range []struct {
		apart    bool
		machines int
	}{{false, 1}, {true, 2}} {
		if c.apart {
			trace.Snapshot.Classes[1].Offerings = trace.Snapshot.Classes[1].Offerings[1:]
			trace.Snapshot.Classes[0].Offerings = trace.Snapshot.Classes[0].Offerings[:1]
		}
		for _, consolidation := range []replay.Consolidation{nil, karve(), replay.Karpenter} {
			r := run(t, trace, replay.Setup{Provision: plans, Consolidate: consolidation})
			if r.Peak != c.machines || r.Launched != c.machines {
				t.Errorf("apart %t: %+v", c.apart, r)
			}
		}
	}
}
