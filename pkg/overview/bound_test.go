package overview_test

import (
	"testing"
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/overview"
	"karve.sh/karve/pkg/overview/overviewtest"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

func never() bool { return false }

func TestTheBoundIsWhatThePodsNeedAtLeast(t *testing.T) {
	t.Parallel()
	c := overviewtest.Example()
	// The node that starts and the one that is not ready may not be changed. The former has room for ten of the 23 replicas that pods hold, and the node of others for
	// three. A machine with one GPU holds the rest.
	bound, ok := overview.Bound(c, never)
	if want := int64(3 * 526_000); !ok || bound != want {
		t.Errorf("the bound is %d, %t; want %d", bound, ok, want)
	}
	c.GPUNodeClasses[0].Spec.Consolidation.Policy = v1alpha1.ConsolidateWhenIdle
	if bound, ok := overview.Bound(c, never); !ok || bound != overview.Build(c).Totals.MicroUSDPerHour {
		t.Errorf("nodes that may not be changed have the bound %d, %t", bound, ok)
	}
}

func TestThereIsNoBoundWithoutTimeOrNodes(t *testing.T) {
	t.Parallel()
	if bound, ok := overview.Bound(overviewtest.Example(), func() bool { return true }); ok {
		t.Errorf("without time the bound is %d", bound)
	}
	if bound, ok := overview.Bound(snapshottest.Shared(), never); ok {
		t.Errorf("without nodes the bound is %d", bound)
	}
}

// BenchmarkBound has 100 of Karve's nodes with 800 pods.
func BenchmarkBound(b *testing.B) {
	c := snapshottest.Large(400)
	for b.Loop() {
		start := time.Now()
		bound, ok := overview.Bound(c, func() bool { return time.Since(start) > time.Second })
		b.ReportMetric(float64(bound)/1e6, "$/h")
		if !ok {
			b.Fatal("nothing was proven")
		}
	}
}
