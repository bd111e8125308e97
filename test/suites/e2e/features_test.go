package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

// TestDisabledFeaturesAreNotUsed runs the controller with only the rights that every installation has.
func TestDisabledFeaturesAreNotUsed(t *testing.T) {
	w := ownWorld(t, cluster.Config{}, karve.Options{Alone: true, Values: []string{"nominations.enabled=false", "capacityBuffers.enabled=false", "imageRollouts.enabled=false"}})
	s := w.scene(t, "plain")
	s.class("5s")
	s.pool(poolOptions{})
	s.images()
	d := s.deploy("inference", 15)
	s.untilRunning(15)
	s.untilRollout(enough, "the rollout says that it is off", func(r *v1alpha1.GPUImageRollout) bool {
		c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionReady)
		return c != nil && c.Reason == "ImageRolloutsDisabled"
	})
	if pin := s.pin(); len(pin) > 0 {
		t.Errorf("the EC2NodeClass is pinned to %q", pin)
	}
	s.scale(d, 0)
	s.untilGone(s.name)

	calls, err := w.Calls()
	if err != nil {
		t.Fatal(err)
	}
	for _, call := range calls.Denied {
		t.Errorf("the controller tried what it has no right to: %s", call)
	}
	for _, call := range calls.Allowed {
		if call.Resource == "pods/status" || call.Verb == "create" && call.Resource == corev1.ResourcePods.String() {
			t.Errorf("the controller did what only a feature that is off needs: %s", call)
		}
	}
}
