package reconcile

import (
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// warm creates a class and a pool that keep the given number of replicas free.
func (w *world) warm(name string, replicas int32, edits ...func(*karpv1.NodePool)) (*v1alpha1.GPUNodeClass, *karpv1.NodePool) {
	w.t.Helper()
	class := w.class(name, func(c *v1alpha1.GPUNodeClass) {
		c.Spec.Headroom = []v1alpha1.Headroom{{Replicas: replicas}}
		c.Spec.Consolidation.IdleAfter = "1m"
	})
	return class, w.pool(name, edits...)
}

// allStart starts the machines of all claims that have no Node.
func (w *world) allStart() {
	w.t.Helper()
	for _, claim := range w.claims() {
		if claim.Status.NodeName == "" {
			snapshottest.Initialized(w.clock.Now())(&claim)
			w.updateStatus(&claim)
			w.node(&claim, 10)
		}
	}
}

// headroom returns the value of the headroom metric for a state.
func (w *world) headroom(state string) float64 {
	return testutil.ToFloat64(w.metrics.PoolHeadroom.WithLabelValues("warm", state))
}

func TestHeadroomIsLaunchedKeptAndRemoved(t *testing.T) {
	w := newWorld(t)
	class, np := w.warm("warm", 15)
	provisions, reports := w.provisioning(), w.poolController()

	w.reconciles(provisions, "")
	claims := w.wantClaims(2)
	for _, claim := range claims {
		physicalRequestsOnly(t, &claim)
	}
	w.reconcilesPools(reports)
	w.wantCondition(np, v1alpha1.ConditionHeadroomReady, "Unknown", "HeadroomComing")
	w.restart() // The controller reads what was launched, and remembers nothing.
	provisions, reports = w.provisioning(), w.poolController()
	disrupts := w.disruption()
	w.reconciles(provisions, "")
	w.wantClaims(2)

	w.allStart()
	w.reconcilesPools(reports)
	w.wantCondition(np, v1alpha1.ConditionHeadroomReady, "True", "HeadroomFree")
	for state, want := range map[string]float64{"wanted": 15, "free": 15} {
		if n := w.headroom(state); n != want {
			t.Errorf("%v replicas are %s, want %v", n, state, want)
		}
	}
	if n := w.counted("karve_pods_waiting"); n != 0 {
		t.Errorf("%v pods are reported pending, want none", n)
	}
	for range 5 {
		w.clock.Step(time.Minute)
		w.reconciles(disrupts, "")
		w.reconciles(provisions, "")
	}
	w.wantClaims(2)
	w.wantEvents(0, "Warning")

	// With ten replicas less, either of the two machines is surplus.
	w.read(class)
	class.Spec.Headroom[0].Replicas = 5
	w.update(class)
	for range 5 {
		w.clock.Step(time.Minute)
		w.reconciles(disrupts, "")
		w.reconciles(provisions, "")
	}
	w.wantClaims(1)
	w.read(class)
	class.Spec.Headroom = nil
	w.update(class)
	w.reconcilesPools(reports)
	if w.read(np); poolCondition(np, v1alpha1.ConditionHeadroomReady).Type != "" || w.counted("karve_pool_headroom_replicas") != 0 {
		t.Error("the pool still speaks of headroom")
	}
}

func TestHeadroomIsLaunchedAfterPods(t *testing.T) {
	w := newWorld(t)
	_, np := w.warm("later", 10)
	w.pods("web", 3)
	provisions := w.provisioning()
	w.reconciles(provisions, "")
	w.wantClaims(1)
	w.reconciles(provisions, "") // Seven replicas are free on the machine that is launched for the pods.
	w.wantClaims(2)
	w.reconciles(provisions, "")
	w.wantClaims(2)
	w.wantEvents(0, "Warning")

	w.allStart()
	w.read(np)
	np.Spec.Limits = karpv1.Limits(snapshottest.Amounts(v1alpha1.ResourceGPU, "2"))
	w.update(np)
	w.pods("more", 12)
	w.reconciles(provisions, "")
	w.wantClaims(2)
	w.reconcilesPools(w.poolController())
	w.wantCondition(np, v1alpha1.ConditionHeadroomReady, "False", "LimitReached")
	w.wantEvents(1, "LimitReached")
}

func TestInvalidHeadroomIsReportedByClass(t *testing.T) {
	w := newWorld(t)
	w.class("unread", func(c *v1alpha1.GPUNodeClass) {
		c.Spec.Headroom = []v1alpha1.Headroom{{Replicas: 5, Schedule: "0 25 * * *", Duration: "1h"}}
	})
	np := w.pool("unread")
	w.reconciles(w.provisioning(), "")
	w.wantClaims(0)
	w.reconcilesPools(w.poolController())
	class := &v1alpha1.GPUNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "unread"}}
	w.read(class)
	i := slices.IndexFunc(class.Status.Conditions, func(c metav1.Condition) bool { return c.Type == v1alpha1.ConditionAccepted })
	if i < 0 || class.Status.Conditions[i].Reason != "InvalidHeadroom" {
		t.Errorf("conditions of the class: %+v", class.Status.Conditions)
	}
	w.wantCondition(np, karpv1.ConditionTypeValidationSucceeded, "True", "")
}
