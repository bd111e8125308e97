package snapshot_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// ofGroup makes a pod a member of a group by Karve's own annotations.
func ofGroup(name, minimum string) func(*corev1.Pod) {
	return annotated(v1alpha1.GroupAnnotation, name, v1alpha1.GroupMinMembersAnnotation, minimum)
}

func annotated(keysAndValues ...string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		all := map[string]string{}
		for pair := range slices.Chunk(keysAndValues, 2) {
			all[pair[0]] = pair[len(pair)-1]
		}
		pod.Annotations = all
	}
}

// ofPodGroup makes a pod a member of a PodGroup of Kubernetes.
func ofPodGroup(name string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &name} }
}

// gated makes a pod one that no scheduler may bind yet.
func gated(pod *corev1.Pod) { pod.Status.Conditions[0].Reason = corev1.PodReasonSchedulingGated }

// serving gives a cluster PodGroups.
func serving(c *facts.Cluster, all ...facts.PodGroup) *facts.Cluster {
	c.PodGroups = facts.NewPodGroups(facts.PodGroupAPIs(), all)
	return c
}

func trainOf(api facts.GroupAPI, minimum int64, edits ...func(*facts.PodGroup)) facts.PodGroup {
	g := facts.PodGroup{Key: facts.GroupKey{API: api, Namespace: "default", Name: "train"}, Min: minimum, Created: Now}
	for _, edit := range edits {
		edit(&g)
	}
	return g
}

// describedGroups returns the groups of a view with the pods of their classes, and the pods that are blocked or in no group.
func describedGroups(v *snapshot.View) (groups []string, alone int, blocked map[string]int) {
	in := map[int]bool{}
	for _, g := range v.Groups {
		pods := 0
		for _, c := range g.Classes {
			in[c] = true
			pods += len(v.Classes[c].Pods)
		}
		groups = append(groups, fmt.Sprintf("%s: %d of %d", g.Name, g.Min, pods))
	}
	blocked = map[string]int{}
	for i, c := range v.Classes {
		switch {
		case c.Blocked != nil:
			blocked[string(c.Blocked.Reason)+": "+c.Blocked.Message] += len(c.Pods)
		case !in[i]:
			alone += len(c.Pods)
		}
	}
	return groups, alone, blocked
}

