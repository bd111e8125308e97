package reconcile

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// setNodeCondition sets a condition of a Node, with a transition now.
func (w *world) setNodeCondition(node *corev1.Node, conditionType corev1.NodeConditionType, status corev1.ConditionStatus) {
	w.t.Helper()
	w.read(node)
	node.Status.Conditions = []corev1.NodeCondition{{
		Type: conditionType, Status: status, Reason: "Said", Message: "words of its own", LastTransitionTime: metav1.NewTime(w.clock.Now()),
	}}
	w.updateStatus(node)
}

func TestUnreachableMachineIsDeletedAfterTimeout(t *testing.T) {
	w := newWorld(t)
	claim, node := w.inUse("dead", w.shared("dead"), 3)
	node.Annotations[karpv1.DoNotDisruptAnnotationKey] = "true"
	w.update(node)
	w.setNodeCondition(node, corev1.NodeReady, corev1.ConditionUnknown)
	controller := w.disruption()
	w.reconciles(controller, "")
	w.clock.Step(30*time.Minute - settle)
	// State survives a restart.
	w.restart()
	controller = w.disruption()
	if again := w.reconciles(controller, "").RequeueAfter; again != settle {
		t.Errorf("look again after %s, want what is left of its time", again)
	}
	w.wantGoing(claim, false)
	if n := w.counted("karve_nodes_unhealthy"); n != 1 {
		t.Errorf("%v unhealthy nodes are reported, want 1", n)
	}

	w.clock.Step(settle)
	w.events()
	w.reconciles(controller, "")
	w.wantGoing(claim, true)
	w.wantEvents(1, "Warning Unhealthy its condition Ready is Unknown")
	if at, want := claim.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey], w.clock.Now().UTC().Format(time.RFC3339); at != want {
		t.Errorf("its drain ends at %q, want %s", at, want)
	}
	if n := w.counted("karve_nodeclaims_deleted_total"); n != 1 {
		t.Errorf("%v deletions were counted, want 1", n)
	}
	// Replacements for its pods are planned while it is being removed, and the new machine records which machine it replaces.
	w.reconciles(w.provisioning(), "")
	if next := w.replacement("dead"); next.Annotations[v1alpha1.RepairsAnnotation] != "1" || next.Annotations[v1alpha1.ReplacesAnnotation] != node.Name {
		t.Errorf("the new machine has annotations %v", next.Annotations)
	}
	w.reconciles(controller, "")
	w.reconciles(w.provisioning(), "")
	w.wantClaims(2)
	w.wantEvents(0, "Unhealthy")
}

// TestDrainOfUnhealthyMachineIsShortened starts from what a controller leaves that died between deleting a claim and shortening its grace period.
func TestDrainOfUnhealthyMachineIsShortened(t *testing.T) {
	w := newWorld(t)
	claim, node := w.inUse("drains", w.shared("drains"), 1)
	w.setNodeCondition(node, corev1.NodeReady, corev1.ConditionFalse)
	w.delete(claim)
	w.read(claim)
	claim.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey] = w.clock.Now().Add(2 * time.Hour).Format(time.RFC3339)
	w.update(claim)
	controller := w.disruption()
	w.clock.Step(30*time.Minute - time.Second)
	w.reconciles(controller, "")
	w.read(claim)
	was := claim.ResourceVersion
	w.clock.Step(time.Second)
	w.reconciles(controller, "")
	if w.read(claim); claim.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey] != w.clock.Now().UTC().Format(time.RFC3339) || claim.ResourceVersion == was {
		t.Errorf("its drain ends at %s", claim.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey])
	}
	was = claim.ResourceVersion
	w.reconciles(controller, "")
	if w.read(claim); claim.ResourceVersion != was {
		t.Error("the claim was patched again")
	}
	w.wantEvents(0, "Unhealthy")
}

func TestRecoveredMachineIsLeftAlone(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("back")
	dead, deadNode := w.inUse("back-dead", pool, 2)
	broken, brokenNode := w.inUse("back-broken", pool, 2)
	for i := range 4 {
		w.machine(fmt.Sprintf("back-well-%d", i), pool)
	}
	w.setNodeCondition(deadNode, corev1.NodeReady, corev1.ConditionUnknown)
	w.setNodeCondition(brokenNode, "AcceleratedHardwareReady", corev1.ConditionFalse)
	controller := w.disruption()
	w.clock.Step(29 * time.Minute)
	w.reconciles(controller, "")
	w.clock.Step(settle)
	w.reconciles(controller, "")
	w.wantReplacing(broken, repair.Unhealthy)
	w.setNodeCondition(deadNode, corev1.NodeReady, corev1.ConditionTrue)
	w.setNodeCondition(brokenNode, "AcceleratedHardwareReady", corev1.ConditionTrue)
	w.clock.Step(time.Hour)
	w.reconciles(controller, "")
	w.wantReplacing(broken, "")
	w.wantGoing(dead, false)
	w.wantGoing(broken, false)
	w.wantMarks(brokenNode, false, false)
}

