package chaos

import (
	"context"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// groupLabel is the label of the objects of a group, with its name.
const groupLabel = "example.com/group"

// group returns a PodGroup and the Deployment of its pods, all of which are needed at once. Ten pods fill the cheapest machine of each pool, and most groups need several machines.
func group(name, pool string, pods int32) []client.Object {
	labels := map[string]string{groupLabel: name}
	podGroup := object("scheduling.k8s.io/v1beta1", "PodGroup", name, map[string]any{"schedulingPolicy": map[string]any{"gang": map[string]any{"minCount": int64(pods)}}})
	podGroup.SetNamespace(namespace)
	podGroup.SetLabels(labels)
	template := podTemplate(name, pool, "300m", "1Gi")
	template.Labels[groupLabel] = name
	template.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &name}
	return []client.Object{podGroup, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}, Spec: appsv1.DeploymentSpec{
		Replicas: &pods, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}, Template: template,
	}}}
}

// mostGroups is how many groups there are at once.
const mostGroups = 2

// assemble creates a group. It deletes the oldest one first if there are enough, whether it has started or not.
func (w *world) assemble(ctx context.Context, pool string, pods int32) error {
	w.gangs++
	name := fmt.Sprint("gang-", w.gangs)
	if w.gangs > mostGroups {
		if err := w.dissolve(ctx, fmt.Sprint("gang-", w.gangs-mostGroups)); err != nil {
			return err
		}
	}
	w.logf("%s of %s needs %d pods at once", name, pool, pods)
	w.guard.expects(name, int(pods))
	for _, o := range group(name, pool, pods) {
		if err := w.create(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// dissolve deletes a group.
func (w *world) dissolve(ctx context.Context, name string) error {
	w.logf("%s goes", name)
	w.guard.forgets(name)
	for _, o := range group(name, steady, 1) {
		if err := w.insist(ctx, func(ctx context.Context) error {
			return client.IgnoreNotFound(w.api.Delete(ctx, o, client.PropagationPolicy(metav1.DeletePropagationBackground)))
		}); err != nil {
			return fmt.Errorf("deleting %T %s: %w", o, name, err)
		}
	}
	return nil
}

// dissolveAll deletes all groups.
func (w *world) dissolveAll(ctx context.Context) error {
	for i := max(1, w.gangs-mostGroups+1); i <= w.gangs; i++ {
		if err := w.dissolve(ctx, fmt.Sprint("gang-", i)); err != nil {
			return err
		}
	}
	return nil
}

// guardedGroup is what is seen of a group.
type guardedGroup struct {
	needs int
	bound map[types.UID]bool
	// half is since when it has some of its places, and not all. started reports whether it ever had all.
	half    time.Time
	started bool
	told    bool
}

// halfway is how long the scheduler may take to bind the pods of a group, while the API server may be down.
const halfway = time.Minute

// expects records that a group needs so many pods at once, and forgets records that it goes.
func (g *guard) expects(group string, pods int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.groups[group] = &guardedGroup{needs: pods, bound: map[types.UID]bool{}}
}

func (g *guard) forgets(group string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.groups, group)
}

// noteGroup records a watch event of a pod of a group. A group that has never had all of its places must not keep some.
func (g *guard) noteGroup(pod *corev1.Pod, gone bool, now time.Time) {
	if of := g.groups[pod.Labels[groupLabel]]; of != nil {
		if delete(of.bound, pod.UID); !gone && pod.Spec.NodeName != "" && pod.DeletionTimestamp.IsZero() {
			of.bound[pod.UID] = true
		}
		of.started = of.started || len(of.bound) >= of.needs
		if n := len(of.bound); n == 0 || n >= of.needs {
			of.half = time.Time{}
		} else if of.half.IsZero() {
			of.half = now
		}
	}
	for name, of := range g.groups {
		if !of.started && !of.told && !of.half.IsZero() && now.Sub(of.half) > halfway {
			of.told = true
			g.breached("%s: group %s has %d of %d places since %s", now.Format(clock), name, len(of.bound), of.needs, of.half.Format(clock))
		}
	}
}

func TestHalfAGroupIsABreach(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	pod := func(i int, node string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint(i)), Name: fmt.Sprint("gang-1-", i), Labels: map[string]string{groupLabel: "gang-1"}},
			Spec:       corev1.PodSpec{NodeName: node},
		}
	}
	late := began.Add(halfway + 1)
	for name, c := range map[string]struct {
		then func(g *guard)
		want int
	}{
		"nothing is bound": {func(g *guard) { g.note(pod(1, ""), false, late) }, 0},
		"half for long": {func(g *guard) {
			g.note(pod(1, "n"), false, began)
			g.note(pod(2, ""), false, late)
			g.note(pod(2, ""), false, late)
		}, 1},
		"half for a moment": {func(g *guard) {
			g.note(pod(1, "n"), false, began)
			g.note(pod(2, "n"), false, began.Add(halfway))
			g.note(pod(3, ""), false, late)
		}, 0},
		"half of a group that had started": {func(g *guard) {
			g.note(pod(1, "n"), false, began)
			g.note(pod(2, "n"), false, began)
			g.note(pod(2, "n"), true, began)
			g.note(pod(3, ""), false, late)
		}, 0},
		"half of a group that is gone": {func(g *guard) {
			g.note(pod(1, "n"), false, began)
			g.forgets("gang-1")
			g.note(pod(2, ""), false, late)
		}, 0},
		"half, and then nothing": {func(g *guard) {
			g.note(pod(1, "n"), false, began)
			g.note(pod(1, "n"), true, began.Add(1))
			g.note(pod(2, ""), false, late)
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGuard(nil, func(string) bool { return false }, t.Logf)
			g.expects("gang-1", 2)
			c.then(g)
			if got := g.found(); len(got) != c.want {
				t.Errorf("got %q, want %d breaches", got, c.want)
			}
		})
	}
}
