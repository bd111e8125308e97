package snapshot_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	resourceapi "k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/nodecontract/mig"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/render"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

const small, middle, large = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-2g.10gb", "nvidia.com/mig-3g.20gb"

// divided returns the layout of an a100 with a number of instances of each profile, as "3x1g.5gb_2x2g.10gb".
func divided(t fataler, text string) v1alpha1.MIGLayout {
	return v1alpha1.MIGLayout{GPUName: "a100", GPUMemoryMiB: new(int64(40960)), Instances: instancesOf(t, text)}
}

type fataler interface {
	Fatal(args ...any)
}

func instancesOf(t fataler, text string) []v1alpha1.MIGInstances {
	var all []v1alpha1.MIGInstances
	for part := range strings.SplitSeq(text, "_") {
		var of v1alpha1.MIGInstances
		if _, err := fmt.Sscanf(strings.Replace(part, "x", " ", 1), "%d %s", &of.Count, &of.Profile); err != nil {
			t.Fatal(err)
		}
		all = append(all, of)
	}
	return all
}

// groups returns a layout in which the GPUs differ, as "4:7x1g.5gb;4:2x3g.20gb".
func groups(t fataler, text string) v1alpha1.MIGLayout {
	l := v1alpha1.MIGLayout{GPUName: "a100", GPUMemoryMiB: new(int64(40960))}
	for part := range strings.SplitSeq(text, ";") {
		count, instances, _ := strings.Cut(part, ":")
		var g v1alpha1.MIGGroup
		if _, err := fmt.Sscan(count, &g.GPUs); err != nil {
			t.Fatal(err)
		}
		g.Instances = instancesOf(t, instances)
		l.Groups = append(l.Groups, g)
	}
	return l
}

func TestMachinesAreFilledWithInstancesOfSeveralProfiles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		layouts              []v1alpha1.MIGLayout
		small, middle, large int
		want                 map[string]int
	}{
		"one layout":              {[]v1alpha1.MIGLayout{divided(t, "3x1g.5gb_2x2g.10gb")}, 24, 16, 0, map[string]int{"3x1g.5gb_2x2g.10gb": 1}},
		"one pod too many":        {[]v1alpha1.MIGLayout{divided(t, "3x1g.5gb_2x2g.10gb")}, 25, 16, 0, map[string]int{"3x1g.5gb_2x2g.10gb": 2}},
		"the layout that fits":    {[]v1alpha1.MIGLayout{layout("a100", "1g.5gb"), divided(t, "3x1g.5gb_2x2g.10gb"), layout("a100", "2g.10gb")}, 24, 16, 0, map[string]int{"3x1g.5gb_2x2g.10gb": 1}},
		"one profile is enough":   {[]v1alpha1.MIGLayout{divided(t, "3x1g.5gb_2x2g.10gb"), layout("a100", "1g.5gb")}, 56, 0, 0, map[string]int{"1g.5gb": 1}},
		"two layouts together":    {[]v1alpha1.MIGLayout{divided(t, "3x1g.5gb_2x2g.10gb"), layout("a100", "1g.5gb")}, 80, 16, 0, map[string]int{"1g.5gb": 1, "3x1g.5gb_2x2g.10gb": 1}},
		"GPUs that differ":        {[]v1alpha1.MIGLayout{groups(t, "4:7x1g.5gb;4:2x3g.20gb")}, 28, 0, 8, map[string]int{"4:2x3g.20gb;4:7x1g.5gb": 1}},
		"GPUs that differ, twice": {[]v1alpha1.MIGLayout{groups(t, "4:7x1g.5gb;4:2x3g.20gb"), divided(t, "2x1g.5gb_1x2g.10gb_1x3g.20gb")}, 44, 8, 16, map[string]int{"4:2x3g.20gb;4:7x1g.5gb": 1, "2x1g.5gb_1x2g.10gb_1x3g.20gb": 1}},
		"fewer than fit":          {[]v1alpha1.MIGLayout{divided(t, "5x1g.5gb")}, 41, 0, 0, map[string]int{"5x1g.5gb": 2}},
		"as many as fit":          {[]v1alpha1.MIGLayout{divided(t, "7x1g.5gb")}, 56, 0, 0, map[string]int{"1g.5gb": 1}},
	} {
		cluster := withMIG(t, c.layouts...)
		cluster.Pods = slices.Concat(Pods("small", c.small, asking(small)), Pods("middle", c.middle, asking(middle)), Pods("large", c.large, asking(large)))
		view := snapshot.Build(cluster)
		want := map[string]int{}
		for key, n := range c.want {
			want["p4d.24xlarge "+key] = n
		}
		if got := launched(t, &view); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: launched %v, want %v", name, got, want)
		}
	}
}

