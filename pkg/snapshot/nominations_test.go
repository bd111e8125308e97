package snapshot_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// nominatedFor nominates a pod for a node.
func nominatedFor(node string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Status.NominatedNodeName = node }
}

func unplanned(*corev1.Pod) bool { return false }

// ending makes a pod one that is terminating.
func ending(pod *corev1.Pod) { pod.DeletionTimestamp = new(metav1.NewTime(Now)) }

// withMachines returns a cluster with machines that have started and machines that have only registered.
func withMachines(started []string, starting ...string) *facts.Cluster {
	c := Shared()
	xlarge := TypeNamed("g4dn.xlarge")
	for i, name := range slices.Concat(started, starting) {
		state := Initialized
		if i >= len(started) {
			state = Registered
		}
		claim := Claim(name, &c.NodePools[0], xlarge, state(Now.Add(-time.Minute)))
		c.NodeClaims, c.Nodes = append(c.NodeClaims, claim), append(c.Nodes, Node(&claim, xlarge, 10))
	}
	return c
}

func TestNominatedPodsThatStillWait(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		node  string
		also  func(*facts.Cluster)
		waits bool
	}{
		"for a starting machine of ours":              {"starting", nil, true},
		"for a started machine":                       {"started", nil, true},
		"for a started machine with terminating pods": {"started", func(c *facts.Cluster) { c.Pods = append(c.Pods, Pod("b", Running("started"), ending)) }, false},
		"for a started machine with a terminating DaemonSet pod": {"started", func(c *facts.Cluster) {
			c.Pods = append(c.Pods, Pod("b", Running("started"), ending, OwnedBy("apps/v1", "DaemonSet", "x")))
		}, true},
		"for a deleted machine": {"started", func(c *facts.Cluster) {
			c.Pods = append(c.Pods, Pod("b", Running("started"), ending))
			c.NodeClaims[0].DeletionTimestamp = new(metav1.NewTime(Now))
		}, true},
		"for a starting machine with terminating pods": {"starting", func(c *facts.Cluster) { c.Pods = append(c.Pods, Pod("b", Running("starting"), ending)) }, false},
		"for a machine that did not start in time": {"starting", func(c *facts.Cluster) {
			c.Pods = append(c.Pods, Pod("b", Running("starting"), ending))
			c.Now = Now.Add(c.ReplicasTimeout)
			for i := range c.Nodes {
				delete(c.Nodes[i].Status.Allocatable, v1alpha1.ResourceGPUShared)
			}
		}, true},
		"for a foreign node": {"theirs", func(c *facts.Cluster) {
			c.Nodes = append(c.Nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}})
		}, false},
		"for a missing node": {"gone", nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := withMachines([]string{"started"}, "starting")
			cluster.Pods = []corev1.Pod{Pod("a", nominatedFor(c.node))}
			if c.also != nil {
				c.also(cluster)
			}
			if view := snapshot.Build(cluster); (view.Pods["default/a"] != nil) != c.waits {
				t.Errorf("waits: %t, want %t", !c.waits, c.waits)
			}
			if facts.Waits(&cluster.Pods[0]) {
				t.Error("the pod counts as pending although it is nominated")
			}
		})
	}
}

