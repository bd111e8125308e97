package counterfactual_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/fleet/counterfactual"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// running returns a cluster with nodes of the type g4dn.xlarge and ten running pods on each.
func running(nodes int, edits ...func(*corev1.Pod)) *facts.Cluster {
	c, xlarge := Shared(), TypeNamed("g4dn.xlarge")
	onDemand := Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, karpv1.CapacityTypeOnDemand)
	onDemand(&c.NodePools[0])
	for i := range nodes {
		name := fmt.Sprintf("gpu-%d", i)
		claim := Claim(name, &c.NodePools[0], xlarge, Initialized(Now.Add(-time.Hour)))
		c.NodeClaims = append(c.NodeClaims, claim)
		c.Nodes = append(c.Nodes, Node(&claim, xlarge, 10))
		c.Pods = append(c.Pods, Pods(name, 10, append([]func(*corev1.Pod){OwnedBy("apps/v1", "ReplicaSet", "web"), Asking("cpu", "300m", "memory", "1Gi", v1alpha1.ResourceGPUShared, "1"), Running(name)}, edits...)...)...)
	}
	return c
}

func karpenter(t *testing.T, c *facts.Cluster) map[string]planner.MicroUSD {
	t.Helper()
	view := snapshot.Build(c)
	prices, ok := counterfactual.Karpenter(&view)
	if !ok {
		t.Fatal("there is no price")
	}
	return prices
}

func TestEightyPodsOnEightNodesWouldBeOnOneLargeNode(t *testing.T) {
	t.Parallel()
	c := running(8)
	want := map[string]planner.MicroUSD{"gpu-shared": 7_824_000}
	if diff := cmp.Diff(want, karpenter(t, c)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	t.Run("whatever waits, is limited or was refused", func(t *testing.T) {
		t.Parallel()
		c := running(8)
		c.Pods = append(c.Pods, Pods("waits", 30, Asking("cpu", "300m", v1alpha1.ResourceGPUShared, "1"))...)
		c.NodePools[0].Spec.Limits = karpv1.Limits{"nvidia.com/gpu": resource.MustParse("8")}
		c.Refused["gpu-shared"] = []v1alpha1.RefusedOffering{{InstanceType: v1alpha1.Any, Zone: v1alpha1.Any, CapacityType: v1alpha1.Any, Failures: 1, NotBefore: c.Pods[0].CreationTimestamp}}
		if diff := cmp.Diff(want, karpenter(t, c)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestThereIsNoComparisonWithPlansForThePriceOfWork(t *testing.T) {
	t.Parallel()
	view := snapshot.Build(running(2, func(p *corev1.Pod) {
		p.Annotations = map[string]string{v1alpha1.ThroughputAnnotation: "t4=1, l40s=5", v1alpha1.FollowsLoadAnnotation: "true"}
	}))
	if prices, ok := counterfactual.Karpenter(&view); ok {
		t.Errorf("Karpenter's nodes would cost %v", prices)
	}
	if ratio, ok := counterfactual.OverOnePlan(&view, solve.Solver{Effort: 1}); ok {
		t.Errorf("the nodes cost %v times one plan", ratio)
	}
}

func TestAPoolWithoutPodsWouldCostNothing(t *testing.T) {
	t.Parallel()
	c := running(1)
	c.Pods = nil
	if diff := cmp.Diff(map[string]planner.MicroUSD{"gpu-shared": 0}, karpenter(t, c)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestThereIsNoPriceWhileTheModelHasNoPlaceForAPod(t *testing.T) {
	t.Parallel()
	c := running(1)
	Selecting(corev1.LabelInstanceTypeStable, "g4dn.none")(&c.Pods[0])
	view := snapshot.Build(c)
	if prices, ok := counterfactual.Karpenter(&view); ok {
		t.Errorf("prices %v", prices)
	}
}

func TestFleetIsComparedWithOnePlanForItsPods(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*facts.Cluster)
		want   float64
		ok     bool
	}{
		"as one plan would": {func(*facts.Cluster) {}, 1, true},
		"with an idle node": {func(c *facts.Cluster) { c.Pods = c.Pods[:70] }, 8.0 / 7, true},
		"while a pod waits": {func(c *facts.Cluster) { c.Pods = append(c.Pods, Pod("waits")) }, 0, false},
		"with a slot of a full reservation": {func(c *facts.Cluster) {
			Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "on-demand", "reserved")(&c.NodePools[0])
			c.NodePools[0].Spec.Template.Spec.Requirements = c.NodePools[0].Spec.Template.Spec.Requirements[1:]
			Reserve(c, catalog.Reservation{ID: "cr-1", InstanceType: "g4dn.xlarge", Total: 1})
			Reserved("cr-1")(&c.NodeClaims[0])
			c.Nodes[0].Labels[karpv1.CapacityTypeLabelKey], c.Nodes[0].Labels[ReservationLabel] = "reserved", "cr-1"
		}, 1, true},
		"without pods": {func(c *facts.Cluster) { c.Pods = nil }, 0, false},
		"while a node starts": {func(c *facts.Cluster) {
			c.NodeClaims = append(c.NodeClaims, Claim("new", &c.NodePools[0], TypeNamed("g4dn.xlarge"), Launched(Now)))
		}, 0, false},
		"although the pool is full": {func(c *facts.Cluster) {
			c.NodePools[0].Spec.Limits = karpv1.Limits{"nvidia.com/gpu": resource.MustParse("1")}
		}, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := running(8)

			c.change(cluster)
			view := snapshot.Build(cluster)
			if got, ok := counterfactual.OverOnePlan(&view, solve.Solver{}); ok != c.ok || got != c.want {
				t.Errorf("the nodes cost %v times one plan (%t), want %v (%t)", got, ok, c.want, c.ok)
			}
		})
	}
}
