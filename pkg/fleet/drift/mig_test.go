package drift_test

import (
	"strings"
	"testing"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/drift"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

func TestMachineWithOtherInstancesHasDrifted(t *testing.T) {
	t.Parallel()
	has := nodecontract.MIG{Profile: "1g.5gb", Count: 7, MemoryMiB: 4000, Naming: nodecontract.MIGMixed}
	for name, c := range map[string]struct {
		has     nodecontract.MIG
		profile string // of the class, which has strategy TimeSlicing without one
		want    string
	}{
		"the same":        {has, "1g.5gb", ""},
		"another profile": {has, "3g.20gb", "each of its GPUs has 7 MIG instances 1g.5gb (naming Mixed), and GPUNodeClass gpu-shared has 2 MIG instances 3g.20gb (naming Mixed) now"},
		"no instances":    {nodecontract.MIG{}, "1g.5gb", "its GPUs are not divided, and GPUNodeClass gpu-shared has strategy MIG now"},
		"no MIG":          {has, "", "divided into MIG instances, and GPUNodeClass gpu-shared has strategy TimeSlicing now"},
	} {
		cluster := launched(t)
		claim := &cluster.NodeClaims[0]
		class(cluster, func(s *facts.NodeClassState) {
			for i := range s.InstanceTypes {
				s.InstanceTypes[i].GPU.Name, s.InstanceTypes[i].GPU.MemoryMiB = "a100", 40960
			}
		})
		if value := c.has.String(); value != "" {
			claim.Annotations[nodecontract.MIGAnnotation], claim.Annotations[nodecontract.ResourceAnnotation] = value, "nvidia.com/mig-1g.5gb"
		}
		if c.profile != "" {
			cluster.GPUNodeClasses[0].Spec.Sharing = v1alpha1.Sharing{
				Strategy: v1alpha1.StrategyMIG, MIG: &v1alpha1.MIGSharing{Layouts: []v1alpha1.MIGLayout{{GPUName: "a100", Profile: c.profile}}},
			}
		}
		pools, machines := snapshot.Pools(cluster), records.Machines(cluster)
		d := drift.Of(cluster, &pools[0], &machines[0])
		if (d == nil) != (c.want == "") || d != nil && (d.Reason != drift.Sharing || !strings.Contains(d.Message, c.want)) {
			t.Errorf("%s: %+v, want %q", name, d, c.want)
		}
	}
}

func TestMachineWithOtherInstancesOfSeveralProfilesHasDrifted(t *testing.T) {
	t.Parallel()
	both := []v1alpha1.MIGInstances{{Profile: "2g.10gb", Count: 2}, {Profile: "1g.5gb", Count: 3}}
	has := nodecontract.MIGOf([]nodecontract.MIGGroup{{Instances: []nodecontract.MIGInstances{{Profile: "1g.5gb", Count: 3, MemoryMiB: 4000}, {Profile: "2g.10gb", Count: 2}}}}, 1)
	for name, c := range map[string]struct {
		layout   v1alpha1.MIGLayout
		replicas *int32
		want     string
	}{
		"the same":           {v1alpha1.MIGLayout{Instances: both}, nil, ""},
		"fewer instances":    {v1alpha1.MIGLayout{Instances: both[1:]}, nil, "each of its GPUs has 3 MIG instances 1g.5gb and 2 of 2g.10gb (naming Mixed), and GPUNodeClass gpu-shared has 3 MIG instances 1g.5gb (naming Mixed) now"},
		"one profile":        {v1alpha1.MIGLayout{Profile: "1g.5gb"}, nil, "has 7 MIG instances 1g.5gb (naming Mixed) now"},
		"pods take turns":    {v1alpha1.MIGLayout{Instances: both}, new(int32(4)), "has 3 MIG instances 1g.5gb and 2 of 2g.10gb with 4 replicas (naming Mixed) now"},
		"in groups":          {v1alpha1.MIGLayout{Groups: []v1alpha1.MIGGroup{{GPUs: 1, Instances: both}}}, nil, "has 3 MIG instances 1g.5gb and 2 of 2g.10gb on 1 GPU (naming Mixed) now"},
		"for other machines": {v1alpha1.MIGLayout{Groups: []v1alpha1.MIGGroup{{GPUs: 16, Instances: both}}}, nil, "has no layout for them now"},
	} {
		cluster := launched(t)
		claim := &cluster.NodeClaims[0]
		class(cluster, func(s *facts.NodeClassState) {
			for i := range s.InstanceTypes {
				s.InstanceTypes[i].GPU.Name, s.InstanceTypes[i].GPU.MemoryMiB = "a100", 40960
			}
		})
		claim.Annotations[nodecontract.MIGAnnotation], claim.Annotations[nodecontract.ResourceAnnotation] = has.String(), "nvidia.com/mig-1g.5gb"
		c.layout.GPUName = "a100"
		cluster.GPUNodeClasses[0].Spec.Sharing = v1alpha1.Sharing{Strategy: v1alpha1.StrategyMIG, Replicas: c.replicas, MIG: &v1alpha1.MIGSharing{Layouts: []v1alpha1.MIGLayout{c.layout}}}
		pools, machines := snapshot.Pools(cluster), records.Machines(cluster)
		d := drift.Of(cluster, &pools[0], &machines[0])
		if (d == nil) != (c.want == "") || d != nil && (d.Reason != drift.Sharing || !strings.Contains(d.Message, c.want)) {
			t.Errorf("%s: %+v, want %q", name, d, c.want)
		}
	}
}
