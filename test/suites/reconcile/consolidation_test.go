package reconcile

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/disruption"
	"karve.sh/karve/pkg/snapshot/snapshottest"
	"karve.sh/karve/test/harness/cluster"
)

// underutilized returns the names of the claims that are marked because the remaining fleet is cheaper without them.
func (w *world) underutilized() []string {
	w.t.Helper()
	var names []string
	for _, claim := range w.claims() {
		if claim.Annotations[v1alpha1.ReplacingAnnotation] == "Underutilized" {
			names = append(names, claim.Name)
		}
	}
	return names
}

// confirmsLayout runs the controller until it has confirmed a cheaper layout.
func (w *world) confirmsLayout(controller *disruption.Controller) {
	w.t.Helper()
	for range 3 {
		w.reconciles(controller, "")
		w.clock.Step(settle)
	}
}

// halfEmpty creates machines of one pool with five pods each that have run for ten minutes.
func (w *world) halfEmpty(names ...string) (*karpv1.NodePool, []*corev1.Node) {
	w.t.Helper()
	pool := w.shared(names[0])
	var nodes []*corev1.Node
	for _, name := range names {
		_, node := w.inUse(name, pool, 5)
		nodes = append(nodes, node)
	}
	w.consolidates(names[0], func(c *v1alpha1.Consolidation) { c.RestartCost = "0" }) // What is saved up first is tested without an API server.
	w.clock.Step(10 * time.Minute)
	return pool, nodes
}

func (w *world) consolidates(name string, edit func(*v1alpha1.Consolidation)) {
	w.t.Helper()
	class := &v1alpha1.GPUNodeClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	w.read(class)
	edit(&class.Spec.Consolidation)
	w.update(class)
}

func TestConsolidationRemovesOneOfTwoHalfEmptyMachines(t *testing.T) {
	w := newWorld(t)
	_, nodes := w.halfEmpty("half-1", "half-2")
	controller := w.disruption()
	w.reconciles(controller, "")
	if got := w.underutilized(); len(got) != 0 {
		t.Fatalf("%v are marked on the first reconcile", got)
	}
	w.clock.Step(settle)
	w.reconciles(controller, "")
	marked := w.underutilized()
	if len(marked) != 1 {
		t.Fatalf("%v are marked, want one of two", marked)
	}
	w.wantEvents(1, "Normal Replacing the machines cost $0.526 an hour less without it; its pods get a new place first")
	w.reconciles(w.provisioning(), "")
	w.wantClaims(2)

	// A restart in between changes nothing.
	w.restart()
	controller = w.disruption()
	w.reconciles(controller, "")
	w.clock.Step(settle)
	w.reconciles(controller, "")
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: marked[0]}}
	if w.read(claim); !going(claim) {
		t.Fatalf("%s stays, though its pods have places", marked[0])
	}
	w.wantEvents(1, "with a new place for its 5 pods: the machines cost $0.526 an hour less without it")
	w.confirmsLayout(controller)
	for _, node := range nodes {
		w.read(node)
		if got, want := tainted(node, v1alpha1.SurplusTaintKey), node.Name == marked[0]; got != want {
			t.Errorf("new pods are steered away from %s: %t, want %t", node.Name, got, want)
		}
	}
	if n := w.counted("karve_layout_steps_total"); n != 0 {
		t.Errorf("%v steps were counted after the restart", n)
	}
}

// Four half-empty machines become two. The result is the same if the controller dies between any two writes.
func TestCrashBetweenMarksDoesNotChangeResult(t *testing.T) {
	cluster.Long(t)
	w := newWorld(t)
	for after := range 4 {
		w.reset()
		w.halfEmpty("crash-1", "crash-2", "crash-3", "crash-4")
		left, crash := after, errors.New("the process ends here")
		dying := interceptor.NewClient(w.WithWatch, interceptor.Funcs{
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, options ...client.PatchOption) error {
				if left--; left < 0 {
					return crash
				}
				return c.Patch(ctx, o, p, options...)
			},
		})
		controller := disruption.New(disruption.Config{Client: dying, Gatherer: w.gatherer, Planner: w.planner, Metrics: w.metrics, Recorder: w.recorder, Clock: w.clock, Settle: settle, Tolerations: tolerations})
		for range 3 {
			if _, err := controller.Reconcile(t.Context(), reconcile.Request{}); errors.Is(err, crash) {
				break
			}
			w.clock.Step(settle)
		}
		w.restart()
		controller = w.disruption()
		for range 10 {
			w.reconciles(controller, "")
			w.reconciles(w.provisioning(), "")
			w.clock.Step(settle)
		}
		gone := 0
		for _, claim := range w.claims() {
			if going(&claim) {
				gone++
			}
		}
		if gone != 2 || len(w.claims()) != 4 {
			t.Fatalf("after a crash after %d writes %d of %d machines go, want 2 of 4", after, gone, len(w.claims()))
		}
	}
}

