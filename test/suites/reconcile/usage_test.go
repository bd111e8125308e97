package reconcile

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/usage"
	"karve.sh/karve/pkg/nodecontract"
)

func (w *world) usage() *usage.Controller {
	return usage.New(usage.Config{Client: w.WithWatch, Gatherer: w.gatherer, Metrics: w.metrics, Recorder: w.recorder, Clock: w.clock})
}

// reconcilesUsage lets the controller's interval pass and runs it.
func (w *world) reconcilesUsage(controller *usage.Controller) {
	w.t.Helper()
	w.clock.Step(10 * time.Second)
	w.reconciles(controller, "")
}

// unusedFor makes the node's agent report now that the pods have not used their GPUs for d.
func (w *world) unusedFor(node *corev1.Node, d time.Duration, pods ...string) {
	w.t.Helper()
	r := nodecontract.UnusedReport{AsOf: w.clock.Now(), Since: map[string]time.Time{}}
	for _, pod := range pods {
		r.Since["default/"+pod] = w.clock.Now().Add(-d)
	}
	w.read(node)
	node.Annotations[nodecontract.UnusedSinceAnnotation] = r.String()
	w.update(node)
}

// old makes a pod look as if it had run for a day.
func (w *world) old(p *corev1.Pod) {
	p.Status.StartTime = new(metav1.NewTime(w.clock.Now().Add(-24 * time.Hour)))
}

func evictedWhenUnused(value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{v1alpha1.EvictWhenUnusedAnnotation: value} }
}

func labeled(p *corev1.Pod) { p.Labels = map[string]string{"app": p.Name} }

func TestUnusedMachineIsReportedWithPrice(t *testing.T) {
	w := newWorld(t)
	_, node := w.machine("unused-1", w.shared("unused"))
	w.on(node, "a", w.old)
	w.on(node, "b", w.old)
	controller, pools := w.usage(), w.poolController()
	says := func(nodes int64, price float64, usd string) {
		w.t.Helper()
		w.reconcilesPools(pools)
		class := &v1alpha1.GPUNodeClass{}
		class.Name = "unused"
		w.read(class)
		if got := w.counted("karve_pool_unused_nodes"); int64(got) != nodes || w.counted("karve_pool_unused_usd_per_hour") != price {
			t.Errorf("%v machines for $%v, want %d for $%v", got, w.counted("karve_pool_unused_usd_per_hour"), nodes, price)
		}
		if class.Status.UnusedNodes != nodes || class.Status.UnusedUSDPerHour != usd {
			t.Errorf("the class says %d for %s, want %d for %s", class.Status.UnusedNodes, class.Status.UnusedUSDPerHour, nodes, usd)
		}
	}
	w.unusedFor(node, 3*time.Hour, "a")
	w.reconcilesUsage(controller)
	w.wantEvents(0, "")
	says(0, 0, "0.000")

	w.unusedFor(node, 3*time.Hour, "a", "b")
	w.reconcilesUsage(controller)
	w.wantEvents(1, "Normal Unused nobody has used its GPUs for 3h, at $0.526 an hour; its replicas are held by default/a, default/b")
	says(1, 0.526, "0.526")
	w.reconcilesUsage(controller)
	w.wantEvents(0, "")

	// The agent's last report is too old.
	w.clock.Step(nodecontract.UnusedReportTTL)
	w.reconcilesUsage(controller)
	says(0, 0, "0.000")
	w.unusedFor(node, 4*time.Hour, "a", "b")
	w.reconcilesUsage(controller)
	w.wantEvents(1, "Normal Unused")

	w.read(node)
	node.Annotations[nodecontract.UnusedSinceAnnotation] = "since yesterday"
	w.update(node)
	w.reconcilesUsage(controller)
	w.reconcilesUsage(controller)
	w.wantEvents(1, "Warning UsageUnreadable")
}

