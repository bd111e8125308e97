package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/test/harness/cluster"
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
	s.t.Helper()
	count := map[string]int{}
	for _, node := range s.nodes(s.name) {
		mig, err := nodecontract.ParseMIG(node.Annotations[nodecontract.MIGAnnotation])
		if err != nil {
			s.t.Error(err)
		}
		name := node.Annotations[nodecontract.ResourceAnnotation]
		if n := s.exposed(&node, name); n > 0 {
			count[fmt.Sprintf("%d × %s of %d × %s a GPU", n, name, mig.Count, mig.Profile)]++
		}
	}
	return count
}

// exposed returns how many replicas of a resource a node has, in its allocatable or in its ResourceSlice.
func (s *scene) exposed(node *corev1.Node, name string) int64 {
	s.t.Helper()
	n := node.Status.Allocatable[corev1.ResourceName(name)]
	if node.Annotations[nodecontract.BackendAnnotation] != nodecontract.BackendDRA {
		return n.Value()
	}
	if !n.IsZero() {
		s.t.Errorf("node %s with backend DRA has %s allocatable %s", node.Name, &n, name)
	}
	var list resourcev1.ResourceSliceList
	if err := s.api.List(s.t.Context(), &list); err != nil {
		s.t.Fatal(err)
	}
	published := int64(0)
	for i := range list.Items {
		for _, d := range list.Items[i].Spec.Devices {
			if of := d.Attributes[nodecontract.DRAResource].StringValue; *list.Items[i].Spec.NodeName == node.Name && of != nil && *of == name {
				replicas := d.Capacity[nodecontract.DRAReplicas].Value
				published += replicas.Value()
			}
		}
	}
	return published
}

func TestPodsOnMIGInstancesShareTheCheapestMachines(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	for name, backend := range map[string]v1alpha1.Backend{"mig": v1alpha1.BackendDevicePlugin, "mig-dra": v1alpha1.BackendDRA} {
		t.Run(string(backend), func(t *testing.T) {
			t.Parallel()
			s := w.scene(t, name)
			s.class("5s", divides("", v1alpha1.MIGLayout{GPUName: "a100", Profile: "1g.5gb"}, v1alpha1.MIGLayout{GPUName: "a100", Profile: "3g.20gb"},
				v1alpha1.MIGLayout{GPUName: "h100", Profile: "1g.10gb"}, v1alpha1.MIGLayout{GPUName: "h100", Profile: "3g.40gb"}),
				func(spec *v1alpha1.GPUNodeClassSpec) { spec.Sharing.Backend = backend })
			s.pool(poolOptions{requirements: map[string]string{"karpenter.k8s.aws/instance-family": "p4d,p4de,p5"}, limits: map[string]string{"nvidia.com/gpu": "16"}})
			// The pool of the other backend serves the same resources.
			small := s.deploy("small", 40, asks("nvidia.com/mig-1g.5gb", "1"), selects(karpv1.NodePoolLabelKey, s.name))
			large := s.deploy("large", 8, asks("nvidia.com/mig-3g.20gb", "1"), selects(karpv1.NodePoolLabelKey, s.name))
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
			if n := s.allocated(); backend == v1alpha1.BackendDRA && n != 48 {
				t.Errorf("%d of 48 pods have an instance of their node by a ResourceClaim", n)
			}
			s.scale(small, 0)
			s.scale(large, 0)
			s.untilGone(s.name)
			s.wantMetric("karve_nodeclaims_created_total", 2)
		})
	}
}

// TestPodsOfSeveralProfilesShareAMachine needs one machine for pods that would need two if each GPU had instances of one profile.
func TestPodsOfSeveralProfilesShareAMachine(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	for name, backend := range map[string]v1alpha1.Backend{"profiles": v1alpha1.BackendDevicePlugin, "profiles-dra": v1alpha1.BackendDRA} {
		t.Run(string(backend), func(t *testing.T) {
			t.Parallel()
			s := w.scene(t, name)
			s.class("5s", divides("", v1alpha1.MIGLayout{GPUName: "a100", Profile: "1g.5gb"}, v1alpha1.MIGLayout{GPUName: "a100", Profile: "2g.10gb"}, v1alpha1.MIGLayout{
				GPUName: "a100", Instances: []v1alpha1.MIGInstances{{Profile: "1g.5gb", Count: 3}, {Profile: "2g.10gb", Count: 2}},
			}), func(spec *v1alpha1.GPUNodeClassSpec) { spec.Sharing.Backend = backend })
			s.pool(poolOptions{requirements: map[string]string{"karpenter.k8s.aws/instance-family": "p4d"}})
			small := s.deploy("small", 24, asks("nvidia.com/mig-1g.5gb", "1"), selects(karpv1.NodePoolLabelKey, s.name))
			middle := s.deploy("middle", 16, asks("nvidia.com/mig-2g.10gb", "1"), selects(karpv1.NodePoolLabelKey, s.name))
			s.untilRunning(40)
			if claims := s.claims(); len(claims) != 1 || total(claims) != p4dPrice {
				t.Errorf("claims cost %d micro-USD an hour, want 1 × %s:\n%s", total(claims), p4d, lines(claims))
			}
			for _, node := range s.nodes(s.name) {
				if a, b := s.exposed(&node, "nvidia.com/mig-1g.5gb"), s.exposed(&node, "nvidia.com/mig-2g.10gb"); a != 24 || b != 16 {
					t.Errorf("node %s exposes %d and %d instances", node.Name, a, b)
				}
			}
			if early := s.history.openedEarly(s.name); len(early) > 0 {
				t.Errorf("nodes were open to pods before they exposed their instances: %v", early)
			}
			s.scale(small, 0)
			s.scale(middle, 0)
			s.untilGone(s.name)
			s.wantMetric("karve_nodeclaims_created_total", 1)
		})
	}
}

// TestChangedLayoutReplacesMachines divides GPUs otherwise while pods run. Their resource has the same name before and after.
func TestChangedLayoutReplacesMachines(t *testing.T) {
	cluster.Long(t)
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
