package layout_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/layout"
	"karve.sh/karve/pkg/fleet/retention"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/consolidate"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/prices"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

var xlarge = TypeNamed("g4dn.xlarge")

var ofWeb = OwnedBy("apps/v1", "ReplicaSet", "web")

// inUse returns a cluster with a machine that has run two pods of a ReplicaSet for an hour.
func inUse() *facts.Cluster {
	c := Shared()
	c.NodeClaims = append(c.NodeClaims, Claim("m", &c.NodePools[0], xlarge, Initialized(Now.Add(-time.Hour))))
	c.Nodes = append(c.Nodes, Node(&c.NodeClaims[0], xlarge, 10))
	c.Pods = Pods("web", 2, ofWeb, Running("m"), since(time.Hour))
	return c
}

// since makes a pod one that started this long ago.
func since(d time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.StartTime = &metav1.Time{Time: Now.Add(-d)} }
}

func layoutOf(c *facts.Cluster) layout.Layout {
	view := snapshot.Build(c)
	return layout.Build(&view, nil, retention.Pods(c))
}

func TestLayoutHoldsRunningPodsAndCostOfMovingThem(t *testing.T) {
	t.Parallel()
	c := inUse()
	GPUMemory("4Gi")(&c.Pods[1])
	c.Pods = append(c.Pods, Pod("waits", ofWeb))
	l := layoutOf(c)
	if err := planner.Validate(l.Layout.Snapshot); err != nil {
		t.Fatal(err)
	}
	want := []consolidate.Machine{{Node: 0, Pool: 0, Price: 526_000, Physical: planner.Physical{MilliCPU: 4000, MemoryBytes: 16 << 30, GPUs: 1, Replicas: 10, Nodes: 1}, Pods: []consolidate.Running{
		{Name: "default/web-000", Class: 0, GPU: -1, Move: 25_000}, {Name: "default/web-001", Class: 1, GPU: 0, Move: 25_000},
	}}}
	if diff := cmp.Diff(want, l.Layout.Machines); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	classes := l.Layout.Snapshot.Classes
	if len(classes) != 2 || len(classes[1].Pods) != 0 || !slices.Equal(classes[0].Pods, []string{"default/waits"}) {
		t.Errorf("classes %+v, want one with the pod that waits and one that nobody waits in", classes)
	}
	if free := l.Layout.Snapshot.Nodes[0].Free.Replicas; free != 8 {
		t.Errorf("%d replicas are free, want what the pods that run leave", free)
	}
}

func TestMoveOfAMemberRestartsItsGroup(t *testing.T) {
	t.Parallel()
	group := func(p *corev1.Pod) { p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("train")} }
	c := inUse()
	c.Pods = Pods("w", 4, ofWeb, Running("m"), since(time.Hour), group)
	object := facts.PodGroup{Key: facts.GroupKey{API: facts.KubernetesGroups, Namespace: "default", Name: "train"}, Min: 4}
	c.PodGroups = facts.NewPodGroups(facts.PodGroupAPIs(), []facts.PodGroup{object})
	l := layoutOf(c)
	if len(l.Layout.Machines) != 1 || l.Layout.Machines[0].Pods[0].Move != 4*25_000 || l.Restarts[0][0] != 4*50_000 {
		t.Errorf("machines %+v, restarts %v", l.Layout.Machines, l.Restarts)
	}
	object.Whole = true
	c.PodGroups = facts.NewPodGroups(facts.PodGroupAPIs(), []facts.PodGroup{object})
	if kept := layoutOf(c).Kept["m"]; !strings.Contains(kept, "PodGroup default/train, whose pods are disrupted only together") {
		t.Errorf("the machine may be removed, or stays because %q", kept)
	}
}

