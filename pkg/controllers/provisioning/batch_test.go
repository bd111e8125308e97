package provisioning

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	testclock "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

var now = snapshottest.Now

func after(d time.Duration) time.Time { return now.Add(d) }

func TestEmptyBatchIsDue(t *testing.T) {
	t.Parallel()
	if wait := newBatch(time.Second, 10*time.Second).due(now); wait != 0 {
		t.Errorf("wait %s, want none", wait)
	}
}

func TestHurriedBatchIsDueAtOnce(t *testing.T) {
	t.Parallel()
	b := newBatch(time.Second, 10*time.Second)
	b.add("a", now)
	b.hurry()
	if wait := b.due(now); wait != 0 {
		t.Errorf("wait %s for pods that come, want none", wait)
	}
	b.add("b", now)
	if wait := b.due(now); wait != 0 {
		t.Errorf("wait %s although nothing was planned yet", wait)
	}
	b.planned()
	b.add("c", now)
	if wait := b.due(now); wait != time.Second {
		t.Errorf("wait %s after the plan, want a second", wait)
	}
}

func TestPodsThatWaitAtTheStartAreNotGathered(t *testing.T) {
	t.Parallel()
	c := New(Config{Gatherer: &gather.Gatherer{}, Clock: testclock.NewFakePassiveClock(now), BatchIdle: time.Second, BatchMax: 10 * time.Second})
	pods := snapshottest.Pods("web", 2)
	c.BatchPod(t.Context(), &pods[0])
	if wait := c.batch.due(now); wait != 0 {
		t.Errorf("the first plan waits %s", wait)
	}
	c.batch.planned()
	c.BatchPod(t.Context(), &pods[1])
	if wait := c.batch.due(now); wait != time.Second {
		t.Errorf("the second plan waits %s, want a second", wait)
	}
}

func TestHeldBackPlanExcludesGatheringPods(t *testing.T) {
	t.Parallel()
	b := newBatch(time.Second, 10*time.Second)
	b.add("a", now)
	if _, others := b.gathering(); others {
		t.Error("there is something to plan for besides the batch")
	}
	b.holdBack()
	if wait := b.due(now); wait != time.Second {
		t.Errorf("wait %s for pods that come, want a second", wait)
	}
	if pods, others := b.gathering(); !others || !pods.Equal(sets.New[types.UID]("a")) {
		t.Errorf("gathering %v, others %t", pods, others)
	}
	b.planned()
	if _, others := b.gathering(); others {
		t.Error("what was held back is planned again")
	}
}

func TestBatchClosesAfterIdleDuration(t *testing.T) {
	t.Parallel()
	b := newBatch(time.Second, 10*time.Second)
	b.add("a", now)
	b.add("b", after(500*time.Millisecond))
	if wait := b.due(after(time.Second)); wait != 500*time.Millisecond {
		t.Errorf("wait %s, want a second after the last pod", wait)
	}
	if wait := b.due(after(1500 * time.Millisecond)); wait != 0 {
		t.Errorf("wait %s, want none", wait)
	}
	if wait := b.due(after(1500 * time.Millisecond)); wait != 0 {
		t.Errorf("a closed batch waits %s", wait)
	}
}

func TestBatchClosesAfterMaxDuration(t *testing.T) {
	t.Parallel()
	b := newBatch(time.Second, 10*time.Second)
	for i := range 100 {
		b.add(types.UID(rune('a'+i)), after(time.Duration(i)*100*time.Millisecond))
	}
	if wait := b.due(after(9900 * time.Millisecond)); wait != 100*time.Millisecond {
		t.Errorf("wait %s, want the rest of ten seconds", wait)
	}
	if wait := b.due(after(10 * time.Second)); wait != 0 {
		t.Errorf("wait %s, want none", wait)
	}
}

func TestKnownPodDoesNotExtendBatch(t *testing.T) {
	t.Parallel()
	b := newBatch(time.Second, 10*time.Second)
	b.add("a", now)
	b.add("a", after(900*time.Millisecond)) // The pod's status was updated.
	if wait := b.due(after(time.Second)); wait != 0 {
		t.Errorf("wait %s, want none", wait)
	}
	b.keep(sets.New[types.UID]("a"))
	b.add("a", after(2*time.Second))
	if wait := b.due(after(2 * time.Second)); wait != 0 {
		t.Errorf("a pod that was planned for opened another batch: wait %s", wait)
	}
	b.keep(sets.New[types.UID]())
	b.add("a", after(3*time.Second))
	if wait := b.due(after(3 * time.Second)); wait != time.Second {
		t.Errorf("a pod that waits again does not open a batch: wait %s", wait)
	}
}