func TestPodWithUnusedGPUIsEvictedIfAnnotated(t *testing.T) {
	w := newWorld(t)
	_, node := w.machine("evict-1", w.shared("evict"))
	asks := w.on(node, "asks", w.old, evictedWhenUnused("2h"))
	silent := w.on(node, "silent", w.old)
	busy := w.on(node, "busy", w.old, evictedWhenUnused("10m"))
	wrong := w.on(node, "wrong", w.old, evictedWhenUnused("a while"))
	controller := w.usage()
	stays := func(pods ...*corev1.Pod) {
		w.t.Helper()
		for _, pod := range pods {
			if !w.read(pod) || pod.DeletionTimestamp != nil {
				t.Errorf("%s is gone", pod.Name)
			}
		}
	}
	w.unusedFor(node, 2*time.Hour-time.Second, "asks", "silent", "wrong")
	w.reconcilesUsage(controller)
	w.wantEvents(1, "Warning EvictWhenUnusedInvalid karve.sh/evict-when-unused is \"a while\", and must be a time such as 30m or 2h, from 10m to 720h; the pod is not evicted")
	stays(asks, silent, busy, wrong)

	// The agent died, so the use is unknown.
	w.unusedFor(node, 2*time.Hour, "asks", "silent", "wrong")
	w.clock.Step(nodecontract.UnusedReportTTL)
	w.reconcilesUsage(controller)
	stays(asks, silent, busy, wrong)

	w.unusedFor(node, 2*time.Hour, "asks", "silent", "wrong")
	w.reconcilesUsage(controller)
	if w.read(asks) && asks.DeletionTimestamp == nil {
		t.Error("the pod was not evicted")
	}
	w.wantEvents(1, "Normal EvictedWhenUnused has not used its GPU for 120m and is evicted, as its annotation karve.sh/evict-when-unused (2h) wants")
	stays(silent, busy, wrong)
	w.reconcilesUsage(controller)
	w.wantEvents(0, "")
	if n := w.counted("karve_pods_evicted_unused_total"); n != 1 {
		t.Errorf("%v evictions were counted", n)
	}
}

// stale returns Nodes with another annotation in live reads than the cache has.
type stale struct {
	client.Reader
	annotation string
}

func (s stale) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	err := s.Reader.Get(ctx, key, o, options...)
	if node, ok := o.(*corev1.Node); ok {
		node.Annotations[nodecontract.UnusedSinceAnnotation] = s.annotation
	}
	return err
}

func TestPodThatJustUsedItsGPUStays(t *testing.T) {
	w := newWorld(t)
	_, node := w.machine("moment-1", w.shared("moment"))
	pod := w.on(node, "asks", w.old, evictedWhenUnused("2h"))
	w.unusedFor(node, 3*time.Hour, "asks")
	w.gatherer.Live = stale{w.WithWatch, ""}
	w.reconcilesUsage(w.usage())
	if !w.read(pod) || pod.DeletionTimestamp != nil {
		t.Error("the pod was evicted because of stale data in the cache")
	}
}

func TestPDBProtectsUnusedPods(t *testing.T) {
	w := newWorld(t)
	_, node := w.machine("budget-1", w.shared("budget"))
	pod := w.on(node, "asks", w.old, evictedWhenUnused("2h"), labeled)
	kept := w.on(node, "kept", w.old, func(p *corev1.Pod) {
		p.Annotations = map[string]string{v1alpha1.EvictWhenUnusedAnnotation: "2h", "karpenter.sh/do-not-disrupt": "true"}
	})
	w.create(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one"}, Spec: policyv1.PodDisruptionBudgetSpec{
		MinAvailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: pod.Labels},
	}})
	w.unusedFor(node, 3*time.Hour, "asks", "kept")
	controller := w.usage()
	w.reconcilesUsage(controller)
	w.reconcilesUsage(controller)
	all := w.events()
	for _, want := range []string{"PodDisruptionBudget default/one", "carries karpenter.sh/do-not-disrupt"} {
		n := 0
		for _, e := range all {
			if strings.Contains(e, "Normal UnusedButKept has not used its GPU for 3h, and is kept: pod default/") && strings.Contains(e, want) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d events tell of %q: %q", n, want, all)
		}
	}
	for _, p := range []*corev1.Pod{pod, kept} {
		if !w.read(p) || p.DeletionTimestamp != nil {
			t.Errorf("%s was evicted", p.Name)
		}
	}
}