// The pods of both profiles of the layout all-3x1g.5gb_2x2g.10gb that NVIDIA's MIG manager can make fill the eight GPUs of one machine.
func TestOneMachineIsEnoughForTwoProfiles(t *testing.T) {
	t.Parallel()
	c := withMIG(t, layout("a100", "1g.5gb"), layout("a100", "2g.10gb"), divided(t, "3x1g.5gb_2x2g.10gb"))
	c.Pods = append(Pods("small", 24, asking(small)), Pods("middle", 16, asking(middle))...)
	view := snapshot.Build(c)
	plan := solve.Plan(view.Snapshot)
	if len(plan.Launches) != 1 || plan.Price != 21_957_642 {
		t.Fatalf("%d machines at %d", len(plan.Launches), plan.Price)
	}
	claim := render.NodeClaim(&view, plan.Launches[0], nil)
	if got, want := claim.Annotations[nodecontract.MIGAnnotation],
		`{"groups":[{"instances":[{"profile":"1g.5gb","count":3,"memoryMiB":4800},{"profile":"2g.10gb","count":2,"memoryMiB":9600}]}],"naming":"Mixed"}`; got != want {
		t.Errorf("it promises %s, want %s", got, want)
	}
	if got := claim.Annotations[nodecontract.ResourceAnnotation] + " " + claim.Annotations[nodecontract.ReplicasPerGPUAnnotation]; got != small+" 5" {
		t.Errorf("it promises %s", got)
	}
}

// cheapest returns the price of the cheapest machines for pods by exhaustive search. Each machine costs 1, with one of the layouts.
func cheapest(pods []int, layouts [][]int, known map[string]int) int {
	if slices.Max(pods) <= 0 {
		return 0
	}
	key := fmt.Sprint(pods)
	if n, ok := known[key]; ok {
		return n
	}
	best := math.MaxInt32
	for _, l := range layouts {
		left, helps := slices.Clone(pods), false
		for i := range left {
			helps = helps || l[i] > 0 && left[i] > 0
			left[i] = max(0, left[i]-l[i])
		}
		if helps {
			best = min(best, 1+cheapest(left, layouts, known))
		}
	}
	known[key] = best
	return best
}

