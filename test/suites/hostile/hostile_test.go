package hostile_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/fleet/capacity"
	"karve.sh/karve/pkg/fleet/drift"
	"karve.sh/karve/pkg/fleet/headroom"
	"karve.sh/karve/pkg/fleet/layout"
	"karve.sh/karve/pkg/fleet/retention"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/alternatives"
	"karve.sh/karve/pkg/planner/consolidate"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/snapshot/snapshottest"
	"karve.sh/karve/test/harness/hostile"
)

// count returns how many objects a test generates: KARVE_HOSTILE, or 3000, or half as many in short tests.
func count(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv("KARVE_HOSTILE"))
	switch {
	case err == nil:
		return n
	case testing.Short():
		return 1500
	default:
		return 3000
	}
}

// bound is the time limit of a decision about a small cluster with some hostile objects, on a busy machine. Usually it takes some tens of milliseconds.
const bound = 20 * time.Second

// place is where a plan puts a pod: on a named node, on a new machine, or nowhere.
type place struct {
	kind int
	node string
}

const (
	nowhere = iota
	launched
	placed
)

// decision is the result of planning for a cluster.
type decision struct {
	places map[string]place
	took   time.Duration
}

// decide builds a snapshot and a plan. Both must be sound without setting any objects aside.
func decide(t *testing.T, c *facts.Cluster) decision {
	t.Helper()
	started := time.Now()
	view := snapshot.Build(c)
	kept, plan, aside, err := solve.Contain(view.Snapshot, nil, func(s planner.Snapshot) planner.Plan {
		return view.Keeping(alternatives.Add(s, solve.Solver{Effort: 5000}.Plan(s)))
	}, func() bool { return true }, nil)
	if err != nil || len(aside) > 0 {
		t.Fatalf("no sound plan for all: %v, set aside: %+v", err, aside)
	}
	d := decision{map[string]place{}, time.Since(started)}
	for _, p := range plan.Placements {
		for _, pod := range p.Pods {
			d.places[pod] = place{placed, kept.Nodes[p.Node].Name}
		}
	}
	for _, l := range plan.Launches {
		for _, pod := range l.Pods {
			d.places[pod] = place{launched, ""}
		}
	}
	for _, u := range plan.Unplaced {
		d.places[u.Pod] = place{nowhere, u.Message}
		if u.Message == "" || u.Reason == "" {
			t.Errorf("pod %s gets no reason why it is unplaced", u.Pod)
		}
	}
	return d
}

// rules reports whether an object may legitimately affect other pods beyond the room that it takes, by the rules of Kubernetes and Karpenter. A pod of higher
// priority goes first, a running pod keeps others away by its anti-affinity, a DaemonSet runs on all machines whose taints it tolerates, and a NodePool of
// Karpenter's own serves pods that Karve would serve. Such objects are part of the baseline too.
func rules(o client.Object) bool {
	switch o := o.(type) {
	case *corev1.Pod:
		anti := o.Spec.NodeName != "" && o.Spec.Affinity != nil && o.Spec.Affinity.PodAntiAffinity != nil
		return o.Spec.Priority != nil && *o.Spec.Priority > 0 || anti
	case *appsv1.DaemonSet:
		return slices.ContainsFunc(o.Spec.Template.Spec.Tolerations, func(t corev1.Toleration) bool { return t.Key == "" })
	case *karpv1.NodePool:
		return !facts.IsOurs(o)
	}
	return false
}

// holds reports whether a pod takes room on a node regardless of the plan.
func holds(o client.Object, node string) bool {
	pod, ok := o.(*corev1.Pod)
	return ok && (pod.Spec.NodeName == node || pod.Status.NominatedNodeName == node)
}

// compare returns which sane pods have a worse place than without the objects. Another pod may take its room on a node, even a sane one; then a machine is launched
// for it. It may be left unplaced only if one of the objects has its room and no machine may be launched for it, or if another sane pod that had no place before has
// one instead: if there is not room for all sane pods, any of them may have it.
// compare also returns how many pods wait for a machine although they could run at once and no object has their room. The preferences of pods that are planned
// together can have this effect, which only costs time.
func compare(before, after map[string]place, objects []client.Object) (worse []string, delayed int) {
	instead := 0
	for pod, was := range before {
		if strings.HasPrefix(pod, "default/sane-") && was.kind == nowhere && after[pod].kind != nowhere {
			instead++
		}
	}
	for pod, was := range before {
		now, planned := after[pod]
		if !strings.HasPrefix(pod, "default/sane-") || planned && now.kind >= was.kind {
			continue
		}
		rival := was.kind == placed && slices.ContainsFunc(objects, func(o client.Object) bool {
			return holds(o, was.node) || after[o.GetNamespace()+"/"+o.GetName()] == was
		})
		for other, place := range after {
			rival = rival || was.kind == placed && now.kind == launched && place == was && before[other] != was
		}
		switch {
		case planned && now.kind == nowhere && instead > 0:
			instead--
		case was.kind == placed && now.kind == launched && !rival:
			delayed++
		case !rival || now.kind == nowhere && was.node != hostile.SaneNode:
			worse = append(worse, fmt.Sprintf("%s was %+v and is %+v (planned: %t)", pod, was, now, planned))
		}
	}
	return worse, delayed
}

