package provisioning

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

func TestPoolsTakeTurnsLaunching(t *testing.T) {
	t.Parallel()
	c := snapshottest.Shared()
	c.NodePools = append(c.NodePools, c.NodePools[0], c.NodePools[0])
	c.NodePools[1].Name, c.NodePools[2].Name = "stuck", "third"
	for i := range 3 {
		c.NodeClaims = append(c.NodeClaims, snapshottest.Claim(fmt.Sprintf("stuck-%d", i), &c.NodePools[1], snapshottest.TypeNamed("g4dn.xlarge")),
			snapshottest.Claim(fmt.Sprintf("launched-%d", i), &c.NodePools[1], snapshottest.TypeNamed("g4dn.xlarge"), snapshottest.Launched(c.Now)))
	}
	view := snapshot.Build(c)
	of := func(pools ...string) []planner.Launch {
		var launches []planner.Launch
		for _, pool := range pools {
			at := slices.IndexFunc(view.Snapshot.Offerings, func(o planner.Offering) bool { return view.Snapshot.Pools[o.Pool].Name == pool })
			launches = append(launches, planner.Launch{Offering: at})
		}
		return launches
	}
	for name, x := range map[string]struct {
		launches []planner.Launch
		window   int
		want     []int
	}{
		"all within the limit":                    {of("gpu-shared", "gpu-shared", "stuck"), 8, []int{0, 1, 2}},
		"one pool after another":                  {of("gpu-shared", "gpu-shared", "gpu-shared", "stuck", "third"), 6, []int{0, 3, 4}},
		"one for a pool without pending launches": {of("gpu-shared", "gpu-shared", "stuck", "third"), 3, []int{0, 3}},
		"none for a pool with pending launches":   {of("stuck", "stuck"), 3, nil},
		"none without launches":                   {nil, 8, nil},
		"none if the window is exceeded":          {of("stuck"), 1, nil},
		"a single pool fills the window":          {of("gpu-shared", "gpu-shared", "gpu-shared"), 5, []int{0, 1}},
	} {
		if got := inTurn(&view, x.launches, x.window); !slices.Equal(got, x.want) {
			t.Errorf("%s: %v, want %v", name, got, x.want)
		}
	}
}

func TestPodGroupWithoutAPlaceGetsOneEvent(t *testing.T) {
	t.Parallel()
	recorder, clock := events.NewFakeRecorder(100), testclock.NewFakePassiveClock(time.Now())
	c := New(Config{Recorder: recorder, Clock: clock})
	cluster := snapshottest.Shared()
	cluster.Pods = snapshottest.Pods("w", 3, func(p *corev1.Pod) { p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("train")} })
	cluster.PodGroups = facts.NewPodGroups(facts.PodGroupAPIs(), []facts.PodGroup{{Key: facts.GroupKey{API: facts.KubernetesGroups, Namespace: "default", Name: "train"}, UID: "1", Min: 3}})
	view := snapshot.Build(cluster)
	for _, step := range []struct {
		message string
		want    int
	}{{"room for 1", 1}, {"room for 1", 0}, {"room for 2", 1}} {
		clock.SetTime(clock.Now().Add(sameReason))
		var plan planner.Plan
		for i := range cluster.Pods {
			plan.Unplaced = append(plan.Unplaced, planner.Unplaced{Pod: facts.PodName(&cluster.Pods[i]), Refusal: planner.Refusal{Reason: planner.ReasonGroup, Message: step.message}})
		}
		c.recordGroups(&view, plan, sameReason)
		if n := len(recorder.Events); n != step.want {
			t.Errorf("%s: %d events, want %d", step.message, n, step.want)
		}
		for range len(recorder.Events) {
			if got := <-recorder.Events; got != "Warning GroupDoesNotFit "+step.message {
				t.Errorf("the event is %q", got)
			}
		}
	}
}

func TestLaunchesForOneGroupFollowEachOther(t *testing.T) {
	t.Parallel()
	s := planner.Snapshot{
		Classes: []planner.Class{{Pods: []string{"single"}}, {Pods: []string{"a-0", "a-1"}}, {Pods: []string{"b-0", "b-1"}}},
		Groups:  []planner.Group{{Name: "b", Classes: []int{2}}, {Name: "a", Classes: []int{1}}},
	}
	launches := []planner.Launch{{Pods: []string{"a-0"}}, {Pods: []string{"single"}}, {Pods: []string{"b-0"}}, {Pods: []string{"a-1", "single"}}, {Pods: []string{"b-1"}}}
	if got, want := groupsFirst(s, launches), []int{2, 4, 0, 3, 1}; !slices.Equal(got, want) {
		t.Errorf("launches in the order %v, want %v", got, want)
	}
}