// TestLayoutsAreChosenAsWellAsByExhaustiveSearch draws layouts and pods.
func TestLayoutsAreChosenAsWellAsByExhaustiveSearch(t *testing.T) {
	t.Parallel()
	model := mig.Models("a100", 40960)[0]
	base := withMIG(t, layout("a100", "1g.5gb"))
	p4d := *catalog.Named(base.InstanceTypes(), "p4d.24xlarge")
	rapid.Check(t, func(t *rapid.T) {
		one := p4d
		one.GPU.Count = int64(rapid.IntRange(1, 3).Draw(t, "GPUs"))
		profiles := []string{"1g.5gb", "2g.10gb", "3g.20gb"}
		draw := func() []v1alpha1.MIGInstances {
			var instances []v1alpha1.MIGInstances
			for _, profile := range profiles {
				if n := rapid.IntRange(0, 4).Draw(t, profile); n > 0 {
					instances = append(instances, v1alpha1.MIGInstances{Profile: profile, Count: int32(n)})
				}
			}
			return instances
		}
		var layouts []v1alpha1.MIGLayout
		var counts [][]int
		for range rapid.IntRange(1, 4).Draw(t, "layouts") {
			l, count := v1alpha1.MIGLayout{GPUName: "a100"}, make([]int, len(profiles))
			for left := int32(one.GPU.Count); left > 0; {
				g := v1alpha1.MIGGroup{GPUs: int32(rapid.IntRange(1, int(left)).Draw(t, "alike")), Instances: draw()}
				left -= g.GPUs
				l.Groups = append(l.Groups, g)
				for _, of := range g.Instances {
					count[slices.Index(profiles, of.Profile)] += int(of.Count * g.GPUs)
				}
			}
			if slices.ContainsFunc(l.Groups, func(g v1alpha1.MIGGroup) bool {
				return len(g.Instances) == 0 || !model.Holds(promisedInstances(g.Instances))
			}) {
				continue
			}
			if len(l.Groups) == 1 && rapid.Bool().Draw(t, "without groups") {
				l.Instances, l.Groups = l.Groups[0].Instances, nil
			}
			layouts, counts = append(layouts, l), append(counts, count)
		}
		if len(layouts) == 0 {
			t.Skip("no layout fits")
		}
		c := *base
		c.GPUNodeClasses = slices.Clone(base.GPUNodeClasses)
		c.UseInstanceTypes([]catalog.InstanceType{one})
		c.GPUNodeClasses[0].Spec.Sharing.MIG = &v1alpha1.MIGSharing{Layouts: layouts}
		pods := make([]int, len(profiles))
		c.Pods, c.Index = nil, nil
		for i, profile := range profiles {
			if slices.ContainsFunc(counts, func(of []int) bool { return of[i] > 0 }) {
				pods[i] = rapid.IntRange(0, 12).Draw(t, "pods "+profile)
				c.Pods = append(c.Pods, Pods(profile, pods[i], asking(mig.Resource(profile)))...)
			}
		}
		view := snapshot.Build(&c)
		plan := solve.Plan(view.Snapshot)
		if err := check.Plan(view.Snapshot, plan); err != nil {
			t.Fatal(err)
		}
		if want := cheapest(pods, counts, map[string]int{}); len(plan.Launches) != want || len(plan.Unplaced) > 0 || plan.Bound > plan.Price {
			t.Errorf("%d machines for %v with %v, want %d: %+v", len(plan.Launches), pods, counts, want, plan.Unplaced)
		}
		// The machines of the plan have room for the same pods.
		for _, launch := range plan.Launches {
			c.NodeClaims = append(c.NodeClaims, *render.NodeClaim(&view, launch, nil))
		}
		c.Index = nil
		again := snapshot.Build(&c)
		if next := solve.Plan(again.Snapshot); len(next.Launches) > 0 || len(next.Unplaced) > 0 {
			t.Errorf("the applied plan launches %d more: %+v", len(next.Launches), next.Unplaced)
		}
	})
}

func promisedInstances(all []v1alpha1.MIGInstances) []nodecontract.MIGInstances {
	var out []nodecontract.MIGInstances
	for _, of := range all {
		out = append(out, nodecontract.MIGInstances{Profile: of.Profile, Count: int64(of.Count)})
	}
	return out
}

// machineWith returns a cluster with a started p4d that promises three instances 1g.5gb and two 2g.10gb on each GPU, and exposes some of them.
func machineWith(t *testing.T, exposed map[string]string, layouts ...v1alpha1.MIGLayout) *facts.Cluster {
	t.Helper()
	c := withMIG(t, append(layouts, divided(t, "3x1g.5gb_2x2g.10gb"))...)
	p4d := catalog.Named(c.InstanceTypes(), "p4d.24xlarge")
	share := c.GPUNodeClasses[0].Spec.Sharing.Shares("a100", 40960, 8)[len(layouts)]
	machine := Claim("one", &c.NodePools[0], p4d, Initialized(Now))
	machine.Annotations[nodecontract.ResourceAnnotation], machine.Annotations[nodecontract.ReplicasPerGPUAnnotation] = share.Resource, fmt.Sprint(share.Least)
	machine.Annotations[nodecontract.MIGAnnotation], machine.Annotations[nodecontract.GPUsAnnotation] = share.MIG.String(), "8"
	node := Node(&machine, p4d, 0)
	for name, n := range exposed {
		node.Status.Allocatable[corev1.ResourceName(name)] = resourceapi.MustParse(n)
	}
	c.NodeClaims, c.Nodes = []karpv1.NodeClaim{machine}, []corev1.Node{node}
	return c
}