// round adds objects to the sane cluster and compares the decisions.
func round(t *testing.T, seed uint64, n int) (slowest time.Duration, ruling, delayed int) {
	t.Helper()
	g := hostile.New("h", seed)
	beside, all := hostile.Sane(), hostile.Sane()
	var objects []client.Object
	var events []corev1.Event
	for range n {
		o := g.Object()
		switch o := o.(type) {
		case *corev1.Event:
			events = append(events, *o)
		case *karpv1.NodeClaim:
			events = append(events, *g.Refusal(o.Name))
		}
		hostile.Add(all, o)
		if rules(o) {
			ruling++
			hostile.Add(beside, o)
			continue
		}
		objects = append(objects, o)
	}
	before, after := decide(t, beside), decide(t, all)
	worse, delayed := compare(before.places, after.places, objects)
	for _, pod := range worse {
		t.Error(pod)
	}
	began := time.Now()
	others(t, all)
	decided := time.Now()
	report(t, all, events)
	if t.Failed() {
		t.Fatalf("seed %d, %d objects", seed, n)
	}
	return max(before.took, after.took, decided.Sub(began), time.Since(decided)), ruling, delayed
}

// others makes all other decisions that read such objects. None of them may panic.
func others(t *testing.T, c *facts.Cluster) {
	t.Helper()
	view := snapshot.Build(c)
	view = view.AsIs(snapshot.WhatIf{}, nil)
	repair.Diagnose(c, view.Machines, repair.Tolerations{})
	for i := range view.Pools {
		for j := range view.Machines {
			drift.Of(c, &view.Pools[i], &view.Machines[j])
		}
	}
	records.Hardware(view.Machines)
	retention.NewOtherNodes(c)
	whole := snapshot.Build(c)
	layout := layout.Build(&whole, nil, retention.Pods(c))
	found := consolidate.Plan(solve.Solver{Effort: 5000}, layout.Layout)
	for _, step := range found.Steps {
		for _, i := range step.Leave {
			if i < 0 || i >= len(layout.Machines) {
				t.Errorf("a step removes machine %d of %d", i, len(layout.Machines))
			}
		}
	}
	headroom := headroom.Build(&whole, planner.Plan{}, solve.Solver{Effort: 5000})
	headroom.Keeps()
	whole.AsIs(snapshot.WhatIf{}, []string{hostile.SaneMachine})
	capacity.Learn(c, nil)
}

func TestSaneClusterPlacesAllPods(t *testing.T) {
	t.Parallel()
	d := decide(t, hostile.Sane())
	kinds := map[int]int{}
	for _, p := range d.places {
		kinds[p.kind]++
	}
	if kinds[nowhere] > 0 || kinds[placed] < 5 || kinds[launched] < 5 {
		t.Errorf("want places on nodes and on machines for all: %v", d.places)
	}
}

func TestHostileObjectsDoNotAffectUnrelatedPods(t *testing.T) {
	t.Parallel()
	var slowest time.Duration
	ruling, objects, rounds, delayed := 0, 0, 0, 0
	for seed := uint64(1); objects < count(t); seed++ {
		n := 1 + int(seed%7)*int(seed%11) // Up to 61: single objects show their effect most clearly, many show how they interact.
		took, more, late := round(t, seed, n)
		if took > bound {
			t.Fatalf("seed %d, %d objects: a decision took %s", seed, n, took)
		}
		slowest, ruling, objects, rounds = max(slowest, took), ruling+more, objects+n, rounds+1
		if late > 0 {
			t.Logf("seed %d, %d objects: %d sane pods wait longer", seed, n, late)
			delayed++
		}
	}
	if delayed*1000 > rounds {
		t.Errorf("sane pods wait longer in %d of %d clusters", delayed, rounds)
	}
	if ruling*4 > objects {
		t.Errorf("%d of %d objects are left out of the comparison, which is too many", ruling, objects)
	}
	t.Logf("%d objects in %d clusters, %d of them compared by the rules of others; the slowest decision took %s", objects, rounds, ruling, slowest)
}

func TestPodWithOverflowingRequestsBlocksOnlyItself(t *testing.T) {
	t.Parallel()
	before := decide(t, hostile.Sane())
	for _, asks := range [][]string{{"cpu", "9223372036854776"}, {"cpu", "10000000000000000"}, {"memory", "9223372036854775807"}} {
		c := hostile.Sane()
		pod := snapshottest.Pod("headline", snapshottest.Asking(append(asks, "nvidia.com/gpu.shared", "1")...), func(pod *corev1.Pod) {
			other := *pod.Spec.Containers[0].DeepCopy()
			pod.Spec.Containers, pod.Spec.Tolerations, pod.Namespace = append(pod.Spec.Containers, other), nil, hostile.Namespace
		})
		c.Pods = append(c.Pods, pod)
		after := decide(t, c)
		if worse, delayed := compare(before.places, after.places, nil); len(worse) > 0 || delayed > 0 {
			t.Errorf("%d sane pods wait longer: %v", delayed, worse)
		}
		if got := after.places[hostile.Namespace+"/headline"]; got.kind != nowhere {
			t.Errorf("%v: the pod has a place: %+v", asks, got)
		}
	}
}
