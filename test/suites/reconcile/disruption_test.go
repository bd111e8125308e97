package reconcile

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/disruption"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

const noGrace = client.GracePeriodSeconds(0)

const settle = 10 * time.Second

// tolerations are the tolerations of unhealthy machines in all tests.
var tolerations = repair.Tolerations{NotReady: 30 * time.Minute, GPUFault: 10 * time.Minute, Replicas: replicasTimeout}

func (w *world) disruption() *disruption.Controller {
	return disruption.New(disruption.Config{Client: w.WithWatch, Gatherer: w.gatherer, Planner: w.planner, Metrics: w.metrics, Recorder: w.recorder, Clock: w.clock, Settle: settle, Tolerations: tolerations})
}

// idle brings an empty machine to the point where it is about to be removed: annotated as idle, idle for long enough, tainted, and almost settled.
func (w *world) idle(controller *disruption.Controller) {
	w.t.Helper()
	w.reconciles(controller, "")
	w.clock.Step(5 * time.Minute)
	w.reconciles(controller, "")
	w.clock.Step(settle)
}

func going(claim *karpv1.NodeClaim) bool { return !claim.DeletionTimestamp.IsZero() }

// on creates a running pod on the node.
func (w *world) on(node *corev1.Node, name string, edits ...func(*corev1.Pod)) *corev1.Pod {
	w.t.Helper()
	pod := snapshottest.Pod(name, append([]func(*corev1.Pod){snapshottest.Running(node.Name)}, edits...)...)
	w.pod(&pod)
	return &pod
}

func (w *world) wantMarks(node *corev1.Node, idle, disrupting bool) {
	w.t.Helper()
	w.read(node)
	_, isIdle := node.Annotations[v1alpha1.IdleSinceAnnotation]
	_, since := node.Annotations[v1alpha1.DisruptingSinceAnnotation]
	if tainted := tainted(node, v1alpha1.DisruptingTaintKey); isIdle != idle || since != disrupting || tainted != disrupting {
		w.t.Errorf("idle %t, disrupting since %t, tainted %t; want %t, %t, %t", isIdle, since, tainted, idle, disrupting, disrupting)
	}
}

func (w *world) wantGoing(claim *karpv1.NodeClaim, want bool) {
	w.t.Helper()
	if w.read(claim); going(claim) != want {
		w.t.Fatalf("%s goes: %t, want %t", claim.Name, going(claim), want)
	}
}

// watched checks that a machine is removed once the settle time is over, and not before.
func (w *world) watched(controller reconcile.Reconciler, claim *karpv1.NodeClaim) {
	w.t.Helper()
	w.clock.Step(settle - time.Second)
	w.reconciles(controller, "")
	w.wantGoing(claim, false)
	w.clock.Step(time.Second)
	w.reconciles(controller, "")
	w.wantGoing(claim, true)
}

func TestIdleMachineIsMarkedTaintedAndDeleted(t *testing.T) {
	w := newWorld(t)
	claim, node := w.machine("idle-1", w.shared("idle"))
	pod := w.on(node, "web")
	w.on(node, "agent", snapshottest.OwnedBy("apps/v1", "DaemonSet", "agent"))
	controller := w.disruption()
	w.reconciles(controller, "")
	w.wantMarks(node, false, false)

	w.delete(pod, noGrace)
	w.reconciles(controller, "")
	w.wantMarks(node, true, false)
	w.clock.Step(4 * time.Minute)
	if again := w.reconciles(controller, "").RequeueAfter; again != time.Minute {
		t.Errorf("look again after %s, want the rest of five minutes", again)
	}
	w.wantMarks(node, true, false)

	w.clock.Step(time.Minute)
	if again := w.reconciles(controller, "").RequeueAfter; again != settle {
		t.Errorf("look again after %s, want %s", again, settle)
	}
	w.wantMarks(node, true, true)

	w.watched(controller, claim)
	w.wantEvents(1, "Normal Idle node idle-1 has been idle")
	w.reconciles(controller, "")
	w.wantEvents(0, "")
	if n := w.counted("karve_nodeclaims_deleted_total"); n != 1 {
		t.Errorf("%v deletions were counted, want 1", n)
	}
}