func TestRoomIsCountedByProfile(t *testing.T) {
	t.Parallel()
	whole := map[string]string{small: "24", middle: "16"}
	running := func(prefix, resource string, n int) []corev1.Pod {
		return Pods(prefix, n, asking(resource), Running("one"))
	}
	for name, c := range map[string]struct {
		exposed map[string]string
		pods    []corev1.Pod
		placed  int
		more    int // machines
	}{
		"room for all":                 {whole, append(Pods("s", 24, asking(small)), Pods("m", 16, asking(middle))...), 40, 0},
		"one small too many":           {whole, Pods("s", 25, asking(small)), 24, 1},
		"middle ones run":              {whole, append(running("r", middle, 15), Pods("m", 2, asking(middle))...), 1, 1},
		"an instance is lost":          {map[string]string{small: "23", middle: "16"}, Pods("s", 24, asking(small)), 23, 1},
		"a pod with both":              {whole, Pods("both", 17, Asking("cpu", "1", small, "1", middle, "1")), 16, 1},
		"memory as the profile has":    {whole, Pods("s", 24, asking(small), GPUMemory("4Gi")), 24, 0},
		"memory of the larger profile": {whole, Pods("m", 16, asking(middle), GPUMemory("9Gi")), 16, 0},
		"DaemonSets count too":         {whole, append(running("s", small, 24), Pods("m", 16, asking(middle))...), 16, 0},
	} {
		cluster := machineWith(t, c.exposed)
		cluster.Pods = c.pods
		view := snapshot.Build(cluster)
		plan := solve.Plan(view.Snapshot)
		placed := 0
		for _, p := range plan.Placements {
			placed += len(p.Pods)
		}
		if err := check.Plan(view.Snapshot, plan); err != nil || placed != c.placed || len(plan.Launches) != c.more || len(plan.Unplaced) > 0 {
			t.Errorf("%s: %d pods placed and %d machines, want %d and %d: %v, %+v", name, placed, len(plan.Launches), c.placed, c.more, err, plan.Unplaced)
		}
	}
}

func TestMachineHasStartedWithTheInstancesOfAllProfiles(t *testing.T) {
	t.Parallel()
	for want, exposed := range map[int64]map[string]string{40: {small: "24", middle: "16"}, 24: {small: "24"}, 39: {small: "23", middle: "17"}, 0: {"nvidia.com/gpu": "40"}} {
		m := records.Machines(machineWith(t, exposed))[0]
		if got := m.Exposed(); got != want {
			t.Errorf("%v: exposes %d, want %d", exposed, got, want)
		}
		if m.Promise.Replicas() != 40 || m.Promise.ResourceNames() != small+", "+middle {
			t.Errorf("it promises %d %s", m.Promise.Replicas(), m.Promise.ResourceNames())
		}
	}
}

func TestPodsPayForTheMemoryOfTheirInstances(t *testing.T) {
	t.Parallel()
	c := machineWith(t, map[string]string{small: "24", middle: "16"})
	c.Pods = []corev1.Pod{Pod("s", asking(small), Running("one")), Pod("m", asking(middle), Running("one"))}
	m := records.Machines(c)[0]
	if got := []int64{m.Shares(), m.SharesOf(&c.Pods[0]), m.SharesOf(&c.Pods[1])}; !slices.Equal(got, []int64{24*4800 + 16*9600, 4800, 9600}) {
		t.Errorf("the parts are %d", got)
	}
}

func TestPodThatNeedsMoreMemoryThanItsInstanceHasIsToldSo(t *testing.T) {
	t.Parallel()
	c := withMIG(t, divided(t, "3x1g.5gb_2x2g.10gb"))
	c.Pods = []corev1.Pod{Pod("a", asking(small), GPUMemory("6Gi"))}
	wantBlocked(t, c, planner.ReasonTooLarge, "states 6Gi of device memory", "a replica of nvidia.com/mig-1g.5gb has at most 4800Mi", "request a larger instance")
	c.GPUNodeClasses[0].Spec.Sharing.Replicas = new(int32(2))
	c.Pods = []corev1.Pod{Pod("a", asking(middle+".shared"), GPUMemory("6Gi"))}
	wantBlocked(t, c, planner.ReasonTooLarge, "a replica of nvidia.com/mig-2g.10gb.shared has at most 4800Mi")
	c.Pods = Pods("a", 48, asking(small+".shared"), GPUMemory("2Gi"))
	view := snapshot.Build(c)
	if got := launched(t, &view); got["p4d.24xlarge 3x1g.5gb_2x2g.10gb"] != 1 {
		t.Errorf("launched %v", got)
	}
}

