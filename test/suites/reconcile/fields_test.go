package reconcile

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// gains adds a field to a CRD, as a later version of the CRD would, until the test ends.
func (w *world) gains(crd, path string) {
	w.t.Helper()
	patch := func(ctx context.Context, op string) error {
		o := &unstructured.Unstructured{}
		o.SetAPIVersion("apiextensions.k8s.io/v1")
		o.SetKind("CustomResourceDefinition")
		o.SetName(crd)
		where := "/spec/versions/0/schema/openAPIV3Schema/properties/" + strings.ReplaceAll(path, ".", "/properties/")
		return w.Patch(ctx, o, client.RawPatch(types.JSONPatchType, fmt.Appendf(nil,
			`[{"op":%q,"path":%q,"value":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}]`, op, where)))
	}
	if err := patch(w.t.Context(), "add"); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := patch(cleanup(w.t), "remove"); err != nil {
			w.t.Error(err)
		}
	})
}

// sets writes the field once the API server stores it, which is a moment after the change of the CRD.
func (w *world) sets(o client.Object, apiVersion, kind, path string) {
	w.t.Helper()
	fields := strings.Split(path, ".")
	if err := wait.PollUntilContextTimeout(w.t.Context(), 20*time.Millisecond, 20*time.Second, true, func(ctx context.Context) (bool, error) {
		u := &unstructured.Unstructured{Object: map[string]any{}}
		if err := unstructured.SetNestedField(u.Object, map[string]any{"maxPods": int64(3)}, fields...); err != nil {
			return false, err
		}
		u.SetAPIVersion(apiVersion)
		u.SetKind(kind)
		u.SetName(o.GetName())
		body, err := u.MarshalJSON()
		if err != nil {
			return false, err
		}
		if err := w.Patch(ctx, u, client.RawPatch(types.MergePatchType, body)); err != nil {
			return false, err
		}
		_, kept, err := unstructured.NestedMap(u.Object, fields...)
		return kept, err
	}); err != nil {
		w.t.Fatal(err)
	}
}

func TestUnknownFieldsAreReportedButDoNotBlockLaunches(t *testing.T) {
	w := newWorld(t)
	np := w.shared("newer")
	controller := w.poolController()
	w.reconciles(controller, "")
	w.wantCondition(np, v1alpha1.ConditionFieldsHonored, "True", "FieldsHonored")
	w.wantEvents(0, "")

	w.gains("nodepools.karpenter.sh", "spec.template.spec.kubelet")
	w.gains("gpunodeclasses.karve.sh", "spec.sharing.isolation")
	class := &v1alpha1.GPUNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "newer"}}
	w.sets(np, "karpenter.sh/v1", "NodePool", "spec.template.spec.kubelet")
	w.sets(class, v1alpha1.GroupVersion.String(), v1alpha1.Kind, "spec.sharing.isolation")
	w.reconcilesPools(controller)
	if c := w.wantCondition(np, v1alpha1.ConditionFieldsHonored, "False", "UnknownField"); c.ObservedGeneration != np.Generation ||
		c.Message != "spec.template.spec.kubelet is not known to this version of Karve and has no effect: remove it, or upgrade Karve" {
		t.Errorf("the condition is %+v", c)
	}
	w.wantCondition(np, status.ConditionReady, "True", "")
	w.wantEvents(1, "Warning UnknownField")
	w.read(class)
	if c := meta.FindStatusCondition(class.Status.Conditions, v1alpha1.ConditionFieldsHonored); c == nil || c.Status != metav1.ConditionFalse ||
		c.ObservedGeneration != class.Generation || !strings.HasPrefix(c.Message, "spec.sharing.isolation is not known") {
		t.Errorf("the condition of the class is %+v", c)
	}
	if !meta.IsStatusConditionTrue(class.Status.Conditions, v1alpha1.ConditionReady) {
		t.Errorf("the class is not ready: %+v", class.Status.Conditions)
	}
	w.pods("web", 1)
	w.reconciles(w.provisioning(), "")
	w.wantClaims(1)
}

func TestUnhonoredFieldIsReportedByPool(t *testing.T) {
	w := newWorld(t)
	np := w.shared("balanced", func(np *karpv1.NodePool) {
		np.Spec.Disruption.ConsolidationPolicy = karpv1.ConsolidationPolicyBalanced
	})
	controller := w.poolController()
	w.reconciles(controller, "")
	w.wantCondition(np, v1alpha1.ConditionFieldsHonored, "False", "UnsupportedConsolidationPolicy")
	w.wantCondition(np, status.ConditionReady, "True", "")
	np.Spec.Disruption.ConsolidationPolicy = karpv1.ConsolidationPolicyWhenEmpty
	w.update(np)
	w.reconcilesPools(controller)
	w.wantCondition(np, v1alpha1.ConditionFieldsHonored, "True", "")
}