// cacheLag is a cache that does not contain certain pods yet.
type cacheLag struct {
	client.Reader
	hides string
}

func (r cacheLag) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	err := r.Reader.List(ctx, list, options...)
	if pods, ok := list.(*corev1.PodList); ok {
		var seen []corev1.Pod
		for _, pod := range pods.Items {
			if pod.Name != r.hides {
				seen = append(seen, pod)
			}
		}
		pods.Items = seen
	}
	return err
}

func TestPodSeenOnlyByLastReadKeepsNode(t *testing.T) {
	w := newWorld(t)
	claim, node := w.machine("look-1", w.shared("look"))
	controller := w.disruption()
	w.idle(controller)
	w.wantMarks(node, true, true)
	w.gatherer.Cached = cacheLag{w.WithWatch, "late"}
	w.on(node, "late")
	w.reconciles(controller, "")
	w.wantGoing(claim, false)
	w.wantMarks(node, false, false)
}

func TestNewPodRemovesTaint(t *testing.T) {
	w := newWorld(t)
	claim, node := w.machine("comes-1", w.shared("comes"))
	controller := w.disruption()
	w.idle(controller)
	w.on(node, "web")
	w.reconciles(controller, "")
	w.wantMarks(node, false, false)
	w.wantGoing(claim, false)
}

func TestRestartedControllerResumesOrRemovesTaint(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("left")
	busyClaim, busy := w.machine("left-busy", pool)
	idleClaim, idle := w.machine("left-idle", pool)
	w.idle(w.disruption())
	w.wantMarks(busy, true, true)
	w.wantMarks(idle, true, true)
	w.on(busy, "web")

	w.restart()
	w.reconciles(w.disruption(), "")
	w.wantMarks(busy, false, false)
	w.read(busyClaim)
	w.read(idleClaim)
	if going(busyClaim) || !going(idleClaim) {
		t.Errorf("the busy one is removed: %t, the idle one is removed: %t", going(busyClaim), going(idleClaim))
	}
}

func TestDoNotDisruptNodeStaysWithOneEvent(t *testing.T) {
	w := newWorld(t)
	claim, node := w.machine("keep-1", w.shared("keep"))
	node.Annotations[karpv1.DoNotDisruptAnnotationKey] = "true"
	w.update(node)
	controller := w.disruption()
	w.reconciles(controller, "")
	w.clock.Step(time.Hour)
	for range 3 {
		w.reconciles(controller, "")
	}
	w.wantEvents(1, "Normal IdleButKept")
	w.wantMarks(node, true, false)
	delete(node.Annotations, karpv1.DoNotDisruptAnnotationKey)
	w.update(node)
	w.reconciles(controller, "")
	w.clock.Step(settle)
	w.reconciles(controller, "")
	w.wantGoing(claim, true)
}

func TestDaemonPDBKeepsNode(t *testing.T) {
	w := newWorld(t)
	claim, node := w.machine("pdb-1", w.shared("pdb"))
	labels := map[string]string{"app": "agent"}
	w.on(node, "agent", snapshottest.OwnedBy("apps/v1", "DaemonSet", "agent"), func(p *corev1.Pod) { p.Labels = labels })
	pdb := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "agent"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(0)), Selector: &metav1.LabelSelector{MatchLabels: labels}},
	}
	w.create(pdb)
	controller := w.disruption()
	w.reconciles(controller, "")
	w.clock.Step(time.Hour)
	w.reconciles(controller, "")
	w.reconciles(controller, "")
	w.wantEvents(1, "PodDisruptionBudget default/agent")
	w.wantMarks(node, true, false)

	pdb.Status.DisruptionsAllowed = 1
	w.updateStatus(pdb)
	w.reconciles(controller, "")
	w.wantMarks(node, true, true)
	pdb.Status.DisruptionsAllowed = 0
	w.updateStatus(pdb)
	w.clock.Step(settle)
	w.reconciles(controller, "")
	w.wantGoing(claim, false)
	w.wantMarks(node, true, false) // It keeps the time since which it has been idle.
}