func TestLayoutKeepsMachinesThatMustStay(t *testing.T) {
	t.Parallel()
	onClass := func(edit func(*v1alpha1.Consolidation)) func(*facts.Cluster) {
		return func(c *facts.Cluster) { edit(&c.GPUNodeClasses[0].Spec.Consolidation) }
	}
	onPods := func(edits ...func(*corev1.Pod)) func(*facts.Cluster) {
		return func(c *facts.Cluster) {
			for _, edit := range edits {
				edit(&c.Pods[0])
			}
		}
	}
	onPool := func(consolidateAfter string, policy karpv1.ConsolidationPolicy) func(*facts.Cluster) {
		return func(c *facts.Cluster) {
			c.NodePools[0].Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration(consolidateAfter)
			c.NodePools[0].Spec.Disruption.ConsolidationPolicy = policy
		}
	}
	podEvent := func(ago time.Duration) func(*facts.Cluster) {
		return func(c *facts.Cluster) { c.NodeClaims[0].Status.LastPodEventTime = metav1.NewTime(Now.Add(-ago)) }
	}
	ofJob := OwnedBy("batch/v1", "Job", "train")
	done := func(took time.Duration) func(*facts.Cluster) {
		return func(c *facts.Cluster) {
			c.Pods = append(c.Pods, Pod("done", ofJob, Running("gone"), since(2*took), func(p *corev1.Pod) {
				p.Status.Phase = corev1.PodSucceeded
				p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(Now.Add(-took))}}}}
			}))
		}
	}
	withForeign := func(edits ...func(*corev1.Pod)) func(*facts.Cluster) {
		return func(c *facts.Cluster) {
			c.Pods = append(c.Pods, Pod("foreign", append([]func(*corev1.Pod){ofWeb, Running("m"), since(time.Hour), Asking("cpu", "1")}, edits...)...))
		}
	}
	other := func(cpu string, edits ...func(*corev1.Node)) func(*facts.Cluster) {
		return func(c *facts.Cluster) {
			node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "cpu"}, Status: corev1.NodeStatus{Allocatable: Amounts("cpu", cpu, "memory", "8Gi", "pods", "10")}}
			for _, edit := range edits {
				edit(&node)
			}
			c.Nodes = append(c.Nodes, node)
		}
	}
	for name, c := range map[string]struct {
		changes []func(*facts.Cluster)
		// moves is the cost of moving all pods of the machine. It is -1 for a machine that may not leave, for the reason in kept.
		moves planner.MicroUSD
		kept  string
	}{
		"pods may move":                                        {nil, 100_000, ""},
		"WhenIdle keeps pods":                                  {list(onClass(func(c *v1alpha1.Consolidation) { c.Policy = v1alpha1.ConsolidateWhenIdle })), -1, ""},
		"WhenEmpty keeps pods":                                 {list(onPool("0s", karpv1.ConsolidationPolicyWhenEmpty)), -1, ""},
		"consolidateAfter Never keeps pods":                    {list(onPool("Never", karpv1.ConsolidationPolicyWhenEmptyOrUnderutilized)), -1, ""},
		"pods stay before consolidateAfter":                    {list(onPool("61m", karpv1.ConsolidationPolicyWhenEmptyOrUnderutilized)), -1, ""},
		"consolidateAfter counts from initialization":          {list(onPool("60m", karpv1.ConsolidationPolicyWhenEmptyOrUnderutilized)), 100_000, ""},
		"consolidateAfter restarts with each pod event":        {list(onPool("30m", karpv1.ConsolidationPolicyWhenEmptyOrUnderutilized), podEvent(29*time.Minute)), -1, ""},
		"consolidateAfter has passed since the last pod event": {list(onPool("30m", karpv1.ConsolidationPolicyWhenEmptyOrUnderutilized), podEvent(30*time.Minute)), 100_000, ""},
		"restartCost is the cost of a restart":                 {list(onClass(func(c *v1alpha1.Consolidation) { c.RestartCost = "0.1" })), 200_000, ""},
		"a zero restartCost makes moves free":                  {list(onClass(func(c *v1alpha1.Consolidation) { c.RestartCost = "0" })), 0, ""},
		"a high deletion cost raises the cost of a move":       {list(onPods(annotated(corev1.PodDeletionCost, "134217728"))), 150_000, ""},
		"the lowest deletion cost makes a restart free":        {list(onPods(annotated(corev1.PodDeletionCost, "-2147483647"))), 50_000, ""},
		"a high priority raises the cost of a move":            {list(onPods(func(p *corev1.Pod) { p.Spec.Priority = new(int32(1 << 25)) })), 150_000, ""},
		"a pod stays until its node has cost its restart":      {list(onPods(since(342 * time.Second))), -1, ""},
		"a pod may move once its node has cost its restart":    {list(onPods(since(343 * time.Second))), 100_000, ""},
		"a new pod may move if its restart is free":            {list(onPods(since(0)), onClass(func(c *v1alpha1.Consolidation) { c.RestartCost = "0" })), 0, ""},
		"the pods of a just initialized machine may move": {list(func(c *facts.Cluster) {
			c.NodeClaims[0] = Claim("m", &c.NodePools[0], xlarge, Initialized(Now.Add(-time.Second)))
		}), 100_000, ""},
		"an uninitialized machine stays": {list(func(c *facts.Cluster) { c.NodeClaims[0].Status.Conditions = c.NodeClaims[0].Status.Conditions[:1] }), -1, ""},
		"a leaving machine stays out":    {list(onClaim(v1alpha1.ReplacingAnnotation, "Drifted")), -1, ""},
		"a machine about to be removed stays out": {list(func(c *facts.Cluster) {
			taintWith(&c.Nodes[0], v1alpha1.DisruptingTaintKey, corev1.TaintEffectNoSchedule)
		}), -1, ""},
		"a machine with the surplus taint may leave": {list(func(c *facts.Cluster) {
			taintWith(&c.Nodes[0], v1alpha1.SurplusTaintKey, corev1.TaintEffectPreferNoSchedule)
		}), 100_000, ""},
		"a machine that rests after a failed replacement stays": {list(onClaim(v1alpha1.ReplaceAfterAnnotation, Now.Add(time.Minute).Format(time.RFC3339))), -1, ""},
		"a rested machine may leave":                            {list(onClaim(v1alpha1.ReplaceAfterAnnotation, Now.Format(time.RFC3339))), 100_000, ""},
		"a rest beyond the limit is ignored":                    {list(onClaim(v1alpha1.ReplaceAfterAnnotation, Now.Add(time.Hour).Format(time.RFC3339))), 100_000, ""},
		"several failures allow a longer rest":                  {list(onClaim(v1alpha1.ReplaceAfterAnnotation, Now.Add(time.Hour).Format(time.RFC3339)), onClaim(v1alpha1.ReplacementFailuresAnnotation, "4")), -1, ""},
		"a machine with a pod without an owner stays":           {list(onPods(func(p *corev1.Pod) { p.OwnerReferences = nil })), -1, "pod default/web-000 has no owner"},
		"a machine with a Job pod may leave":                    {list(onPods(ofJob)), 100_000, ""},
		"a Job pod past half of the usual duration stays":       {list(onPods(ofJob), done(119*time.Minute)), -1, "others of it took 119m"},
		"a Job pod before half of the usual duration may move":  {list(onPods(ofJob), done(2*time.Hour)), 100_000, ""},
		"a Job pod past half of its deadline stays":             {list(onPods(ofJob, func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64(7199)) })), -1, "of the 119m that it has"},
		"a machine whose pods are left to Karpenter stays": {list(func(c *facts.Cluster) {
			c.NodePools = append(c.NodePools, StockPool("stock", Tainted(v1alpha1.ResourceGPUShared)))
			c.Pods[0].Spec.Containers[0].Resources.Requests = Amounts(v1alpha1.ResourceGPU, "1")
		}), -1, "pod default/web-000"},
		"a machine of a closed pool stays":                           {list(func(c *facts.Cluster) { c.NodePools[0].Spec.Template.Spec.Taints = nil }), -1, ""},
		"a machine with a foreign pod that fits nowhere stays":       {list(withForeign()), -1, "pod default/foreign, which holds no replica, would have no place on another node: there is none"},
		"a machine with a foreign pod that fits elsewhere may leave": {list(withForeign(), other("1")), 100_000, ""},
		"a foreign pod finds no free capacity":                       {list(withForeign(), other("900m")), -1, "none that admits it has room"},
		"a foreign pod is not admitted elsewhere":                    {list(withForeign(), other("1", func(n *corev1.Node) { taintWith(n, "other", corev1.TaintEffectNoSchedule) })), -1, "none admits it"},
		"a foreign pod without an owner stays":                       {list(withForeign(func(p *corev1.Pod) { p.OwnerReferences = nil }), other("1")), -1, "pod default/foreign has no owner"},
		"a foreign pod with pod affinity stays":                      {list(withForeign(alone), other("1")), -1, "asks for places by other pods"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := inUse()
			for _, change := range c.changes {
				change(cluster)
			}
			l := layoutOf(cluster)
			got := planner.MicroUSD(-1)
			if len(l.Layout.Machines) == 1 {
				got = 0
				for _, cost := range l.Restarts[0] {
					got += cost
				}
			}
			if got != c.moves {
				t.Errorf("the restarts cost %d, want %d (kept: %v)", got, c.moves, l.Kept)
			}
			if !strings.Contains(l.Kept["m"], c.kept) || c.kept == "" && l.Kept["m"] != "" {
				t.Errorf("kept for %q, want %q", l.Kept["m"], c.kept)
			}
		})
	}
}

