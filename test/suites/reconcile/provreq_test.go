package reconcile

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/provreq"
	"karve.sh/karve/pkg/snapshot/snapshottest"
	"karve.sh/karve/test/harness/batch"
)

// request creates a ProvisioningRequest and its PodTemplate, and makes controllers that are started from now on read such requests.
func (w *world) request(name, class string, pods int64) *unstructured.Unstructured {
	w.t.Helper()
	crd, err := batch.ProvisioningRequests(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.server.ApplyCRDs(w.t.Context(), crd); err != nil {
		w.t.Fatal(err)
	}
	w.requests, w.gatherer.ProvisioningRequests = true, true
	pod := snapshottest.Pod("")
	pod.Spec.Containers[0].Image = "app"
	delete(pod.Spec.Containers[0].Resources.Requests, v1alpha1.ResourceGPUShared)
	pod.Spec.Containers[0].Resources.Limits = snapshottest.Amounts(v1alpha1.ResourceGPUShared, "1")
	template := &corev1.PodTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Template:   corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}}, Spec: pod.Spec},
	}
	w.create(template)
	r := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"provisioningClassName": class, "podSets": []any{map[string]any{"podTemplateRef": map[string]any{"name": name}, "count": pods}},
	}}}
	r.SetGroupVersionKind(provreq.Kind)
	r.SetNamespace("default")
	r.SetName(name)
	w.create(r)
	w.t.Cleanup(func() { w.emptyRequests(cleanup(w.t)) })
	return r
}

// emptyRequests deletes all requests and their PodTemplates.
func (w *world) emptyRequests(ctx context.Context) {
	w.t.Helper()
	for _, o := range []client.Object{provreq.New(), &corev1.PodTemplate{}} {
		if err := w.DeleteAllOf(ctx, o, client.InNamespace("default")); err != nil {
			w.t.Fatal(err)
		}
	}
}

// conditionsOf returns the conditions of a request.
func (w *world) conditionsOf(r *unstructured.Unstructured) []metav1.Condition {
	w.t.Helper()
	w.read(r)
	var is struct {
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(r.Object, &is); err != nil {
		w.t.Fatal(err)
	}
	return is.Status.Conditions
}

// wantRequest checks a condition of a request.
func (w *world) wantRequest(r *unstructured.Unstructured, condition, status, reason, message string) {
	w.t.Helper()
	all := w.conditionsOf(r)
	c := apimeta.FindStatusCondition(all, condition)
	if c == nil || string(c.Status) != status || c.Reason != reason || !strings.Contains(c.Message, message) {
		w.t.Errorf("%s is not %s %s with %q: %+v", condition, status, reason, message, all)
	}
}

// consumer is a pod that takes the room of the request train.
func consumer(pod *corev1.Pod) {
	web(pod)
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, provreq.ConsumeAnnotation, "train")
}

// TestProvisioningRequestHasItsNodesOnce follows a request from its creation to the end of its booking. The controllers restart at each step.
func TestProvisioningRequestHasItsNodesOnce(t *testing.T) {
	w := newWorld(t)
	w.class("atomic", func(c *v1alpha1.GPUNodeClass) { c.Spec.Consolidation.IdleAfter = "1m" })
	w.pool("atomic", snapshottest.Requiring(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "g4dn.xlarge"),
		snapshottest.Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, karpv1.CapacityTypeOnDemand))
	r := w.request("train", provreq.Atomic, 11)
	made := 0
	minutes := func(n int) {
		t.Helper()
		for range n {
			l := w.live(1000)
			l.simulates(1)
			made += l.made
		}
	}
	minutes(1)
	w.wantClaims(2)
	w.wantRequest(r, provreq.Accepted, "True", "Accepted", "Karve plans for 11 pods")
	w.wantRequest(r, provreq.Provisioned, "False", "NodesAreStarting", "($1.052 per hour) have not started with room for 11 of 11 pods")
	minutes(4)
	w.wantClaims(2)
	w.wantRequest(r, provreq.Provisioned, "True", "CapacityIsProvisioned", "($1.052 per hour) have room for 11 pods until ")
	since := apimeta.FindStatusCondition(w.conditionsOf(r), provreq.Provisioned).LastTransitionTime

	// Pods take the room, and nothing else is launched.
	w.pods("worker", 4, consumer)
	minutes(3)
	w.wantClaims(2)
	if waiting := len(w.podsOf("")); waiting > 0 {
		t.Errorf("%d pods wait", waiting)
	}
	if apimeta.FindStatusCondition(w.conditionsOf(r), provreq.BookingExpired) != nil {
		t.Error("the booking has expired already")
	}

	// The room of the others is kept for ten minutes. Then one machine goes.
	w.clock.SetTime(since.Add(10 * time.Minute))
	minutes(8)
	w.wantRequest(r, provreq.BookingExpired, "True", "CapacityReservationTimeExpired", "4 of 11 pods came within 10m0s")
	w.wantClaims(1)
	if made != 2 {
		t.Errorf("%d machines were launched, want 2", made)
	}
}

// TestProvisioningRequestThatCannotBeServedFailsAtOnce names the limit and the price.
func TestProvisioningRequestThatCannotBeServedFailsAtOnce(t *testing.T) {
	w := newWorld(t)
	w.shared("small", func(np *karpv1.NodePool) {
		np.Spec.Limits = karpv1.Limits(snapshottest.Amounts(v1alpha1.ResourceGPU, "1"))
	})
	r := w.request("train", provreq.Atomic, 21)
	other := w.request("foreign", "best-effort-atomic-scale-up.autoscaling.x-k8s.io", 1)
	w.live(1000).reconcilesAll()
	w.wantClaims(0)
	w.wantRequest(r, provreq.Failed, "True", "NothingFits", "spec.limits of NodePool small would allow nodes for only 10 of its 21 pods: raise them, or ask for fewer pods; ")
	w.wantRequest(r, provreq.Failed, "True", "NothingFits", "3 new nodes would cost $1.578 per hour")
	if all := w.conditionsOf(other); len(all) > 0 {
		t.Errorf("a request of another class has %+v", all)
	}
}
