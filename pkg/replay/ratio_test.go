package replay_test

import (
	"fmt"
	"math"
	"math/bits"
	"testing"
	"time"

	"pgregory.net/rapid"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/plantest/workload"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/replay"
)

const (
	// epoch is the time between changes of the small traces, and epochs how many there are.
	epoch  = 30 * time.Minute
	epochs = 12
	// most is how many pods run at a time.
	most = 4
)

// sizes are types of machines with room for these replicas, at prices for which it depends on the pods which of them are cheapest.
var sizes = []workload.Type{
	{Name: "small", GPU: "T4", GPUs: 1, Replicas: 2, MilliCPU: 1 << 20, MiB: 1 << 20, Pods: 100, Price: 0.5},
	{Name: "medium", GPU: "T4", GPUs: 1, Replicas: 3, MilliCPU: 1 << 20, MiB: 1 << 20, Pods: 100, Price: 0.7},
	{Name: "large", GPU: "T4", GPUs: 1, Replicas: 5, MilliCPU: 1 << 20, MiB: 1 << 20, Pods: 100, Price: 1.1},
}

// small draws a trace of pods with one or two replicas that come and go with the epochs.
func small(t *rapid.T) replay.Trace {
	trace := replay.Trace{Name: "small", Snapshot: empty(workload.Snapshot([]workload.Pods{{Name: "one", Replicas: 1}, {Name: "two", Replicas: 2}}, sizes))}
	var ends []int
	for at := range epochs {
		running := 0
		for _, end := range ends {
			if end > at {
				running++
			}
		}
		for range rapid.IntRange(0, most-running).Draw(t, "come") {
			end := min(epochs, at+rapid.IntRange(1, epochs).Draw(t, "lasts"))
			ends = append(ends, end)
			trace.Pods = append(trace.Pods, replay.Pod{Shape: rapid.IntRange(0, 1).Draw(t, "shape"), Arrives: time.Duration(at) * epoch, Ends: time.Duration(end) * epoch})
		}
	}
	// This pod ends as it arrives. It only extends the replay.
	trace.Pods = append(trace.Pods, replay.Pod{Arrives: epochs * epoch, Ends: epochs * epoch})
	return trace
}

// block is a machine of a type with pods, as a set of indices into the trace.
type block struct {
	kind int
	pods uint64
}

// layouts returns all ways to place pods on machines.
func layouts(t *replay.Trace, pods uint64) [][]block {
	if pods == 0 {
		return [][]block{nil}
	}
	first := pods & -pods
	rest := pods &^ first
	var all [][]block
	for with := rest; ; with = (with - 1) & rest {
		replicas := int64(0)
		for set := with | first; set != 0; set &= set - 1 {
			replicas += t.Snapshot.Classes[t.Pods[bits.TrailingZeros64(set)].Shape].Requests.Replicas
		}
		for kind := range sizes {
			if sizes[kind].Replicas < replicas {
				continue
			}
			for _, others := range layouts(t, rest&^with) {
				all = append(all, append([]block{{kind, with | first}}, others...))
			}
		}
		if with == 0 {
			return all
		}
	}
}

// stay returns the most pods that can stay where they are from one layout to the next.
func stay(from, to []block) int {
	if len(from) == 0 {
		return 0
	}
	best := stay(from[1:], to)
	for i, b := range to {
		if common := bits.OnesCount64(from[0].pods & b.pods); b.kind == from[0].kind && common > 0 {
			others := append(append([]block{}, to[:i]...), to[i+1:]...)
			best = max(best, common+stay(from[1:], others))
		}
	}
	return best
}

// optimum returns the least that machines and restarts cost for somebody who knows the future, in micro-dollars: a dynamic program over all layouts.
func optimum(t *replay.Trace, restart float64) float64 {
	before, costs := [][]block{nil}, []float64{0}
	last := uint64(0)
	for at := range epochs {
		pods := uint64(0)
		for i, p := range t.Pods {
			if now := time.Duration(at) * epoch; p.Arrives <= now && p.Ends > now {
				pods |= 1 << i
			}
		}
		after := layouts(t, pods)
		next := make([]float64, len(after))
		for j, to := range after {
			next[j] = math.Inf(1)
			for i, from := range before {
				moved := bits.OnesCount64(last&pods) - stay(from, to)
				next[j] = min(next[j], costs[i]+float64(moved)*restart)
			}
			for _, b := range to {
				next[j] += float64(t.Snapshot.Offerings[b.kind].Price) * epoch.Hours()
			}
		}
		before, costs, last = after, next, pods
	}
	least := math.Inf(1)
	for _, cost := range costs {
		least = min(least, cost)
	}
	return least
}

