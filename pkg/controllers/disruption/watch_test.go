package disruption

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

var now = snapshottest.Now

func TestOnlyUrgentEventsInterruptRest(t *testing.T) {
	for event, want := range map[metrics.Event]time.Duration{metrics.Changed: maxRest, metrics.Leaving: 0, metrics.Unhealthy: 0} {
		clk := clocktesting.NewFakeClock(now)
		c := New(Config{Clock: clk})
		if wait := c.rest(); wait > 0 {
			t.Errorf("wait %s for the first pass", wait)
		}
		c.pace.Passed(now.Add(-time.Minute), now, 0, maxRest)
		c.came(event)
		if wait := c.rest(); wait != want {
			t.Errorf("wait %s after the event %s, want %s", wait, event, want)
		}
		clk.Step(maxRest)
		if wait := c.rest(); wait > 0 {
			t.Errorf("wait %s although the rest after the event %s is over", wait, event)
		}
	}
}

func TestPodsOfForeignNodesTriggerNoPass(t *testing.T) {
	ours := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "ours", Labels: map[string]string{v1alpha1.GPUNodeClassLabel: "default"}}}
	theirs := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}}
	c := New(Config{Client: fake.NewClientBuilder().WithObjects(ours, theirs).Build(), Clock: clocktesting.NewFakeClock(now)})
	for node, want := range map[string]int{"ours": 1, "theirs": 0, "not in the cache yet": 1} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}}
		if got := len(c.onPod(t.Context(), pod)); got != want {
			t.Errorf("a pod on node %q triggers %d passes, want %d", node, got, want)
		}
	}
}