func TestMachineWithBrokenGPUIsReplacedOncePodsFitElsewhere(t *testing.T) {
	w := newWorld(t)
	old, node := w.inUse("gpu-old", w.shared("gpu"), 3)
	w.setNodeCondition(node, "AcceleratedHardwareReady", corev1.ConditionFalse)
	controller := w.disruption()
	w.clock.Step(10 * time.Minute)
	w.reconciles(controller, "")
	w.clock.Step(settle)
	w.reconciles(controller, "")
	w.wantReplacing(old, repair.Unhealthy)
	w.wantEvents(1, "Warning Unhealthy its condition AcceleratedHardwareReady is False")
	w.reconciles(w.provisioning(), "")
	next := w.replacement("gpu-old")
	if next.Annotations[v1alpha1.RepairsAnnotation] != "1" {
		t.Errorf("the new machine has annotations %v", next.Annotations)
	}
	w.reconciles(controller, "")
	w.wantMarks(node, false, false)
	w.initializes(next)
	w.reconciles(controller, "")
	w.wantMarks(node, false, true)
	w.clock.Step(settle)
	w.reconciles(controller, "")
	w.wantGoing(old, true)
	if at, ok := old.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey]; ok {
		t.Errorf("its drain ends at %s, and its kubelet answers", at)
	}
}

func TestMachineWithLostReplicasIsReplacedAfterTimeout(t *testing.T) {
	w := newWorld(t)
	claim, node := w.inUse("lost", w.shared("lost"), 2)
	controller := w.disruption()
	expose := func(n int64) {
		w.read(node)
		node.Status.Allocatable = snapshottest.Node(claim, snapshottest.TypeNamed("g4dn.xlarge"), n).Status.Allocatable
		w.updateStatus(node)
		w.reconciles(controller, "")
		w.read(node)
	}
	expose(9)
	first := node.Annotations[v1alpha1.ReplicasShortSinceAnnotation]
	if first != w.clock.Now().UTC().Format(time.RFC3339) {
		t.Errorf("the node is short since %q", first)
	}
	expose(10)
	if _, ok := node.Annotations[v1alpha1.ReplicasShortSinceAnnotation]; ok {
		t.Error("the note stays though the replicas are back")
	}
	expose(0)
	w.clock.Step(replicasTimeout - time.Second)
	w.restart()
	controller = w.disruption()
	w.reconciles(controller, "")
	w.clock.Step(settle)
	w.reconciles(controller, "")
	w.wantReplacing(claim, "")
	w.clock.Step(settle)
	w.reconciles(controller, "")
	w.wantReplacing(claim, repair.Unhealthy)
}

func TestTooManyUnhealthyMachinesAreNotRepaired(t *testing.T) {
	w := newWorld(t)
	w.class("many", func(c *v1alpha1.GPUNodeClass) { c.Spec.Consolidation.Policy = v1alpha1.ConsolidateWhenIdle })
	pool := w.pool("many")
	var claims []*karpv1.NodeClaim
	var nodes []*corev1.Node
	for i := range 5 {
		claim, node := w.inUse(fmt.Sprintf("many-%d", i), pool, 1)
		w.setNodeCondition(node, corev1.NodeReady, corev1.ConditionTrue)
		claims, nodes = append(claims, claim), append(nodes, node)
	}
	w.setNodeCondition(nodes[0], corev1.NodeReady, corev1.ConditionUnknown)
	w.setNodeCondition(nodes[1], "AcceleratedHardwareReady", corev1.ConditionFalse)
	controller, status := w.disruption(), w.poolController()
	w.clock.Step(time.Hour)
	w.reconciles(controller, "")
	w.clock.Step(settle)
	w.events()
	w.reconciles(controller, "")
	w.wantEvents(2, "Normal UnhealthyButKept")
	w.reconciles(status, "")
	w.wantEvents(1, "Warning TooManyUnhealthy 2 of 5 nodes are unhealthy")
	w.wantCondition(pool, v1alpha1.ConditionNodesHealthy, "False", repair.TooManyUnhealthy)
	for _, claim := range claims {
		w.wantGoing(claim, false)
		w.wantReplacing(claim, "")
	}

	w.setNodeCondition(nodes[1], "AcceleratedHardwareReady", corev1.ConditionTrue)
	w.reconciles(controller, "")
	w.wantGoing(claims[0], true)
	w.wantGoing(claims[1], false)
	w.reconcilesPools(status)
	w.wantCondition(pool, v1alpha1.ConditionNodesHealthy, "True", "")
}
