package quote_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/quote"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// batch returns a cluster with 16 pods of a Job that state their throughput, each of which keeps a GPU busy for 40 percent of the time. A T4 costs 0.526 dollars per hour.
func batch() *facts.Cluster {
	c := Shared()
	c.GPUNodeClasses[0].Spec.Sharing.BusyPercent = new(int32(40))
	c.Pods = Pods("train", 16, Asking("cpu", "100m", "memory", "100Mi", v1alpha1.ResourceGPUShared, "1"), func(pod *corev1.Pod) {
		OwnedBy("batch/v1", "Job", "train")(pod)
		pod.Annotations = map[string]string{v1alpha1.ThroughputAnnotation: "t4=1"}
	})
	return c
}

func TestSweepComparesThePriceOfWorkOfPodsThatSlowEachOtherDown(t *testing.T) {
	t.Parallel()
	sweep, err := quote.SweepOf(batch(), []int32{2, 4, 8}, search)
	if err != nil {
		t.Fatal(err)
	}
	// Two pods want 0.8 of a GPU, four 1.6 and eight 3.2.
	for i, want := range []planner.MicroUSD{8 * 526_000, 4 * 526_000 * 1776 / 1000, 2 * 526_000 * 3552 / 1000} {
		row := sweep.Rows[i]
		if row.Work == nil || *row.Work != want || *row.WorkBound > want {
			t.Errorf("%+v, want %d", row, want)
		}
	}
	if sweep.Cheapest != 4 {
		t.Errorf("the cheapest number of replicas is %d", sweep.Cheapest)
	}
}

func TestStrategiesAreComparedByThePriceOfWork(t *testing.T) {
	t.Parallel()
	all, err := quote.Compare(batch(), []v1alpha1.Strategy{v1alpha1.StrategyNone, v1alpha1.StrategyTimeSlicing, v1alpha1.StrategyMPS}, []int32{8}, search)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []planner.MicroUSD{16 * 526_000, 2 * 526_000 * 3552 / 1000, 2 * 526_000 * 194 / 100} {
		row := all.Rows[i]
		if row.Work == nil || *row.Work != want || row.Cheapest != (row.Strategy == v1alpha1.StrategyMPS) {
			t.Errorf("%+v, want %d", row, want)
		}
	}
}
