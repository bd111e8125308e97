package reconcile

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// buffer creates a CapacityBuffer for a PodTemplate, as resolved by Karpenter.
func (w *world) buffer(name, template string, ready bool) {
	w.t.Helper()
	w.bufferFor(name, map[string]any{"podTemplateRef": map[string]any{"name": template}}, ready)
}

// bufferFor creates a CapacityBuffer with a spec, to which the number of pods is added.
func (w *world) bufferFor(name string, spec map[string]any, ready bool) {
	w.t.Helper()
	spec["replicas"] = int64(11)
	b := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	b.SetGroupVersionKind(schema.GroupVersionKind{Group: karpenter.CapacityBufferKind.Group, Version: "v1beta1", Kind: karpenter.CapacityBufferKind.Kind})
	b.SetNamespace("default")
	b.SetName(name)
	w.create(b)
	w.t.Cleanup(func() {
		if err := w.Delete(cleanup(w.t), b); err != nil {
			w.t.Error(err)
		}
	})
	said := "False"
	if ready {
		said = "True"
	}
	b.Object["status"] = map[string]any{"replicas": int64(11), "conditions": []any{map[string]any{
		"type": "ReadyForProvisioning", "status": said, "reason": "Resolved", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
	}}}
	w.updateStatus(b)
}

func TestCapacityBufferAddsHeadroom(t *testing.T) {
	w := newWorld(t)
	np := w.shared("buffered")
	pod := snapshottest.Pod("")
	pod.Spec.Containers[0].Image = "app"
	delete(pod.Spec.Containers[0].Resources.Requests, v1alpha1.ResourceGPUShared)
	pod.Spec.Containers[0].Resources.Limits = snapshottest.Amounts(v1alpha1.ResourceGPUShared, "1")
	template := &corev1.PodTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "burst"},
		Template:   corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "burst"}}, Spec: pod.Spec},
	}
	w.create(template)
	w.buffer("burst", "burst", true)
	w.buffer("unready", "burst", false)
	w.buffer("lost", "missing", true)
	w.bufferFor("foreign", map[string]any{"scalableRef": map[string]any{"apiGroup": "argoproj.io", "kind": "Rollout", "name": "web"}}, true)

	w.reconciles(w.provisioning(), "") // The controller does not list CapacityBuffers.
	w.wantClaims(0)
	w.gatherer.CapacityBuffers = true
	provisions := w.provisioning()
	w.reconciles(provisions, "")
	w.wantClaims(2) // A machine has room for ten.
	w.wantEvents(1, "Warning Unreadable No capacity is kept free for it, because what it refers to cannot be read")
	w.reconciles(provisions, "")
	w.wantClaims(2)
	w.reconcilesPools(w.poolController())
	w.wantCondition(np, v1alpha1.ConditionHeadroomReady, "Unknown", "HeadroomComing")

	w.delete(template)
	w.reconcilesPools(w.poolController())
	if w.read(np); poolCondition(np, v1alpha1.ConditionHeadroomReady).Type != "" {
		t.Error("the pool keeps headroom for a template that is gone")
	}
}
