package e2e

import (
	"fmt"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// slack is how much later than the end of the batch a claim may be created, on a computer that also runs a whole cluster.
const slack = 20 * time.Second

// TestEightyPodsShareEightMachinesUntilIdle is the main test. It runs alone because it measures time.
func TestEightyPodsShareEightMachinesUntilIdle(t *testing.T) {
	s := sharedWorld(t).scene(t, "story")
	const idleAfter = 5 * time.Second
	s.class(idleAfter.String())
	s.pool(poolOptions{limits: map[string]string{"nvidia.com/gpu": "100"}})
	d := s.deploy("inference", 80)
	s.untilRunning(80)
	claims := s.claims()
	s.wantClaims(claims, 8, karpv1.CapacityTypeOnDemand, 4_208_000)

	lastPod, _ := s.history.podsOf(s.name)
	took := claims[len(claims)-1].first.Sub(lastPod)
	t.Logf("The last of %d claims came %s after the last of 80 pods", len(claims), took)
	if limit := time.Second + slack; took > limit {
		t.Errorf("the last claim came %s after the last pod, want at most %s", took, limit)
	}
	s.wantStatus(8, 80, 80, "4.208")
	if early := s.history.openedEarly(s.name); len(early) > 0 {
		t.Errorf("nodes were open to pods before they exposed their replicas: %v", early)
	}
	if left := alive(claims); len(left) != 8 {
		t.Errorf("%d of 8 claims are left while 80 pods run:\n%s", len(left), lines(claims))
	}
	if foreign := s.history.claimsThat(func(c *claim) bool { return !c.ours }); len(foreign) > 0 {
		t.Errorf("Karpenter launched machines by itself:\n%s", lines(foreign))
	}

	s.scale(d, 0)
	s.untilGone(s.name)
	_, firstGone := s.history.podsOf(s.name)
	for _, c := range s.claims() {
		// Times on nodes have no fractions of a second.
		if idle := c.deleting.Sub(firstGone); idle < idleAfter-time.Second {
			t.Errorf("%s was given back %s after the first pod went, before idleAfter %s", c.name, idle, idleAfter)
		}
	}
	s.wantMetric("karve_nodeclaims_created_total", 8)
	s.wantMetric("karve_nodeclaims_deleted_total", 8, `reason="Idle"`)
	s.wantStatus(0, 0, 0, "0.000")
	s.wantProbesAndMetrics()
}

// wantStatus waits until the statuses of the NodePool and the GPUNodeClass report these numbers of g4dn.xlarge.
func (s *scene) wantStatus(nodes, replicas, inUse int64, usdPerHour string) {
	s.t.Helper()
	s.until(enough, fmt.Sprintf("NodePool %s is Ready and counts %d nodes", s.name, nodes), func() (bool, string) {
		np := s.nodePool(s.name)
		gpus, shared := np.Status.Resources[v1alpha1.ResourceGPU], np.Status.Resources[v1alpha1.ResourceGPUShared]
		ready := np.StatusConditions().Root().IsTrue()
		has := np.Status.Nodes != nil && *np.Status.Nodes == nodes
		return ready && has && gpus.Value() == nodes && shared.Value() == replicas, fmt.Sprintf("ready %t, nodes %v, resources %v", ready, np.Status.Nodes, np.Status.Resources)
	})
	want := v1alpha1.GPUNodeClassStatus{Nodes: nodes, GPUs: nodes, Replicas: replicas, ReplicasInUse: inUse, USDPerHour: usdPerHour, UnusedUSDPerHour: "0.000"}
	s.until(enough, fmt.Sprintf("the status of GPUNodeClass %s is %+v", s.name, want), func() (bool, string) {
		class := &v1alpha1.GPUNodeClass{}
		if err := s.seen.Get(s.t.Context(), client.ObjectKey{Name: s.name}, class); err != nil {
			return false, err.Error()
		}
		is := class.Status
		for _, c := range is.Conditions {
			if c.Status != "True" || c.ObservedGeneration != class.Generation {
				return false, fmt.Sprintf("%+v", is)
			}
		}
		if is.ObservedGeneration != class.Generation {
			return false, fmt.Sprintf("of generation %d, not %d", is.ObservedGeneration, class.Generation)
		}
		n := len(is.Conditions)
		is.Conditions, is.ObservedGeneration = nil, 0
		return n == 4 && fmt.Sprintf("%+v", is) == fmt.Sprintf("%+v", want), fmt.Sprintf("%+v with %d conditions", is, n)
	})
}

func (s *scene) wantMetric(name string, want float64, labels ...string) {
	s.t.Helper()
	labels = append(labels, fmt.Sprintf("nodepool=%q", s.name))
	if got := s.metric(s.t, s.karve, name, labels...); got != want {
		s.t.Errorf("%s%v is %v, want %v", name, labels, got, want)
	}
}

func TestElevenPodsShareTwoMachines(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "eleven")
	s.class(v1alpha1.IdleNever)
	s.pool(poolOptions{})
	s.deploy("inference", 11)
	s.untilRunning(11)
	s.wantClaims(s.claims(), 2, karpv1.CapacityTypeOnDemand, 1_052_000)
	s.wantStatus(2, 20, 11, "1.052")
}

// wantProbesAndMetrics checks the controller's probes and metrics.
func (s *scene) wantProbesAndMetrics() {
	s.t.Helper()
	w, t := s.world, s.t
	for _, url := range []string{w.karve.HealthURL, w.karve.ReadyURL} {
		if _, err := get(t.Context(), url); err != nil {
			t.Error(err)
		}
	}
	s.wantMetric("karve_nodeclaims_created_total", 8, `instance_type="g4dn.xlarge"`, `capacity_type="on-demand"`)
	s.wantMetric("karve_pool_breaker_open", 0)
	if got := w.metric(t, w.karve, "karve_planner_rejected_plans_total"); got != 0 {
		t.Errorf("%v plans broke their own rules", got)
	}
	if got := w.metric(t, w.karve, "leader_election_master_status"); got != 1 {
		t.Errorf("the only controller does not lead: %v", got)
	}
	for _, name := range []string{"karve_planner_duration_seconds_count", "karve_nodes_replicas_ready_seconds_count", "karve_pods_waiting", "karve_pool_price_usd_per_hour"} {
		if got := w.metric(t, w.karve, name); got < 0 {
			t.Errorf("there is no metric %s", name)
		}
	}
}
