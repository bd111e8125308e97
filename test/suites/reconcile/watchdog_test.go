package reconcile

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/provisioning"
	"karve.sh/karve/pkg/snapshot/snapshottest"
	"karve.sh/karve/pkg/watchdog"
)

// stepLimit is the limit of a step in these tests. A step takes some ten milliseconds.
const stepLimit = 5 * time.Second

// guarded gives a new process a Watchdog that stores what is set aside in the namespace default.
func (w *world) guarded(c client.Client) *watchdog.Watchdog {
	store := watchdog.Store{Client: c, Live: c, Namespace: "default"}
	w.gatherer.Watchdog = watchdog.New(stepLimit, store, w.metrics.StepOverruns, w.metrics.SetAside)
	w.planner.Watchdog = w.gatherer.Watchdog
	return w.gatherer.Watchdog
}

// forget deletes what the test has stored.
func (w *world) forget() {
	stored := &corev1.ConfigMap{}
	stored.Namespace, stored.Name = "default", "karve-set-aside"
	if err := w.Delete(context.WithoutCancel(w.t.Context()), stored); client.IgnoreNotFound(err) != nil {
		w.t.Error(err)
	}
}

// round runs the controller for pending pods once.
func (w *world) round() error {
	controller := w.provisioning(func(c *provisioning.Config) { c.Planner, c.Client = w.planner, w.gatherer.Writing(w.WithWatch) })
	_, err := controller.Reconcile(w.t.Context(), reconcile.Request{})
	return err
}

func TestObjectWithoutEndDelaysOthersOnceAndIsRememberedByNextProcess(t *testing.T) {
	w := newWorld(t)
	t.Cleanup(w.forget)
	np := w.shared("watched")
	w.pods("web", 11)
	bad := snapshottest.Pod("endless")
	bad.Annotations = map[string]string{v1alpha1.GPUMemoryAnnotation: "2Gi"}
	w.pod(&bad)
	forever := make(chan struct{})
	t.Cleanup(func() { close(forever) })
	endless := func(step watchdog.Step, o watchdog.Object) {
		if step == watchdog.View && o.Name == "default/endless" {
			<-forever
		}
	}
	first := w.guarded(w)
	first.Inject = endless
	ended := make(chan error, 1)
	go func() { ended <- first.Start(t.Context()) }()
	if err := w.round(); err == nil || !strings.Contains(err.Error(), "step view took more than 5s, most of it at Pod default/endless") {
		t.Fatalf("the first round ends with %v", err)
	}
	if err := <-ended; err == nil {
		t.Fatal("the process goes on")
	}

	w.restart()
	w.guarded(w).Inject = endless
	if err := w.round(); err != nil {
		t.Fatal(err)
	}
	w.wantClaims(2)
	w.wantEvents(1, "step view took too long at Pod default/endless")
	pool := w.poolController()
	w.reconciles(pool, "")
	if c := w.wantCondition(np, v1alpha1.ConditionPlanningHealthy, "False", "StepTooLong"); !strings.Contains(c.Message, "step view took too long at Pod default/endless") {
		t.Errorf("the condition says %q", c.Message)
	}

	w.read(&bad)
	bad.Annotations[v1alpha1.GPUMemoryAnnotation] = "1Gi"
	w.update(&bad)
	w.gatherer.Watchdog.Inject = nil
	w.events()
	if err := w.round(); err != nil {
		t.Fatal(err)
	}
	w.wantEvents(0, "took too long")
	w.clock.Step(time.Second)
	w.reconciles(pool, "")
	w.wantCondition(np, v1alpha1.ConditionPlanningHealthy, "True", "")
}

func TestSlowReadIsEndedAndNextRoundLeavesItsObjectOut(t *testing.T) {
	w := newWorld(t)
	t.Cleanup(w.forget)
	w.shared("slow")
	w.pods("web", 11)
	w.guarded(w).Inject = func(step watchdog.Step, o watchdog.Object) {
		if step == watchdog.View && strings.HasPrefix(o.Name, "default/web-003") {
			time.Sleep(stepLimit + stepLimit/100) // It ends, but the next visit is too late.
		}
	}
	if err := w.round(); err == nil {
		t.Fatal("want an overrun")
	}
	if err := w.round(); err != nil {
		t.Fatal(err)
	}
	w.wantClaims(0) // All pods are like it.
	if events := strings.Join(w.events(), " "); !strings.Contains(events, "SetAside Karve decides without it") {
		t.Errorf("the events are %q", events)
	}
}

func TestSlowMachineDelaysRemovalOfOthersOnce(t *testing.T) {
	w := newWorld(t)
	t.Cleanup(w.forget)
	np := w.shared("idle")
	slow, _ := w.machine("slow", np)
	other, _ := w.machine("other", np)
	w.guarded(w).Inject = func(step watchdog.Step, o watchdog.Object) {
		if step == watchdog.Plan && o.Name == slow.Name {
			time.Sleep(stepLimit + stepLimit/100) // It ends, but the next visit is too late.
		}
	}
	controller := w.disruption()
	_, err := controller.Reconcile(t.Context(), reconcile.Request{})
	if over := (&watchdog.OverrunError{}); !errors.As(err, &over) || over.Object.Name != slow.Name {
		t.Fatalf("the first pass ends with %v", err)
	}
	w.idle(controller)
	w.reconciles(controller, "")
	w.wantGoing(other, true)
	w.wantGoing(slow, false)
}

func TestHangingWriteOfOneNodeClaimDoesNotDelayNextRounds(t *testing.T) {
	w := newWorld(t)
	t.Cleanup(w.forget)
	w.shared("hanging")
	w.pods("web", 11)
	hung := ""
	api := w.WithWatch
	w.WithWatch = interceptor.NewClient(api, interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
		if _, ok := o.(*karpv1.NodeClaim); ok && (hung == "" || hung == o.GetName()) {
			hung = o.GetName()
			<-ctx.Done()
			return ctx.Err()
		}
		return c.Create(ctx, o, options...)
	}})
	w.guarded(api)
	began := time.Now()
	_ = w.round() // The controller retries.
	_ = w.round()
	if took := time.Since(began); took > 2*stepLimit {
		t.Errorf("two rounds took %s", took)
	}
	w.wantClaims(2)
	if n := w.counted("karve_planner_step_overruns_total"); n != 1 {
		t.Errorf("%v overruns were counted, want 1", n)
	}
}