// Otherwise Karve would learn only at the next demand for a machine that the pool works again.
func TestLayoutAllowsOneLaunchWhilePoolIsProbed(t *testing.T) {
	t.Parallel()
	c := inUse()
	c.NodePools[0].StatusConditions().SetUnknownWithReason(v1alpha1.ConditionReplicasHealthy, "Probing", "")
	l := layoutOf(c)
	if len(l.Layout.Machines) != 1 || l.Layout.Snapshot.Pools[0].Remaining.Nodes != 1 || l.Layout.Machines[0].Physical.Nodes != 0 {
		t.Errorf("of %d machines, %+v, another %d may be launched in the end; want one", len(l.Layout.Machines), l.Layout.Machines, l.Layout.Snapshot.Pools[0].Remaining.Nodes)
	}
}

func TestMachinePriceIsCurrentCatalogPrice(t *testing.T) {
	t.Parallel()
	c := inUse()
	c.NodeClaims[0].Annotations[v1alpha1.PriceAnnotation] = "999000"
	if got := records.Machines(c)[0].MicroUSDPerHour(); got != 526_000 {
		t.Errorf("%d, want the price of the catalog", got)
	}
	c.UseInstanceTypes(nil)
	if got := records.Machines(c)[0].MicroUSDPerHour(); got != 999_000 {
		t.Errorf("%d, want the price when it was chosen, since the catalog has lost the type", got)
	}
}

