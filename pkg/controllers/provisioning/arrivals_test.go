package provisioning

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

const (
	// arrivalsOver is the period over which pods arrive evenly. arrivalsShapes is the number of pod shapes.
	arrivalsOver   = time.Minute
	arrivalsShapes = 20
	// arrivalsDearer is by how many percent the machines may cost more than with one exact plan for each batch.
	arrivalsDearer = 1
)

// arrivals returns n pods in random order. The first shapes are the most frequent.
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

// TestPodsArriveOverAMinuteAtCostOfTheirBatches lets KARVE_ARRIVALS pods arrive (150 by default). With KARVE_ARRIVALS_RESTART, it also restarts the
// controller every 15 seconds.
func TestPodsArriveOverAMinuteAtCostOfTheirBatches(t *testing.T) {
	t.Parallel()
	n := 150
	if text := os.Getenv("KARVE_ARRIVALS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		pace       pace
		kubernetes bool
	}{
		"a scheduler that never fails":                       {asInCloud, false},
		"Kubernetes' scheduler, machines with cloud latency": {asInCloud, true},
		"Kubernetes' scheduler, machines that start at once": {asLocal, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFakeCluster(t, "g4dn", "g5", "g6", "g6e")
			w.pace = c.pace
			if c.kubernetes {
				w.scheduler = newKubeScheduler(w)
			}
			arrive(t, w, n)
		})
	}
}

// arrive lets n pods arrive and compares the cost of the machines with that of the batches.
func arrive(t *testing.T, w *fakeCluster, n int) {
	t.Helper()
	pods := arrivals(n)
	came := 0
	for step := 0; came < n || w.waiting() > 0; step++ {
		for came < n && time.Duration(came)*arrivalsOver/time.Duration(n) <= time.Duration(step)*tick {
			w.come(pods[came])
			came++
		}
		if every := int(15 * time.Second / tick); os.Getenv("KARVE_ARRIVALS_RESTART") != "" && step%every == every-1 {
			w.restart()
		}
		if w.step(); step > int(10*time.Minute/tick) {
			t.Fatalf("%d pods have no machine: %d claims, %d nodes, %v", w.waiting(), len(w.claims), len(w.free), w.controller.reported)
		}
	}
	w.noteBatch(true)
	cluster := Shared()
	cluster.NodePools, cluster.GPUNodeClasses, cluster.Pods = w.pools, w.classes, arrivals(n)
	cluster.NodeClasses[NodeClassRef] = facts.NodeClassState{Ready: true, InstanceTypes: w.types}
	s := snapshot.Build(cluster).Snapshot
	once := func(spread bool) float64 {
		price, err := plantest.PlannedOnce(s, w.batches, spread)
		if err != nil {
			t.Fatal(err)
		}
		return 100 * (float64(w.bill())/float64(price) - 1)
	}
	over, overPlans := once(true), once(false)
	early := 0
	for _, batch := range w.batches {
		early += len(batch.Early)
	}
	whole := solve.Plan(s)
	t.Logf("%d pods: %d machines cost %d micro-USD an hour, in %d batches, %+.2f %% more than if each were planned for once, %+.2f %% where plans also place the %d early pods; one plan "+
		"for all %d (bound %d): %s", n, len(w.claims), w.bill(), len(w.batches), over, overPlans, early, whole.Price, whole.Bound, w.machines())
	if over > arrivalsDearer {
		t.Errorf("the machines cost %.2f %% more than if each batch were planned for once", over)
	}
}

// The cloud answers within two seconds and a plan takes half a second. A window that triples needs three rounds of answers for 80 machines. A constant window of
// ten needs eight.
func TestBurstIsLaunchedInFewCloudResponses(t *testing.T) {
	t.Parallel()
	w := newFakeCluster(t, "g4dn", "g5", "g6", "g6e")
	w.pace.launches = 2 * time.Second
	for _, pod := range arrivals(1000) {
		w.come(pod)
	}
	came, last, claims := w.clock.Now(), w.clock.Now(), 0
	for claims == 0 || w.clock.Since(last) < 5*time.Second {
		w.step()
		if len(w.claims) > claims {
			last, claims = w.clock.Now(), len(w.claims)
		}
	}
	if took := last.Sub(came); claims < 75 || took > 11*time.Second {
		t.Errorf("%d NodeClaims were created within %s", claims, took)
	}
}

// The scheduler of a default installation tells of fifty pods a second that they fit nowhere. Pods come deployment by deployment, so the first that it tells of
// are unlike the last.
func TestBurstCostsWhatOnePlanDoes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		readAhead, restarts bool
		dearer              float64 // in percent of one plan for all pods
	}{
		"with pods that the scheduler has not tried":                        {true, false, 2},
		"with such pods, and a controller that restarts every five seconds": {true, true, 3},
		"with pods that it has tried":                                       {false, false, 12},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := 600
			if testing.Short() {
				if !c.restarts {
					t.Skip("it takes half a minute")
				}
				n, c.dearer = 150, 8 // A single machine is a large part of the price.
			}
			w := newFakeClusterWith(t, func(w *fakeCluster) {
				w.pace, w.untried, w.readAhead = asLocal, true, c.readAhead
				w.pace.nominates = 500 * time.Millisecond
			}, "g4dn", "g5", "g6", "g6e")
			w.scheduler = newKubeScheduler(w)
			const within, restart = 5 * time.Second, 5 * time.Second
			pods := arrivals(n)
			slices.SortStableFunc(pods, func(a, b corev1.Pod) int {
				x, y := asked(&a), asked(&b)
				return cmp.Or(cmp.Compare(x.milliCPU, y.milliCPU), cmp.Compare(x.memory, y.memory))
			})
			whole := Shared()
			whole.NodePools, whole.GPUNodeClasses, whole.Pods = w.pools, w.classes, arrivals(n)
			whole.NodeClasses[NodeClassRef] = facts.NodeClassState{Ready: true, InstanceTypes: w.types}
			one := solve.Plan(snapshot.Build(whole).Snapshot)
			came, last, claims := 0, time.Duration(0), 0
			for step := time.Duration(0); came < n || w.waiting() > 0; step += tick {
				for came < n && time.Duration(came)*within/time.Duration(n) <= step {
					w.come(pods[came])
					came++
				}
				if c.restarts && step%restart == restart-tick {
					w.restart()
				}
				if w.step(); len(w.claims) > claims {
					last, claims = step, len(w.claims)
				}
				if step > 10*time.Minute {
					t.Fatalf("%d pods have no machine", w.waiting())
				}
			}
			over := 100 * (float64(w.bill())/float64(one.Price) - 1)
			t.Logf("%d machines cost %+.2f %% more than one plan for all, the last was launched after %s, all pods run after %s", len(w.claims), over, last, w.clock.Since(Now))
			if over > c.dearer {
				t.Errorf("the machines cost %.2f %% more than one plan for all", over)
			}
		})
	}
}
