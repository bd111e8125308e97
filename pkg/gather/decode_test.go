package gather

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// encoded is a client of an API server that has objects as they are, and decodes them like a real client: all or none.
type encoded struct {
	client.Reader
	objects []map[string]any
	fails   error
}

func (e encoded) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if e.fails != nil {
		return e.fails
	}
	all, ok := list.(*unstructured.UnstructuredList)
	if !ok {
		items := make([]any, len(e.objects))
		for i, o := range e.objects {
			items[i] = o
		}
		return convert(map[string]any{"metadata": map[string]any{"resourceVersion": "7"}, "items": items}, list)
	}
	all.SetResourceVersion("7")
	for _, o := range e.objects {
		all.Items = append(all.Items, *(&unstructured.Unstructured{Object: o}).DeepCopy())
	}
	return nil
}

// rawPool returns a NodePool of Karve's as the API server has it.
func rawPool(t *testing.T, name string, edit func(spec map[string]any)) map[string]any {
	t.Helper()
	np := snapshottest.Pool(name, "gpu-shared")
	np.APIVersion, np.Kind = "karpenter.sh/v1", "NodePool"
	text, err := json.Marshal(&np)
	if err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(text); err != nil {
		t.Fatal(err)
	}
	spec, ok := o.Object["spec"].(map[string]any)
	if !ok {
		t.Fatal("no spec")
	}
	edit(spec)
	return o.Object
}

func TestOneObjectThatCannotBeDecodedLosesOnlyItsFields(t *testing.T) {
	t.Parallel()
	sound := rawPool(t, "sound", func(map[string]any) {})
	for name, c := range map[string]struct {
		edit  func(spec map[string]any)
		paths string
	}{
		"a quantity with a decimal exponent": {func(spec map[string]any) { spec["limits"] = map[string]any{"cpu": "1e2.5", "memory": "1Gi"} }, "spec.limits.cpu"},
		"a duration beyond 64 bits": {func(spec map[string]any) {
			spec["disruption"] = map[string]any{"consolidateAfter": "99999999999999999999h", "budgets": []any{map[string]any{"nodes": "1"}}}
		}, "spec.disruption.consolidateAfter"},
		"a text instead of a list": {func(spec map[string]any) {
			spec["template"].(map[string]any)["spec"].(map[string]any)["taints"] = "none"
		}, "spec.template.spec.taints"},
		"an element of a list": {func(spec map[string]any) {
			spec["template"].(map[string]any)["spec"].(map[string]any)["taints"] = []any{map[string]any{"key": "a", "effect": "NoSchedule"}, int64(5)}
		}, "spec.template.spec.taints[1]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from := encoded{objects: []map[string]any{rawPool(t, "odd", c.edit), sound}}
			if err := from.List(t.Context(), &karpv1.NodePoolList{}); err == nil {
				t.Fatal("the objects can be decoded together")
			}
			var all karpv1.NodePoolList
			if err := List(t.Context(), from, &all); err != nil {
				t.Fatal(err)
			}
			if len(all.Items) != 2 || all.ResourceVersion != "7" {
				t.Fatalf("%d objects of version %q are listed", len(all.Items), all.ResourceVersion)
			}
			odd, other := all.Items[0], all.Items[1]
			if odd.Name != "odd" || !facts.IsOurs(&odd) || !facts.IsSetAside(&odd) || !strings.Contains(fmt.Sprint(odd.Annotations), "cannot be read: "+c.paths+". ") {
				t.Errorf("the odd object is %+v", odd.ObjectMeta)
			}
			if len(odd.Spec.Disruption.Budgets) != 1 || odd.Spec.Disruption.Budgets[0].Nodes != "0" {
				t.Errorf("nodes of a pool that cannot be read may be disrupted: %+v", odd.Spec.Disruption.Budgets)
			}
			var want karpv1.NodePool
			if err := convert(sound, &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, other); diff != "" {
				t.Errorf("the other object (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAPoolWithAFieldThatCannotBeReadLaunchesNothingAndOthersDo(t *testing.T) {
	t.Parallel()
	c := snapshottest.Shared()
	c.NodePools = append(c.NodePools, *c.NodePools[0].DeepCopy())
	c.NodePools[1].Name = "odd"
	if err := setAsideWithout(&c.NodePools[1], []string{"spec.limits.cpu"}); err != nil {
		t.Fatal(err)
	}
	for _, p := range snapshot.Pools(c) {
		says := len(p.Problems) > 0 && strings.Contains(p.Problems[0].Message, "spec.limits.cpu")
		if says != (p.NodePool.Name == "odd") {
			t.Errorf("NodePool %s has the problems %+v", p.NodePool.Name, p.Problems)
		}
	}
	c.NodePools[1].Annotations = nil
	if err := setAsideWithout(&c.GPUNodeClasses[0], []string{"spec.sharing.replicas"}); err != nil {
		t.Fatal(err)
	}
	for _, p := range snapshot.Pools(c) {
		if len(p.Problems) == 0 || !strings.Contains(p.Problems[0].Message, "spec.sharing.replicas") {
			t.Errorf("NodePool %s has the problems %+v", p.NodePool.Name, p.Problems)
		}
	}
}

func TestOtherErrorsOfAListAreReturned(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]error{
		"forbidden": apierrors.NewForbidden(corev1.Resource("nodepools"), "", errors.New("no")), "any": errors.New("any"),
	} {
		if err := List(t.Context(), encoded{fails: fails}, &karpv1.NodePoolList{}); !errors.Is(err, fails) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