func TestPodPlannedOnArrivalDoesNotExtendBatch(t *testing.T) {
	t.Parallel()
	b := newBatch(time.Second, 10*time.Second)
	uids := func(uids ...types.UID) (pods []*corev1.Pod) {
		for _, uid := range uids {
			pods = append(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: string(uid), UID: uid}})
		}
		return pods
	}
	b.add("a", now)
	b.due(after(time.Second))
	b.add("b", after(time.Second)) // between the end of the batch and the read of the cluster
	if fresh, came := b.take(uids("a", "b", "c")); len(fresh) != 3 || !slices.Equal(came, []time.Time{now, after(time.Second)}) {
		t.Errorf("new: %v, want 3 pods; came at %v", fresh, came)
	}
	b.add("c", after(time.Second)) // The watch's handler runs after the cache has the pod.
	if wait := b.due(after(time.Second)); wait != 0 {
		t.Errorf("wait %s for pods that a plan was for, want none", wait)
	}
	b.add("d", after(time.Second))
	if fresh, came := b.take(uids("a", "b", "c", "d")); len(came) != 1 || !slices.Equal(fresh, []string{"default/d"}) {
		t.Errorf("new: %v, want the pod d; came at %v", fresh, came)
	}
}

func TestScheduledPodNeitherExtendsNorClosesBatch(t *testing.T) {
	t.Parallel()
	b := newBatch(time.Minute, time.Minute)
	b.add("finds-room", now)
	b.add("does-not", after(30*time.Second))
	b.drop("finds-room")
	if wait := b.due(after(50 * time.Second)); wait != 40*time.Second {
		t.Errorf("wait %s, want a minute after the pod that still waits", wait)
	}
	b.add("finds-room", after(55*time.Second)) // an old event
	if wait := b.due(after(60 * time.Second)); wait != 30*time.Second {
		t.Errorf("wait %s, want a minute after the pod that still waits", wait)
	}
	b.drop("does-not")
	b.drop("never-seen")
	if wait := b.due(after(61 * time.Second)); wait != 0 {
		t.Errorf("wait %s without pods, want none", wait)
	}
}

func TestBatchWaitStaysWithinBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		idle := time.Duration(rapid.IntRange(1, 1000).Draw(t, "idle")) * time.Millisecond
		longest := idle + time.Duration(rapid.IntRange(0, 5000).Draw(t, "more"))*time.Millisecond
		b, at := newBatch(idle, longest), now
		var first time.Time
		for range rapid.IntRange(1, 30).Draw(t, "pods") {
			pod := types.UID(rapid.StringN(1, 2, 2).Draw(t, "uid"))
			if rapid.Bool().Draw(t, "untried") {
				b.extend(pod, at)
			} else if b.add(pod, at); first.IsZero() {
				first = at
			}
			wait := b.due(at)
			if first.IsZero() && wait > 0 {
				t.Fatal("an untried pod begins a batch")
			}
			if wait > idle || at.Add(wait).After(first.Add(longest)) && wait > 0 {
				t.Fatalf("wait %s at %s with the first pod at %s (idle %s, longest %s)", wait, at, first, idle, longest)
			}
			if wait == 0 {
				first = time.Time{}
			}
			at = at.Add(time.Duration(rapid.IntRange(0, 1500).Draw(t, "pause")) * time.Millisecond)
		}
	})
}

func TestOnlyUnderutilizedMachinesWaitForBatch(t *testing.T) {
	t.Parallel()
	c := snapshottest.Shared()
	for name, x := range map[string]struct {
		reason   string
		deleting bool
		want     bool
	}{
		"an underutilized machine":                 {"Underutilized", false, true},
		"an underutilized machine that is deleted": {"Underutilized", true, false},
		"a drifted machine":                        {"Drifted", false, false},
		"a deleted machine":                        {"", true, false},
	} {
		claim := snapshottest.Claim("m", &c.NodePools[0], snapshottest.TypeNamed("g4dn.xlarge"), snapshottest.Launched(now))
		if x.reason != "" {
			claim.Annotations[v1alpha1.ReplacingAnnotation] = x.reason
		}
		if x.deleting {
			claim.DeletionTimestamp = &metav1.Time{Time: now}
		}
		if got := patient(&claim); got != x.want || !leaving(&claim) {
			t.Errorf("%s: patient = %v, want %v; leaving = %v", name, got, x.want, leaving(&claim))
		}
	}
}
