package planning

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planning/checked"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// read returns a cluster of the generation with the given number of pending pods.
func read(generation uint64, pods int) *facts.Cluster {
	c := Shared()
	c.Generation, c.Pods = generation, Pods("web", pods)
	return c
}

// made returns how many plans were made for pods.
func (b testbed) made(t *testing.T) (plans uint64) {
	t.Helper()
	families, err := b.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "karve_planner_duration_seconds" {
			plans = f.GetMetric()[0].GetHistogram().GetSampleCount()
		}
	}
	return plans
}

func TestControllersShareOneViewAndOnePlan(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	var wg sync.WaitGroup
	generations := make([]*Generation, 8)
	for i := range generations {
		wg.Go(func() {
			generations[i] = b.of(t, read(1, 11))
			generations[i].Plan(t.Context())
			generations[i].Headroom(t.Context())
		})
	}
	wg.Wait()
	for _, g := range generations {
		if g != generations[0] {
			t.Fatal("the views differ")
		}
	}
	if n := b.made(t); n != 1 {
		t.Errorf("%d plans were made, want 1", n)
	}
}

func TestRelevantChangesStartNewGeneration(t *testing.T) {
	t.Parallel()
	refused := read(1, 11)
	refused.Refused = map[string][]v1alpha1.RefusedOffering{"gpu-shared": {{InstanceType: "g4dn.xlarge", Zone: v1alpha1.Any, CapacityType: v1alpha1.Any, Failures: 1}}}
	for name, c := range map[string]*facts.Cluster{
		"a later read": read(2, 11), "a refusal since then": refused, "an edit": read(0, 11),
	} {
		b := newTestbed()
		if g := b.of(t, read(1, 11)); g == b.of(t, c) {
			t.Errorf("%s: the generation is the same", name)
		}
	}
}

func TestEarlierGenerationDoesNotReplaceLaterOne(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	later := b.of(t, read(2, 11))
	b.of(t, read(1, 11))
	if b.of(t, read(2, 11)) != later {
		t.Error("the later generation is made again")
	}
}

func TestPlanIsReusedWhileSnapshotIsUnchanged(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	plan := func(generation uint64, pods int, edits ...func(*facts.Cluster)) *checked.Plan {
		c := read(generation, pods)
		for _, edit := range edits {
			edit(c)
		}
		p := b.of(t, c).Plan(t.Context())
		if err := check.Plan(p.View.Snapshot, p.Plan); err != nil || p.Err != nil {
			t.Fatal(err, p.Err)
		}
		return p
	}
	first := plan(1, 11)
	again := plan(2, 11, func(c *facts.Cluster) { c.Now = c.Now.Add(time.Second) }, func(c *facts.Cluster) { c.Pods[0].ResourceVersion = "2" })
	if diff := cmp.Diff(first.Plan, again.Plan); diff != "" || b.made(t) != 1 {
		t.Errorf("%d plans were made for equal snapshots (-want +got):\n%s", b.made(t), diff)
	}
	if plan(3, 12); b.made(t) != 2 {
		t.Errorf("%d plans were made, want another one for another pod", b.made(t))
	}
	if plan(4, 12, func(c *facts.Cluster) { c.NodePools[0].Spec.Weight = new(int32(7)) }); b.made(t) != 3 {
		t.Errorf("%d plans were made, want another one for another pool", b.made(t))
	}
}

func TestReusedPlanKeepsLaterNominations(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	two := func(generation uint64) *facts.Cluster {
		c := read(generation, 2)
		small := TypeNamed("g4dn.xlarge")
		claim := Claim("a", &c.NodePools[0], small, Initialized(c.Now.Add(-time.Hour)))
		c.NodeClaims = append(c.NodeClaims, claim)
		c.Nodes = append(c.Nodes, Node(&claim, small, 1))
		return c
	}
	on := func(p *checked.Plan) string { return p.Placements[0].Pods[0] }
	before := b.of(t, two(1)).Plan(t.Context())
	nominated := two(2)
	for i := range nominated.Pods {
		if pod := &nominated.Pods[i]; facts.PodName(pod) != on(before) {
			pod.Status.NominatedNodeName = "a"
		}
	}
	after := b.of(t, nominated).Plan(t.Context())
	if on(after) == on(before) {
		t.Errorf("the place of the nominated pod is for %s", on(after))
	}
	if n := b.made(t); n != 1 {
		t.Errorf("%d plans were made, want 1", n)
	}
}

func TestPlanThatRanOutOfTimeIsRepeatedLater(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	b.Budget = 0
	mixed := func(generation uint64) *facts.Cluster {
		c := read(generation, 0)
		for i := range 20 {
			c.Pods = append(c.Pods, Pods(fmt.Sprint("app-", i), 3+i, Asking("cpu", fmt.Sprintf("%dm", 300+170*i), "memory", fmt.Sprintf("%dMi", 9000-400*i), "nvidia.com/gpu.shared", "1"))...)
		}
		return c
	}
	b.of(t, mixed(1)).Plan(t.Context())
	b.of(t, mixed(2)).Plan(t.Context())
	if n := b.made(t); n != 1 {
		t.Errorf("%d plans were made at once, want 1", n)
	}
	b.clock.SetTime(Now.Add(again))
	b.of(t, mixed(3)).Plan(t.Context())
	if n := b.made(t); n != 2 {
		t.Errorf("%d plans were made, want 2", n)
	}
}