// online returns what machines and restarts cost with Karve.
func online(t *replay.Trace, restart planner.MicroUSD) (float64, error) {
	search, paid := solve.Solver{}, 0.0
	const batch = time.Minute
	r, err := replay.Run(t, replay.Setup{
		Provision: search.Plan, Consolidate: (&replay.Karve{Search: search, Restart: restart}).Consolidate, Every: batch, Batch: batch,
		Seen: func(_ time.Duration, price planner.MicroUSD) { paid += float64(price) * batch.Hours() },
	})
	return paid + float64(restart)*float64(r.Evictions), err
}

func TestOptimumOfKnownCases(t *testing.T) {
	t.Parallel()
	pod := func(shape, from, to int) replay.Pod {
		return replay.Pod{Shape: shape, Arrives: time.Duration(from) * epoch, Ends: time.Duration(to) * epoch}
	}
	for name, c := range map[string]struct {
		pods    []replay.Pod
		restart float64
		want    float64
	}{
		"one pod on a small machine":                                {[]replay.Pod{pod(0, 0, 2)}, 1e6, 500_000},
		"two pods share a machine":                                  {[]replay.Pod{pod(0, 0, 2), pod(0, 0, 2)}, 1e6, 500_000},
		"three replicas fit on a medium machine":                    {[]replay.Pod{pod(0, 0, 2), pod(1, 0, 2)}, 1e6, 700_000},
		"a pod moves to a small machine if the restart is cheap":    {[]replay.Pod{pod(1, 0, 1), pod(1, 0, 12), pod(0, 0, 1)}, 0, 1_100_000/2 + 11*250_000},
		"two machines from the beginning save a restart that costs": {[]replay.Pod{pod(1, 0, 1), pod(1, 0, 12), pod(0, 0, 1)}, 1e6, 600_000 + 11*250_000},
	} {
		trace := replay.Trace{Snapshot: empty(workload.Snapshot([]workload.Pods{{Replicas: 1}, {Replicas: 2}}, sizes)), Pods: c.pods}
		if got := optimum(&trace, c.restart); math.Abs(got-c.want) > 1 {
			t.Errorf("%s: it costs %.0f, want %.0f", name, got, c.want)
		}
	}
}

// TestMachinesAndRestartsCostAtMostTwiceTheOptimum compares Karve, which launches machines at once and does not know when pods end, with somebody who knows the future.
func TestMachinesAndRestartsCostAtMostTwiceTheOptimum(t *testing.T) {
	t.Parallel()
	worst, sum, n := 0.0, 0.0, 0
	defer func() {
		t.Logf("over %d instances the ratio is %.3f at worst and %.3f on average", n, worst, sum/float64(max(1, n)))
	}()
	rapid.Check(t, func(t *rapid.T) {
		trace := small(t)
		restart := planner.MicroUSD(rapid.SampledFrom([]int{0, 10_000, 50_000, 200_000, 1_000_000}).Draw(t, "restart"))
		least := optimum(&trace, float64(restart))
		if least == 0 {
			return
		}
		got, err := online(&trace, restart)
		if err != nil {
			t.Fatal(err)
		}
		ratio := got / least
		worst, sum, n = max(worst, ratio), sum+ratio, n+1
		if ratio > 2 {
			t.Fatalf("%.0f is paid where %.0f is enough, %.2f times as much: %s", got, least, ratio, describe(&trace))
		}
		if ratio < 1-1e-6 {
			t.Fatalf("%.0f is paid, less than the optimum of %.0f: %s", got, least, describe(&trace))
		}
	})
}

func describe(t *replay.Trace) (text string) {
	for _, p := range t.Pods {
		text += fmt.Sprintf(" shape %d from %d to %d;", p.Shape, p.Arrives/epoch, p.Ends/epoch)
	}
	return text
}
