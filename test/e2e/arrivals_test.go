package e2e

import (
	"context"
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
	"karve.sh/karve/pkg/aws"
	"karve.sh/karve/pkg/aws/instancetype"
	"karve.sh/karve/pkg/controllers/gather"
	"karve.sh/karve/pkg/controllers/launch"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/snapshot"
	localaws "karve.sh/karve/test/aws"
	"karve.sh/karve/test/bench/workload"
	"karve.sh/karve/test/cluster"
	"karve.sh/karve/test/karve"
)

const (
	// arrivalsOver is how long pods come, evenly.
	arrivalsOver   = time.Minute
	arrivalsShapes = 20
	// batchIdle, batchMax and planBudget are the controller's defaults.
	batchIdle, batchMax = time.Second, 10 * time.Second
	planBudget          = 200 * time.Millisecond
	// arrivalsDearer is by how many percent the machines may cost more than if each batch were planned exactly once.
	arrivalsDearer = 1
)

// TestPodsThatComeOverAMinuteCostWhatTheirBatchesDo has KARVE_ARRIVALS pods come; 1500 take some five minutes.
func TestPodsThatComeOverAMinuteCostWhatTheirBatchesDo(t *testing.T) {
	pods, err := strconv.Atoi(or(os.Getenv("KARVE_ARRIVALS"), "0"))
	if err != nil {
		t.Fatal(err)
	}
	if pods == 0 {
		t.Skip("KARVE_ARRIVALS says of how many pods")
	}
	cluster.Require(t)
	w := ownWorld(t, cluster.Config{}, karve.Options{Alone: true})
	s := w.scene(t, "arrivals")
	s.class(v1alpha1.IdleNever, func(c *v1alpha1.GPUNodeClassSpec) { c.Consolidation.Policy = v1alpha1.ConsolidateWhenIdle })
	s.pool(poolOptions{requirements: map[string]string{"karpenter.k8s.aws/instance-family": "g4dn,g5,g6,g6e"}})

	came := s.arrive(pods)
	s.until(10*time.Minute, "all pods run", func() (bool, string) {
		n := s.running()
		return n == pods, fmt.Sprintf("%d of %d run, on %d machines", n, pods, len(s.claims()))
	})
	var fleet planner.MicroUSD
	launched := map[string]int{}
	c := s.gathered()
	for i := range c.NodeClaims {
		p := snapshot.PromiseOf(c.NodeClaims[i].Annotations)
		fleet += planner.MicroUSD(p.MicroUSDPerHour)
		instanceType, _, _ := snapshot.ShapeOf(&c.NodeClaims[i])
		launched[instanceType]++
	}
	waiting := asTheyCame(c)
	batches := planned(t, waiting, batchesOf(came))
	whole := search().Build(waiting)
	t.Logf("%d machines cost %s $/h, %d batches each planned once %s, one plan for all %s (bound %s): %+.2f %% over the batches", len(c.NodeClaims), dollars(fleet),
		len(batchesOf(came)), dollars(batches), dollars(whole.Price), dollars(whole.Bound), 100*(float64(fleet)/float64(batches)-1))
	for _, name := range slices.Sorted(maps.Keys(launched)) {
		t.Logf("%4d × %s", launched[name], name)
	}
	if fleet*100 > batches*(100+arrivalsDearer) {
		t.Errorf("the machines cost over %d %% more than if each batch were planned once", arrivalsDearer)
	}
}

func dollars(p planner.MicroUSD) string { return fmt.Sprintf("%.2f", float64(p)/1e6) }

// arrival is a pod and when it came.
type arrival struct {
	name string
	at   time.Time
}

