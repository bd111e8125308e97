package gather

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

var volcano = schema.GroupVersionKind{Group: string(facts.VolcanoGroups), Version: "v1beta1", Kind: "PodGroup"}

// volcanoGroup returns a PodGroup as the caches have it.
func volcanoGroup(t *testing.T, minimum int64, version string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"minMember": minimum, "queue": "q"}, "status": map[string]any{"running": version}}}
	u.SetGroupVersionKind(volcano)
	u.SetNamespace("ml")
	u.SetName("train")
	u.SetResourceVersion(version)
	trimmed, err := Trim()(u)
	if err != nil {
		t.Fatal(err)
	}
	return trimmed.(*unstructured.Unstructured)
}

func TestPodGroupsAreReadWhenTheyChange(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	b.PodGroups = []schema.GroupVersionKind{volcano}
	key := facts.GroupKey{API: facts.VolcanoGroups, Namespace: "ml", Name: "train"}
	b.cached.set(volcanoGroup(t, 4, "1"))
	if groups := b.look(t).PodGroups; groups.All[key].Min != 4 || !groups.Served[facts.VolcanoGroups] || groups.Served[facts.KAIGroups] {
		t.Errorf("they are %+v", groups)
	}
	b.follow(t)
	first := b.look(t)
	b.cached.set(volcanoGroup(t, 4, "2"))
	if again := b.look(t); again.Generation != first.Generation {
		t.Error("a change that no decision reads makes another cluster")
	}
	b.cached.set(volcanoGroup(t, 5, "3"))
	if changed := b.look(t); changed.Generation == first.Generation || changed.PodGroups.All[key].Min != 5 {
		t.Errorf("after a change, they are %+v", changed.PodGroups)
	}
	b.cached.counts()
	b.look(t)
	if n := b.cached.counts()["unstructured PodGroupList"]; n > 0 {
		t.Errorf("they are listed %d times though nothing changed", n)
	}
}

// forbidding is a reader that refuses PodGroups.
type forbidding struct{ client.Reader }

func (f forbidding) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if _, ok := list.(*unstructured.UnstructuredList); ok && list.GetObjectKind().GroupVersionKind().Kind == "PodGroupList" {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "podgroups"}, "", nil)
	}
	return f.Reader.List(ctx, list, options...)
}

func TestPodGroupsThatAUserMayNotReadAreNotServed(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	b.PodGroups, b.Cached = []schema.GroupVersionKind{volcano}, forbidding{b.cached}
	if groups := b.look(t).PodGroups; groups.Served[facts.VolcanoGroups] {
		t.Errorf("they are %+v", groups)
	}
}

func TestGroupOfAPodIsKept(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*corev1.Pod){
		"schedulingGroup": func(p *corev1.Pod) { p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("train")} },
		"label":           snapshottest.WithLabels(facts.PluginGroupLabel, "train"),
		"Volcano":         func(p *corev1.Pod) { p.Annotations = map[string]string{facts.VolcanoGroupAnnotation: "train"} },
		"KAI":             func(p *corev1.Pod) { p.Annotations = map[string]string{facts.KAIGroupAnnotation: "train"} },
		"Kueue": func(p *corev1.Pod) {
			snapshottest.WithLabels(facts.KueueGroupLabel, "train")(p)
			p.Annotations = map[string]string{facts.KueueTotalAnnotation: "3"}
		},
	} {
		whole := snapshottest.Pod("a", edit)
		want, err := facts.MembershipOf(&whole)
		if err != nil || want.Group.Name != "train" {
			t.Fatalf("%s: %+v, %v", name, want, err)
		}
		trimmed := copies(t, Trim(), []corev1.Pod{whole})[0]
		if got, err := facts.MembershipOf(&trimmed); err != nil || got != want {
			t.Errorf("%s: it is %+v, %v", name, got, err)
		}
	}
}
