package planning

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

func untried(pod *corev1.Pod) { pod.Status.Conditions = nil }

func at(when time.Time) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.CreationTimestamp = metav1.NewTime(when) }
}

func TestSchedulerIsAliveWhileItTriesPods(t *testing.T) {
	t.Parallel()
	type state struct{ open, alive bool }
	for name, c := range map[string]struct {
		saw  func(*ReadAhead)
		want map[time.Duration]state
	}{
		"unknown after a start": {nil, map[time.Duration]state{0: {true, false}, silence: {true, false}, silence + 1: {false, false}}},
		"a pod is marked": {
			func(r *ReadAhead) { r.Saw(new(Pod("a", untried)), new(Pod("a")), Now) },
			map[time.Duration]state{0: {true, true}, silence: {true, true}, silence + 1: {false, false}},
		},
		"a pod is bound": {
			func(r *ReadAhead) { r.Saw(new(Pod("a")), new(Pod("a", Running("node"))), Now.Add(time.Second)) },
			map[time.Duration]state{silence + time.Second: {true, true}, silence + time.Second + 1: {false, false}},
		},
		"another scheduler binds a pod": {
			func(r *ReadAhead) {
				other := func(p *corev1.Pod) { p.Spec.SchedulerName = "other" }
				r.Saw(new(Pod("a", untried, other)), new(Pod("a", other, Running("node"))), Now)
			},
			map[time.Duration]state{0: {true, false}, silence + 1: {false, false}},
		},
		"somebody changes a pod": {
			func(r *ReadAhead) { r.Saw(new(Pod("a")), new(Pod("a", WithLabels("x", "y"))), Now) },
			map[time.Duration]state{0: {true, false}},
		},
	} {
		r := &ReadAhead{}
		r.of(Now)
		if c.saw != nil {
			c.saw(r)
		}
		for after, want := range c.want {
			if got := r.of(Now.Add(after)); got.Open != want.open || got.Alive != want.alive {
				t.Errorf("%s, after %s: open %t, alive %t", name, after, got.Open, got.Alive)
			}
		}
	}
}

func TestNewestPodThatWasTriedIsRemembered(t *testing.T) {
	t.Parallel()
	r := &ReadAhead{}
	r.Saw(new(Pod("a", untried, at(Now.Add(time.Minute)))), new(Pod("a", at(Now.Add(time.Minute)))), Now)
	r.Saw(new(Pod("b", untried, at(Now))), new(Pod("b", at(Now), Running("node"))), Now)
	r.Saw(new(Pod("c", at(Now.Add(time.Hour)))), new(Pod("c", at(Now.Add(time.Hour)), Running("node"))), Now) // It was tried before.
	if newest := r.of(Now).Tried[0]; !newest.Equal(Now.Add(time.Minute)) {
		t.Errorf("the newest is from %s", newest)
	}
	for i := range int32(2 * maxPriorities) {
		p := func(pod *corev1.Pod) { pod.Spec.Priority = &i }
		r.Saw(new(Pod("d", untried, p, at(Now))), new(Pod("d", p, at(Now))), Now)
	}
	if n := len(r.of(Now).Tried); n > maxPriorities {
		t.Errorf("%d priorities are remembered", n)
	}
}

func TestPodsThatWerePlannedStayInEveryView(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	b.ReadAhead = &ReadAhead{}
	cluster := func(generation uint64, marked int) *facts.Cluster {
		c := read(generation, marked)
		c.Pods = append(c.Pods, Pods("new", 3, untried, at(Now))...)
		return c
	}
	first := b.of(t, cluster(1, 1))
	if n := len(first.View.Pods); n != 4 {
		t.Fatalf("the first view has %d pods", n)
	}
	if n := len(b.of(t, cluster(2, 0)).View.Pods); n != 0 {
		t.Fatalf("a view without marked pods has %d pods", n)
	}
	plan := first.Plan(t.Context())
	if !b.ReadAhead.Planned(new(Pod("other", untried))) {
		t.Error("before the first plan, a pod of a former controller's plan is not nominated")
	}
	b.Adopt(&plan.View, plan.Plan)
	later := b.of(t, cluster(3, 0))
	if n := len(later.View.Pods); n != 3 || later.View.Unplanned().Len() > 0 {
		t.Fatalf("a later view has %d pods, %d of them unplanned", n, later.View.Unplanned().Len())
	}
	if !b.ReadAhead.Planned(later.View.Pods["default/new-000"]) || b.ReadAhead.Planned(new(Pod("other", untried))) {
		t.Error("pods are not told apart")
	}
	// A plugin holds them back: newer pods are tried. They keep their places for a while, and are not nominated.
	b.ReadAhead.Saw(new(Pod("x", untried, at(Now.Add(time.Minute)))), new(Pod("x", at(Now.Add(time.Minute)))), Now)
	if b.ReadAhead.Planned(later.View.Pods["default/new-000"]) {
		t.Error("a pod that the scheduler does not try is nominated")
	}
	if n := len(b.ReadAhead.of(Now.Add(plannedFor)).Planned); n != 3 {
		t.Errorf("%d pods keep their places", n)
	}
	if n := len(b.ReadAhead.of(Now.Add(plannedFor + 1)).Planned); n != 0 {
		t.Errorf("%d pods keep their places forever", n)
	}
	// A plan without a place for them has nothing to keep.
	b.Adopt(later.View, planner.Plan{})
	if n := len(b.of(t, cluster(4, 0)).View.Pods); n != 0 {
		t.Errorf("a view after another plan has %d pods", n)
	}
}

func TestViewDependsOnWhetherTheSchedulerIsAlive(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	b.ReadAhead = &ReadAhead{}
	first := b.of(t, read(1, 1))
	if b.of(t, read(1, 1)) != first {
		t.Error("the view is made again")
	}
	b.ReadAhead.Saw(new(Pod("x", untried)), new(Pod("x")), Now)
	if again := b.of(t, read(1, 1)); again == first || !again.View.ReadAhead().Alive {
		t.Error("the view is from before the scheduler's sign")
	}
}