func TestDoNotDisruptPodSeenOnlyByLastReadKeepsNode(t *testing.T) {
	w := newWorld(t)
	claim, node := w.machine("dnd-1", w.shared("dnd"))
	controller := w.disruption()
	w.idle(controller)
	w.gatherer.Cached = cacheLag{w.WithWatch, "agent"}
	w.on(node, "agent", snapshottest.OwnedBy("apps/v1", "DaemonSet", "agent"), func(p *corev1.Pod) {
		p.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"}
	})
	w.reconciles(controller, "")
	w.wantGoing(claim, false)
}

func TestNodePoolBudgetLimitsRemovals(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("budget", budget("1"))
	for _, name := range []string{"budget-1", "budget-2", "budget-3"} {
		w.machine(name, pool)
	}
	controller := w.disruption()
	w.idle(controller)
	w.wantEvents(2, "the disruption budgets of NodePool budget allow 1")
	for range 3 {
		w.reconciles(controller, "")
	}
	leaving := 0
	for _, claim := range w.wantClaims(3) {
		if going(&claim) {
			leaving++
		}
	}
	if leaving != 1 {
		t.Errorf("%d machines are being removed, the budget is 1", leaving)
	}
}

func TestMachineThatFitsPendingPodsIsNotTainted(t *testing.T) {
	w := newWorld(t)
	_, node := w.machine("wanted-1", w.shared("wanted"))
	controller := w.disruption()
	w.reconciles(controller, "")
	w.pods("web", 1)
	w.clock.Step(time.Hour)
	w.reconciles(controller, "")
	w.wantMarks(node, false, false)
}

func TestIdleMachinesOfDeletedClassAreRemoved(t *testing.T) {
	w := newWorld(t)
	np := w.shared("classless")
	_, node := w.machine("classless-1", np)
	w.delete(&v1alpha1.GPUNodeClass{ObjectMeta: metav1.ObjectMeta{Name: np.Spec.Template.Spec.NodeClassRef.Name}})
	controller := w.disruption()
	w.reconciles(controller, "")
	w.wantMarks(node, true, false)
	w.clock.Step(5 * time.Minute)
	w.reconciles(controller, "")
	w.wantMarks(node, true, true)
}

func TestIdleAfterNeverKeepsIdleMachines(t *testing.T) {
	w := newWorld(t)
	w.class("never", func(c *v1alpha1.GPUNodeClass) { c.Spec.Consolidation.IdleAfter = v1alpha1.IdleNever })
	claim, node := w.machine("never-1", w.pool("never"))
	controller := w.disruption()
	w.idle(controller)
	w.clock.Step(24 * time.Hour)
	w.reconciles(controller, "")
	w.wantMarks(node, false, false)
	w.wantGoing(claim, false)
}

// staleNodes is a cache with outdated Nodes.
type staleNodes struct {
	client.Reader
	items []corev1.Node
}

func (r staleNodes) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if nodes, ok := list.(*corev1.NodeList); ok {
		nodes.Items = r.items
		return nil
	}
	return r.Reader.List(ctx, list, options...)
}

func TestConflictOnNodeIsRetried(t *testing.T) {
	w := newWorld(t)
	_, node := w.machine("conflict-1", w.shared("conflict"))
	old := node.DeepCopy()
	node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "theirs", Effect: corev1.TaintEffectNoSchedule})
	w.update(node)
	w.gatherer.Cached = staleNodes{w.WithWatch, []corev1.Node{*old}}
	if again := w.reconciles(w.disruption(), "").RequeueAfter; again <= 0 || again > time.Second {
		t.Errorf("look again after %s, want soon", again)
	}
	if w.read(node); !tainted(node, "theirs") {
		t.Error("the taint of somebody else is lost")
	}
}