func TestGroupsOfAView(t *testing.T) {
	t.Parallel()
	kubernetes, volcano := trainOf(facts.KubernetesGroups, 8), trainOf(facts.VolcanoGroups, 4)
	old := trainOf(facts.VolcanoGroups, 2, func(g *facts.PodGroup) { g.Key.Name, g.Created = "old", Now.Add(-time.Hour) })
	blocked := func(message string, pods int) map[string]int {
		return map[string]int{"GroupDoesNotFit: " + message: pods}
	}
	for name, c := range map[string]struct {
		cluster *facts.Cluster
		pods    []corev1.Pod
		groups  []string
		alone   int
		blocked map[string]int
	}{
		"a PodGroup":               {serving(Shared(), kubernetes), Pods("w", 9, ofPodGroup("train")), []string{"PodGroup default/train: 8 of 9"}, 0, nil},
		"beside a pod alone":       {serving(Shared(), kubernetes), append(Pods("w", 8, ofPodGroup("train")), Pod("x")), []string{"PodGroup default/train: 8 of 8"}, 1, nil},
		"of one pod":               {serving(Shared(), trainOf(facts.KubernetesGroups, 1)), Pods("w", 2, ofPodGroup("train")), nil, 2, nil},
		"with the policy basic":    {serving(Shared(), trainOf(facts.KubernetesGroups, 0)), Pods("w", 2, ofPodGroup("train")), nil, 2, nil},
		"too few":                  {serving(Shared(), kubernetes), Pods("w", 6, ofPodGroup("train")), nil, 0, blocked("PodGroup default/train needs 8 pods at once, 6 exist: create the others, or lower its minimum", 6)},
		"missing":                  {serving(Shared()), Pods("w", 2, ofPodGroup("train")), nil, 0, blocked("PodGroup default/train of scheduling.k8s.io does not exist, and the pod names it in spec.schedulingGroup: create it, or remove that from the pod", 2)},
		"an API that is not there": {Shared(), Pods("w", 2, annotated(facts.VolcanoGroupAnnotation, "train")), nil, 2, nil},
		"own annotations":          {Shared(), Pods("w", 3, ofGroup("train", "3")), []string{"group default/train: 3 of 3"}, 0, nil},
		"garbage":                  {Shared(), Pods("w", 3, ofGroup("train", "many")), nil, 3, nil},
		"the largest minimum":      {Shared(), append(Pods("w", 3, ofGroup("train", "3")), Pod("x", ofGroup("train", "4"))), []string{"group default/train: 4 of 4"}, 0, nil},
		"Kueue": {
			Shared(), Pods("w", 3, WithLabels(facts.KueueGroupLabel, "train"), annotated(facts.KueueTotalAnnotation, "3")),
			[]string{"Kueue pod group default/train: 3 of 3"},
			0, nil,
		},
		"of two namespaces": {
			Shared(), append(Pods("w", 2, ofGroup("train", "2")), Pods("x", 2, ofGroup("train", "2"), in("other"))...),
			[]string{"group default/train: 2 of 2", "group other/train: 2 of 2"},
			0, nil,
		},
		"of two APIs": {
			serving(Shared(), trainOf(facts.KubernetesGroups, 2), volcano), append(Pods("w", 2, ofPodGroup("train")), Pods("x", 4, annotated(facts.VolcanoGroupAnnotation, "train"))...),
			[]string{"PodGroup default/train (scheduling.k8s.io): 2 of 2", "PodGroup default/train (scheduling.volcano.sh): 4 of 4"},
			0, nil,
		},
		"the oldest first": {
			serving(Shared(), trainOf(facts.VolcanoGroups, 2), old), append(Pods("w", 2, annotated(facts.VolcanoGroupAnnotation, "train")), Pods("x", 2, annotated(facts.VolcanoOtherGroupAnnotation, "old"))...),
			[]string{"PodGroup default/old: 2 of 2", "PodGroup default/train: 2 of 2"},
			0, nil,
		},
		"of two classes": {serving(Shared(), kubernetes), append(Pods("w", 7, ofPodGroup("train")), Pod("leader", ofPodGroup("train"), Asking("cpu", "1", "nvidia.com/gpu.shared", "1"))), []string{"PodGroup default/train: 8 of 8"}, 0, nil},
		"some run": {
			serving(withMachines([]string{"one"}), kubernetes), append(Pods("w", 6, ofPodGroup("train")), Pods("r", 3, ofPodGroup("train"), Running("one"))...),
			[]string{"PodGroup default/train: 5 of 6"},
			0, nil,
		},
		"enough run": {
			serving(withMachines([]string{"one"}), kubernetes), append(Pods("w", 2, ofPodGroup("train")), Pods("r", 8, ofPodGroup("train"), Running("one"))...), nil, 2, nil,
		},
		"some end": {
			serving(withMachines([]string{"one"}), kubernetes), append(Pods("w", 7, ofPodGroup("train")), Pods("r", 2, ofPodGroup("train"), Running("one"), ending)...),
			nil, 0, blocked("PodGroup default/train needs 8 pods at once, 7 exist: create the others, or lower its minimum", 7),
		},
		"some have ended, of an object": {
			serving(Shared(), kubernetes), append(Pods("w", 7, ofPodGroup("train")), Pod("r", ofPodGroup("train"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })),
			nil, 0, blocked("PodGroup default/train needs 8 pods at once, 7 exist: create the others, or lower its minimum", 7),
		},
		"some have ended, of a total": {
			Shared(), append(Pods("w", 2, ofGroup("train", "3")), Pod("r", ofGroup("train", "3"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })),
			[]string{"group default/train: 2 of 2"},
			0, nil,
		},
		"held back by the scheduler": {
			serving(Shared(), volcano), append(Pods("w", 3, annotated(facts.VolcanoGroupAnnotation, "train"), untried), Pod("x", annotated(facts.VolcanoGroupAnnotation, "train"))),
			[]string{"PodGroup default/train: 4 of 4"},
			0, nil,
		},
		"schedulable, as Volcano says": {
			serving(Shared(), volcano), append(Pods("w", 3, annotated(facts.VolcanoGroupAnnotation, "train"), func(p *corev1.Pod) { p.Status.Conditions[0].Reason = "Schedulable" }), Pod("x", annotated(facts.VolcanoGroupAnnotation, "train"))),
			[]string{"PodGroup default/train: 4 of 4"},
			0, nil,
		},
		"no member was tried": {serving(Shared(), volcano), Pods("w", 4, annotated(facts.VolcanoGroupAnnotation, "train"), untried), nil, 0, nil},
		"the object says that there is no room": {
			serving(Shared(), trainOf(facts.VolcanoGroups, 4, func(g *facts.PodGroup) { g.Unschedulable = true })), Pods("w", 4, annotated(facts.VolcanoGroupAnnotation, "train"), untried),
			[]string{"PodGroup default/train: 4 of 4"},
			0, nil,
		},
		"gated": {
			serving(Shared(), kubernetes), append(Pods("w", 7, ofPodGroup("train")), Pods("x", 2, ofPodGroup("train"), gated)...),
			nil, 0, blocked("PodGroup default/train needs 8 pods at once, 7 exist, and 2 more have scheduling gates: create the others, or lower its minimum", 7),
		},
		"a launcher without a GPU": {
			serving(Shared(), volcano), append(Pods("w", 3, annotated(facts.VolcanoGroupAnnotation, "train")), Pod("launcher", annotated(facts.VolcanoGroupAnnotation, "train"), Asking("cpu", "1"))),
			[]string{"PodGroup default/train: 3 of 3"},
			0, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.cluster.Pods = append(c.cluster.Pods, c.pods...)
			view := snapshot.Build(c.cluster)
			if err := planner.Validate(view.Snapshot); err != nil {
				t.Error(err)
			}
			groups, alone, blocked := describedGroups(&view)
			if c.blocked == nil {
				c.blocked = map[string]int{}
			}
			if diff := cmp.Diff(c.groups, groups) + cmp.Diff(c.alone, alone) + cmp.Diff(c.blocked, blocked); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestPodsOfALeavingMachineAreMembersThatNeedAPlace(t *testing.T) {
	t.Parallel()
	c := serving(withMachines([]string{"one", "two"}), trainOf(facts.KubernetesGroups, 4))
	c.Pods = append(Pods("a", 2, ofPodGroup("train"), Running("one")), Pods("b", 2, ofPodGroup("train"), Running("two"))...)
	view := snapshot.Build(c)
	view = view.WhatIf(snapshot.WhatIf{Leaving: []string{"one"}})
	groups, alone, blocked := describedGroups(&view)
	if diff := cmp.Diff([]string{"PodGroup default/train: 2 of 2"}, groups); diff != "" || alone > 0 || len(blocked) > 0 {
		t.Errorf("%d are alone and %v blocked (-want +got):\n%s", alone, blocked, diff)
	}
	moving, classes := view.Moving([]*corev1.Pod{&c.Pods[2]})
	if groups, _, _ := describedGroups(&moving); len(classes) != 1 || len(groups) != 1 || !strings.Contains(groups[0], "2 of 2") {
		t.Errorf("while a running pod may move, the groups are %v, and %v", groups, classes)
	}
}

func TestGroupWithATopologyKeepsTogether(t *testing.T) {
	t.Parallel()
	zoned := func(g *facts.PodGroup) { g.Topology = zone }
	for name, c := range map[string]struct {
		running int
		min     int64
		groups  int
	}{"no pod runs": {0, 4, 1}, "some run": {2, 4, 1}, "enough run": {4, 4, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := serving(withMachines([]string{"one"}), trainOf(facts.KubernetesGroups, c.min, zoned))
			cluster.Pods = append(Pods("w", 3, ofPodGroup("train")), Pod("leader", ofPodGroup("train"), Asking("cpu", "1", "nvidia.com/gpu.shared", "1")), Pod("alone"))
			cluster.Pods = append(cluster.Pods, Pods("r", c.running, ofPodGroup("train"), Running("one"))...)
			view := snapshot.Build(cluster)
			if err := planner.Validate(view.Snapshot); err != nil {
				t.Fatal(err)
			}
			if len(view.Rules) != 1 || len(view.Groups) != c.groups {
				t.Fatalf("rules are %+v, groups %+v", view.Rules, view.Groups)
			}
			rule, present := view.Rules[0], int64(0)
			for _, n := range rule.Present {
				present += n
			}
			if rule.Kind != planner.Together || rule.Name != "topology of PodGroup default/train on "+zone || len(rule.Classes) != 2 || !slices.Equal(rule.Classes, rule.Counted) || present != int64(c.running) || rule.Elsewhere != 0 {
				t.Errorf("the rule is %+v", rule)
			}
		})
	}
}

func TestViewIsWithoutWholeGroups(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.Pods = append(Pods("w", 3, ofGroup("train", "3")), Pods("x", 2, ofGroup("other", "2"))...)
	c.Pods = append(c.Pods, Pod("alone"))
	view := snapshot.Build(c)
	without := view.Without(sets.New[types.UID]("pod-w-001"))
	if without.Pods["default/w-000"] != nil || without.Pods["default/x-000"] == nil || without.Pods["default/alone"] == nil || len(without.Pods) != 3 {
		t.Errorf("left are %v", without.Pods)
	}
}

func TestQueueDividesNoGroup(t *testing.T) {
	t.Parallel()
	grouped := func(c *facts.Cluster, namespace string, from, to int, minimum string) {
		for i := from; i < to; i++ {
			name := fmt.Sprintf("%s-%05d", namespace, i)
			c.Pods = append(c.Pods, Pod(name, in(namespace), ofGroup("train", minimum), inApp(name), spreadOver(zone, name), spreadOver(host, name)))
		}
	}
	c := crowded(1200)
	grouped(c, "fits", 0, 40, "40")
	grouped(c, "huge", 0, 1500, "1500") // Each has two terms, and counts as one.
	view := snapshot.Build(c)
	in, blocked := map[string]int{}, 0
	for _, pod := range view.Pods {
		in[pod.Namespace]++
	}
	for _, class := range view.Classes {
		if class.Blocked != nil && strings.HasPrefix(class.Blocked.Message, "group huge/train has more different pods") {
			blocked++
		}
	}
	if in["fits"] != 40 || len(view.Groups) != 1 || view.Groups[0].Name != "group fits/train" || in["huge"] == 0 || in["huge"] != blocked || len(view.Postponed) == 0 {
		t.Errorf("of the namespaces are %v pods in the view, groups are %+v, %d are blocked, %d wait", in, view.Groups, blocked, len(view.Postponed))
	}
}

func TestGroupIsPostponedWhole(t *testing.T) {
	t.Parallel()
	c := Shared()
	for g := range 3 { // Three groups of 1,500 terms each, of one namespace.
		for i := range 500 {
			name := fmt.Sprintf("g%d-%05d", g, i)
			c.Pods = append(c.Pods, Pod(name, ofGroup(fmt.Sprintf("train-%d", g), "500"), inApp(name), spreadOver(zone, name), spreadOver(host, name)))
		}
	}
	view := snapshot.Build(c)
	if len(view.Groups) != 2 || len(view.Pods) != 1000 || len(view.Postponed) != 500 {
		t.Fatalf("%d groups and %d pods are in the view, %d pods wait", len(view.Groups), len(view.Pods), len(view.Postponed))
	}
	waits := view.Postponed[0].Annotations[v1alpha1.GroupAnnotation]
	c.Queue = view.NextQueue(nil, refused(&view))
	view = snapshot.Build(c)
	if !slices.ContainsFunc(view.Groups, func(g planner.Group) bool { return g.Name == "group default/"+waits }) {
		t.Errorf("%s waits again", waits)
	}
}

func TestPoolThatIsTestedMayLaunchOneGroup(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pods []corev1.Pod
		want int64
	}{
		"no group":       {Pods("w", 3), 1},
		"one":            {Pods("w", 3, ofGroup("train", "3")), 3},
		"the largest":    {append(Pods("w", 3, ofGroup("train", "3")), Pods("x", 2, ofGroup("other", "2"))...), 3},
		"of other pools": {Pods("w", 3, ofGroup("train", "3"), Selecting("other", "pool")), 1},
		"too few":        {Pods("w", 2, ofGroup("train", "3")), 1},
	} {
		cluster := Shared()
		cluster.NodePools[0].Status.Conditions = []status.Condition{{Type: v1alpha1.ConditionReplicasHealthy, Status: metav1.ConditionUnknown}}
		cluster.Pods = c.pods
		view := snapshot.Build(cluster)
		if n := view.Snapshot.Pools[0].Remaining.Nodes; n != c.want {
			t.Errorf("%s: it may launch %d nodes", name, n)
		}
	}
}

// startingFor returns a cluster with machines that start for a group of pods, of which the first has its replicas, and the pods.
func startingFor(group string) *facts.Cluster {
	c := Shared()
	c.ReplicasTimeout = 10 * time.Minute
	c.Pods = Pods("w", 15, ofGroup(group, "15"))
	view := snapshot.Build(c)
	plan := planner.Launch{Pods: view.Classes[0].Pods[:10]}
	for i, is := range []func(*karpv1.NodeClaim){Registered(Now), Launched(Now)} {
		c.NodeClaims = append(c.NodeClaims, Claim(fmt.Sprint("m", i), &c.NodePools[0], TypeNamed("g4dn.xlarge"), is))
		c.NodeClaims[i].Annotations[v1alpha1.PlannedPodsAnnotation] = view.PlannedPods(plan)
	}
	c.Nodes = append(c.Nodes, Node(&c.NodeClaims[0], TypeNamed("g4dn.xlarge"), 10))
	return c
}

// ready makes the second machine one with its replicas.
func ready(c *facts.Cluster) {
	Registered(Now)(&c.NodeClaims[1])
	c.Nodes = append(c.Nodes, Node(&c.NodeClaims[1], TypeNamed("g4dn.xlarge"), 10))
}

func TestMachineAwaitsTheOthersOfItsGroup(t *testing.T) {
	t.Parallel()
	const noPlace = "group default/train has no place for all of the pods that it needs at once"
	for name, tc := range map[string]struct {
		edit  func(*facts.Cluster)
		plan  func(*snapshot.View) planner.Plan
		why   string
		alone bool
		with  string // the other machine that accepts pods at the same time
	}{
		"another machine has no replicas": {func(*facts.Cluster) {}, placed, "group default/train waits for NodeClaim m1", true, ""},
		"another machine is not ready": {func(c *facts.Cluster) {
			ready(c)
			c.Nodes[1].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}
		}, placed, "group default/train waits for NodeClaim m1", true, ""},
		"all have theirs": {ready, placed, "", true, "m1"},
		"the other one accepts pods": {func(c *facts.Cluster) {
			ready(c)
			c.Nodes[1].Spec.Taints = nil
		}, placed, "", true, ""},
		"a machine is still to be launched": {ready, func(v *snapshot.View) planner.Plan {
			return planner.Plan{Placements: []planner.Placement{{Pods: v.Classes[0].Pods[:10]}}, Launches: []planner.Launch{{Pods: v.Classes[0].Pods[10:]}}}
		}, noPlace, true, ""},
		"there is no place for the rest": {ready, func(*snapshot.View) planner.Plan { return planner.Plan{} }, noPlace, true, ""},
		"nothing is planned yet":         {ready, nil, noPlace, true, ""},
		"a pod is gone":                  {func(c *facts.Cluster) { ready(c); c.Pods = c.Pods[1:] }, placed, noPlace, true, ""},
		"the pods are gone":              {func(c *facts.Cluster) { c.Pods = nil }, placed, "", false, ""},
		"for another pod too": {func(c *facts.Cluster) {
			c.NodeClaims[0].Annotations[v1alpha1.PlannedPodsAnnotation] += ",0123456789=1"
		}, placed, "group default/train waits for NodeClaim m1", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := startingFor("train")
			tc.edit(c)
			view := snapshot.Build(c)
			var plans snapshot.GroupPlans
			if tc.plan != nil {
				plans.Note(&view, tc.plan(&view))
			}
			machines := snapshot.NewGroupMachines(c)
			why, alone := machines.Awaits(&view.Machines[0], &plans)
			if why != tc.why || alone != tc.alone {
				t.Errorf("waits for %q, alone is %v; want %q, %v", why, alone, tc.why, tc.alone)
			}
			var with []string
			for _, m := range machines.Together(&view.Machines[0], &plans) {
				with = append(with, m.Claim.Name)
			}
			if got := strings.Join(with, ","); got != tc.with {
				t.Errorf("accepts pods together with %q, want %q", got, tc.with)
			}
		})
	}
}