func TestNominationsUnusedByPlanAreWithdrawn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		started, starting []string
		// pods has the node for which each pod is nominated.
		pods []string
		// planned has the number of pods that are planned for each node.
		planned map[string]int
		want    string
	}{
		"keeps a nomination for a started machine":          {[]string{"a"}, nil, []string{"a", "a"}, map[string]int{"a": 2}, ""},
		"keeps a nomination for a starting machine":         {nil, []string{"a"}, []string{"a", ""}, map[string]int{"a": 2}, ""},
		"keeps nominations if equal pods are planned":       {nil, []string{"a", "b"}, []string{"b", "b", "a"}, map[string]int{"a": 1, "b": 2}, ""},
		"withdraws a nomination of a pod planned elsewhere": {nil, []string{"a", "b"}, []string{"b", "b", ""}, map[string]int{"a": 2, "b": 1}, "pod-1 "},
		"withdraws a nomination that the plan does not use": {nil, []string{"a"}, []string{"a", "a"}, map[string]int{"a": 1}, "pod-1 "},
		"withdraws a nomination for a missing machine":      {nil, nil, []string{"x"}, nil, "pod-0 "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := withMachines(c.started, c.starting...)
			for i, node := range c.pods {
				cluster.Pods = append(cluster.Pods, Pod(fmt.Sprint("pod-", i), nominatedFor(node)))
			}
			view := snapshot.Build(cluster)
			var plan planner.Plan
			next := 0
			for i, node := range view.Nodes {
				p := planner.Placement{Node: i}
				for range c.planned[node.Name] {
					p.Pods = append(p.Pods, fmt.Sprint("default/pod-", next))
					next++
				}
				plan.Placements = append(plan.Placements, p)
			}
			if diff := cmp.Diff(c.want, written(view.Withdrawn(view.Keeping(plan)))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// written formats nominations as pod and node.
func written(nominations []snapshot.Nomination) string {
	var all []string
	for _, n := range nominations {
		all = append(all, n.Pod.Name+" "+n.Node)
	}
	return strings.Join(all, ", ")
}

func pointers(pods ...corev1.Pod) []*corev1.Pod {
	all := make([]*corev1.Pod, len(pods))
	for i := range pods {
		all[i] = &pods[i]
	}
	return all
}

func TestOnlyNodesThatDoNotExistYetGetOtherPods(t *testing.T) {
	t.Parallel()
	c := withMachines([]string{"started"}, "registered")
	claim := Claim("launched", &c.NodePools[0], TypeNamed("g4dn.xlarge"), Launched(Now))
	c.NodeClaims = append(c.NodeClaims, claim)
	view := snapshot.Build(c)
	frozen := map[string]bool{}
	for i, is := range view.Frozen() {
		frozen[view.Nodes[i].Name] = is
	}
	if diff := cmp.Diff(map[string]bool{"started": true, "registered": true, "launched": false}, frozen); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSeats(t *testing.T) {
	t.Parallel()
	small, large := Asking("cpu", "1", v1alpha1.ResourceGPUShared, "1"), Asking("cpu", "2", v1alpha1.ResourceGPUShared, "1")
	came := func(minutes int) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.CreationTimestamp = metav1.NewTime(Now.Add(time.Duration(minutes) * time.Minute))
		}
	}
	one := func(pods ...corev1.Pod) []corev1.Pod { return pods }
	for name, c := range map[string]struct {
		// planned are the pods for which the machine is launched.
		planned, pods []corev1.Pod
		want          string
	}{
		"the planned pods":                   {one(Pod("x", small), Pod("y", large)), one(Pod("a", small), Pod("b", large), Pod("c", large)), "a node, b node"},
		"the oldest of equal pods":           {one(Pod("y", large)), one(Pod("a", small), Pod("b", large, came(1)), Pod("c", large)), "c node"},
		"without running pods":               {one(Pod("y", large), Pod("z", large)), one(Pod("a", small), Pod("b", large, Running("node")), Pod("c", large), Pod("d", large)), "c node"},
		"without nominated pods":             {one(Pod("y", large), Pod("z", large)), one(Pod("a", small), Pod("b", large, nominatedFor("node")), Pod("c", large), Pod("d", large)), "c node"},
		"not pods nominated for other nodes": {one(Pod("y", large)), one(Pod("a", small), Pod("b", large, nominatedFor("other")), Pod("c", small)), ""},
		"not terminating pods":               {one(Pod("y", large)), one(Pod("a", small), Pod("b", large, ending), Pod("c", small)), ""},
		"a DaemonSet pod does not count":     {one(Pod("y", large)), one(Pod("a", small), Pod("d", large, Running("node"), OwnedBy("apps/v1", "DaemonSet", "x")), Pod("c", large)), "c node"},
		"none if all pending pods are equal": {one(Pod("y", large)), one(Pod("a", large), Pod("b", large)), ""},
		"none without planned pods":          {nil, one(Pod("a", small), Pod("b", large)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := withMachines(nil, "node")
			cluster.Pods = c.planned
			view := snapshot.Build(cluster)
			launch := planner.Launch{}
			for _, pod := range c.planned {
				launch.Pods = append(launch.Pods, facts.PodName(&pod))
			}
			m := view.Machines[0]
			m.Claim.Annotations[v1alpha1.PlannedPodsAnnotation] = view.PlannedPods(launch)
			if diff := cmp.Diff(c.want, written(snapshot.NewSeating(pointers(c.pods...), unplanned).Seats(&m, nil, nil))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	t.Run("without just nominated pods", func(t *testing.T) {
		t.Parallel()
		cluster := withMachines(nil, "node")
		cluster.Pods = []corev1.Pod{Pod("x", large), Pod("y", large)}
		view := snapshot.Build(cluster)
		m := view.Machines[0]
		m.Claim.Annotations[v1alpha1.PlannedPodsAnnotation] = view.PlannedPods(planner.Launch{Pods: []string{"default/x", "default/y"}})
		pods := []corev1.Pod{Pod("a", small), Pod("b", large), Pod("c", large), Pod("d", large), Pod("e", large)}
		got := written(snapshot.NewSeating(pointers(pods...), unplanned).Seats(&m, nil, map[types.UID]string{pods[1].UID: "other", pods[2].UID: "node"}))
		if diff := cmp.Diff("d node", got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	if seats := snapshot.NewSeating(pointers(Pod("a", small), Pod("b", large)), unplanned).Seats(&records.Machine{Claim: &withMachines(nil, "node").NodeClaims[0]}, nil, nil); len(seats) > 0 {
		t.Errorf("without a Node there are %d", len(seats))
	}
}

// TestNominatedPodsKeepTheirPlaces checks for any nominations that the plan that keeps them keeps every rule and costs the same, and that nothing is
// left to do once the other nominations are withdrawn.
func TestNominatedPodsKeepTheirPlaces(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		cluster := withMachines([]string{"a", "b"}[:rapid.IntRange(0, 2).Draw(t, "started")], []string{"c", "d", "e"}[:rapid.IntRange(0, 3).Draw(t, "starting")]...)
		for i := range rapid.IntRange(0, 40).Draw(t, "pods") {
			pod := Pod(fmt.Sprintf("pod-%02d", i), nominatedFor(rapid.SampledFrom([]string{"", "", "a", "c", "d", "e", "gone"}).Draw(t, "nominated")))
			Asking("cpu", rapid.SampledFrom([]string{"200m", "1", "3"}).Draw(t, "cpu"), v1alpha1.ResourceGPUShared, rapid.SampledFrom([]string{"1", "2"}).Draw(t, "replicas"))(&pod)
			if rapid.Bool().Draw(t, "memory") {
				pod.Annotations = map[string]string{v1alpha1.GPUMemoryAnnotation: "6Gi"}
			}
			cluster.Pods = append(cluster.Pods, pod)
		}
		view := snapshot.Build(cluster)
		plan := solve.Solver{Effort: 100}.Plan(view.Snapshot)
		kept := view.Keeping(plan)
		if err := check.Plan(view.Snapshot, kept); err != nil {
			t.Fatal(err)
		}
		if kept.Price != plan.Price || len(kept.Unplaced) != len(plan.Unplaced) || len(kept.Launches) != len(plan.Launches) {
			t.Fatalf("the plans differ: %+v, %+v", plan, kept)
		}
		nominations := view.Withdrawn(kept)
		for _, n := range nominations {
			n.Pod.Status.NominatedNodeName = n.Node
		}
		view = snapshot.Build(cluster)
		if again := view.Withdrawn(view.Keeping(solve.Solver{Effort: 100}.Plan(view.Snapshot))); len(again) > 0 {
			t.Fatalf("after %d nominations, another one is withdrawn: %+v", len(nominations), again[0])
		}
	})
}