func TestPodGetsNewEventOnlyForNews(t *testing.T) {
	t.Parallel()
	recorder, clock := events.NewFakeRecorder(100), testclock.NewFakePassiveClock(time.Now())
	c := New(Config{Recorder: recorder, Clock: clock})
	cluster := snapshottest.Shared()
	cluster.Pods = snapshottest.Pods("web", 1)
	view := snapshot.Build(cluster)
	for _, step := range []struct {
		name    string
		after   time.Duration
		refusal planner.Refusal
		want    string
	}{
		{"the first", 0, planner.Refusal{Reason: planner.ReasonSetAside, Message: "no plan with it keeps all rules"}, "Warning SetAside no plan with it keeps all rules"},
		{"the same", time.Hour, planner.Refusal{Reason: planner.ReasonSetAside, Message: "no plan with it keeps all rules"}, ""},
		{"another reason", 0, planner.Refusal{Reason: planner.ReasonPoolClosed, Message: "the class has no Ready condition"}, "Warning PoolClosed the class has no Ready condition"},
		{"other details at once", time.Second, planner.Refusal{Reason: planner.ReasonPoolClosed, Message: "the class is not Ready"}, ""},
		{"other details later", sameReason, planner.Refusal{Reason: planner.ReasonPoolClosed, Message: "the class is not Ready"}, "Warning PoolClosed the class is not Ready"},
		{"the same again", sameReason, planner.Refusal{Reason: planner.ReasonPoolClosed, Message: "the class is not Ready"}, ""},
	} {
		clock.SetTime(clock.Now().Add(step.after))
		c.recordEvents(&view, planner.Plan{Unplaced: []planner.Unplaced{{Pod: facts.PodName(&cluster.Pods[0]), Refusal: step.refusal}}}, displaced{})
		got := ""
		if len(recorder.Events) > 0 {
			got = <-recorder.Events
		}
		if got != step.want {
			t.Errorf("%s: the pod is told %q, want %q", step.name, got, step.want)
		}
	}
}

// TestEventsAboutManyPodsAreFew plans every ten seconds for 3,000 pods that are told something else each time, about the same reason.
func TestEventsAboutManyPodsAreFew(t *testing.T) {
	t.Parallel()
	const pods = 3000
	recorder, clock := events.NewFakeRecorder(10*pods), testclock.NewFakePassiveClock(time.Now())
	c := New(Config{Recorder: recorder, Clock: clock})
	cluster := snapshottest.Shared()
	cluster.Pods = snapshottest.Pods("web", pods)
	view := snapshot.Build(cluster)
	for step := range 90 { // a quarter of an hour
		var plan planner.Plan
		for i := range cluster.Pods {
			plan.Unplaced = append(plan.Unplaced, planner.Unplaced{
				Pod: facts.PodName(&cluster.Pods[i]), Refusal: planner.Refusal{Reason: planner.ReasonPoolClosed, Message: fmt.Sprintf("closed for %d steps", step)},
			})
		}
		c.recordEvents(&view, plan, displaced{})
		if got, most := len(recorder.Events), eventsAtOnce+step*10*eventsPerSecond; got > most {
			t.Fatalf("%d events after %d s, want at most %d", got, 10*step, most)
		}
		if told := len(c.reported); told != min(pods, (step+1)*eventsAtOnce) {
			t.Fatalf("%d pods have an event after %d s", told, 10*step)
		}
		clock.SetTime(clock.Now().Add(10 * time.Second))
	}
}

func TestPodsOfABurstAreNotToldOfTheirNodes(t *testing.T) {
	t.Parallel()
	for pods, want := range map[int]int{maxNominated: maxNominated, maxNominated + 1: 1} {
		recorder := events.NewFakeRecorder(1000)
		c := New(Config{Recorder: recorder, Clock: testclock.NewFakePassiveClock(time.Now())})
		cluster := snapshottest.Shared()
		cluster.NodeClaims = append(cluster.NodeClaims, snapshottest.Claim("one", &cluster.NodePools[0], snapshottest.TypeNamed("g4dn.xlarge"), snapshottest.Launched(cluster.Now)))
		cluster.Pods = snapshottest.Pods("web", pods)
		view := snapshot.Build(cluster)
		plan := planner.Plan{Placements: []planner.Placement{{Node: 0}}}
		for i := range cluster.Pods {
			plan.Placements[0].Pods = append(plan.Placements[0].Pods, facts.PodName(&cluster.Pods[i]))
		}
		if pods > maxNominated { // Pods without a place are always told why.
			plan.Unplaced = []planner.Unplaced{{Pod: facts.PodName(&cluster.Pods[0]), Refusal: planner.Refusal{Reason: planner.ReasonPoolClosed, Message: "closed"}}}
		}
		c.recordEvents(&view, plan, displaced{})
		if got := len(recorder.Events); got != want {
			t.Errorf("%d events for %d pods, want %d", got, pods, want)
		}
	}
}
