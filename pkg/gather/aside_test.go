package gather

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
	"karve.sh/karve/pkg/watchdog"
)

// watched gives the Gatherer a Watchdog that stores nothing.
func (b testbed) watched(limit time.Duration) *watchdog.Watchdog {
	all := metrics.New(prometheus.NewRegistry())
	b.Watchdog = watchdog.New(limit, watchdog.Store{}, all.StepOverruns, all.SetAside)
	return b.Watchdog
}

// unplaced returns why pods have no place, by name.
func unplaced(c *facts.Cluster) map[string]planner.Refusal {
	for ref, state := range c.NodeClasses {
		state.Ready = true
		c.NodeClasses[ref] = state
	}
	all := map[string]planner.Refusal{}
	for _, u := range solve.Plan(snapshot.Build(c).Snapshot).Unplaced {
		all[u.Pod] = u.Refusal
	}
	return all
}

func TestPodIsLeftOutUntilItChanges(t *testing.T) {
	t.Parallel()
	for _, followed := range []bool{true, false} {
		b := newTestbed()
		aside := b.watched(time.Minute).Aside
		if followed {
			b.follow(t)
		}
		bad := pod("bad")
		bad.Annotations = map[string]string{v1alpha1.GPUMemoryAnnotation: "2Gi"}
		sibling := bad.DeepCopy()
		sibling.Name, sibling.UID = "sibling", "sibling"
		b.cached.set(pod("good"), bad, sibling)
		if all := unplaced(b.look(t)); len(all) > 0 {
			t.Fatalf("before: %v", all)
		}
		aside.Add(watchdog.ObjectOf("Pod", bad), watchdog.View, b.clock.Now())
		for range 2 { // The first read finds out what the pod is like.
			all := unplaced(b.look(t))
			if got := all["default/bad"]; got.Reason != planner.ReasonSetAside || !strings.Contains(got.Message, "step view took too long at Pod default/bad") {
				t.Errorf("followed: %t: it is told %+v", followed, got)
			}
			if _, left := all["default/good"]; left {
				t.Errorf("followed: %t: the other pod is left out too", followed)
			}
			aside.Add(watchdog.Object{}, watchdog.View, b.clock.Now()) // Everything is read again.
		}
		if got := unplaced(b.look(t))["default/sibling"]; got.Reason != planner.ReasonSetAside {
			t.Errorf("followed: %t: a pod like it is told %+v", followed, got)
		}
		mended := bad.DeepCopy()
		mended.Annotations[v1alpha1.GPUMemoryAnnotation], mended.ResourceVersion = "1Gi", "2"
		b.cached.set(mended)
		if got, left := unplaced(b.look(t))["default/bad"]; left {
			t.Errorf("followed: %t: after its change it is told %+v", followed, got)
		}
	}
}

func TestNodeOfPodThatIsSetAsideStays(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	aside := b.watched(time.Minute).Aside
	b.follow(t)
	running := pod("bad")
	running.Spec.NodeName, running.Status.Phase = "n", corev1.PodRunning
	b.cached.set(running)
	b.look(t)
	aside.Add(watchdog.ObjectOf("Pod", running), watchdog.View, b.clock.Now())
	want := snapshottest.Pod("bad")
	if got := b.look(t).Indexed().Pod("default/bad"); got == nil {
		t.Error("the pod is gone")
	} else if got.Spec.NodeName != "n" || got.Annotations[karpv1.DoNotDisruptAnnotationKey] != "true" || facts.GPURequestOf(got) != facts.GPURequestOf(&want) {
		t.Errorf("the pod is %+v", got)
	}
}

func TestPoolThatIsSetAsideLaunchesNothing(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	aside := b.watched(time.Minute).Aside
	b.follow(t)
	b.cached.set(pod("good"))
	pool := b.look(t).NodePools[0]
	aside.Add(watchdog.ObjectOf("NodePool", &pool), watchdog.View, b.clock.Now())
	pools := snapshot.Pools(b.look(t))
	if len(pools) != 1 || len(pools[0].Problems) != 1 || !strings.Contains(pools[0].Problems[0].Message, "at NodePool "+pool.Name) || len(pools[0].Offerings) > 0 {
		t.Errorf("the pool is %+v", pools)
	}
}

func TestReadAfterOverrunReadsEverything(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTestbed()
		b.DRA = true
		w := b.watched(watchdog.Limit)
		b.follow(t)
		claiming := pod("claiming")
		claiming.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("claim")}}
		b.cached.set(pod("good"), claiming)
		w.Inject = func(step watchdog.Step, o watchdog.Object) {
			if step == watchdog.Gather && o.Name == "default/claiming" {
				time.Sleep(watchdog.Limit + time.Second)
			}
		}
		if _, err := b.Cluster(t.Context()); err == nil {
			t.Fatal("want an overrun")
		}
		w.Inject = nil
		if n := len(b.look(t).Indexed().Pending()); n != 2 {
			t.Errorf("the next read has %d pods, want 2", n)
		}
	})
}
