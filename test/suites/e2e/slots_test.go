package e2e

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog/builtin"
	"karve.sh/karve/pkg/cloud/aws"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// families have GPUs of 16 to 48 GB.
var families = []string{"g4dn", "g5", "g6", "gr6", "g6e"}

// proven returns the price of machines for the pods, of the pool and the class, in micro-dollars per hour, and whether it is proven that none is lower.
func (s *scene) proven(pods []corev1.Pod) (price int64, proven bool) {
	s.t.Helper()
	types, err := builtin.InstanceTypes()
	if err != nil {
		s.t.Fatal(err)
	}
	c := snapshottest.Empty()
	c.UseInstanceTypes(types)
	var classes v1alpha1.GPUNodeClassList
	s.list(&classes)
	i := slices.IndexFunc(classes.Items, func(c v1alpha1.GPUNodeClass) bool { return c.Name == s.name })
	class := classes.Items[i]
	class.Spec.NodeClassRef = snapshottest.NodeClassRef
	c.GPUNodeClasses, c.NodePools, c.Pods = []v1alpha1.GPUNodeClass{class}, []karpv1.NodePool{*s.nodePool(s.name)}, pods
	for i := range c.Pods {
		c.Pods[i].UID = ""
		c.Pods[i].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	}
	view := snapshot.Build(c)
	plan := solve.Plan(view.Snapshot)
	if err := check.Plan(view.Snapshot, plan); err != nil || len(plan.Unplaced) > 0 {
		s.t.Fatalf("%v, %v", err, plan.Unplaced)
	}
	return int64(plan.Price), plan.Price == plan.Bound
}

func TestPodsOfThreeSizesGetSlotsAtTheProvenPrice(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "slots")
	s.class("Never", func(c *v1alpha1.GPUNodeClassSpec) {
		c.Sharing = v1alpha1.Sharing{Strategy: v1alpha1.StrategyMemorySlots, Memory: &v1alpha1.MemorySharing{Sizes: []string{"2Gi", "4Gi", "8Gi"}}}
		c.Consolidation.Policy = v1alpha1.ConsolidateWhenIdle
	})
	var pods []corev1.Pod
	sizes := []string{"2gb", "4gb", "8gb"}
	for i := range 30 {
		spec := s.podSpec(asking("100m"), asks(corev1.ResourceName("nvidia.com/gpu-"+sizes[i%3]), "1"))
		pods = append(pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: fmt.Sprintf("pod-%02d", i)}, Spec: spec})
		s.create(&pods[i])
	}
	// One plan for all pods has the proven price. Two plans for some of them each may cost more.
	s.untilWaiting(30)
	s.pool(poolOptions{requirements: map[string]string{"karpenter.k8s.aws/instance-family": strings.Join(families, ",")}})
	s.untilRunning(30)
	want, proven := s.proven(pods)
	if got := total(s.claims()); got != want || !proven {
		t.Errorf("30 pods cost %d micro-USD an hour, want %d, which is proven: %t\n%s", got, want, proven, lines(s.claims()))
	}
	s.slotsFit()

	// Five large pods end, and ten smaller ones come, which need their memory as other slots.
	nodes, claims := len(s.nodes(s.name)), len(s.claims())
	for i := 2; i < 15; i += 3 {
		s.delete(&pods[i])
	}
	s.untilRunning(25)
	for i := range 10 {
		s.pod(fmt.Sprintf("later-%d", i), asking("100m"), asks("nvidia.com/gpu-4gb", "1"))
	}
	s.untilRunning(35)
	s.until(enough, "no node is closed", func() (bool, string) {
		open := !slices.ContainsFunc(s.nodes(s.name), func(n corev1.Node) bool { return facts.HasTaint(&n, nodecontract.SlotsChangingTaintKey) })
		return open, fmt.Sprint(open)
	})
	if len(s.nodes(s.name)) != nodes || len(s.claims()) != claims {
		t.Errorf("there are %d nodes and %d claims, and were %d and %d:\n%s", len(s.nodes(s.name)), len(s.claims()), nodes, claims, lines(s.claims()))
	}
	s.slotsFit()
}

// slotsFit fails if the promised slots of a node need more memory than a GPU has, or if its pods hold more than it promises.
func (s *scene) slotsFit() {
	s.t.Helper()
	pods := s.pods()
	for _, n := range s.nodes(s.name) {
		slots := facts.PromiseOf(n.Annotations).Slots
		held := make([]int64, len(slots.SizesMiB))
		for i := range pods {
			if pods[i].Spec.NodeName != n.Name {
				continue
			}
			for _, mib := range facts.SlotSizes(&pods[i]) {
				held[slots.Index(mib)]++
			}
		}
		for i, want := range slots.Wanted() {
			if held[i] > want {
				s.t.Errorf("pods hold %v of the slots %v of %s", held, slots.GPUs, n.Name)
			}
		}
		if slots.IsZero() {
			s.t.Errorf("%s promises no slots: %v", n.Name, n.Annotations)
		}
		memory, err := strconv.ParseInt(n.Labels[aws.GPULabels.Memory], 10, 64)
		if err != nil {
			s.t.Fatalf("the label %s of %s: %v", aws.GPULabels.Memory, n.Name, err)
		}
		for i, of := range slots.GPUs {
			if used, capacity := slots.UsedMiB(of), slots.CapacityMiB(memory); used > capacity {
				s.t.Errorf("the slots %v of GPU %d of %s have %d MiB, and the GPU %d", of, i, n.Name, used, capacity)
			}
		}
	}
}
