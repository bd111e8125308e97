package render_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/catalog/builtin"
	"karve.sh/karve/pkg/nodelabels"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/render"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// TestNoPodsCauseAThirdLaunch plays generated clusters with agents that write labels late, never, or with other values than foretold, and add taints. Pods get at most one more
// node after the first while no pod is bound to a node, and bound pods end all launches. KARVE_LABEL_CLUSTERS is the number of clusters.
func TestNoPodsCauseAThirdLaunch(t *testing.T) {
	t.Parallel()
	count := 600
	if testing.Short() {
		count = 200
	}
	if n, err := strconv.Atoi(os.Getenv("KARVE_LABEL_CLUSTERS")); err == nil {
		count = n
	}
	types, err := builtin.InstanceTypes()
	if err != nil {
		t.Fatal(err)
	}
	types = slices.DeleteFunc(types, func(t catalog.InstanceType) bool {
		return !slices.Contains([]string{"g4dn.xlarge", "g4dn.2xlarge", "g5.xlarge", "g5.4xlarge", "g6.xlarge", "p3dn.24xlarge"}, t.Name)
	})
	launched, bound, waited := 0, 0, 0
	for i := range count + len(found) {
		if i >= count {
			i = found[i-count]
		}
		w := newWorld(rand.New(rand.NewPCG(1, uint64(i))), types)
		for range 24 {
			if err := w.round(); err != nil {
				t.Fatalf("cluster %d, agents %q, pods %v: %v", i, w.agents, w.asks, err)
			}
		}
		if most := 3 * len(w.launchedFor); w.launched > most {
			t.Errorf("cluster %d, agents %q, pods %v: %d launches for %d pods", i, w.agents, w.asks, w.launched, len(w.launchedFor))
		}
		launched += w.launched
		for p := range w.c.Pods {
			if pod := &w.c.Pods[p]; len(pod.OwnerReferences) == 0 && pod.Spec.NodeName != "" {
				bound++
			}
		}
		for c := range w.c.GPUNodeClasses {
			waited += len(w.c.GPUNodeClasses[c].Status.NodeMismatches)
		}
	}
	t.Logf("%d clusters: %d launches, %d pods run, %d mismatches", count, launched, bound, waited)
	if launched < count/2 || bound < count || waited < count/20 {
		t.Errorf("%d launches, %d running pods and %d mismatches in %d clusters: the generator is too tame", launched, bound, waited, count)
	}
}

// found are clusters beyond the usual number that failed once.
var found = []int{1236, 7453}

// world is a cluster with agents, a scheduler and a controller that deletes idle nodes.
type world struct {
	*rand.Rand
	c      *facts.Cluster
	types  []catalog.InstanceType
	agents string
	asks   []string
	idle   time.Duration
	// launches counts the launches for each pod since a pod was bound. launched counts all launches.
	launches    map[string]int
	launched    int
	launchedFor map[string]bool
	// nominated has the node for which a waiting pod is nominated.
	nominated map[string]string
	// writes has the labels that the agent of a node writes, and when. empty has since when a node is empty.
	writes map[string]written
	// taints has the taints that another component adds to a node for good.
	taints map[string][]corev1.Taint
	empty  map[string]time.Time
}

type written struct {
	at     time.Time
	labels map[string]string
}

