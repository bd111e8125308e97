package reconcile

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/disruption"
)

// evicted returns the terminating pods of a Node, and the number of its other pods.
func (w *world) evicted(node *corev1.Node) (ending []corev1.Pod, others int) {
	w.t.Helper()
	for _, pod := range w.podsOf(node.Name) {
		if pod.DeletionTimestamp.IsZero() {
			others++
		} else {
			ending = append(ending, pod)
		}
	}
	return ending, others
}

// handingOver creates a machine with six pods that is to be removed, and two other machines that each have room for three of them.
func (w *world) handingOver(name string) (controller *disruption.Controller, leaves *corev1.Node, goes func() bool, others [2]*corev1.Node) {
	w.t.Helper()
	pool := w.shared(name, budget("1"))
	claim, leaves := w.inUse(name+"-1", pool, 6)
	_, others[0] = w.inUse(name+"-2", pool, 7)
	_, others[1] = w.inUse(name+"-3", pool, 7)
	controller = w.disruption()
	w.drifts(pool, controller)
	w.wantReplacing(claim, "NodePoolDrifted")
	w.reconciles(w.provisioning(), "")
	w.wantClaims(3)
	w.reconciles(controller, "")
	w.clock.Step(settle)
	return controller, leaves, func() bool { w.read(claim); return going(claim) }, others
}

// ready sets the pods of a Node ready: a PodDisruptionBudget counts only ready pods.
func (w *world) ready(node *corev1.Node) {
	w.t.Helper()
	pods := w.podsOf(node.Name)
	for i := range pods {
		pods[i].Status.Conditions = append(pods[i].Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
		w.updateStatus(&pods[i])
	}
}

// target returns the one of two Nodes that has no surplus taint.
func (w *world) target(nodes [2]*corev1.Node) *corev1.Node {
	w.t.Helper()
	var chosen []*corev1.Node
	for _, node := range nodes {
		if w.read(node); !tainted(node, v1alpha1.SurplusTaintKey) {
			chosen = append(chosen, node)
		}
	}
	if len(chosen) != 1 {
		w.t.Fatalf("pods are steered to %d of two machines", len(chosen))
	}
	return chosen[0]
}

func TestHandoverMovesPodsToOneNodeAfterAnother(t *testing.T) {
	w := newWorld(t)
	controller, old, goes, others := w.handingOver("hand")
	w.reconciles(controller, "")
	first := w.target(others)
	if ending, _ := w.evicted(old); len(ending) > 0 {
		t.Fatalf("%d pods are evicted before new pods are steered away from the other machine", len(ending))
	}
	w.reconciles(controller, "")
	ending, left := w.evicted(old)
	if len(ending) != 3 || left != 3 || goes() {
		t.Fatalf("%d pods are evicted and %d are not, and the machine goes: %t; want the three that have room on one machine", len(ending), left, goes())
	}
	w.wantEvents(3, "Normal Moved has room on another node: spec.template of NodePool hand has changed")

	// The replacements of the evicted pods come up there. A restarted controller continues.
	for i := range ending {
		w.delete(&ending[i], noGrace)
		w.on(first, fmt.Sprintf("again-%d", i), web)
	}
	w.restart()
	controller = w.disruption()
	for range 3 {
		w.clock.Step(time.Second)
		w.reconciles(controller, "")
		if ending, _ := w.evicted(old); len(ending) > 0 {
			t.Fatalf("%d pods are evicted, want these left to the drain", len(ending))
		}
	}
	for _, node := range others {
		if w.read(node); tainted(node, v1alpha1.SurplusTaintKey) {
			t.Errorf("pods are still steered away from %s", node.Name)
		}
	}
	if !goes() {
		t.Error("the machine stays, though what is left on it has room on one other machine")
	}
}

func TestHandoverRespectsPodDisruptionBudgets(t *testing.T) {
	w := newWorld(t)
	pdb := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(2)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
	}
	w.create(pdb)
	allow := func(n int32) {
		t.Helper()
		w.read(pdb)
		pdb.Status = policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: n, CurrentHealthy: 20, DesiredHealthy: 18, ExpectedPods: 20, ObservedGeneration: pdb.Generation}
		w.updateStatus(pdb)
	}
	allow(2)
	controller, old, goes, others := w.handingOver("hand-slowly")
	w.ready(old)
	w.reconciles(controller, "")
	first := w.target(others)
	w.reconciles(controller, "")
	ending, left := w.evicted(old)
	if len(ending) != 2 || left != 4 {
		t.Fatalf("%d pods are evicted and %d are not, want two, which the budget allows", len(ending), left)
	}
	for i := range ending {
		w.delete(&ending[i], noGrace)
		w.on(first, fmt.Sprintf("again-%d", i), web)
	}
	// While the PodDisruptionBudget allows no eviction, the machine waits and stays tainted.
	for range 3 {
		w.clock.Step(30 * time.Second)
		w.reconciles(controller, "")
		w.wantMarks(old, false, true)
	}
	allow(2)
	w.reconciles(controller, "")
	if ending, left = w.evicted(old); len(ending) != 1 || left != 3 || goes() {
		t.Fatalf("%d pods are evicted and %d are not, want the last one that has room on the first machine", len(ending), left)
	}
	allow(0)
	w.clock.Step(2 * time.Minute)
	w.reconciles(controller, "")
	w.wantMarks(old, false, false)
	w.reconciles(controller, "")
	w.wantEvents(1, "may not be evicted: PodDisruptionBudget default/web")
}
