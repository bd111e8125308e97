package snapshot_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	resourceapi "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog/builtin"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/nodecontract/mig"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// withMIG returns a cluster with all GPUs of EC2, whose pool divides them as the layouts say.
func withMIG(t *testing.T, layouts ...v1alpha1.MIGLayout) *facts.Cluster {
	t.Helper()
	types, err := builtin.InstanceTypes()
	if err != nil {
		t.Fatal(err)
	}
	c := Shared()
	c.UseInstanceTypes(types)
	c.GPUNodeClasses[0].Spec.Sharing = v1alpha1.Sharing{Strategy: v1alpha1.StrategyMIG, MIG: &v1alpha1.MIGSharing{Layouts: layouts}}
	return c
}

func layout(gpu, profile string) v1alpha1.MIGLayout {
	return v1alpha1.MIGLayout{GPUName: gpu, Profile: profile}
}

func asking(resource string) func(*corev1.Pod) {
	return Asking("cpu", "1", "memory", "1Gi", resource, "1")
}

// launched returns the number of launches by instance type and profile, after it has checked the plan.
func launched(t *testing.T, view *snapshot.View) map[string]int {
	t.Helper()
	plan := solve.Plan(view.Snapshot)
	if err := check.Plan(view.Snapshot, plan); err != nil || len(plan.Unplaced) > 0 {
		t.Fatalf("%v, %+v", err, plan.Unplaced)
	}
	launches := map[string]int{}
	for _, l := range plan.Launches {
		o := view.Offerings[l.Offering]
		launches[o.Type.Name+" "+o.Share.MIG.Key()]++
	}
	return launches
}

func TestInstancesAreBoughtOnTheCheapestMachines(t *testing.T) {
	t.Parallel()
	c := withMIG(t, layout("a100", "1g.5gb"), layout("a100", "3g.20gb"), layout("a100", "3g.40gb"), layout("h100", "1g.10gb"), layout("h100", "3g.40gb"), layout("rtx-pro-server-6000", "1g.24gb"))
	c.Pods = append(Pods("small", 40, asking("nvidia.com/mig-1g.5gb")), Pods("large", 8, asking("nvidia.com/mig-3g.20gb"))...)
	view := snapshot.Build(c)
	if got := launched(t, &view); len(got) != 2 || got["p4d.24xlarge 1g.5gb"] != 1 || got["p4d.24xlarge 3g.20gb"] != 1 {
		t.Errorf("launched %v", got)
	}
	// One H100 has seven instances 1g.10gb. Seven p5.4xlarge are $48.16 an hour, and a p4de.24xlarge has no layout for them.
	c.Pods = Pods("small", 14, asking("nvidia.com/mig-1g.10gb"))
	view = snapshot.Build(c)
	if got := launched(t, &view); len(got) != 1 || got["p5.4xlarge 1g.10gb"] != 2 {
		t.Errorf("launched %v", got)
	}
	// Each GPU of a g7e is divided into four.
	c.Pods = Pods("blackwell", 8, asking("nvidia.com/mig-1g.24gb"))
	view = snapshot.Build(c)
	if got := launched(t, &view); got["g7e.2xlarge 1g.24gb"]+got["g7e.4xlarge 1g.24gb"] != 2 {
		t.Errorf("launched %v", got)
	}
}

func TestPodThatAsksForAnInstanceWithoutALayoutIsBlocked(t *testing.T) {
	t.Parallel()
	c := withMIG(t, layout("a100", "1g.5gb"), layout("h100", "1g.10gb"))
	c.Pods = []corev1.Pod{Pod("a", asking("nvidia.com/mig-2g.10gb"))}
	wantBlocked(t, c, planner.ReasonNoPool, "asks for nvidia.com/mig-2g.10gb", "it offers nvidia.com/mig-1g.5gb, nvidia.com/mig-1g.10gb")
	c = Shared()
	c.Pods = []corev1.Pod{Pod("a", asking("nvidia.com/mig-2g.10gb"))}
	wantBlocked(t, c, planner.ReasonNoPool, "asks for nvidia.com/mig-2g.10gb", "it offers nvidia.com/gpu.shared")
}

