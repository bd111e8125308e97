package provreq

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// requested has ProvisioningRequests, and the PodTemplate worker.
type requested struct {
	client.Reader
	texts   []string
	trimmed bool
}

func (r requested) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	for _, text := range r.texts {
		u := unstructured.Unstructured{}
		if err := u.UnmarshalJSON([]byte(text)); err != nil {
			return err
		}
		if r.trimmed {
			Trim(&u)
		}
		list.(*unstructured.UnstructuredList).Items = append(list.(*unstructured.UnstructuredList).Items, u)
	}
	return nil
}

func (r requested) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if template, ok := o.(*corev1.PodTemplate); ok && key == (client.ObjectKey{Namespace: "team", Name: "worker"}) {
		template.Template.Labels = map[string]string{"app": "train"}
		return nil
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

const (
	head   = `{"apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest", "metadata": {"namespace": "team", "uid": "1", "resourceVersion": "7", "generation": 2, `
	others = `, "status": {"provisioningClassDetails": {"a": "b"}, "conditions": [{"type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": "2026-03-01T12:00:00Z"}]}}`
)

// TestListReadsRequestsOfKarvesClasses reads them as the API server has them, and as the caches keep them.
func TestListReadsRequestsOfKarvesClasses(t *testing.T) {
	t.Parallel()
	from := requested{texts: []string{
		head + `"name": "second", "creationTimestamp": "2026-03-01T12:00:01Z"}, "spec": {"provisioningClassName": "check-capacity.karve.sh", "podSets": [{"podTemplateRef": {"name": "missing"}, "count": 1}],
			"parameters": {"noRetry": "true", "ValidUntilSeconds": "60", "other": "x"}}` + others,
		head + `"name": "first", "creationTimestamp": "2026-03-01T12:00:00Z", "annotations": {"a": "b"}}, "spec": {"provisioningClassName": "atomic.karve.sh",
			"podSets": [{"podTemplateRef": {"name": "worker"}, "count": 4}], "parameters": {"ValidUntilSeconds": "soon"}}` + others,
		head + `"name": "going", "creationTimestamp": "2026-03-01T12:00:00Z", "deletionTimestamp": "2026-03-01T12:00:00Z"}, "spec": {"provisioningClassName": "atomic.karve.sh"}` + others,
		head + `"name": "foreign", "creationTimestamp": "2026-03-01T12:00:00Z"}, "spec": {"provisioningClassName": "check-capacity.autoscaling.x-k8s.io"}` + others,
	}}
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	accepted := []metav1.Condition{{Type: Accepted, Status: metav1.ConditionTrue, Reason: "Accepted", LastTransitionTime: metav1.NewTime(at.Local())}}
	worker := corev1.PodTemplateSpec{}
	worker.Labels = map[string]string{"app": "train"}
	want := []Request{
		{
			Namespace: "team", Name: "first", ResourceVersion: "7", UID: "1", Generation: 2, Created: at.Local(), Class: Atomic, ValidFor: defaultValidity, Conditions: accepted,
			Sets: []PodSet{{TemplateName: "worker", Template: worker, Count: 4}},
		},
		{
			Namespace: "team", Name: "second", ResourceVersion: "7", UID: "1", Generation: 2, Created: at.Add(time.Second).Local(), Class: CheckCapacity, ValidFor: time.Minute, NoRetry: true,
			Conditions: accepted, Sets: []PodSet{{TemplateName: "missing", Missing: true, Count: 1}},
		},
	}
	for _, from.trimmed = range []bool{false, true} {
		got, err := List(t.Context(), from)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("trimmed %v: (-want +got):\n%s", from.trimmed, diff)
		}
	}
}

// TestTrimKeepsLittle trims what a tenant may make large.
func TestTrimKeepsLittle(t *testing.T) {
	t.Parallel()
	u := unstructured.Unstructured{}
	if err := u.UnmarshalJSON([]byte(head + `"name": "large", "annotations": {"a": "b"}}, "spec": {"provisioningClassName": "atomic.karve.sh", "parameters": {"other": "x"}}` + others)); err != nil {
		t.Fatal(err)
	}
	Trim(&u)
	text, err := u.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	for _, gone := range []string{"other", "provisioningClassDetails", "annotations"} {
		if strings.Contains(string(text), gone) {
			t.Errorf("%s is kept: %s", gone, text)
		}
	}
}

// TestPatchKeepsOtherConditions changes one of two conditions.
func TestPatchKeepsOtherConditions(t *testing.T) {
	t.Parallel()
	r := Request{Namespace: "team", Name: "train", ResourceVersion: "7", Conditions: []metav1.Condition{{Type: Accepted, Status: metav1.ConditionTrue, Reason: "A"}, {Type: Provisioned, Status: metav1.ConditionFalse, Reason: "B"}}}
	o, patch, err := r.Patch([]metav1.Condition{{Type: Provisioned, Status: metav1.ConditionTrue, Reason: "C"}})
	if err != nil {
		t.Fatal(err)
	}
	text, err := patch.Data(o)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Metadata struct{ ResourceVersion string }
		Status   struct{ Conditions []metav1.Condition }
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	var reasons []string
	for _, c := range got.Status.Conditions {
		reasons = append(reasons, c.Reason)
	}
	if diff := cmp.Diff([]string{"A", "C"}, reasons); diff != "" || got.Metadata.ResourceVersion != "7" || r.Conditions[1].Reason != "B" {
		t.Errorf("the patch is %s: %s", text, diff)
	}
}