func TestWithoutHasItsOwnPlan(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	g := b.of(t, read(1, 11))
	whole := g.Plan(t.Context())
	out := sets.New[types.UID]()
	for _, pod := range g.View.Waiting()[:10] {
		out.Insert(pod.UID)
	}
	if part := g.Without(out).Plan(t.Context()); len(part.Launches) != 1 || len(part.View.Pods) != 1 {
		t.Errorf("want one machine for one pod: %+v", part.Plan)
	}
	if len(g.View.Pods) != 11 || g.Plan(t.Context()) != whole || g.Without(nil) != g {
		t.Error("the generation itself changed")
	}
}

func TestHeadroomFollowsPlanAndIsPlannedOnce(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	warm := func(generation uint64, replicas int32) *checked.Headroom {
		c := read(generation, 1)
		c.GPUNodeClasses[0].Spec.Headroom = []v1alpha1.Headroom{{Replicas: replicas}}
		return b.of(t, c).Headroom(t.Context())
	}
	first := warm(1, 3)
	if got, _ := first.Of("gpu-shared"); got.Wanted != 3 || got.Coming != 3 || first.Err != nil {
		t.Errorf("headroom %+v, %v: want it beside the pod, on the machine that is launched", got, first.Err)
	}
	known := b.headroomPlans.answer
	if warm(2, 3); b.headroomPlans.answer != known {
		t.Error("the same headroom was planned again")
	}
	if warm(3, 4); b.headroomPlans.answer == known {
		t.Error("other headroom was not planned")
	}
}

// A later plan continues the adopted plan, and classes take turns.
func TestAdoptedPlanIsContinued(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	g := b.of(t, read(1, 30))
	entries := b.Adopt(g.View, g.Plan(t.Context()).Plan)
	if len(entries) != len(g.Plan(t.Context()).Launches) || len(entries) == 0 {
		t.Fatalf("entries %v of %d launches", entries, len(g.Plan(t.Context()).Launches))
	}
	b.Budget = 0 // There is no time for another plan.
	if diff := cmp.Diff(g.Plan(t.Context()).Launches, b.of(t, read(2, 30)).Plan(t.Context()).Launches); diff != "" {
		t.Errorf("the plan is not continued (-want +got):\n%s", diff)
	}
	if b.Adopt(g.View, planner.Plan{}) != nil {
		t.Error("a plan without launches has entries")
	}
}

// Controllers query one view concurrently. The race detector finds data races.
func TestViewIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	c := read(1, 11)
	small := TypeNamed("g4dn.xlarge")
	c.NodeClaims = append(c.NodeClaims, Claim("a", &c.NodePools[0], small))
	c.NodeClaims[0].Annotations[v1alpha1.PlannedPodsAnnotation] = "0123456789=3"
	g := b.of(t, c)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			some := g.Without(sets.New(c.Pods[i].UID))
			plan := some.Plan(t.Context())
			plan.View.Replanned(plan.Plan)
			b.Adopt(&plan.View, plan.Plan)
			g.View.WhatIf(snapshot.WhatIf{Leaving: []string{"a"}})
		})
	}
	wg.Wait()
}

// BenchmarkPlan plans a thousand pods of twenty shapes on a cluster with a hundred machines, for the first time and again for an equal cluster.
func BenchmarkPlan(b *testing.B) {
	cluster := func(generation uint64) *facts.Cluster {
		c := read(generation, 0)
		for i := range 100 {
			kind := TypeNamed([]string{"g4dn.xlarge", "g4dn.2xlarge"}[i%2])
			claim := Claim(fmt.Sprintf("m-%03d", i), &c.NodePools[0], kind, Initialized(c.Now.Add(-time.Hour)))
			c.NodeClaims, c.Nodes = append(c.NodeClaims, claim), append(c.Nodes, Node(&claim, kind, 10))
		}
		for i := range 1000 {
			c.Pods = append(c.Pods, Pod(fmt.Sprintf("pod-%04d", i), Asking("cpu", fmt.Sprintf("%dm", 300+170*(i%20)), "memory", fmt.Sprintf("%dMi", 9000-400*(i%20)), "nvidia.com/gpu.shared", "1")))
		}
		return c
	}
	for _, known := range []bool{false, true} {
		b.Run(fmt.Sprint("known=", known), func(b *testing.B) {
			bed := newTestbed()
			bed.of(b, cluster(1)).Plan(b.Context())
			for generation := uint64(2); b.Loop(); generation++ {
				if !known {
					bed = newTestbed()
				}
				bed.of(b, cluster(generation)).Plan(b.Context())
			}
		})
	}
	b.Run("view", func(b *testing.B) {
		for b.Loop() {
			newTestbed().of(b, cluster(1))
		}
	})
}
