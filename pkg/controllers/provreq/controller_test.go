package provreq_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud"
	controller "karve.sh/karve/pkg/controllers/provreq"
	"karve.sh/karve/pkg/fleet/launching"
	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planning"
	"karve.sh/karve/pkg/provreq"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// request returns a ProvisioningRequest for pods of a PodTemplate.
func request(name, class, template string, pods int64, created time.Time) *unstructured.Unstructured {
	r := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"provisioningClassName": class, "podSets": []any{map[string]any{"podTemplateRef": map[string]any{"name": template}, "count": pods}},
	}}}
	r.SetGroupVersionKind(provreq.Kind)
	r.SetNamespace("default")
	r.SetName(name)
	r.SetCreationTimestamp(metav1.NewTime(created))
	return r
}

// TestControllerWritesConditionsOnce has requests of Karve's classes and of another one.
func TestControllerWritesConditionsOnce(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	scheme, err := gather.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	pod := snapshottest.Pod("", snapshottest.Asking("cpu", "100m"))
	pod.Spec.Containers[0].Resources.Limits = snapshottest.Amounts(v1alpha1.ResourceGPUShared, "1")
	template := &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "worker"}, Template: corev1.PodTemplateSpec{Spec: pod.Spec}}
	none := &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "none"}, Template: corev1.PodTemplateSpec{Spec: snapshottest.Pod("", snapshottest.Asking("cpu", "1")).Spec}}
	requests := []client.Object{
		request("train", provreq.Atomic, "worker", 3, clk.Now()), request("cpu", provreq.CheckCapacity, "none", 1, clk.Now()), request("lost", provreq.Atomic, "missing", 1, clk.Now()),
		request("foreign", "check-capacity.autoscaling.x-k8s.io", "worker", 1, clk.Now()),
	}
	kinds := meta.NewDefaultRESTMapper(nil)
	kinds.Add(provreq.Kind, meta.RESTScopeNamespace)
	writes := 0
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(append(requests, template, none)...).WithStatusSubresource(provreq.New()).Build()
	recorder := events.NewFakeRecorder(10)
	all := metrics.New(prometheus.NewRegistry())
	gatherer := &gather.Gatherer{Cached: c, Live: c, Mapper: kinds, Catalog: cloud.SameForAll(nil), Ledger: launching.NewLedger(), Clock: clk, Kinds: gather.Kinds{ProvisioningRequests: true}}
	r := &controller.Controller{Config: controller.Config{
		Client: c, Gatherer: gatherer, Planner: &planning.Planner{Clock: clk, Metrics: all, Budget: time.Second}, Recorder: recorder, Clock: clk,
	}}
	conditions := func(name string) string {
		t.Helper()
		o := request(name, "", "", 0, clk.Now())
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(o.Object["status"])
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	reconciles := func() {
		t.Helper()
		result, err := r.Reconcile(t.Context(), reconcile.Request{})
		if err != nil || result.RequeueAfter == 0 {
			t.Fatal(result, err)
		}
	}
	for range 2 {
		reconciles()
		for name, want := range map[string]string{"train": `"Failed"`, "cpu": `"NoSharedGPU"`, "lost": "null", "foreign": "null"} {
			if text := conditions(name); !strings.Contains(text, want) {
				t.Errorf("%s has %s, want %s", name, text, want)
			}
		}
		writes += len(recorder.Events)
		for len(recorder.Events) > 0 {
			t.Log(<-recorder.Events)
		}
		if writes != 2 {
			t.Errorf("there are %d events, want 2", writes)
		}
	}
	clk.Step(time.Minute)
	reconciles()
	if text := conditions("lost"); !strings.Contains(text, `"PodTemplateNotFound"`) {
		t.Errorf("lost has %s", text)
	}
}
