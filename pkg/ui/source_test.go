package ui_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/explain"
	"karve.sh/karve/pkg/snapshot/snapshottest"
	"karve.sh/karve/pkg/ui"
)

func TestSourceIsReadAgain(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Now())
	types, note, err := cloud.SameForAll{{Name: "built in"}}, "nothing is published", error(nil)
	reads := 0
	c, first := ui.NewSource(t.Context(), clk, func(context.Context) (published.Source, error) {
		reads++
		return published.Source{Catalog: types, Builtin: note}, err
	})
	if first != nil {
		t.Fatal(first)
	}
	wantTypes := func(when, name, note string, n int) {
		t.Helper()
		listing := c.InstanceTypes(t.Context(), &unstructured.Unstructured{})
		if listing.InstanceTypes[0].Name != name || c.Note() != note || reads != n {
			t.Errorf("%s: %s, %q after %d reads; want %s, %q after %d", when, listing.InstanceTypes[0].Name, c.Note(), reads, name, note, n)
		}
	}
	types, note = cloud.SameForAll([]catalog.InstanceType{{Name: "published"}}), ""
	clk.Step(19 * time.Second)
	wantTypes("after 19 seconds", "built in", "nothing is published", 1)
	clk.Step(time.Second)
	wantTypes("after 20 seconds", "published", "", 2)
	types = cloud.SameForAll([]catalog.InstanceType{{Name: "published later"}})
	clk.Step(4 * time.Minute)
	wantTypes("after four more minutes", "published", "", 2)
	clk.Step(time.Minute)
	wantTypes("after five", "published later", "", 3)
	err = errors.New("the API server is away")
	clk.Step(5 * time.Minute)
	wantTypes("when it cannot be read", "published later", "", 4)
	clk.Step(time.Minute)
	wantTypes("a minute later", "published later", "", 4)
}

func TestSourceReportsFirstError(t *testing.T) {
	t.Parallel()
	want := errors.New("the API server is away")
	if _, err := ui.NewSource(t.Context(), clocktesting.NewFakeClock(time.Now()), func(context.Context) (published.Source, error) { return published.Source{}, want }); !errors.Is(err, want) {
		t.Errorf("the error is %v, want %v", err, want)
	}
}

// TestPageAndCommandExplainWithSettingsAndBudgets compares the page's answers about two nodes with those of kubectl karve explain. One node is idle, and the
// controller watches it for a minute before it is deleted. The other one has drifted, and a PodDisruptionBudget keeps its pods.
func TestPageAndCommandExplainWithSettingsAndBudgets(t *testing.T) {
	t.Parallel()
	c := snapshottest.Shared()
	c.NodePools[0].Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "100%"}}
	for _, name := range []string{"idle", "drifted", "other"} {
		kind := snapshottest.TypeNamed("g4dn.xlarge")
		claim := snapshottest.Claim(name, &c.NodePools[0], kind, snapshottest.Initialized(snapshottest.Now.Add(-time.Hour)))
		node := snapshottest.Node(&claim, kind, 10)
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(snapshottest.Now)}}
		switch name {
		case "idle":
			node.Annotations[v1alpha1.IdleSinceAnnotation] = snapshottest.Now.Add(-3 * time.Minute).UTC().Format(time.RFC3339)
		case "drifted":
			claim.Annotations[karpv1.NodePoolHashAnnotationKey], claim.Annotations[karpv1.NodePoolHashVersionAnnotationKey] = "1", karpv1.NodePoolHashVersion
		}
		if name != "idle" {
			c.Pods = append(c.Pods, snapshottest.Pods(name, 2, snapshottest.Running(name), snapshottest.OwnedBy("apps/v1", "ReplicaSet", "web"), func(p *corev1.Pod) {
				p.Labels = map[string]string{"app": "web"}
			})...)
		}
		c.NodeClaims, c.Nodes = append(c.NodeClaims, claim), append(c.Nodes, node)
	}
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, MaxUnavailable: new(intstr.FromInt32(0))},
	}
	settings := published.DefaultSettings()
	settings.SettleDuration.Duration, settings.ReplicasTimeout.Duration = time.Minute, 20*time.Minute
	encoded, err := published.Encode(published.Catalog{{Group: "g", Kind: "K", Name: "n"}: {}})
	if err != nil {
		t.Fatal(err)
	}
	clk := clocktesting.NewFakeClock(snapshottest.Now)
	m := published.ConfigMap("karve-system", encoded, published.Quotas{}, "v1", settings, clk.Now())
	live := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(budget, m).Build()
	page, err := ui.NewSource(t.Context(), clk, func(ctx context.Context) (published.Source, error) {
		return published.OrBuiltin(ctx, live, "karve-system", nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	if page.Note() != "" || page.Settings().ReplicasTimeout.Duration != 20*time.Minute {
		t.Errorf("note %q, replicas timeout %s", page.Note(), page.Settings().ReplicasTimeout.Duration)
	}
	shown := page.Explainer(t.Context(), live, func(err error) { t.Error(err) })(c)
	printed, err := ui.Explain(t.Context(), live, settings, clk, c)
	if err != nil {
		t.Fatal(err)
	}
	standard, err := ui.Explain(t.Context(), fake.NewClientBuilder().WithScheme(scheme.Scheme).Build(), published.DefaultSettings(), clk, c)
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{"idle", "drifted"} {
		var answers [3]explain.NodeAnswer
		for i, x := range []*explain.Explainer{shown, printed, standard} {
			if answers[i], err = x.Node(node); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(answers[0], answers[1]); diff != "" {
			t.Errorf("%s: (-page +explain)\n%s", node, diff)
		}
		if cmp.Equal(answers[0], answers[2]) {
			t.Errorf("%s: settings and budgets change nothing: %s", node, answers[0].Summary)
		}
	}
}