func TestHeadroomIsOfTheFirstProfile(t *testing.T) {
	t.Parallel()
	c := machineWith(t, map[string]string{small: "24", middle: "16"})
	c.GPUNodeClasses[0].Spec.Headroom = []v1alpha1.Headroom{{Replicas: 24}}
	c.Pods = Pods("m", 16, asking(middle), Running("one"))
	view := snapshot.Build(c)
	if len(view.Reserves) != 1 || len(view.Reserves[0].Class.Nodes) != 1 {
		t.Fatalf("%+v", view.Reserves)
	}
	s := view.Snapshot
	s.Classes = append(slices.Clone(s.Classes), view.HeadroomClasses()...)
	if plan := solve.Plan(s); len(plan.Launches) > 0 || len(plan.Unplaced) > 0 {
		t.Errorf("%+v", plan)
	}
	c.GPUNodeClasses[0].Spec.Headroom[0].Replicas, c.Index = 25, nil
	view = snapshot.Build(c)
	s = view.Snapshot
	s.Classes = append(slices.Clone(s.Classes), view.HeadroomClasses()...)
	if plan := solve.Plan(s); len(plan.Launches) != 1 {
		t.Errorf("%+v", plan)
	}
}

// NVIDIA's device plugin with the strategy mixed exposes several resources of a node that Karve did not launch.
func TestOtherNodesHaveInstancesOfSeveralProfilesToo(t *testing.T) {
	t.Parallel()
	c := withMIG(t, layout("a100", "1g.5gb"), layout("a100", "2g.10gb"))
	node := corev1.Node{Status: corev1.NodeStatus{Allocatable: Amounts("cpu", "90", "memory", "1000Gi", "pods", "100", small, "3", middle, "2")}}
	node.Name = "other"
	c.Nodes = []corev1.Node{node}
	c.Pods = append(Pods("s", 3, asking(small)), Pods("m", 2, asking(middle))...)
	view := snapshot.Build(c)
	if plan := solve.Plan(view.Snapshot); len(plan.Placements) != 1 || len(plan.Placements[0].Pods) != 5 || len(plan.Launches) > 0 {
		t.Errorf("%+v", plan)
	}
	c.Pods, c.Index = Pods("s", 4, asking(small)), nil
	view = snapshot.Build(c)
	if plan := solve.Plan(view.Snapshot); len(plan.Placements) != 1 || len(plan.Placements[0].Pods) != 3 || len(plan.Launches) != 1 {
		t.Errorf("%+v", plan)
	}
}

func TestDriverPublishesInstancesOfSeveralProfiles(t *testing.T) {
	t.Parallel()
	c := machineWith(t, nil)
	node := &c.Nodes[0]
	node.Annotations = maps.Clone(c.NodeClaims[0].Annotations)
	node.Annotations[nodecontract.BackendAnnotation] = nodecontract.BackendDRA
	slice := resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{
		Driver: nodecontract.DRADriver, NodeName: &node.Name, Pool: resourcev1.ResourcePool{Name: node.Name, ResourceSliceCount: 1},
	}}
	for i, resource := range []string{small, small, small, middle, middle} {
		slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{
			Name:       fmt.Sprint("instance-", i),
			Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{nodecontract.DRAResource: {StringValue: &resource}},
			Capacity:   map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{nodecontract.DRAReplicas: {Value: resourceapi.MustParse("1")}},
		})
	}
	got := facts.PublishedOf([]resourcev1.ResourceSlice{slice}, nil).On(node).Status.Allocatable
	if s, m := got[small], got[middle]; s.Value() != 3 || m.Value() != 2 {
		t.Errorf("%v", got)
	}
}

func TestClaimsAreNotPlannedForSeveralProfiles(t *testing.T) {
	t.Parallel()
	c := withMIG(t, divided(t, "3x1g.5gb_2x2g.10gb"))
	c.GPUNodeClasses[0].Spec.Sharing.Backend = v1alpha1.BackendDRA
	c.Pods = Pods("a", 1, withClaim(small, 1, 1), func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = Amounts("cpu", "100m") })
	wantBlocked(t, c, planner.ReasonUnsupported, "MIG instances of several profiles", "request the resource of a profile")
	c.Pods = append(Pods("small", 24, asking(small)), Pods("middle", 16, asking(middle))...)
	view := snapshot.Build(c)
	if got := launched(t, &view); got["p4d.24xlarge 3x1g.5gb_2x2g.10gb"] != 1 {
		t.Errorf("launched %v", got)
	}
}