func TestPlanUsesNodesWithSurplusTaint(t *testing.T) {
	t.Parallel()
	c := inUse()
	taintWith(&c.Nodes[0], v1alpha1.SurplusTaintKey, corev1.TaintEffectPreferNoSchedule)
	c.Pods = append(c.Pods, Pod("waits", ofWeb))
	view := snapshot.Build(c)
	plan := solve.Plan(view.Snapshot)
	if len(plan.Launches) != 0 || len(view.Classes[0].Preferences) != 0 {
		t.Errorf("the taint costs %d machines and makes preferences %v", len(plan.Launches), view.Classes[0].Preferences)
	}
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{key: value} }
}

func onClaim(key, value string) func(*facts.Cluster) {
	return func(c *facts.Cluster) { c.NodeClaims[0].Annotations[key] = value }
}

func taintWith(node *corev1.Node, key string, effect corev1.TaintEffect) {
	node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Effect: effect})
}

// alone gives a pod an anti-affinity to all other pods.
func alone(p *corev1.Pod) {
	p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
		{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{}},
	}}}
}

func list(edits ...func(*facts.Cluster)) []func(*facts.Cluster) { return edits }

func TestPartialLayoutHoldsItsMachinesNodesAndPlannedPods(t *testing.T) {
	t.Parallel()
	c := inUse()
	c.NodeClaims = append(c.NodeClaims, Claim("n", &c.NodePools[0], xlarge, Initialized(Now.Add(-time.Hour))))
	c.Nodes = append(c.Nodes, Node(&c.NodeClaims[1], xlarge, 10))
	c.Pods = append(c.Pods, Pod("other", ofWeb, Running("n"), since(time.Hour)), Pod("here", ofWeb), Pod("there", ofWeb), Pod("launched", ofWeb))
	view := snapshot.Build(c)
	l := layout.Build(&view, &layout.Part{Machines: map[string]bool{"m": true}, Placed: map[string]string{"default/here": "m", "default/there": "n"}}, func(*records.Machine) string { return "" })
	if err := planner.Validate(l.Layout.Snapshot); err != nil {
		t.Fatal(err)
	}
	if len(l.Machines) != 1 || l.Machines[0].Claim.Name != "m" || len(l.Layout.Machines[0].Pods) != 2 {
		t.Errorf("machines %+v, want m with its two pods", l.Layout.Machines)
	}
	for _, class := range l.Layout.Snapshot.Classes {
		if !slices.Equal(class.Pods, []string{"default/here"}) {
			t.Errorf("the pods %v wait, want the one that is planned on m", class.Pods)
		}
		for _, node := range class.Nodes {
			if name := l.Layout.Snapshot.Nodes[node].Name; name != "m" {
				t.Errorf("node %s takes pods", name)
			}
		}
	}
	if whole := layout.Build(&view, nil, func(*records.Machine) string { return "" }); len(whole.Machines) != 2 || len(whole.Layout.Snapshot.Classes[0].Pods) != 3 {
		t.Errorf("the whole layout has %d machines and the pods %v", len(whole.Machines), whole.Layout.Snapshot.Classes[0].Pods)
	}
}

func TestMachineWithinLimitFreesItWhenItLeaves(t *testing.T) {
	t.Parallel()
	c, one := inUse(), int64(1)
	c.UsePrices(prices.NewBook(nil, []prices.Rule{{Name: "plan", PriceAdjustment: "-50%", UpTo: &prices.UpTo{Machines: &one}}}))
	l := layoutOf(c)
	m := l.Layout.Machines[0]
	if m.Price != 263_000 || len(m.Draws) != 1 || l.Layout.Snapshot.Stocks[0].Left != 0 || l.Layout.Freed([]int{0}).Stocks[0].Left != 1 {
		t.Errorf("the machine costs %d and draws %v; %v is left", m.Price, m.Draws, l.Layout.Snapshot.Stocks)
	}
}
