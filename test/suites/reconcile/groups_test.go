package reconcile

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/provisioning"
	"karve.sh/karve/pkg/controllers/readiness"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// grouped launches two machines for a group of fifteen pods and starts the first one. It returns the controllers.
func (w *world) grouped(name string) (claims []karpv1.NodeClaim, first *corev1.Node, plans *provisioning.Controller, opens *readiness.Controller) {
	w.t.Helper()
	w.shared(name)
	w.pods("w", 15, func(p *corev1.Pod) {
		p.Annotations = map[string]string{v1alpha1.GroupAnnotation: "train", v1alpha1.GroupMinMembersAnnotation: "15"}
	})
	var groups *snapshot.GroupPlans
	plans = w.provisioning(func(c *provisioning.Config) { groups = &c.Planner.Groups })
	w.reconciles(plans, "")
	claims = w.wantClaims(2)
	opens = w.readiness(func(c *readiness.Config) { c.Groups = groups })
	return claims, w.startedFor(&claims[0]), plans, opens
}

// startedFor starts the machine of a NodeClaim with all of its replicas.
func (w *world) startedFor(claim *karpv1.NodeClaim) *corev1.Node {
	w.t.Helper()
	snapshottest.Registered(w.clock.Now())(claim)
	w.updateStatus(claim)
	return w.node(claim, 10)
}

func TestMachinesOfAGroupAcceptPodsTogether(t *testing.T) {
	w := newWorld(t)
	claims, first, plans, opens := w.grouped("together")
	w.reconciles(opens, claims[0].Name)
	w.reconciles(opens, claims[0].Name)
	if w.read(first); !tainted(first, v1alpha1.ReplicasNotReadyTaintKey) {
		t.Error("the first machine accepts pods before the second")
	}
	w.wantEvents(1, "Normal AwaitsGroup has its replicas and accepts no pods yet: group default/train waits for NodeClaim "+claims[1].Name)
	second := w.startedFor(&claims[1])
	w.reconciles(plans, "")
	w.clock.Step(time.Minute) // Readings of the pods are reused for a second.
	w.reconciles(opens, claims[0].Name)
	if w.read(first); !tainted(first, v1alpha1.ReplicasNotReadyTaintKey) {
		t.Error("the first machine accepts pods before the second is nominated")
	}
	w.reconciles(opens, claims[1].Name)
	for i, node := range []*corev1.Node{first, second} {
		if w.read(node); tainted(node, v1alpha1.ReplicasNotReadyTaintKey) {
			t.Errorf("machine %d accepts no pods", i)
		}
	}
}

func TestMachineOfAGroupDoesNotWaitLongForNominations(t *testing.T) {
	w := newWorld(t)
	claims, first, plans, opens := w.grouped("nominations")
	second := w.startedFor(&claims[1])
	w.reconciles(plans, "")
	w.clock.Step(time.Minute)
	w.reconciles(opens, claims[0].Name)
	w.clock.Step(30 * time.Second)
	w.reconciles(opens, claims[0].Name)
	if w.read(first); tainted(first, v1alpha1.ReplicasNotReadyTaintKey) {
		t.Error("the first machine accepts no pods")
	}
	if w.read(second); !tainted(second, v1alpha1.ReplicasNotReadyTaintKey) {
		t.Error("the second machine is open without its nominations")
	}
}

func TestMachineWhoseGroupDoesNotComeIsGivenBack(t *testing.T) {
	w := newWorld(t)
	claims, first, _, opens := w.grouped("apart")
	w.clock.Step(snapshot.GroupPatience)
	on := w.on(first, "already")
	w.reconciles(opens, claims[0].Name)
	if !w.read(&claims[0]) {
		t.Fatal("a machine with a pod is given back")
	}
	w.delete(on, noGrace)
	w.reconciles(opens, claims[0].Name)
	if w.read(&claims[0]) { // It has no finalizer.
		t.Fatal("the machine stays")
	}
	w.wantEvents(1, "Warning GroupIncomplete is given back after it waited 15m0s for others: group default/train")
}

func TestMachineForOtherPodsTooOpensWithoutItsGroup(t *testing.T) {
	w := newWorld(t)
	claims, first, _, opens := w.grouped("others")
	claims[0].Annotations[v1alpha1.PlannedPodsAnnotation] += ",0123456789=1"
	w.update(&claims[0])
	w.reconciles(opens, claims[0].Name)
	if w.read(first); !tainted(first, v1alpha1.ReplicasNotReadyTaintKey) {
		t.Error("it does not wait for its group")
	}
	w.clock.Step(snapshot.GroupPatience)
	w.reconciles(opens, claims[0].Name)
	if w.read(first); tainted(first, v1alpha1.ReplicasNotReadyTaintKey) {
		t.Error("it accepts no pods")
	}
}
