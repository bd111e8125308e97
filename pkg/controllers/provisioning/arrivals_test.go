package provisioning

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

const (
	// arrivalsOver is how long pods come, evenly, and arrivalsShapes in how many shapes.
	arrivalsOver   = time.Minute
	arrivalsShapes = 20
	// arrivalsDearer is by how many percent the machines may cost more than if each batch were planned for exactly once.
	arrivalsDearer = 1
)

// arrivals are n pods in a random order, the first shapes the most frequent.
func arrivals(n int) []corev1.Pod {
	random := rand.New(rand.NewPCG(1, 1))
	cpu := []int64{250, 500, 1000, 1500, 2000, 3000, 4000, 6000, 8000}
	mibPerCPU := []int64{1024, 2048, 3072, 4096, 6144, 8192}
	var shapes []func(*corev1.Pod)
	var weights []float64
	var sum float64
	for k := range arrivalsShapes {
		milli := cpu[random.IntN(len(cpu))]
		mib := milli * mibPerCPU[random.IntN(len(mibPerCPU))] / 1000
		shapes = append(shapes, Asking("cpu", fmt.Sprintf("%dm", milli), "memory", fmt.Sprintf("%dMi", mib), v1alpha1.ResourceGPUShared, "1"))
		weights = append(weights, 1/float64(k+1))
		sum += weights[k]
	}
	pods := make([]corev1.Pod, n)
	for i := range pods {
		at, k := random.Float64()*sum, 0
		for ; k < len(shapes)-1 && at > weights[k]; k++ {
			at -= weights[k]
		}
		pods[i] = Pod(fmt.Sprintf("pod-%05d", i), shapes[k])
	}
	return pods
}

// TestPodsThatArriveOverAMinuteCostWhatTheirBatchesDo has KARVE_ARRIVALS pods come, and the controller start anew in the middle where KARVE_ARRIVALS_RESTART is set.
func TestPodsThatArriveOverAMinuteCostWhatTheirBatchesDo(t *testing.T) {
	t.Parallel()
	n := 150
	if text := os.Getenv("KARVE_ARRIVALS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	w := newTown(t, "g4dn", "g5", "g6", "g6e")
	pods := arrivals(n)
	var came []time.Time
	for step := 0; len(came) < n || w.waiting() > 0; step++ {
		for len(came) < n && time.Duration(len(came))*arrivalsOver/time.Duration(n) <= time.Duration(step)*tick {
			w.come(pods[len(came)])
			came = append(came, w.clock.Now())
		}
		if os.Getenv("KARVE_ARRIVALS_RESTART") != "" && step%150 == 149 {
			w.restart()
		}
		if w.step(); step > int(10*time.Minute/tick) {
			t.Fatalf("%d pods have no machine: %d claims, %d nodes, %v", w.waiting(), len(w.claims), len(w.free), w.controller.told)
		}
	}
	batches := batchesOf(came)
	cluster := Shared()
	cluster.NodePools, cluster.GPUNodeClasses, cluster.Pods = w.pools, w.classes, pods
	cluster.NodeClasses[NodeClassRef] = snapshot.NodeClassState{Ready: true, InstanceTypes: w.types}
	s := snapshot.Build(cluster).Snapshot
	once, err := plantest.PlannedOnce(s, batches)
	if err != nil {
		t.Fatal(err)
	}
	whole := solve.Plan(s)
	over := 100 * (float64(w.bill())/float64(once) - 1)
	t.Logf("%d pods: %d machines cost %d micro-USD an hour, %d batches each planned for once %d (%+.2f %%), one plan for all %d (bound %d): %s", n, len(w.claims), w.bill(),
		len(batches), once, over, whole.Price, whole.Bound, w.machines())
	if over > arrivalsDearer {
		t.Errorf("the machines cost %.2f %% more than if each batch were planned for once", over)
	}
}

// batchesOf are the names of the pods that the controller gathers together.
func batchesOf(came []time.Time) [][]string {
	var batches [][]string
	var first, last time.Time
	for i, at := range came {
		if len(batches) == 0 || at.After(last.Add(time.Second)) || at.After(first.Add(10*time.Second)) {
			batches, first = append(batches, nil), at
		}
		last = at
		batches[len(batches)-1] = append(batches[len(batches)-1], fmt.Sprintf("default/pod-%05d", i))
	}
	return batches
}
