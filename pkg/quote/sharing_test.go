package quote_test

import (
	"bytes"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/quote"
	"karve.sh/karve/pkg/snapshot"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

func compared(t *testing.T, c *snapshot.Cluster, replicas []int32, strategies ...v1alpha1.Strategy) []quote.ComparisonRow {
	t.Helper()
	got, err := quote.Compare(c, strategies, replicas, search)
	if err != nil {
		t.Fatal(err)
	}
	return got.Rows
}

func TestStrategiesAreComparedForSamePods(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.Pods = Pods("p", 20, Asking("cpu", "100m", "memory", "500Mi", v1alpha1.ResourceGPUShared, "1"), GPUMemory("1Gi"))
	rows := compared(t, c, nil, v1alpha1.StrategyTimeSlicing, v1alpha1.StrategyMPS, v1alpha1.StrategyNone)
	for i, want := range []struct {
		strategy          v1alpha1.Strategy
		isolates          string
		machines          int
		perGPU            int64
		cheapest, current bool
	}{
		{v1alpha1.StrategyTimeSlicing, "nothing", 2, 10, true, true}, {v1alpha1.StrategyMPS, "memory", 2, 10, true, false}, {v1alpha1.StrategyNone, "everything", 20, 1, false, false},
	} {
		if r := rows[i]; r.Strategy != want.strategy || r.Isolates != want.isolates || r.Machines != want.machines || r.LeastPerGPU != want.perGPU || r.MostPerGPU != want.perGPU ||
			r.Cheapest != want.cheapest || r.Current != want.current || r.Unplaced > 0 || r.Bound != r.Price || r.Price == 0 {
			t.Errorf("%+v, want %+v", r, want)
		}
	}
	if rows[0].Price != of(t, c).Price || rows[2].Price != of(t, c).WholeGPUs {
		t.Errorf("the prices are %d and %d, and those of the plan %d and %d", rows[0].Price, rows[2].Price, of(t, c).Price, of(t, c).WholeGPUs)
	}
	if s := c.GPUNodeClasses[0].Spec.Sharing; s.Strategy != v1alpha1.StrategyTimeSlicing || *s.Replicas != 10 {
		t.Errorf("the cluster was changed: %+v", s)
	}
}

func TestPodsThatAStrategyCannotHoldAreCounted(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.Pods = []corev1.Pod{Pod("large", GPUMemory("6Gi")), Pod("small", GPUMemory("1Gi"))}
	got, err := quote.Compare(c, []v1alpha1.Strategy{v1alpha1.StrategyMPS, v1alpha1.StrategyTimeSlicing}, []int32{2, 10}, search)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		unplaced          int
		cheapest, current bool
	}{{0, true, false}, {1, false, false}, {0, true, false}, {0, true, true}} {
		if r := got.Rows[i]; r.Unplaced != want.unplaced || r.Cheapest != want.cheapest || r.Current != want.current {
			t.Errorf("row %d is %+v, want %+v", i, r, want)
		}
	}
	if r := got.Rows[1]; r.Example != "default/large" || !strings.Contains(r.Message, "states 6Gi of device memory") {
		t.Errorf("without a place is %s: %s", r.Example, r.Message)
	}
	var out bytes.Buffer
	if err := got.Text(&out); err != nil {
		t.Fatal(err)
	}
	if words := "\n\nMPS: default/large has no place: states 6Gi of device memory"; !strings.Contains(out.String(), words) || !strings.Contains(out.String(), "   1 pod without a place") {
		t.Errorf("it prints\n%s", out.String())
	}
}

func TestReplicasWithMPSAreAtMostItsClients(t *testing.T) {
	t.Parallel()
	c := Shared()
	s := &c.GPUNodeClasses[0].Spec.Sharing
	s.Replicas, s.MaxReplicas, s.Overrides = new(int32(60)), new(int32(100)), []v1alpha1.ReplicasOverride{{GPUName: "a10g", Replicas: 128}}
	c.Pods = Pods("p", 60, Asking("cpu", "10m", "memory", "10Mi", v1alpha1.ResourceGPUShared, "1"))
	for _, r := range compared(t, c, nil, v1alpha1.StrategyMPS) {
		if r.MostPerGPU > 48 || r.Unplaced > 0 {
			t.Errorf("%+v", r)
		}
	}
	if *s.Replicas != 60 || s.Overrides[0].Replicas != 128 {
		t.Errorf("the cluster was changed: %+v", s)
	}
}

func TestWholeGPUsAreComparedWithReplicas(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.GPUNodeClasses[0].Spec.Sharing = v1alpha1.Sharing{Strategy: v1alpha1.StrategyNone}
	c.Pods = Pods("p", 10, Asking("cpu", "100m", "memory", "500Mi", v1alpha1.ResourceGPU, "1"))
	if _, err := quote.Compare(c, []v1alpha1.Strategy{v1alpha1.StrategyMPS}, nil, search); err == nil || !strings.Contains(err.Error(), "GPUNodeClass gpu-shared: it does not say how many replicas a GPU has with MPS: add --replicas") {
		t.Errorf("without a number of replicas: %v", err)
	}
	rows := compared(t, c, []int32{5}, v1alpha1.StrategyNone, v1alpha1.StrategyTimeSlicing)
	if !rows[0].Current || rows[0].Machines != 10 || rows[1].Machines != 2 || rows[1].Current || !rows[1].Cheapest {
		t.Errorf("%+v", rows)
	}
}
