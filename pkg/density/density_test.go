package density_test

import (
	"testing"

	"karve.sh/karve/pkg/density"
)

func TestMeasuredIsPlausible(t *testing.T) {
	t.Parallel()
	for _, m := range density.Measured() {
		for _, r := range m.Rows {
			if r.Compute <= 0 || r.Compute > 1.2 || r.Requests <= 0 || r.Requests > 1 || r.Pods < 1 || (r.RequestP99 == 0) != (r.Requests < 1) {
				t.Errorf("%s has the row %+v", m.Product, r)
			}
		}
		for _, mode := range []density.Mode{density.TimeSlicing, density.MPS, density.MPSThreads} {
			if r, ok := m.Of(mode, 10); !ok || r.Pods < 10 || r.Compute > 0.2 {
				t.Errorf("%s has for 10 pods with %s %+v", m.Product, mode, r)
			}
		}
	}
	if len(density.Measured()) == 0 {
		t.Error("there are no measurements")
	}
}

func TestNextLargerNumberOfPodsCounts(t *testing.T) {
	t.Parallel()
	m := density.Measurement{Rows: []density.Row{{Mode: density.MPS, Pods: 4}, {Mode: density.MPS, Pods: 1}, {Mode: density.MPS, Pods: 16}, {Mode: density.TimeSlicing, Pods: 8}}}
	for pods, want := range map[int64]int{1: 1, 2: 4, 4: 4, 5: 16, 16: 16, 17: 0, 0: 0} {
		if got, ok := m.Of(density.MPS, pods); got.Pods != want || ok != (want > 0) {
			t.Errorf("%d pods: %+v, %t; want those of %d", pods, got, ok, want)
		}
	}
}

func TestBusyPodsSlowEachOtherDown(t *testing.T) {
	t.Parallel()
	// The means of 1, 3, 5 and 7 pods that infer without pause, relative to one, which nebuly-ai/nos publishes.
	for mode, published := range map[density.Mode]map[int64]float64{
		density.TimeSlicing: {1: 1, 3: 3.33, 5: 5.55, 7: 7.77},
		density.MPS:         {1: 1, 3: 1.86, 5: 2.74, 7: 3.64},
	} {
		for pods, want := range published {
			if got := float64(density.Slowdown(mode, pods, 100)) / density.AsAlone; got < 0.98*want || got > 1.02*want {
				t.Errorf("%d pods with %s take %.2f times as long, want %.2f", pods, mode, got, want)
			}
		}
	}
	for _, mode := range []density.Mode{density.TimeSlicing, density.MPS} {
		last := int64(density.AsAlone)
		for pods := int64(1); pods <= 128; pods++ {
			got := density.Slowdown(mode, pods, 10)
			if got < last || pods <= 10 && got != density.AsAlone {
				t.Errorf("%d pods that are busy for a tenth of the time with %s: %d, and one less: %d", pods, mode, got, last)
			}
			last = got
		}
		if last == density.AsAlone {
			t.Errorf("128 pods with %s do not slow each other down", mode)
		}
	}
}
