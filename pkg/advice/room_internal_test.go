package advice

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

const memoryOfT4 = 15 << 30

func drawn(t *rapid.T) *Workload {
	w := &Workload{Kind: rapid.SampledFrom([]string{"Job", "Deployment"}).Draw(t, "kind"), Most: rapid.IntRange(0, 20).Draw(t, "pods")}
	w.GPU.Busy.P95, w.GPU.Bytes.Max = rapid.Float64Range(0, 1).Draw(t, "busy"), rapid.Float64Range(0, 16<<30).Draw(t, "bytes")
	return w
}

// TestAnyPodsOfASafeNumberFitOnAGPU places random pods on a GPU, as the scheduler may.
func TestAnyPodsOfASafeNumberFitOnAGPU(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		workloads := rapid.SliceOfN(rapid.Custom(drawn), 1, 5).Draw(t, "workloads")
		strategy := rapid.SampledFrom([]v1alpha1.Strategy{v1alpha1.StrategyTimeSlicing, v1alpha1.StrategyMPS}).Draw(t, "strategy")
		n := safeReplicas(workloads, memoryOfT4, 48, strategy)
		if n < 1 || n > 48 || n > 1 && !fits(workloads, n, memoryOfT4, strategy) || n < 48 && fits(workloads, n+1, memoryOfT4, strategy) {
			t.Fatalf("%d pods", n)
		}
		var pods []*Workload
		for _, w := range workloads {
			pods = append(pods, slices.Repeat([]*Workload{w}, max(1, w.Most))...)
		}
		var busy, bytes float64
		for _, i := range rapid.Permutation(indices(len(pods))).Draw(t, "pods")[:min(int(n), len(pods))] {
			w := pods[i]
			busy, bytes = busy+w.GPU.Busy.P95, bytes+w.GPU.Bytes.Max
			if n > 1 && strategy == v1alpha1.StrategyMPS && w.GPU.Bytes.Max > memoryOfT4/float64(n) {
				t.Errorf("with MPS, a pod of %d has less than the %.0f bytes that it needs", n, w.GPU.Bytes.Max)
			}
		}
		if n > 1 && (busy > targetOf(workloads)+1e-9 || bytes*margin > memoryOfT4+1) {
			t.Errorf("%d pods have a GPU busy for %.2f of the time, and need %.0f bytes", n, busy, bytes)
		}
	})
}

func indices(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

func TestLargestPodsCount(t *testing.T) {
	t.Parallel()
	w := func(kind string, pods int, busy, gibs float64) *Workload {
		w := &Workload{Kind: kind, Most: pods}
		w.GPU.Busy.P95, w.GPU.Bytes.Max = busy, gibs*(1<<30)
		return w
	}
	for name, c := range map[string]struct {
		all      []*Workload
		strategy v1alpha1.Strategy
		want     int64
	}{
		"the memory of 15 GiB with 15 % on top": {[]*Workload{w("Job", 100, 0.01, 2)}, v1alpha1.StrategyTimeSlicing, 6},
		"70 % of the time of pods that serve":   {[]*Workload{w("Deployment", 100, 0.1, 0.1)}, v1alpha1.StrategyTimeSlicing, 6},
		"all the time of Jobs":                  {[]*Workload{w("Job", 100, 0.0999, 0.1)}, v1alpha1.StrategyTimeSlicing, 10},
		"one busy pod and many idle ones":       {[]*Workload{w("Deployment", 1, 0.5, 0.1), w("Deployment", 50, 0.02, 0.1)}, v1alpha1.StrategyTimeSlicing, 10},
		"MPS limits the largest pod":            {[]*Workload{w("Job", 1, 0.01, 4), w("Job", 50, 0.01, 0.1)}, v1alpha1.StrategyMPS, 3},
		"a pod that fills the GPU":              {[]*Workload{w("Job", 2, 1, 15)}, v1alpha1.StrategyTimeSlicing, 1},
	} {
		if got := safeReplicas(c.all, memoryOfT4, 48, c.strategy); got < c.want || got > c.want+1 {
			t.Errorf("%s: %d pods, want %d", name, got, c.want)
		}
	}
}

func TestUseOfPartsIsThatOfTheWhole(t *testing.T) {
	t.Parallel()
	drawn := rapid.Custom(func(t *rapid.T) Use {
		return Use{rapid.IntRange(0, 1000).Draw(t, "samples"), rapid.Float64Range(0, 9).Draw(t, "mean"), rapid.Float64Range(0, 9).Draw(t, "p95"), rapid.Float64Range(0, 9).Draw(t, "max")}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawn.Draw(t, "a"), drawn.Draw(t, "b")
		ab, ba := a.With(b), b.With(a)
		if ab.Samples != a.Samples+b.Samples || ab.Samples > 0 && (ab.Max != max(a.Max, b.Max) || ab.P95 != max(a.P95, b.P95)) {
			t.Errorf("%+v with %+v is %+v", a, b, ab)
		}
		if d := ab.Mean - ba.Mean; ab.Samples > 0 && (d > 1e-9 || d < -1e-9 || ab.Mean < min(a.Mean, b.Mean)-1e-9 || ab.Mean > max(a.Mean, b.Mean)+1e-9) {
			t.Errorf("the mean of %+v and %+v is %g, or %g", a, b, ab.Mean, ba.Mean)
		}
	})
}

func TestWhatIsUnknownIsSaid(t *testing.T) {
	t.Parallel()
	enough := Use{Samples: 1000, Mean: 0.1, P95: 0.2, Max: 0.2}
	week := []Run{{0, 7 * 24 * time.Hour}}
	for name, c := range map[string]struct {
		runs []Run
		gpu  GPU
		want bool
	}{
		"measured for a week":                 {week, GPU{Busy: enough, Bytes: enough, Share: enough}, false},
		"measured for a day":                  {[]Run{{0, time.Hour}, {23 * time.Hour, 24 * time.Hour}}, GPU{Busy: enough, Bytes: enough}, false},
		"measured for less than a day":        {[]Run{{0, 23 * time.Hour}}, GPU{Busy: enough, Bytes: enough}, true},
		"measured 99 times":                   {week, GPU{Busy: Use{Samples: 99}, Bytes: enough}, true},
		"never measured":                      {week, GPU{}, true},
		"others had the GPU half of the time": {week, GPU{Busy: enough, Contended: 1001, Bytes: enough}, true},
		"others had the GPU at times":         {week, GPU{Busy: enough, Contended: 500, Bytes: enough}, false},
		"vLLM reserves 90 %":                  {week, GPU{Busy: enough, Bytes: enough, Share: Use{1000, 0.895, 0.9, 0.9}}, true},
		"a model that grows to 90 %":          {week, GPU{Busy: enough, Bytes: enough, Share: Use{1000, 0.6, 0.9, 0.9}}, false},
		"a small model that never changes":    {week, GPU{Busy: enough, Bytes: enough, Share: Use{1000, 0.2, 0.2, 0.2}}, false},
	} {
		w := Workload{Runs: c.runs, GPU: c.gpu}
		if got := w.unknown(); (got != "") != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}