func TestReplicasOfAMachineWithInstances(t *testing.T) {
	t.Parallel()
	memory := int64(40960)
	for name, c := range map[string]struct {
		edit     func(*v1alpha1.Sharing)
		resource string
		perGPU   int64
	}{
		"each pod has its instance": {func(*v1alpha1.Sharing) {}, "nvidia.com/mig-1g.5gb", 7},
		"pods take turns":           {func(s *v1alpha1.Sharing) { s.Replicas = new(int32(4)) }, "nvidia.com/mig-1g.5gb.shared", 28},
		"single":                    {func(s *v1alpha1.Sharing) { s.MIG.Naming = v1alpha1.MIGNamingSingle }, "nvidia.com/gpu", 7},
		"single and shared": {func(s *v1alpha1.Sharing) {
			s.MIG.Naming, s.Replicas = v1alpha1.MIGNamingSingle, new(int32(4))
		}, "nvidia.com/gpu.shared", 28},
		"single, shared and not renamed": {func(s *v1alpha1.Sharing) {
			s.MIG.Naming, s.Replicas, s.ResourceName = v1alpha1.MIGNamingSingle, new(int32(4)), v1alpha1.ResourceGPU
		}, "nvidia.com/gpu", 28},
		"of one of two sizes":    {func(s *v1alpha1.Sharing) { s.MIG.Layouts[0].GPUMemoryMiB = &memory }, "nvidia.com/mig-1g.5gb", 7},
		"wide ones of both":      {func(s *v1alpha1.Sharing) { s.MIG.Layouts[0].Profile = "1g.10gb" }, "nvidia.com/mig-1g.10gb", 4},
		"with the media engines": {func(s *v1alpha1.Sharing) { s.MIG.Layouts[0].Profile = "1g.5gb+me" }, "nvidia.com/mig-1g.5gb.me", 1},
	} {
		cluster := withMIG(t, layout("a100", "1g.5gb"))
		c.edit(&cluster.GPUNodeClasses[0].Spec.Sharing)
		cluster.NodePools[0].Spec.Limits = karpv1.Limits(Amounts("nvidia.com/gpu", "8"))
		cluster.Pods = []corev1.Pod{Pod("a", asking(c.resource))}
		view := snapshot.Build(cluster)
		i := 0
		for i < len(view.Offerings) && view.Offerings[i].Type.Name != "p4d.24xlarge" {
			i++
		}
		o := view.Snapshot.Offerings[i]
		var replicas int64
		for _, g := range o.GPUs {
			replicas += g.Replicas
		}
		if o.Free.Replicas != 8*c.perGPU || replicas != 8*c.perGPU || o.Physical.GPUs != 8 || view.Snapshot.Pools[0].Remaining.GPUs != 8 {
			t.Errorf("%s: %d replicas, %d on its %d instances, %d GPUs", name, o.Free.Replicas, replicas, len(o.GPUs), o.Physical.GPUs)
		}
		plan := solve.Plan(view.Snapshot)
		if len(plan.Launches) != 1 {
			t.Errorf("%s: %+v", name, plan)
			continue
		}
		if gpus, perGPU := view.Promised(plan.Launches[0]); gpus != 8 || perGPU != c.perGPU {
			t.Errorf("%s: promised %d GPUs with %d", name, gpus, perGPU)
		}
	}
}

