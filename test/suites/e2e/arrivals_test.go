package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	realclock "k8s.io/utils/clock"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud/aws/api"
	"karve.sh/karve/pkg/cloud/aws/instancetype"
	"karve.sh/karve/pkg/fleet/launching"
	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/plantest/workload"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	localaws "karve.sh/karve/test/harness/aws"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

const (
	// arrivalsOver is the time over which the pods arrive evenly, and arrivalsShapes the number of shapes they have.
	arrivalsOver   = time.Minute
	arrivalsShapes = 20
	// arrivalsDearer is by how many percent the machines may cost more than with an exact plan for each batch.
	arrivalsDearer = 1
)

// TestPodsArriveOverAMinuteAtCostOfTheirBatches creates KARVE_ARRIVALS pods, and compares the price of the machines with a simulation of the batches that
// the controller logged. Pods that the scheduler bound before any plan are simulated where the scheduler bound them, as far as there is room. The test is
// skipped by default: it takes minutes, and on a busy computer more pods arrive between a nomination and the binding.
func TestPodsArriveOverAMinuteAtCostOfTheirBatches(t *testing.T) {
	text := os.Getenv("KARVE_ARRIVALS")
	if text == "" {
		t.Skip("KARVE_ARRIVALS says of how many pods")
	}
	pods, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	cluster.Require(t)
	w := ownWorld(t, cluster.Config{}, karve.Options{Alone: true})
	s := w.scene(t, "arrivals")
	s.class(v1alpha1.IdleNever, func(c *v1alpha1.GPUNodeClassSpec) { c.Consolidation.Policy = v1alpha1.ConsolidateWhenIdle })
	s.pool(poolOptions{requirements: map[string]string{"karpenter.k8s.aws/instance-family": "g4dn,g5,g6,g6e"}})

	s.arrive(pods)
	s.until(10*time.Minute, "all pods run", func() (bool, string) {
		n := s.running()
		return n == pods, fmt.Sprintf("%d of %d run, on %d machines", n, pods, len(s.claims()))
	})
	waiting := s.inArrivalOrder()
	batches := s.batches()
	for i, batch := range batches {
		t.Logf("batch %d: %d pods, and %d early", i, len(batch.Planned), len(batch.Early))
	}
	whole, paid := solve.Plan(waiting), total(s.claims())
	once := func(spread bool) (planner.MicroUSD, float64) {
		price, err := plantest.PlannedOnce(waiting, batches, spread)
		if err != nil {
			t.Fatal(err)
		}
		return price, 100 * (float64(paid)/float64(price) - 1)
	}
	price, dearer := once(true)
	plans, dearerThanPlans := once(false)
	t.Logf("%d machines cost %d micro-USD an hour, %d batches each planned for once %d (%+.2f %%), where plans also place the early pods %d (%+.2f %%), one plan for all %d (bound %d)",
		len(s.claims()), paid, len(batches), price, dearer, plans, dearerThanPlans, whole.Price, whole.Bound)
	launched := map[string]int{}
	for _, c := range s.claims() {
		launched[c.instanceType]++
	}
	for _, name := range slices.Sorted(maps.Keys(launched)) {
		t.Logf("%4d × %s", launched[name], name)
	}
	if dearer > arrivalsDearer {
		t.Errorf("the machines cost %.2f %% more than if each batch were planned for once", dearer)
	}
}

// arrive creates pods of many shapes in a random order, evenly spread over arrivalsOver.
func (s *scene) arrive(n int) {
	s.t.Helper()
	var specs []corev1.PodSpec
	for _, p := range workload.Mixed(1, workload.Mix{Pods: n, Shapes: arrivalsShapes}, workload.Types(workload.G4to6, 10)) {
		for range p.Count {
			specs = append(specs, s.podSpec(func(spec *corev1.PodSpec) {
				spec.Containers[0].Resources.Requests = corev1.ResourceList{
					corev1.ResourceCPU: *resource.NewMilliQuantity(p.MilliCPU, resource.DecimalSI), corev1.ResourceMemory: *resource.NewQuantity(p.MiB<<20, resource.BinarySI),
				}
			}, asks(v1alpha1.ResourceGPUShared, strconv.FormatInt(p.Replicas, 10))))
		}
	}
	random := rand.New(rand.NewPCG(1, 1))
	random.Shuffle(len(specs), func(i, j int) { specs[i], specs[j] = specs[j], specs[i] })
	began := time.Now()
	for i, spec := range specs {
		time.Sleep(time.Until(began.Add(arrivalsOver * time.Duration(i) / time.Duration(len(specs)))))
		s.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: fmt.Sprintf("pod-%05d", i)}, Spec: spec})
	}
	s.t.Logf("%d pods came in %s", len(specs), time.Since(began).Round(time.Second))
}

// batches returns the pods by the first plan for them, from the controller's log. A pod that was bound before any plan for it is an early pod of the next
// batch.
func (s *scene) batches() []plantest.Batch {
	s.t.Helper()
	log, err := os.Open(s.Log(s.karve.Name))
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	bound := s.history.bound(s.name)
	var batches []plantest.Batch
	early := func(before time.Time) (pods []string) {
		for pod, at := range bound {
			if at.Before(before) {
				pods = append(pods, pod)
			}
		}
		slices.SortFunc(pods, func(a, b string) int { return bound[a].Compare(bound[b]) })
		for _, pod := range pods {
			delete(bound, pod)
		}
		return pods
	}
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			Msg string    `json:"msg"`
			At  time.Time `json:"ts"`
			New []string  `json:"new"`
		}
		if json.Unmarshal(lines.Bytes(), &line) != nil || line.Msg != "Planned" || len(line.New) == 0 {
			continue
		}
		for _, pod := range line.New {
			delete(bound, pod)
		}
		batches = append(batches, plantest.Batch{Early: early(line.At), Planned: line.New})
	}
	if err := lines.Err(); err != nil {
		s.t.Fatal(err)
	}
	return append(batches, plantest.Batch{Early: early(time.Now())})
}

// inArrivalOrder returns the snapshot without machines and with all pods pending.
func (s *scene) inArrivalOrder() planner.Snapshot {
	s.t.Helper()
	machines := instancetype.New(instancetype.Config{
		Options: instancetype.Options{VMMemoryOverheadPercent: 0.075}, Metrics: metrics.New(prometheus.NewRegistry()), Clock: realclock.RealClock{},
		Load: func(context.Context) (*api.Clients, error) { return api.New(localaws.ClientConfig(s.AWS().URL)), nil },
	})
	go func() { _ = machines.Start(s.t.Context()) }() // If it does not start, it lists no instance types.
	g := gather.Gatherer{
		Cached: s.api, Live: s.api, Mapper: s.api.RESTMapper(), Catalog: machines, Ledger: launching.NewLedger(), Clock: realclock.RealClock{}, ReplicasTimeout: time.Minute,
	}
	var c *facts.Cluster
	s.until(enough, "the catalog is there", func() (bool, string) {
		var err error
		if c, err = g.Cluster(s.t.Context()); err != nil {
			return false, err.Error()
		}
		return len(c.InstanceTypes()) > 0, "no instance types"
	})
	c.NodeClaims, c.Nodes = nil, nil
	c.Pods = slices.DeleteFunc(c.Pods, func(pod corev1.Pod) bool { return pod.Namespace != s.name })
	for i := range c.Pods {
		pod := &c.Pods[i]
		pod.Spec.NodeName = ""
		pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable},
		}}
	}
	return snapshot.Build(c).Snapshot
}
