package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

// setCondition sets a condition of a Node, with a transition now.
func (s *scene) setCondition(node *corev1.Node, conditionType corev1.NodeConditionType, status corev1.ConditionStatus, reason string) {
	s.t.Helper()
	s.setConditionSince(time.Now(), node, conditionType, status, reason)
}

func (s *scene) setConditionSince(since time.Time, node *corev1.Node, conditionType corev1.NodeConditionType, status corev1.ConditionStatus, reason string) {
	s.t.Helper()
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":%q,"reason":%q,"message":"the test says so","lastTransitionTime":%q}]}}`,
		conditionType, status, reason, since.UTC().Format(time.RFC3339))
	if err := s.api.Status().Patch(s.t.Context(), node.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, []byte(patch))); err != nil {
		s.t.Fatalf("patching the status of node %s: %v", node.Name, err)
	}
}

// falls stops the heartbeats of a Node while its machine runs on. kwok may be sending one, which staysSilent undoes.
func (s *scene) falls(node *corev1.Node) {
	s.t.Helper()
	s.patch(node.DeepCopy(), `{"metadata":{"annotations":{"kwok.x-k8s.io/node":null}}}`)
	s.setCondition(node, corev1.NodeReady, corev1.ConditionUnknown, "NodeStatusUnknown")
}

// staysSilent stops the heartbeats of a Node again if it has become ready.
func (s *scene) staysSilent(node *corev1.Node) {
	s.t.Helper()
	if node.DeletionTimestamp.IsZero() && slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}) {
		s.falls(node)
	}
}

// TestUnhealthyMachinesAreReplaced kills one of two machines while its pods must not be disrupted. Then it breaks the only GPU of another pool, which
// has no budget for that at first, and of whose six pods at least five have to run.
func TestUnhealthyMachinesAreReplaced(t *testing.T) {
	cluster.Require(t)
	t.Parallel()
	w := ownWorld(t, cluster.Config{}, karve.Options{
		Alone: true, Settle: 3 * time.Second, NotReadyTimeout: 20 * time.Second, GPUFaultTimeout: 10 * time.Second,
	})
	w.machineDies(t)
	w.gpuBreaks(t)
}

func (w *world) machineDies(t *testing.T) {
	t.Helper()
	s := w.scene(t, "dies")
	s.class(v1alpha1.IdleNever)
	s.pool(poolOptions{requirements: map[string]string{corev1.LabelInstanceTypeStable: cheapest}})
	s.deploy("inference", 11)
	s.untilRunning(11)
	nodes := s.nodes(s.name)
	if len(nodes) != 2 {
		t.Fatalf("%d nodes came, want 2", len(nodes))
	}
	s.patch(nodes[0].DeepCopy(), fmt.Sprintf(`{"metadata":{"annotations":{%q:"true"}}}`, karpv1.DoNotDisruptAnnotationKey))
	s.falls(&nodes[0])
	took := s.until(enough, "the dead machine is gone and all pods run", func() (bool, string) {
		gone := true
		for _, n := range s.nodes(s.name) {
			if n.Name == nodes[0].Name {
				gone = false
				s.staysSilent(&n)
			}
		}
		return gone && s.running() == 11 && len(s.pods()) == 11, lines(s.claims())
	})
	t.Logf("A dead machine was replaced within %s", took.Round(time.Second))
	if took < 20*time.Second {
		t.Errorf("it was tolerated for %s, want 20s", took)
	}
	s.untilEvent("Node", nodes[0].Name, "Unhealthy", "Ready is Unknown", "without waiting")
	if all := s.claims(); len(all) > 3 || len(alive(all)) > 2 {
		t.Errorf("want two machines and one replacement:\n%s", lines(all))
	}
	s.wantMetric("karve_nodeclaims_deleted_total", 1, `reason="Unhealthy"`)
	s.untilCondition(s.name, v1alpha1.ConditionNodesHealthy, "True")
}

func (w *world) gpuBreaks(t *testing.T) {
	t.Helper()
	s := w.scene(t, "breaks")
	s.class(v1alpha1.IdleNever)
	s.pool(poolOptions{budget: "0"})
	s.create(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "inference"}, Spec: policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "inference"}},
	}})
	s.deploy("inference", 6)
	s.untilRunning(6)
	old := s.nodes(s.name)[0]
	s.setCondition(&old, "AcceleratedHardwareReady", corev1.ConditionFalse, "GPUNeedsReset")
	s.untilEvent("Node", old.Name, "UnhealthyButKept", "the disruption budgets of NodePool breaks allow 0")
	// Budgets for other reasons do not keep it.
	began, least := time.Now(), 6
	s.patch(s.nodePool(s.name), `{"spec":{"disruption":{"budgets":[{"nodes":"0","reasons":["Empty","Drifted","Underutilized"]},{"nodes":"1"}]}}}`)
	s.until(enough, "the machine is gone and all pods run", func() (bool, string) {
		least = min(least, s.running())
		return !s.claims()[0].gone.IsZero() && s.running() == 6 && len(s.pods()) == 6, lines(s.claims())
	})
	came, longest, homeless := w.history.waits(s.name, began)
	t.Logf("A machine with a broken GPU was replaced within %s; %d pods moved and waited %s at most, and at least %d ran", time.Since(began).Round(time.Second), came, longest, least)
	if all := s.claims(); len(all) != 2 || len(alive(all)) != 1 {
		t.Errorf("want one machine and its replacement:\n%s", lines(all))
	}
	if least < 5 || homeless > 0 {
		t.Errorf("%d pods ran at least, want 5, and %d had to wait for a machine", least, homeless)
	}
	s.untilEvent("Node", old.Name, "Unhealthy", "AcceleratedHardwareReady is False", "a new place first")
}

// TestKarpenterRepairsKarvesNodesInLegacyMode runs Karpenter with --legacy-node-repair. Then it deletes unhealthy nodes of every pool, also one that the budget
// lets Karve keep. Karve must launch one machine for the pods, and not a second one for its own repair.
func TestKarpenterRepairsKarvesNodesInLegacyMode(t *testing.T) {
	cluster.Long(t)
	cluster.Require(t)
	t.Parallel()
	w := ownWorld(t, cluster.Config{FeatureGates: "NodeRepair=true", KarpenterEnv: []string{"BATCH_IDLE_DURATION=200ms", "LEGACY_NODE_REPAIR=true"}}, karve.Options{
		Alone: true, Settle: 3 * time.Second, GPUFaultTimeout: 10 * time.Second,
	})
	s := w.scene(t, "legacy")
	s.class(v1alpha1.IdleNever)
	s.pool(poolOptions{budget: "0"})
	s.deploy("inference", 6)
	s.untilRunning(6)
	node := s.nodes(s.name)[0]
	s.setConditionSince(time.Now().Add(-time.Hour), &node, "AcceleratedHardwareReady", corev1.ConditionFalse, "GPUNeedsReset")
	s.until(enough, "the machine is gone and all pods run", func() (bool, string) {
		return !s.claims()[0].gone.IsZero() && s.running() == 6 && len(s.pods()) == 6, lines(s.claims())
	})
	if all := s.claims(); len(all) != 2 || len(alive(all)) != 1 {
		t.Errorf("want one machine and its replacement:\n%s", lines(all))
	}
	if n := w.metric(t, w.karve, "karve_nodeclaims_deleted_total", `nodepool="legacy"`); n > 0 {
		t.Errorf("Karve deleted %v NodeClaims, want 0: the budget keeps the node, and Karpenter deletes it", n)
	}
}