// A plan says that all pods have a place on two machines. Then one of them is gone, or has not registered in time.
func TestMachineDoesNotOpenForAPlanWithALostMachine(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*facts.Cluster){
		"gone": func(c *facts.Cluster) { c.NodeClaims, c.Nodes = c.NodeClaims[:1], c.Nodes[:1] },
		"never registers": func(c *facts.Cluster) {
			c.NodeClaims[1].Status, c.Nodes = karpv1.NodeClaimStatus{}, c.Nodes[:1]
			Launched(Now.Add(-time.Hour))(&c.NodeClaims[1])
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := startingFor("train")
			ready(c)
			view := snapshot.Build(c)
			var plans snapshot.GroupPlans
			plans.Note(&view, view.Earlier(nil))
			if why, _ := snapshot.NewGroupMachines(c).Awaits(&view.Machines[0], &plans); why != "" {
				t.Fatalf("it waits for %q before anything is lost", why)
			}
			lost := startingFor("train")
			ready(lost)
			lose(lost)
			view = snapshot.Build(lost)
			if why, _ := snapshot.NewGroupMachines(lost).Awaits(&view.Machines[0], &plans); why == "" {
				t.Error("it waits for nothing")
			}
		})
	}
}

// placed returns a plan in which all pods have a place on machines that exist.
func placed(v *snapshot.View) planner.Plan {
	var plan planner.Plan
	for _, c := range v.Classes {
		plan.Placements = append(plan.Placements, planner.Placement{Pods: c.Pods})
	}
	return plan
}

func TestEqualPodsOfAnotherGroupDoNotTakeTheSeats(t *testing.T) {
	t.Parallel()
	c := startingFor("train")
	c.Pods = append(c.Pods, Pods("x", 15, ofGroup("other", "15"))...)
	view := snapshot.Build(c)
	for _, p := range view.Earlier(nil).Placements {
		for _, pod := range p.Pods {
			if !strings.HasPrefix(pod, "default/w-") {
				t.Errorf("%s has a seat on a machine that was launched for another group", pod)
			}
		}
	}
}