// arrive creates pods of many shapes in a random order, evenly over the time.
func (s *scene) arrive(n int) []arrival {
	s.t.Helper()
	types := workload.Types(workload.G4to6, 10)
	var specs []corev1.PodSpec
	for _, p := range workload.Mixed(1, workload.Mix{Pods: n, Shapes: arrivalsShapes}, types) {
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
	var came []arrival
	for i, spec := range specs {
		time.Sleep(time.Until(began.Add(arrivalsOver * time.Duration(i) / time.Duration(len(specs)))))
		name := fmt.Sprintf("pod-%05d", i)
		s.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: name}, Spec: spec})
		came = append(came, arrival{s.name + "/" + name, time.Now()})
	}
	s.t.Logf("%d pods came in %s", len(came), time.Since(began).Round(time.Second))
	return came
}

// batchesOf are the pods that the controller gathers together.
func batchesOf(came []arrival) [][]string {
	var batches [][]string
	var first, last time.Time
	for _, a := range came {
		if len(batches) == 0 || a.at.After(last.Add(batchIdle)) || a.at.After(first.Add(batchMax)) {
			batches, first = append(batches, nil), a.at
		}
		last = a.at
		batches[len(batches)-1] = append(batches[len(batches)-1], a.name)
	}
	return batches
}

func search() planner.Search {
	began := time.Now()
	return planner.Search{Stop: func() bool { return time.Since(began) >= planBudget }}
}

// planned is what the machines cost when each batch is planned for once, on what those before it leave.
func planned(t *testing.T, s planner.Snapshot, batches [][]string) planner.MicroUSD {
	t.Helper()
	s = plantest.Clone(s)
	class, all := map[string]int{}, s.Classes
	for i := range all {
		for _, pod := range all[i].Pods {
			class[pod] = i
		}
		all[i].Pods = nil
	}
	var price planner.MicroUSD
	for _, batch := range batches {
		for _, pod := range slices.Sorted(slices.Values(batch)) {
			all[class[pod]].Pods = append(all[class[pod]].Pods, pod)
		}
		plan := search().Build(s)
		if err := planner.Check(s, plan); err != nil || len(plan.Unplaced) > 0 {
			t.Fatalf("a plan for a batch: %v, %d pods without a place", err, len(plan.Unplaced))
		}
		price += plan.Price
		run := func(node int, pods []string) {
			for _, pod := range pods {
				plantest.Run(&s, node, planner.Running{Name: pod, Class: class[pod], GPU: -1})
			}
		}
		for _, p := range plan.Placements {
			run(p.Node, p.Pods)
		}
		for _, l := range plan.Launches {
			run(plantest.Launched(&s, l.Offering).Node, l.Pods)
		}
	}
	return price
}

// gathered is the cluster as the controller sees it.
func (s *scene) gathered() *snapshot.Cluster {
	s.t.Helper()
	machines := instancetype.New(instancetype.Config{
		Options: instancetype.Options{VMMemoryOverheadPercent: 0.075}, Metrics: metrics.New(prometheus.NewRegistry()), Clock: realclock.RealClock{},
		Load: func(context.Context) (*aws.Clients, error) { return aws.New(localaws.ClientConfig(s.AWS().URL)), nil },
	})
	go func() { _ = machines.Start(s.t.Context()) }()
	g := gather.Gatherer{
		Cached: s.api, Live: s.api, Mapper: s.api.RESTMapper(), Catalog: machines, Ledger: launch.NewLedger(), Clock: realclock.RealClock{}, ReplicasTimeout: time.Minute,
	}
	var c *snapshot.Cluster
	s.until(enough, "the catalogue is there", func() (bool, string) {
		var err error
		if c, err = g.Cluster(s.t.Context()); err != nil {
			return false, err.Error()
		}
		return len(c.InstanceTypes()) > 0, "no instance types"
	})
	return c
}

// asTheyCame is the snapshot in which there is no machine yet and all pods wait.
func asTheyCame(c *snapshot.Cluster) planner.Snapshot {
	fresh := *c
	fresh.NodeClaims, fresh.Nodes, fresh.Pods = nil, nil, nil
	for i := range c.Pods {
		pod := c.Pods[i].DeepCopy()
		pod.Spec.NodeName = ""
		pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable},
		}}
		fresh.Pods = append(fresh.Pods, *pod)
	}
	return snapshot.Build(&fresh).Snapshot
}