// TestMachinesExposeInstances checks how many instances of each profile the machines of EC2 have: the numbers are those of NVIDIA's mig-parted.
func TestMachinesExposeInstances(t *testing.T) {
	t.Parallel()
	sevenths := func(profiles ...string) map[string]int64 {
		perGPU := map[string]int64{profiles[0] + "+me": 1}
		for i, n := range []int64{7, 4, 3, 2, 1, 1} {
			perGPU[profiles[i]] = n
		}
		return perGPU
	}
	eighty := sevenths("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
	hopper := sevenths("1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb")
	type machine struct {
		gpu    string
		gpus   int64
		perGPU map[string]int64
	}
	machines := map[string]machine{
		"p4d.24xlarge":     {"a100", 8, sevenths("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")},
		"p4de.24xlarge":    {"a100", 8, eighty},
		"p5.4xlarge":       {"h100", 1, eighty},
		"p5.48xlarge":      {"h100", 8, eighty},
		"p5e.48xlarge":     {"h200", 8, hopper},
		"p5en.48xlarge":    {"h200", 8, hopper},
		"p6-b200.48xlarge": {"b200", 8, sevenths("1g.23gb", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb")},
		"p6-b300.48xlarge": {"b300", 8, sevenths("1g.34gb", "1g.67gb", "2g.67gb", "3g.135gb", "4g.135gb", "7g.269gb")},
	}
	for name, gpus := range map[string]int64{"g7e.2xlarge": 1, "g7e.4xlarge": 1, "g7e.8xlarge": 1, "g7e.12xlarge": 2, "g7e.24xlarge": 4, "g7e.48xlarge": 8} {
		machines[name] = machine{"rtx-pro-server-6000", gpus, map[string]int64{"1g.24gb": 4, "2g.48gb": 2, "4g.96gb": 1}}
	}
	layouts := map[string]v1alpha1.MIGLayout{}
	for _, m := range machines {
		for profile := range m.perGPU {
			layouts[m.gpu+" "+profile] = layout(m.gpu, profile)
		}
	}
	types, err := builtin.InstanceTypes()
	if err != nil {
		t.Fatal(err)
	}
	for _, it := range types {
		if it.Name == "p5en.48xlarge" { // The built-in catalog does not have p5e, which has the same GPUs.
			it.Name = "p5e.48xlarge"
			types = append(types, it)
		}
	}
	seen := map[string]map[string]int64{}
	for _, l := range layouts {
		c := withMIG(t, l)
		c.UseInstanceTypes(types)
		c.Pods = []corev1.Pod{Pod("a", asking(mig.Resource(l.Profile)))}
		view := snapshot.Build(c)
		for i := range view.Offerings {
			name, o := view.Offerings[i].Type.Name, view.Snapshot.Offerings[i]
			if o.Free.Replicas == 0 {
				continue
			}
			if seen[name] == nil {
				seen[name] = map[string]int64{}
			}
			seen[name][l.Profile] = o.Free.Replicas / o.Physical.GPUs
			if want := machines[name]; o.Physical.GPUs != want.gpus || o.Free.Replicas%o.Physical.GPUs != 0 {
				t.Errorf("%s with %s: %d GPUs and %d instances", name, l.Profile, o.Physical.GPUs, o.Free.Replicas)
			}
		}
	}
	want := map[string]map[string]int64{}
	for name, m := range machines {
		want[name] = m.perGPU
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("instances of each GPU by machine and profile (-want +got):\n%s", diff)
	}
}

func TestInstanceHoldsNoMoreMemoryThanItHas(t *testing.T) {
	t.Parallel()
	for memory, want := range map[string]bool{"4Gi": true, "5Gi": false} {
		c := withMIG(t, layout("a100", "1g.5gb"))
		c.Pods = []corev1.Pod{Pod("a", asking("nvidia.com/mig-1g.5gb"), GPUMemory(memory))}
		if plan := solve.Plan(snapshot.Build(c).Snapshot); (len(plan.Launches) == 1) != want {
			t.Errorf("a pod that states %s: %+v", memory, plan)
		}
	}
}

func TestMachineWithInstancesTakesPodsOfItsProfile(t *testing.T) {
	t.Parallel()
	c := withMIG(t, layout("a100", "1g.5gb"), layout("a100", "3g.20gb"))
	p4d := *TypeNamed("g4dn.xlarge")
	for _, it := range c.InstanceTypes() {
		if it.Name == "p4d.24xlarge" {
			p4d = it
		}
	}
	machine := Claim("one", &c.NodePools[0], &p4d, Initialized(Now))
	machine.Annotations[nodecontract.ResourceAnnotation], machine.Annotations[nodecontract.ReplicasPerGPUAnnotation] = "nvidia.com/mig-3g.20gb", "2"
	machine.Annotations[nodecontract.MIGAnnotation] = nodecontract.MIG{Profile: "3g.20gb", Count: 2, MemoryMiB: 19200, Naming: nodecontract.MIGMixed}.String()
	node := Node(&machine, &p4d, 0)
	node.Status.Allocatable["nvidia.com/mig-3g.20gb"] = Amounts("n", "16")["n"]
	c.NodeClaims, c.Nodes = []karpv1.NodeClaim{machine}, []corev1.Node{node}
	c.Pods = append(Pods("large", 16, asking("nvidia.com/mig-3g.20gb"), GPUMemory("18Gi")), Pods("small", 7, asking("nvidia.com/mig-1g.5gb"))...)
	view := snapshot.Build(c)
	plan := solve.Plan(view.Snapshot)
	if len(plan.Placements) != 1 || len(plan.Placements[0].Pods) != 16 || len(plan.Launches) != 1 || len(plan.Unplaced) > 0 {
		t.Fatalf("%+v", plan)
	}
	for _, name := range plan.Placements[0].Pods {
		if !strings.Contains(name, "large") {
			t.Errorf("%s was placed on it", name)
		}
	}
}

func TestPoolWithoutALayoutForItsGPUsSaysSo(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		types []string
		words string
	}{
		{[]string{"g5.xlarge", "g4dn.xlarge"}, `GPUNodeClass "gpu-shared" divides GPUs into MIG instances, which the GPUs of g4dn.xlarge (or any of 1 others) (t4) cannot be: allow other instance types`},
		{[]string{"g5.xlarge", "p5.48xlarge"}, `GPUNodeClass "gpu-shared" has no layout for the GPUs of p5.48xlarge (8 × h100 with 81920 MiB): add one to its spec.sharing.mig.layouts`},
		{[]string{"p4de.24xlarge"}, "has no layout for the GPUs of p4de.24xlarge (8 × a100 with 81920 MiB)"},
		{[]string{"p4d.24xlarge", "g5.xlarge"}, ""},
	} {
		c := withMIG(t, layout("a100", "1g.5gb"))
		Requiring(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, test.types...)(&c.NodePools[0])
		problems := snapshot.Pools(c)[0].Problems
		if test.words == "" && len(problems) > 0 || test.words != "" && (len(problems) != 1 || !strings.Contains(problems[0].Message, test.words)) {
			t.Errorf("%v: %+v", test.types, problems)
		}
	}
}

func TestLimitOfInstancesIsNotHonored(t *testing.T) {
	t.Parallel()
	c := withMIG(t, layout("a100", "1g.5gb"), layout("a100", "3g.20gb"))
	c.NodePools[0].Spec.Limits = karpv1.Limits(Amounts("nvidia.com/mig-1g.5gb", "8"))
	problems := snapshot.Pools(c)[0].Problems
	if len(problems) != 1 || problems[0].Reason != "UnsupportedLimit" || !strings.Contains(problems[0].Message, "nvidia.com/gpu (physical GPUs)") {
		t.Errorf("%+v", problems)
	}
}

// So the plans of both backends are the same, and cost the same, also for pods that request several instances.
func TestPlannerSeesNoBackendOfPodsWithInstances(t *testing.T) {
	t.Parallel()
	const small, large = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb"
	pods := slices.Concat(Pods("small", 40, asking(small)), Pods("large", 8, asking(large), GPUMemory("18Gi")), Pods("two", 3, Asking("cpu", "1", small, "2")))
	build := func(backend v1alpha1.Backend) snapshot.View {
		c := withMIG(t, layout("a100", "1g.5gb"), layout("a100", "3g.20gb"))
		c.GPUNodeClasses[0].Spec.Sharing.Backend = backend
		c.Pods = pods
		return snapshot.Build(c)
	}
	plugin, dra := build(v1alpha1.BackendDevicePlugin), build(v1alpha1.BackendDRA)
	if diff := cmp.Diff(plugin.Snapshot, dra.Snapshot); diff != "" {
		t.Errorf("with backend DRA the planner sees something else:\n%s", diff)
	}
	if got := launched(t, &dra); len(got) != 2 || got["p4d.24xlarge 1g.5gb"] != 1 || got["p4d.24xlarge 3g.20gb"] != 1 {
		t.Errorf("launched %v", got)
	}
}

// withClaim gives a pod what Karve reads of a claim for GPUs or instances of a resource.
func withClaim(resource string, gpus, replicas int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		class := claims.DeviceClass(resource)
		template := resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "template"}, Spec: resourcev1.ResourceClaimTemplateSpec{Spec: resourcev1.ResourceClaimSpec{
			Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: class.Name, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: gpus,
				Capacity: &resourcev1.CapacityRequirements{Requests: map[resourcev1.QualifiedName]resourceapi.Quantity{nodecontract.DRAReplicas: *resourceapi.NewQuantity(replicas, resourceapi.DecimalSI)}},
			}}}},
		}}}
		delete(p.Spec.Containers[0].Resources.Requests, v1alpha1.ResourceGPUShared)
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("template")}}
		*p = *claims.New(nil, []resourcev1.ResourceClaimTemplate{template}, []resourcev1.DeviceClass{class}, nil).On(p)
	}
}