// Two of four half-empty machines leave together. A plan that sees only one of the two marks would launch a machine that is not needed.
func TestMarksOfOneStepAreSeenTogether(t *testing.T) {
	w := newWorld(t)
	w.halfEmpty("step-1", "step-2", "step-3", "step-4")
	marks, seen := 0, make(chan int, 1)
	read := func() {
		cluster, err := w.gatherer.Cluster(t.Context())
		if err != nil {
			t.Error(err)
		}
		n := 0
		for i := range cluster.NodeClaims {
			if cluster.NodeClaims[i].Annotations[v1alpha1.ReplacingAnnotation] != "" {
				n++
			}
		}
		seen <- n
	}
	watched := interceptor.NewClient(w.WithWatch, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, options ...client.PatchOption) error {
			if o.GetAnnotations()[v1alpha1.ReplacingAnnotation] == "" {
				return c.Patch(ctx, o, p, options...)
			}
			if marks++; marks == 2 {
				go read()
				select { // A reader that is not locked out reads before the second mark.
				case n := <-seen:
					seen <- n
				case <-time.After(time.Second):
				}
			}
			return c.Patch(ctx, o, p, options...)
		},
	})
	controller := disruption.New(disruption.Config{Client: watched, Gatherer: w.gatherer, Planner: w.planner, Metrics: w.metrics, Recorder: w.recorder, Clock: w.clock, Settle: settle, Tolerations: tolerations})
	w.confirmsLayout(controller)
	if marks != 2 {
		t.Fatalf("%d machines are marked, want 2", marks)
	}
	if n := <-seen; n != 2 {
		t.Errorf("a reader sees %d marks, want both", n)
	}
}

func TestUnprofitableMarkIsRemoved(t *testing.T) {
	w := newWorld(t)
	_, nodes := w.halfEmpty("back-1", "back-2")
	controller := w.disruption()
	w.confirmsLayout(controller)
	marked := w.underutilized()
	if len(marked) != 1 {
		t.Fatalf("%v are marked, want one of two", marked)
	}
	w.events()
	// Pods arrive that need the room.
	other := nodes[0]
	if other.Name == marked[0] {
		other = nodes[1]
	}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		w.on(other, "late-"+name, web)
	}
	w.clock.Step(settle)
	w.reconciles(controller, "")
	if got := w.underutilized(); len(got) != 0 {
		t.Errorf("%v are still marked, although their pods need a new machine", got)
	}
	for _, node := range nodes {
		w.wantMarks(node, false, false)
	}
}

func TestWhenIdlePolicyMovesNoPods(t *testing.T) {
	w := newWorld(t)
	_, nodes := w.halfEmpty("idle-only-1", "idle-only-2")
	controller := w.disruption()
	w.confirmsLayout(controller)
	w.consolidates("idle-only-1", func(c *v1alpha1.Consolidation) { c.Policy = v1alpha1.ConsolidateWhenIdle })
	for range 3 {
		w.confirmsLayout(controller)
	}
	if got := w.underutilized(); len(got) != 0 {
		t.Errorf("%v are marked", got)
	}
	for _, node := range nodes {
		if w.read(node); tainted(node, v1alpha1.SurplusTaintKey) {
			t.Errorf("new pods are steered away from %s", node.Name)
		}
	}
}

func TestEventReportsWhatBlocksConsolidation(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit func(*world, *karpv1.NodePool, []*corev1.Node)
		want string
	}{
		"its pods": {func(w *world, _ *karpv1.NodePool, nodes []*corev1.Node) {
			for _, node := range nodes {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: node.Name + "-web-0"}}
				w.read(pod)
				pod.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"}
				w.update(pod)
			}
		}, "would cost less without it, and kept: pod default/kept-1-web-0 carries karpenter.sh/do-not-disrupt"},
		"its node": {func(w *world, _ *karpv1.NodePool, nodes []*corev1.Node) {
			for _, node := range nodes {
				w.read(node)
				node.Annotations[karpv1.DoNotDisruptAnnotationKey] = "true"
				w.update(node)
			}
		}, "would cost less without it, and kept: the node carries karpenter.sh/do-not-disrupt"},
		"the budgets": {func(w *world, pool *karpv1.NodePool, _ []*corev1.Node) {
			w.read(pool)
			budget("0")(pool)
			w.update(pool)
		}, "cost $0.526 an hour less without it, and kept: the disruption budgets of NodePool kept-1 allow 0"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			pool, nodes := w.halfEmpty("kept-1", "kept-2")
			c.edit(w, pool, nodes)
			w.clock.Step(10 * time.Minute)
			w.confirmsLayout(w.disruption())
			if got := w.underutilized(); len(got) != 0 {
				t.Errorf("%v are marked", got)
			}
			w.wantEvents(1, "Normal UnderutilizedButKept the machines "+c.want)
		})
	}
}

// A pod without a replica does not keep a machine in use if another node has room for the pod.
func TestMachineWithOnlyNonGPUPodsIsIdle(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("squat")
	claim, node := w.machine("squat-1", pool)
	squatter := w.on(node, "squatter", web, snapshottest.Asking("cpu", "1"))
	w.clock.Step(10 * time.Minute)
	controller := w.disruption()
	w.idle(controller)
	w.reconciles(controller, "")
	w.wantGoing(claim, false)
	w.wantEvents(1, "IdleButKept")
	cpu := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "cpu"}}
	w.create(cpu)
	cpu.Spec.Taints = nil
	w.update(cpu)
	cpu.Status.Allocatable = snapshottest.Amounts("cpu", "1", "memory", "1Gi", "pods", "10")
	cpu.Status.Capacity = cpu.Status.Allocatable
	w.updateStatus(cpu)
	w.reconciles(controller, "")
	w.clock.Step(settle)
	w.reconciles(controller, "")
	if w.read(claim); !going(claim) {
		t.Errorf("the machine stays for %s: %q", squatter.Name, w.events())
	}
}
