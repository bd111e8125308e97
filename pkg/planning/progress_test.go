package planning

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/alternatives"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/render"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// cutOff returns a stop function that ends a search after the given number of calls.
func cutOff(asks int) func() bool {
	return func() bool { asks--; return asks < 0 }
}

// carrying carries out plans as the controller does, on a cluster in memory.
type carrying struct {
	cluster  *facts.Cluster
	progress *Progress
	view     snapshot.View // view of the last plan
	bill     planner.MicroUSD
}

// drawPods draws pods of a few shapes: CPU, memory and replicas, and device memory for some.
func drawPods(t *rapid.T, prefix string) []corev1.Pod {
	var pods []corev1.Pod
	for k := range rapid.IntRange(1, 8).Draw(t, "shapes") {
		asking := Asking("cpu", fmt.Sprintf("%dm", 100*rapid.IntRange(1, 40).Draw(t, "cpu")), "memory", fmt.Sprintf("%dMi", 256*rapid.IntRange(1, 40).Draw(t, "memory")),
			v1alpha1.ResourceGPUShared, fmt.Sprint(rapid.IntRange(1, 3).Draw(t, "replicas")))
		edits := []func(*corev1.Pod){asking}
		if rapid.Bool().Draw(t, "device memory") {
			edits = append(edits, GPUMemory(fmt.Sprintf("%dGi", rapid.IntRange(1, 9).Draw(t, "GiB"))))
		}
		if rapid.IntRange(0, 4).Draw(t, "zonal") == 0 {
			edits = append(edits, Selecting(corev1.LabelTopologyZone, Zones[rapid.IntRange(0, 1).Draw(t, "zone")]))
		}
		pods = append(pods, Pods(fmt.Sprintf("%s-%d", prefix, k), rapid.IntRange(1, 25).Draw(t, "pods"), edits...)...)
	}
	return pods
}

// round makes a plan and creates at most atATime of its NodeClaims.
func (c *carrying) round(t rapid.TB, atATime int, stop func() bool) planner.Plan {
	c.view = snapshot.Build(c.cluster)
	view := &c.view
	plan := view.Keeping(alternatives.Add(view.Snapshot, solve.Solver{Stop: stop, Frozen: view.Frozen()}.Resume(view.Snapshot, c.progress.earlier(view, Now))))
	if err := check.Plan(view.Snapshot, plan); err != nil {
		t.Fatal(err)
	}
	for claim, pods := range view.Replanned(plan) {
		i := slices.IndexFunc(c.cluster.NodeClaims, func(x karpv1.NodeClaim) bool { return x.Name == claim.Name })
		c.cluster.NodeClaims[i].Annotations[v1alpha1.PlannedPodsAnnotation] = pods
	}
	entries := c.progress.keep(view, plan, Now)
	n := min(atATime, len(plan.Launches))
	for i, l := range plan.Launches[:n] {
		claim := render.NodeClaim(view, l, nil)
		claim.UID, claim.CreationTimestamp = types.UID(claim.Name), metav1.NewTime(Now)
		if err := c.progress.Mark(claim, entries[i], view.Machines, n < len(plan.Launches)); err != nil {
			t.Fatal(err)
		}
		c.progress.Created(claim)
		c.cluster.NodeClaims = append(c.cluster.NodeClaims, *claim)
		c.bill += view.Snapshot.Offerings[l.Offering].Price
	}
	return plan
}

// start starts the machine of a placement and binds the pods that the plan places there.
func (c *carrying) start(plan planner.Plan, at int) {
	p := plan.Placements[at]
	i := slices.IndexFunc(c.cluster.NodeClaims, func(x karpv1.NodeClaim) bool { return x.Name == c.view.Nodes[p.Node].Name })
	if i < 0 {
		return
	}
	claim := &c.cluster.NodeClaims[i]
	instanceType, zone, capacityType := records.ShapeOf(claim)
	claim.Labels[corev1.LabelInstanceTypeStable], claim.Labels[corev1.LabelTopologyZone], claim.Labels[karpv1.CapacityTypeLabelKey] = instanceType, zone, capacityType
	claim.Status.Conditions = nil
	Initialized(Now)(claim)
	promise := facts.PromiseOf(claim.Annotations)
	node := Node(claim, TypeNamed(instanceType), promise.Replicas())
	node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == v1alpha1.ReplicasNotReadyTaintKey })
	c.cluster.Nodes = append(slices.DeleteFunc(c.cluster.Nodes, func(n corev1.Node) bool { return n.Name == node.Name }), node)
	for j := range c.cluster.Pods {
		if pod := &c.cluster.Pods[j]; slices.Contains(p.Pods, pod.Namespace+"/"+pod.Name) {
			Running(node.Name)(pod)
		}
	}
}

// keepsThePlan checks that the machines cost what the first plan said, although no later plan has any search time, while machines start and receive their pods
// and the controller restarts.
func keepsThePlan(t *rapid.T) {
	c := carrying{cluster: Shared(), progress: &Progress{}}
	c.cluster.Pods = drawPods(t, "pod")
	atATime := rapid.IntRange(1, 4).Draw(t, "at a time")
	plan := c.round(t, atATime, cutOff(rapid.IntRange(0, 300).Draw(t, "asks")))
	want, left := plan.Price, len(plan.Unplaced)
	for range 500 {
		if len(plan.Launches) == 0 {
			break
		}
		if rapid.Bool().Draw(t, "restart") {
			c.progress = &Progress{}
		}
		if len(plan.Placements) > 0 && rapid.Bool().Draw(t, "start") {
			c.start(plan, rapid.IntRange(0, len(plan.Placements)-1).Draw(t, "which"))
		}
		plan = c.round(t, atATime, cutOff(0))
	}
	if c.bill != want || len(plan.Unplaced) != left || len(plan.Launches) > 0 {
		t.Fatalf("the machines cost %d and leave %d pods out, the first plan %d and %d", c.bill, len(plan.Unplaced), want, left)
	}
}

func TestPlanIsKeptWhileItIsCarriedOut(t *testing.T) { t.Parallel(); rapid.Check(t, keepsThePlan) }
func TestOldClaimsDoNotRestorePlan(t *testing.T) {
	t.Parallel()
	c := carrying{cluster: Shared(), progress: &Progress{}}
	c.cluster.Pods = Pods("pod", 50)
	c.round(t, 1, nil)
	var m progress
	view := snapshot.Build(c.cluster)
	if m.recall(view.Machines, Now); len(m.still(view.Machines)) == 0 {
		t.Error("a restart does not go on with the plan")
	}
	if m.recall(view.Machines, Now.Add(2*planLife)); len(m.still(view.Machines)) != 0 {
		t.Error("a plan is recalled that was made long ago")
	}
}

func TestLongPlanIsCutToFitAnnotation(t *testing.T) {
	t.Parallel()
	var launches []snapshot.PlannedLaunch
	for i := range 20_000 {
		launches = append(launches, snapshot.PlannedLaunch{Offering: fmt.Sprintf("gpu-shared/type-%d/zone", i*7919%20_011), Pods: fmt.Sprintf("%x=%d", i*104_729, i), Count: i})
	}
	text, err := packed(launches)
	if err != nil || len(text) > maxPlanBytes {
		t.Fatalf("%d bytes, %v", len(text), err)
	}
	read, err := unpacked(text)
	if err != nil || len(read) == 0 || !slices.EqualFunc(read, launches[:len(read)], func(a, b snapshot.PlannedLaunch) bool { return a.Key() == b.Key() && a.Count == b.Count }) {
		t.Errorf("read %d launches, %v", len(read), err)
	}
}