// pick returns one of the values.
func pick[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

var demands = []corev1.NodeSelectorRequirement{
	{Key: "nvidia.com/gpu.product", Operator: "In", Values: []string{"NVIDIA-A10G", "NVIDIA-A10G-SHARED"}},
	{Key: "nvidia.com/gpu.product", Operator: "In", Values: []string{"Tesla-T4", "NVIDIA-L4"}},
	{Key: "nvidia.com/gpu.product", Operator: "NotIn", Values: []string{"Tesla-T4", "Tesla-T4-SHARED"}},
	{Key: "nvidia.com/gpu.memory", Operator: "Gt", Values: []string{"20000"}},
	{Key: "nvidia.com/gpu.memory", Operator: "Lt", Values: []string{"20000"}},
	{Key: "nvidia.com/gpu.memory", Operator: "In", Values: []string{"15360"}},
	{Key: "nvidia.com/gpu.memory", Operator: "NotIn", Values: []string{"23028"}},
	{Key: "nvidia.com/gpu.family", Operator: "In", Values: []string{"ampere"}},
	{Key: "nvidia.com/gpu.compute.major", Operator: "Gt", Values: []string{"7"}},
	{Key: "nvidia.com/gpu.count", Operator: "In", Values: []string{"1"}},
	{Key: "nvidia.com/gpu.present", Operator: "Exists"},
	{Key: "nvidia.com/gpu.replicas", Operator: "Gt", Values: []string{"3"}},
	{Key: "nvidia.com/gpu.sharing-strategy", Operator: "NotIn", Values: []string{"mps"}},
	{Key: "nvidia.com/mig.capable", Operator: "In", Values: []string{"false"}},
	{Key: "nvidia.com/mig.strategy", Operator: "DoesNotExist"},
	{Key: "nvidia.com/cuda.driver.major", Operator: "NotIn", Values: []string{"535"}},
	{Key: "nvidia.com/cuda.driver.major", Operator: "Gt", Values: []string{"500"}},
	{Key: "feature.node.kubernetes.io/pci-10de.present", Operator: "In", Values: []string{"true"}},
	{Key: "feature.node.kubernetes.io/pci-10de.present", Operator: "DoesNotExist"},
	{Key: "topology.ebs.csi.aws.com/zone", Operator: "In", Values: []string{"us-east-1a", "us-east-1b"}},
	{Key: "karpenter.k8s.aws/instance-gpu-name", Operator: "In", Values: []string{"t4", "l4"}},
	{Key: "eks.amazonaws.com/compute-type", Operator: "NotIn", Values: []string{"fargate", "auto"}},
	{Key: "kubernetes.io/arch", Operator: "In", Values: []string{"amd64"}},
}

// required returns a pod's affinity with one or two terms of one or two requirements.
func (w *world) required() *corev1.Affinity {
	var terms []corev1.NodeSelectorTerm
	for range 1 + w.IntN(2) {
		var term corev1.NodeSelectorTerm
		for range 1 + w.IntN(2) {
			term.MatchExpressions = append(term.MatchExpressions, pick(w.Rand, demands...))
		}
		terms = append(terms, term)
	}
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
}

func newWorld(r *rand.Rand, types []catalog.InstanceType) *world {
	w := &world{
		Rand: r, c: Shared(), types: types, launches: map[string]int{}, launchedFor: map[string]bool{}, nominated: map[string]string{}, writes: map[string]written{}, taints: map[string][]corev1.Taint{}, empty: map[string]time.Time{},
		agents: pick(r, "honest", "late", "wrong", "missing", "other", "tainting", "each another"), idle: pick(r, 0, time.Minute, 3*time.Minute, 5*time.Minute),
	}
	w.c.UseInstanceTypes(types)
	w.c.ReplicasTimeout = 10 * time.Minute
	sharing := &w.c.GPUNodeClasses[0].Spec.Sharing
	*sharing = pick(
		r, v1alpha1.Sharing{Strategy: v1alpha1.StrategyTimeSlicing, Replicas: new(int32(4))}, v1alpha1.Sharing{Strategy: v1alpha1.StrategyMPS, Replicas: new(int32(3))},
		v1alpha1.Sharing{Strategy: v1alpha1.StrategyTimeSlicing, Replicas: new(int32(4)), ResourceName: v1alpha1.ResourceGPU}, v1alpha1.Sharing{Strategy: v1alpha1.StrategyNone},
	)
	for range r.IntN(3) {
		if req := pick(r, demands...); r.IntN(2) == 0 {
			Requiring(req.Key, req.Operator, req.Values...)(&w.c.NodePools[0])
		}
	}
	if r.IntN(3) == 0 {
		w.c.NodePools = append(w.c.NodePools, Pool("second", "gpu-shared", Tainted(v1alpha1.ResourceGPUShared)))
	}
	for i := range 1 + r.IntN(3) {
		affinity := w.required()
		w.asks = append(w.asks, fmt.Sprint(affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms))
		w.c.Pods = append(w.c.Pods, Pods(fmt.Sprintf("w%d", i), 1+r.IntN(4), Asking("cpu", pick(r, "100m", "900m", "3"), "memory", "1Gi", sharing.Resource(), "1"), func(p *corev1.Pod) {
			p.Spec.Affinity = affinity
		})...)
	}
	for i := range r.IntN(3) {
		ds := DaemonSet(fmt.Sprint("ds", i), "cpu", pick(r, "100m", "500m", "1"), "memory", "256Mi")
		ds.Spec.Template.Spec.Affinity = w.required()
		w.c.DaemonSets = append(w.c.DaemonSets, ds)
	}
	return w
}

// round plans, launches what is planned, and lets 30 seconds pass.
func (w *world) round() error {
	view := snapshot.Build(w.c)
	plan := (solve.Solver{}).Plan(view.Snapshot)
	if err := check.Plan(view.Snapshot, plan); err != nil {
		return err
	}
	for i := range w.c.GPUNodeClasses {
		w.c.GPUNodeClasses[i].Status.NodeMismatches = view.NodeMismatches(&w.c.GPUNodeClasses[i])
	}
	for claim, pods := range view.Replanned(plan) {
		for i := range w.c.NodeClaims {
			if w.c.NodeClaims[i].Name == claim.Name {
				w.c.NodeClaims[i].Annotations = maps.Clone(w.c.NodeClaims[i].Annotations)
				w.c.NodeClaims[i].Annotations[v1alpha1.PlannedPodsAnnotation] = pods
			}
		}
	}
	planned := map[string]bool{}
	clear(w.nominated)
	for _, p := range plan.Placements {
		planned[view.Snapshot.Nodes[p.Node].Name] = true
		for _, pod := range p.Pods {
			w.nominated[pod] = view.Snapshot.Nodes[p.Node].Name
		}
	}
	for _, l := range plan.Launches {
		claim := render.NodeClaim(&view, l, nil)
		claim.CreationTimestamp = metav1.NewTime(w.c.Now)
		if slices.ContainsFunc(w.c.NodeClaims, func(c karpv1.NodeClaim) bool { return c.Name == claim.Name }) {
			continue
		}
		w.c.NodeClaims = append(w.c.NodeClaims, *claim)
		w.launched++
		for _, pod := range l.Pods {
			w.nominated[pod], w.launchedFor[pod] = claim.Name, true
			if w.launches[pod]++; w.launches[pod] > 2 {
				return fmt.Errorf("%s is launched for a third time, with %s; mismatches: %+v", pod, view.Offerings[l.Offering].Type.Name, w.c.GPUNodeClasses[0].Status.NodeMismatches)
			}
		}
	}
	w.deleteIdle(planned)
	w.c.Now = w.c.Now.Add(30 * time.Second)
	w.c.Nodes = slices.Clone(w.c.Nodes)
	w.start()
	w.write()
	w.runDaemons()
	w.schedule()
	return nil
}

func conditions(at time.Time, types ...string) []status.Condition {
	var all []status.Condition
	for _, t := range types {
		all = append(all, status.Condition{Type: t, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(at)})
	}
	return all
}

// start takes each machine a step further: launched and registered, then initialized.
func (w *world) start() {
	for i := range w.c.NodeClaims {
		claim := &w.c.NodeClaims[i]
		switch at := slices.IndexFunc(w.c.Nodes, func(n corev1.Node) bool { return n.Name == claim.Name }); {
		case at < 0:
			w.c.Nodes = append(w.c.Nodes, w.arrive(claim))
		case w.c.Nodes[at].Labels[karpv1.NodeInitializedLabelKey] == "":
			node := w.c.Nodes[at].DeepCopy()
			node.Labels[karpv1.NodeInitializedLabelKey] = "true"
			node.Spec.Taints = append(slices.Clone(claim.Spec.Taints), w.taints[node.Name]...)
			w.c.Nodes[at] = *node
			started := claim.DeepCopy()
			started.Status.Conditions = append(started.Status.Conditions, conditions(w.c.Now, karpv1.ConditionTypeInitialized)...)
			*claim = *started
		}
	}
}

// arrive launches one of the machines that a NodeClaim allows, as Karpenter does, and returns its Node.
func (w *world) arrive(claim *karpv1.NodeClaim) corev1.Node {
	requirements := scheduling.NewNodeSelectorRequirementsWithMinValues(claim.Spec.Requirements...)
	type machine struct {
		t *catalog.InstanceType
		o *catalog.Offering
	}
	var allowed []machine
	for i := range w.types {
		for j := range w.types[i].Offerings {
			t, o := &w.types[i], &w.types[i].Offerings[j]
			if requirements.Get(corev1.LabelInstanceTypeStable).Has(t.Name) && requirements.Get(corev1.LabelTopologyZone).Has(o.Zone) {
				allowed = append(allowed, machine{t, o})
			}
		}
	}
	m := pick(w.Rand, allowed...)
	launched := claim.DeepCopy()
	launched.Labels = map[string]string{}
	for _, more := range []map[string]string{singles(claim), m.t.Labels, m.o.Labels, claim.Labels} {
		maps.Copy(launched.Labels, more)
	}
	launched.Status.ProviderID, launched.Status.NodeName = "aws:///"+claim.Name, claim.Name
	launched.Status.Conditions = conditions(w.c.Now, karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered)
	*claim = *launched
	promise := facts.PromiseOf(claim.Annotations)
	node := Node(claim, m.t, m.t.GPU.Count*promise.ReplicasPerGPU)
	for former, key := range nodelabels.Aliases() {
		if value, ok := launched.Labels[key]; ok {
			node.Labels[former] = value
		}
	}
	node.Labels[corev1.LabelHostname] = node.Name
	w.writes[node.Name] = w.agent(node.Name, m.t, &promise)
	return node
}

// agent returns what the agent of a machine writes on its Node.
func (w *world) agent(node string, t *catalog.InstanceType, p *facts.Promise) written {
	honest := nodelabels.Of(&nodelabels.Node{
		Type: t.Name, Nitro: true, GPU: t.GPU, Resource: string(p.Resource), MinReplicas: p.ReplicasPerGPU, MaxReplicas: p.ReplicasPerGPU, MPS: p.MPS.Users != "",
	})
	labels := honest.Known
	least, most := t.GPU.ReportedMiB()
	labels["nvidia.com/gpu.memory"] = strconv.FormatInt(least+(most-least)/4, 10)
	labels["nvidia.com/cuda.driver.major"] = pick(w.Rand, "535", "580")
	if w.IntN(2) == 0 {
		labels["feature.node.kubernetes.io/pci-10de.present"] = "true"
	}
	at, agents := w.c.Now, w.agents
	if agents == "each another" {
		agents = pick(w.Rand, "honest", "late", "wrong", "missing", "other", "tainting")
	}
	keys := slices.Sorted(maps.Keys(labels))
	switch agents {
	case "late":
		at = at.Add(time.Duration(w.IntN(12)) * 30 * time.Second)
	case "wrong":
		for _, key := range keys {
			if w.IntN(3) == 0 {
				labels[key] = pick(w.Rand, "wrong", "0", "true", "mps", "23028")
			}
		}
	case "missing":
		maps.DeleteFunc(labels, func(string, string) bool { return w.IntN(2) == 0 })
	case "tainting":
		w.taints[node] = []corev1.Taint{pick(w.Rand, corev1.Taint{Key: "example.com/agent-not-ready", Effect: corev1.TaintEffectNoExecute}, corev1.Taint{Key: "team", Value: "ml", Effect: corev1.TaintEffectNoSchedule})}
	case "other":
		labels["nvidia.com/gpu.product"] += "-SHARED"
		labels["nvidia.com/gpu.memory"] = pick(w.Rand, "15360", "23028", "9000")
		labels["nvidia.com/mig.strategy"] = "mixed"
	}
	return written{at, labels}
}

func (w *world) write() {
	for i := range w.c.Nodes {
		if writes := w.writes[w.c.Nodes[i].Name]; !w.c.Now.Before(writes.at) && w.c.Nodes[i].Labels[karpv1.NodeInitializedLabelKey] != "" {
			node := w.c.Nodes[i].DeepCopy()
			maps.Copy(node.Labels, writes.labels)
			w.c.Nodes[i] = *node
		}
	}
}

// free returns what a node has left for a pod. Like the scheduler, it keeps room for other pods that are nominated for the node.
func (w *world) free(node *corev1.Node, pod *corev1.Pod) corev1.ResourceList {
	left := node.Status.Allocatable.DeepCopy()
	take := func(name corev1.ResourceName, q resource.Quantity) {
		has := left[name]
		has.Sub(q)
		left[name] = has
	}
	for i := range w.c.Pods {
		p := &w.c.Pods[i]
		if p.Spec.NodeName == node.Name || p.Spec.NodeName == "" && p.Name != pod.Name && w.nominated[facts.PodName(p)] == node.Name {
			for name, q := range facts.PodRequests(p) {
				take(name, q)
			}
			take(corev1.ResourcePods, resource.MustParse("1"))
		}
	}
	return left
}

// admits reports whether the scheduler binds a pod to a node.
func (w *world) admits(pod *corev1.Pod, node *corev1.Node) bool {
	matches, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	if err != nil || !matches || scheduling.Taints(node.Spec.Taints).Tolerates(pod.Spec.Tolerations) != nil {
		return false
	}
	free := w.free(node, pod)
	for name, q := range facts.PodRequests(pod) {
		if has := free[name]; has.Cmp(q) < 0 {
			return false
		}
	}
	return true
}

// runDaemons starts the pods of DaemonSets on the nodes that admit them.
func (w *world) runDaemons() {
	for i := range w.c.DaemonSets {
		ds := &w.c.DaemonSets[i]
		for j := range w.c.Nodes {
			node, name := &w.c.Nodes[j], ds.Name+"-"+w.c.Nodes[j].Name
			pod := daemonPod(ds, name)
			if w.admits(&pod, node) && !slices.ContainsFunc(w.c.Pods, func(p corev1.Pod) bool { return p.Name == name }) {
				Running(node.Name)(&pod)
				w.c.Pods = append(slices.Clone(w.c.Pods), pod)
			}
		}
	}
}

func daemonPod(ds *appsv1.DaemonSet, name string) corev1.Pod {
	pod := Pod(name, OwnedBy("apps/v1", "DaemonSet", ds.Name))
	pod.Spec = *ds.Spec.Template.Spec.DeepCopy()
	return pod
}

// schedule binds pods to nodes, those with the fewest nodes first.
func (w *world) schedule() {
	w.c.Pods = slices.Clone(w.c.Pods)
	var waiting []int
	nodes := map[int][]int{}
	for i := range w.c.Pods {
		if w.c.Pods[i].Spec.NodeName != "" {
			continue
		}
		waiting = append(waiting, i)
		for j := range w.c.Nodes {
			if w.admits(&w.c.Pods[i], &w.c.Nodes[j]) {
				nodes[i] = append(nodes[i], j)
			}
		}
	}
	slices.SortStableFunc(waiting, func(a, b int) int { return cmp.Compare(len(nodes[a]), len(nodes[b])) })
	for _, i := range waiting { // Its nominated node comes first.
		slices.SortStableFunc(nodes[i], func(a, b int) int {
			of := func(j int) int {
				if w.nominated[facts.PodName(&w.c.Pods[i])] == w.c.Nodes[j].Name {
					return 0
				}
				return 1
			}
			return cmp.Compare(of(a), of(b))
		})
	}
	for _, i := range waiting {
		for _, j := range nodes[i] {
			if w.admits(&w.c.Pods[i], &w.c.Nodes[j]) {
				pod := w.c.Pods[i].DeepCopy()
				Running(w.c.Nodes[j].Name)(pod)
				w.c.Pods[i] = *pod
				clear(w.launches)
				break
			}
		}
	}
}

// deleteIdle deletes nodes that have been empty for long enough, unless the plan uses them.
func (w *world) deleteIdle(planned map[string]bool) {
	gone := func(name string) bool {
		used := planned[name] || slices.ContainsFunc(w.c.Pods, func(p corev1.Pod) bool { return p.Spec.NodeName == name && len(p.OwnerReferences) == 0 })
		at := slices.IndexFunc(w.c.Nodes, func(n corev1.Node) bool { return n.Name == name })
		if used || at < 0 || w.c.Nodes[at].Labels[karpv1.NodeInitializedLabelKey] == "" {
			delete(w.empty, name)
			return false
		}
		if _, ok := w.empty[name]; !ok {
			w.empty[name] = w.c.Now
		}
		return w.c.Now.Sub(w.empty[name]) >= w.idle
	}
	names := map[string]bool{}
	for i := range w.c.NodeClaims {
		if name := w.c.NodeClaims[i].Name; gone(name) {
			names[name] = true
		}
	}
	w.c.NodeClaims = slices.DeleteFunc(slices.Clone(w.c.NodeClaims), func(c karpv1.NodeClaim) bool { return names[c.Name] })
	w.c.Nodes = slices.DeleteFunc(slices.Clone(w.c.Nodes), func(n corev1.Node) bool { return names[n.Name] })
	w.c.Pods = slices.DeleteFunc(slices.Clone(w.c.Pods), func(p corev1.Pod) bool { return names[p.Spec.NodeName] && len(p.OwnerReferences) > 0 })
}

// singles returns the labels that Karpenter sets because of a NodeClaim's requirements: those with one value.
func singles(claim *karpv1.NodeClaim) map[string]string {
	labels := map[string]string{}
	for _, req := range claim.Spec.Requirements {
		if req.Operator == corev1.NodeSelectorOpIn && len(req.Values) == 1 {
			labels[req.Key] = req.Values[0]
		}
	}
	return labels
}
