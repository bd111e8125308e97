package e2e

import (
	"fmt"
	"testing"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
)

// divides sets strategy MIG.
func divides(naming v1alpha1.MIGNaming, layouts ...v1alpha1.MIGLayout) func(*v1alpha1.GPUNodeClassSpec) {
	return func(spec *v1alpha1.GPUNodeClassSpec) {
		spec.Sharing = v1alpha1.Sharing{Strategy: v1alpha1.StrategyMIG, MIG: &v1alpha1.MIGSharing{Naming: naming, Layouts: layouts}}
	}
}

// p4d is the cheapest machine whose GPUs have instances 1g.5gb and 3g.20gb, at 21.957642 USD an hour.
const (
	p4d      = "p4d.24xlarge"
	p4dPrice = 21_957_642
)

// nodesWith counts the nodes of the scene's pool by the profile that was promised and the number of replicas of the resource that they expose.
func (s *scene) nodesWith() map[string]int {
	count := map[string]int{}
	for _, node := range s.nodes(s.name) {
		mig, err := nodecontract.ParseMIG(node.Annotations[nodecontract.MIGAnnotation])
		if err != nil {
			s.t.Error(err)
		}
		name := node.Annotations[nodecontract.ResourceAnnotation]
		for resource, q := range node.Status.Allocatable {
			if string(resource) == name {
				count[fmt.Sprintf("%d × %s of %d × %s a GPU", q.Value(), name, mig.Count, mig.Profile)]++
			}
		}
	}
	return count
}

func TestPodsOnMIGInstancesShareTheCheapestMachines(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "mig")
	s.class("5s", divides("", v1alpha1.MIGLayout{GPUName: "a100", Profile: "1g.5gb"}, v1alpha1.MIGLayout{GPUName: "a100", Profile: "3g.20gb"},
		v1alpha1.MIGLayout{GPUName: "h100", Profile: "1g.10gb"}, v1alpha1.MIGLayout{GPUName: "h100", Profile: "3g.40gb"}))
	s.pool(poolOptions{requirements: map[string]string{"karpenter.k8s.aws/instance-family": "p4d,p4de,p5"}, limits: map[string]string{"nvidia.com/gpu": "16"}})
	small, large := s.deploy("small", 40, asks("nvidia.com/mig-1g.5gb", "1")), s.deploy("large", 8, asks("nvidia.com/mig-3g.20gb", "1"))
	s.untilRunning(48)
	claims := s.claims()
	if len(claims) != 2 || total(claims) != 2*p4dPrice || claims[0].instanceType != p4d || claims[1].instanceType != p4d {
		t.Errorf("claims cost %d micro-USD an hour, want 2 × %s:\n%s", total(claims), p4d, lines(claims))
	}
	got := s.nodesWith()
	if len(got) != 2 || got["56 × nvidia.com/mig-1g.5gb of 7 × 1g.5gb a GPU"] != 1 || got["16 × nvidia.com/mig-3g.20gb of 2 × 3g.20gb a GPU"] != 1 {
		t.Errorf("the nodes have %v", got)
	}
	if early := s.history.openedEarly(s.name); len(early) > 0 {
		t.Errorf("nodes were open to pods before they exposed their instances: %v", early)
	}
	s.scale(small, 0)
	s.scale(large, 0)
	s.untilGone(s.name)
	s.wantMetric("karve_nodeclaims_created_total", 2)
}

// TestChangedLayoutReplacesMachines divides GPUs otherwise while pods run. Their resource has the same name before and after.
func TestChangedLayoutReplacesMachines(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "layout")
	s.class(v1alpha1.IdleNever, divides(v1alpha1.MIGNamingSingle, v1alpha1.MIGLayout{GPUName: "a100", Profile: "1g.5gb"}))
	s.pool(poolOptions{requirements: map[string]string{"karpenter.k8s.aws/instance-family": "p4d"}})
	// Pools of Karpenter in other tests serve nvidia.com/gpu, too.
	s.deploy("inference", 10, asks("nvidia.com/gpu", "1"), selects(karpv1.NodePoolLabelKey, s.name))
	s.untilRunning(10)
	if got := s.nodesWith(); got["56 × nvidia.com/gpu of 7 × 1g.5gb a GPU"] != 1 {
		t.Fatalf("the nodes have %v", got)
	}
	class := &v1alpha1.GPUNodeClass{}
	class.Name = s.name
	s.patch(class, `{"spec":{"sharing":{"mig":{"naming":"Single","layouts":[{"gpuName":"a100","profile":"2g.10gb"}]}}}}`)
	s.until(3*enough, "another machine has the new layout", func() (bool, string) {
		got := s.nodesWith()
		return len(got) == 1 && got["24 × nvidia.com/gpu of 3 × 2g.10gb a GPU"] == 1 && s.running() == 10, fmt.Sprint(got, s.running())
	})
}
