package provisioning

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/metrics"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

func TestTheWaitOfAPodEndsWhenItIsBoundToANodeOfKarves(t *testing.T) {
	t.Parallel()
	node := func(name string, labels map[string]string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	}
	asIs := func(*corev1.Pod) {}
	for name, c := range map[string]struct {
		before, after func(*corev1.Pod)
		waits         uint64
	}{
		"a pod that is bound":                 {asIs, Running("ours"), 1},
		"one that was nominated":              {func(p *corev1.Pod) { p.Status.NominatedNodeName = "ours" }, Running("ours"), 1},
		"one that still waits":                {asIs, WithLabels("a", "b"), 0},
		"one that was bound before":           {Running("ours"), Running("ours"), 0},
		"one without a GPU":                   {Asking("cpu", "1"), func(p *corev1.Pod) { Asking("cpu", "1")(p); Running("ours")(p) }, 0},
		"one on a node of Karpenter's":        {asIs, Running("stock"), 0},
		"one on a node that is gone":          {asIs, Running("gone"), 0},
		"one of a DaemonSet, which never did": {asIs, func(p *corev1.Pod) { OwnedBy("apps/v1", "DaemonSet", "d")(p); Running("ours")(p) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := prometheus.NewRegistry()
			ctl := New(Config{
				Client: fake.NewClientBuilder().WithObjects(
					node("ours", map[string]string{v1alpha1.GPUNodeClassLabel: "gpu", karpv1.NodePoolLabelKey: "pool"}), node("stock", map[string]string{karpv1.NodePoolLabelKey: "stock"}),
				).Build(),
				Clock: clocktesting.NewFakeClock(Now), Metrics: metrics.New(r),
			})
			before, after := Pod("p", c.before), Pod("p", c.after)
			after.CreationTimestamp = metav1.NewTime(Now.Add(-90 * time.Second))
			ctl.PodChanged(t.Context(), &before, &after)
			families, err := r.Gather()
			if err != nil {
				t.Fatal(err)
			}
			var count uint64
			for _, f := range families {
				if f.GetName() != "karve_pods_wait_seconds" {
					continue
				}
				h := f.GetMetric()[0]
				count = h.GetHistogram().GetSampleCount()
				if sum := h.GetHistogram().GetSampleSum(); sum != 90 || h.GetLabel()[0].GetValue() != "pool" {
					t.Errorf("the pod waited %v s for %v, want 90 s for the pool", sum, h.GetLabel())
				}
			}
			if count != c.waits {
				t.Errorf("%d waits, want %d", count, c.waits)
			}
		})
	}
}

func TestPlansUseAFifthOfTheTimeUnlessSomethingIsUrgent(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]time.Duration{0: 0, 200 * time.Millisecond: 800 * time.Millisecond, time.Minute: maxRest} {
		if rest := restAfter(now, now.Add(took)).Sub(now.Add(took)); rest != want {
			t.Errorf("after a plan of %s, the controller rests for %s, want %s", took, rest, want)
		}
	}
	clk := clocktesting.NewFakePassiveClock(now)
	c := New(Config{Clock: clk, BatchIdle: time.Second, BatchMax: 10 * time.Second})
	if !c.batch.urgent() {
		t.Error("the first plan is not urgent")
	}
	c.batch.planned()
	c.rests = now.Add(800 * time.Millisecond)
	if result, err := c.Reconcile(t.Context(), reconcile.Request{}); err != nil || result.RequeueAfter != 800*time.Millisecond {
		t.Errorf("for a change that is not urgent, the controller waits %s, %v", result.RequeueAfter, err)
	}
	for what, come := range map[string]func(){"a pod": func() { c.batch.add("a", now) }, "a lost machine": func() { c.batch.hurry() }, "a launch that was held back": func() { c.batch.holdBack() }} {
		c.batch = newBatch(time.Second, 10*time.Second)
		if c.batch.planned(); c.batch.urgent() {
			t.Errorf("before %s, a plan is urgent", what)
		}
		if come(); !c.batch.urgent() {
			t.Errorf("after %s, no plan is urgent", what)
		}
	}
}
