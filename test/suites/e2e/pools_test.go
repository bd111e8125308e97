package e2e

import (
	"fmt"
	"testing"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// TestSharedAndWholeGPUPoolsCoexist has pods that all request nvidia.com/gpu: some request replicas under that name, others whole GPUs.
func TestSharedAndWholeGPUPoolsCoexist(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	const kind = "example.com/gpus"
	shared, whole := w.scene(t, "two-shared"), w.scene(t, "two-whole")
	shared.class(v1alpha1.IdleNever, func(spec *v1alpha1.GPUNodeClassSpec) { spec.Sharing.ResourceName = v1alpha1.ResourceGPU })
	shared.pool(poolOptions{taintKey: "nvidia.com/gpu-shared", labels: map[string]string{kind: "shared"}, limits: map[string]string{"nvidia.com/gpu": "1"}})
	whole.class(v1alpha1.IdleNever, func(spec *v1alpha1.GPUNodeClassSpec) {
		spec.Sharing = v1alpha1.Sharing{Strategy: v1alpha1.StrategyNone}
	})
	whole.pool(poolOptions{taintKey: "nvidia.com/gpu", labels: map[string]string{kind: "whole"}, limits: map[string]string{"nvidia.com/gpu": "2"}})

	// The pods for whole GPUs come first, so that they are pending while the shared ones are planned.
	whole.deploy("training", 2, asks(v1alpha1.ResourceGPU, "1"), tolerates("nvidia.com/gpu", whole.name), tolerates("nvidia.com/gpu-shared", shared.name), selects(kind, "whole"))
	shared.deploy("inference", 25, asks(v1alpha1.ResourceGPU, "1"), tolerates("nvidia.com/gpu", whole.name), tolerates("nvidia.com/gpu-shared", shared.name), selects(kind, "shared"))
	whole.untilRunning(2)
	shared.until(enough, "ten of 25 pods run on the one GPU", func() (bool, string) { return shared.running() == 10, fmt.Sprint(shared.running()) })
	for _, s := range []*scene{shared, whole} {
		s.wantOnOwnNodes()
	}
	waits := 0
	for _, pod := range shared.pods() {
		if pod.Spec.NodeName == "" {
			waits++
			shared.untilEvent("Pod", pod.Name, "LimitReached", "NodePool "+shared.name, "0 GPUs", "raise the limit")
		}
	}
	if waits != 15 {
		t.Errorf("%d pods wait, want 15", waits)
	}
	shared.wantClaims(shared.claims(), 1, karpv1.CapacityTypeOnDemand, 526_000)
	whole.wantClaims(whole.claims(), 2, karpv1.CapacityTypeOnDemand, 1_052_000)
	shared.until(enough, "the limit and the status count one physical GPU", func() (bool, string) {
		gpus := shared.nodePool(shared.name).Status.Resources[v1alpha1.ResourceGPU]
		return gpus.Value() == 1, gpus.String()
	})
}

// wantOnOwnNodes fails if a pod of the scene is bound to a node of another pool.
func (s *scene) wantOnOwnNodes() {
	s.t.Helper()
	own := map[string]bool{}
	for _, n := range s.nodes(s.name) {
		own[n.Name] = true
	}
	for _, pod := range s.pods() {
		if on := pod.Spec.NodeName; on != "" && !own[on] {
			s.t.Errorf("pod %s runs on %s, which is not of NodePool %s", pod.Name, on, s.name)
		}
	}
}

// TestStockKarpenterIgnoresKarveNodes has a GPU pool of Karpenter next to one of Karve. Both are as users create them, with Karpenter's defaults for
// consolidation and no taint on Karpenter's pool.
func TestStockKarpenterIgnoresKarveNodes(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "seam")
	s.pool(poolOptions{name: "seam-stock", stock: true, taintKey: "none"})
	s.class(v1alpha1.IdleNever)
	s.pool(poolOptions{})
	d := s.deploy("inference", 10)
	s.untilRunning(10)
	s.wantClaims(s.claims(), 1, karpv1.CapacityTypeOnDemand, 526_000)
	s.scale(d, 0)
	s.until(enough, "the node is empty", func() (bool, string) { return len(s.pods()) == 0, fmt.Sprint(len(s.pods())) })
	s.stays(40*time.Second, "the empty node is left alone", func() (bool, string) {
		nodes := s.nodes(s.name)
		if len(nodes) != 1 || len(alive(s.claims())) != 1 {
			return false, lines(s.claims())
		}
		n := &nodes[0]
		return !tainted(n, karpv1.DisruptedTaintKey) && !tainted(n, v1alpha1.DisruptingTaintKey), fmt.Sprint(n.Spec.Taints)
	})
	if stock := s.history.claimsOf("seam-stock"); len(stock) > 0 {
		t.Errorf("Karpenter launched machines for Karve's pods:\n%s", lines(stock))
	}
}

// TestPodThatKarpenterCanServeIsLeftToIt has a pod that both a pool of Karpenter and one of Karve admit. One machine is launched, by Karpenter.
func TestPodThatKarpenterCanServeIsLeftToIt(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "left")
	const stock = "left-stock"
	s.class(v1alpha1.IdleNever, func(spec *v1alpha1.GPUNodeClassSpec) { spec.Sharing.ResourceName = v1alpha1.ResourceGPU })
	labels := map[string]string{team: s.name}
	s.pool(poolOptions{name: stock, stock: true, labels: labels, taintKey: "example.com/stock"})
	s.pool(poolOptions{labels: labels})
	s.pod("either", asks(v1alpha1.ResourceGPU, "1"), tolerates("example.com/stock", s.name), selects(team, s.name))
	// A test on the API server alone checks the pod's event: here, Karpenter may be done before anything reads it.
	s.untilRunning(1)
	if claims := s.history.claimsOf(stock); len(claims) != 1 || claims[0].ours {
		t.Errorf("want one claim of Karpenter's own:\n%s", lines(claims))
	}
	if on := s.pods()[0].Spec.NodeName; len(s.nodes(stock)) != 1 || s.nodes(stock)[0].Name != on {
		t.Errorf("the pod runs on %s", on)
	}
	s.wantNothing()
	// Karpenter launched the machine, so Karpenter has to remove it. Otherwise the other tests would count it as waste.
	s.delete(&karpv1.NodePool{ObjectMeta: objectMeta(stock)})
}

// wantNothing fails if the scene's pool ever had a claim.
func (s *scene) wantNothing() {
	s.t.Helper()
	if claims := s.claims(); len(claims) > 0 {
		s.t.Errorf("machines were launched:\n%s", lines(claims))
	}
}
