package reconcile

import (
	"context"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/prices"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

func (w *world) cluster() *facts.Cluster {
	w.t.Helper()
	c, err := w.gatherer.Cluster(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func TestNodeClassStates(t *testing.T) {
	w := newWorld(t)
	for name, conditions := range map[string][]any{
		"not-ready": {condition("False", 0)}, "stale": {condition("True", 9)}, "silent": {},
	} {
		inner := w.inner(name, conditions)
		w.create(inner)
		inner.Object["status"] = map[string]any{"conditions": conditions}
		w.updateStatus(inner)
	}
	for name, c := range map[string]struct {
		group, kind, inner string
		ready              bool
		reason, says       string
	}{
		"ready":      {innerClass.Group, innerClass.Kind, "gpu", true, "", ""},
		"not-ready":  {innerClass.Group, innerClass.Kind, "not-ready", false, "NodeClassNotReady", "words of Karpenter"},
		"stale":      {innerClass.Group, innerClass.Kind, "stale", false, "NodeClassNotObserved", ""},
		"silent":     {innerClass.Group, innerClass.Kind, "silent", false, "NodeClassNotReady", "no Ready condition"},
		"missing":    {innerClass.Group, innerClass.Kind, "missing", false, "NodeClassNotFound", `EC2NodeClass "missing" does not exist`},
		"no-kind":    {innerClass.Group, "Unknown", "gpu", false, "NodeClassKindUnknown", "no kind Unknown in group karpenter.k8s.aws"},
		"no-group":   {"example.com", "NodeClass", "gpu", false, "NodeClassKindUnknown", "in group example.com"},
		"ready-also": {innerClass.Group, innerClass.Kind, "gpu", true, "", ""},
	} {
		ref := v1alpha1.NodeClassReference{Group: c.group, Kind: c.kind, Name: c.inner}
		w.class(name, func(class *v1alpha1.GPUNodeClass) { class.Spec.NodeClassRef = ref })
		got, ok := w.cluster().NodeClasses[ref]
		if !ok || got.Ready != c.ready || got.Reason != c.reason || !strings.Contains(got.Message, c.says) {
			t.Errorf("%s: got %+v, want %s %q", name, got, c.reason, c.says)
		}
	}
}

func TestForbiddenNodeClassIsReportedAndBlocksNothingElse(t *testing.T) {
	w := newWorld(t)
	w.shared("forbidden")
	// The role allows listing everything but the cloud's node classes.
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "reads-little"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods", "nodes", "namespaces", "persistentvolumes", "persistentvolumeclaims"}, Verbs: []string{"list"}},
		{APIGroups: []string{"storage.k8s.io"}, Resources: []string{"storageclasses", "csinodes"}, Verbs: []string{"list"}},
		{APIGroups: []string{"apps"}, Resources: []string{"daemonsets"}, Verbs: []string{"list"}},
		{APIGroups: []string{"karpenter.sh"}, Resources: []string{"nodepools", "nodeclaims", "nodeoverlays"}, Verbs: []string{"list"}},
		{APIGroups: []string{"karve.sh"}, Resources: []string{"gpunodeclasses"}, Verbs: []string{"list"}},
	}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reads-little"}, Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "reads-little"}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reads-little"},
	}
	w.create(role)
	w.create(binding)
	t.Cleanup(func() {
		for _, o := range []client.Object{role, binding} {
			if err := w.Delete(cleanup(t), o); err != nil {
				t.Error(err)
			}
		}
	})
	path, err := w.server.KubeconfigFor("reads-little")
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	restricted, err := client.New(config, client.Options{Scheme: w.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	w.gatherer.Live, w.gatherer.Mapper = restricted, restricted.RESTMapper()
	var state facts.NodeClassState
	// The API server's authorizer watches roles, so it takes a moment.
	if err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, 20*time.Second, true, func(ctx context.Context) (bool, error) {
		c, err := w.gatherer.Cluster(ctx)
		if err != nil {
			return false, nil //nolint:nilerr // Forbidden until then.
		}
		state = c.NodeClasses[innerClass]
		return true, nil
	}); err != nil {
		t.Fatal(err)
	}
	if state.Reason != "NodeClassForbidden" || !strings.Contains(state.Message, "may not read") {
		t.Errorf("got %+v, want NodeClassForbidden", state)
	}
}

func TestLedgerLearnsFromEveryClass(t *testing.T) {
	w := newWorld(t)
	class := w.class("learnt")
	class.Status.RefusedOfferings = []v1alpha1.RefusedOffering{{
		InstanceType: "g4dn.xlarge", Zone: v1alpha1.Any, CapacityType: v1alpha1.Any, Failures: 2, NotBefore: metav1.NewTime(w.clock.Now()),
	}}
	w.updateStatus(class)
	if got := w.cluster().Refused["learnt"]; len(got) != 1 || got[0].Failures != 2 {
		t.Errorf("refused is %v", got)
	}
}

func TestOnlyValidatedNodeOverlaysCount(t *testing.T) {
	w := newWorld(t)
	w.class("gpu")
	for _, name := range []string{"valid", "unseen"} {
		o := &karpv1alpha1.NodeOverlay{ObjectMeta: metav1.ObjectMeta{Name: name}}
		o.Spec.Requirements = []karpv1alpha1.NodeSelectorRequirement{{Key: "node.kubernetes.io/instance-type", Operator: "In", Values: []string{"g4dn.xlarge"}}}
		o.Spec.Capacity, o.Spec.Price = snapshottest.Amounts(v1alpha1.ResourceGPUShared, "10"), new(map[string]string{"valid": "0.25", "unseen": "0.10"}[name])
		w.create(o)
		t.Cleanup(func() {
			if err := w.Delete(cleanup(t), o); err != nil {
				t.Error(err)
			}
		})
		if name == "valid" {
			o.StatusConditions().SetTrue(karpv1alpha1.ConditionTypeValidationSucceeded)
			w.updateStatus(o)
		}
	}
	if got := w.cluster().NodeOverlays; len(got) != 1 || got[0].Name != "valid" {
		t.Errorf("%d overlays, want the valid one", len(got))
	}
	price := func() int64 {
		for _, state := range w.cluster().NodeClasses {
			for _, o := range catalog.Named(state.InstanceTypes, "g4dn.xlarge").Offerings {
				return o.MicroUSDPerHour
			}
		}
		return 0
	}
	if got := price(); got != 250_000 {
		t.Errorf("with the overlay, a g4dn.xlarge costs %d micro-dollars, want 250000", got)
	}
	w.gatherer.Prices = func() []prices.Rule { return []prices.Rule{{Name: "discount", PriceAdjustment: "-20%"}} }
	if got := price(); got != 200_000 {
		t.Errorf("with a discount, it costs %d, want 200000", got)
	}
	w.gatherer.NodeOverlays = false
	if got := w.cluster().NodeOverlays; len(got) != 0 {
		t.Errorf("overlays are read where the API server does not serve them")
	}
}
