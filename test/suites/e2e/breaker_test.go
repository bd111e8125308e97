package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/test/harness/cluster"
)

func TestBreakerStopsLaunchesForBrokenPlugin(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "broken")
	w.rule(t, s.name, "offer: none")
	s.class(v1alpha1.IdleNever)
	s.pool(poolOptions{})
	s.deploy("inference", 20)
	s.until(enough, "two machines are launched", func() (bool, string) { return len(s.claims()) == 2, lines(s.claims()) })
	var broken []corev1.Node
	s.until(enough, "they are nodes", func() (bool, string) { broken = s.nodes(s.name); return len(broken) == 2, fmt.Sprint(len(broken)) })
	s.untilCondition(s.name, v1alpha1.ConditionReplicasHealthy, "False", "ReplicasMissing", "device plugin", "One node is tried again after")
	opened := facts.Condition(s.nodePool(s.name).Status.Conditions, v1alpha1.ConditionReplicasHealthy)
	names := func(n corev1.Node) bool { return strings.Contains(opened.Message, n.Name) }
	if !slices.ContainsFunc(broken, names) {
		t.Errorf("the condition names no node of the pool: %s", opened.Message)
	}
	s.until(enough, "the broken machines are given back", func() (bool, string) { return len(alive(s.claims())) == 0 || len(s.claims()) > 2, lines(s.claims()) })
	for _, c := range s.claims()[:2] {
		s.untilEvent("NodeClaim", c.name, "ReplicasMissing", "0 of 10", "device plugin")
	}
	s.until(enough, "one machine is launched to see", func() (bool, string) { return len(s.claims()) > 2, lines(s.claims()) })
	probe := s.claims()[2]
	if waited := probe.first.Sub(opened.LastTransitionTime.Time); waited < settings.ReplicasTimeout {
		t.Errorf("the pool launched again %s after it was closed, before %s", waited, settings.ReplicasTimeout)
	}
	if probe.instanceType != cheapest {
		t.Errorf("the probe launched a %s for %d micro-USD an hour, want the cheapest, a %s", probe.instanceType, probe.price, cheapest)
	}
	s.untilCondition(s.name, v1alpha1.ConditionReplicasHealthy, "Unknown", "Probing")
	s.stays(5*time.Second, "a single machine", func() (bool, string) { return len(s.claims()) == 3, lines(s.claims()) })
	if early := s.history.openedEarly(s.name); len(early) > 0 || s.running() > 0 {
		t.Errorf("broken nodes were open to pods: %v", early)
	}

	w.rule(t, s.name, "")
	s.untilCondition(s.name, v1alpha1.ConditionReplicasHealthy, "True")
	s.untilRunning(20)
	left := alive(s.claims())
	s.wantClaims(left, 2, karpv1.CapacityTypeOnDemand, 1_052_000)
	if left[0].name != probe.name {
		t.Errorf("the machine of the probe is not among the remaining ones:\n%s", lines(s.claims()))
	}
	s.wantMetric("karve_nodeclaims_deleted_total", 2, `reason="ReplicasMissing"`)
}

func TestSlowPluginDoesNotOpenBreaker(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "late")
	const delay = 8 * time.Second
	w.rule(t, s.name, "delay: "+delay.String())
	s.class(v1alpha1.IdleNever)
	s.pool(poolOptions{})
	s.deploy("inference", 10)
	s.until(enough, "the machine is launched", func() (bool, string) { return len(s.claims()) == 1, lines(s.claims()) })
	s.until(enough, "ten pods run", func() (bool, string) {
		if c := facts.Condition(s.nodePool(s.name).Status.Conditions, v1alpha1.ConditionReplicasHealthy); c != nil && !c.IsTrue() {
			t.Fatalf("the breaker opened for a plugin that is late: %s\n%s", c.Message, s.dump())
		}
		return s.running() == 10, fmt.Sprint(s.running())
	})
	if took := time.Since(s.claims()[0].first); took < delay {
		t.Errorf("pods ran %s after the claim, before the replicas were there", took)
	}
	if early := s.history.openedEarly(s.name); len(early) > 0 {
		t.Errorf("nodes were open to pods before they exposed their replicas: %v", early)
	}
	s.wantClaims(s.claims(), 1, karpv1.CapacityTypeOnDemand, 526_000)
}

func TestNodeWithTooFewReplicasStaysClosed(t *testing.T) {
	cluster.Long(t)
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "fewer")
	w.rule(t, s.name, "offer: 4")
	s.class(v1alpha1.IdleNever)
	s.pool(poolOptions{})
	s.deploy("inference", 4)
	s.untilCondition(s.name, v1alpha1.ConditionReplicasHealthy, "False", "4 of 10 nvidia.com/gpu.shared")
	s.until(enough, "the machine is given back", func() (bool, string) { return len(alive(s.claims())) == 0, lines(s.claims()) })
	if early := s.history.openedEarly(s.name); len(early) > 0 || s.running() > 0 {
		t.Errorf("a node with fewer replicas was open to pods; %d run: %v", s.running(), early)
	}
	s.untilEvent("NodeClaim", s.claims()[0].name, "ReplicasMissing", "4 of 10")
}