// Instances that are not shared are free or taken, so that claims fill all of them. Of shared ones, a claim may leave a part that is too small for the next.
func TestClaimsFillInstances(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		shared         *int32
		pods           int
		gpus, replicas int64
		machines       int
	}{
		"one each":                    {nil, 56, 1, 1, 1},
		"one each, and one too many":  {nil, 57, 1, 1, 2},
		"seven each":                  {nil, 8, 7, 1, 1},
		"half of a shared one each":   {new(int32(4)), 112, 1, 2, 1},
		"more halves than there are":  {new(int32(4)), 113, 1, 2, 2},
		"more than half of one":       {new(int32(4)), 1, 1, 3, 0},
		"more instances than it has":  {nil, 1, 57, 1, 0},
		"more replicas than it has":   {nil, 1, 1, 2, 0},
		"all instances of a machine":  {nil, 2, 56, 1, 2},
		"a replica of each, by count": {new(int32(4)), 1, 56, 1, 1},
	} {
		cluster := withMIG(t, layout("a100", "1g.5gb"))
		sharing := &cluster.GPUNodeClasses[0].Spec.Sharing
		sharing.Backend, sharing.Replicas = v1alpha1.BackendDRA, c.shared
		cluster.Pods = Pods("pod", c.pods, withClaim(sharing.Resource(), c.gpus, c.replicas), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = Amounts("cpu", "100m")
		})
		view := snapshot.Build(cluster)
		plan := solve.Plan(view.Snapshot)
		if err := check.Plan(view.Snapshot, plan); err != nil || len(plan.Launches) != c.machines || (len(plan.Unplaced) == 0) != (c.machines > 0) {
			t.Errorf("%s: %d machines and %d pods without a place, want %d machines: %v", name, len(plan.Launches), len(plan.Unplaced), c.machines, err)
		}
	}
}
