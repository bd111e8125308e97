package disruption

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

func TestPodsOfOtherNodesTriggerNoPass(t *testing.T) {
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
