package render_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/render"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// cluster returns a cluster whose pool uses all fields of a template, with four pending pods.
func cluster() *facts.Cluster {
	c := Shared()
	np := &c.NodePools[0]
	Labeled(map[string]string{"owner": "ml"})(np)
	for _, edit := range []func(*karpv1.NodePool){
		Requiring("team", corev1.NodeSelectorOpIn, "red", "blue"),
		Requiring("karpenter.k8s.aws/instance-cpu", corev1.NodeSelectorOpGt, "2"),
		Requiring(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "g4dn.xlarge", "g4dn.12xlarge"),
		Requiring("beta.kubernetes.io/arch", corev1.NodeSelectorOpIn, "arm64", "amd64"),
		Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "spot", "on-demand"),
		Requiring("example.com/rack", corev1.NodeSelectorOpNotIn, "9", "10"),
	} {
		edit(np)
	}
	np.Spec.Template.Annotations = map[string]string{"example.com/note": "kept"}
	np.Spec.Template.Spec.StartupTaints = []corev1.Taint{{Key: "cilium", Effect: corev1.TaintEffectNoExecute}}
	c.DaemonSets = []appsv1.DaemonSet{DaemonSet("agent", "cpu", "100m", "memory", "256Mi", "ephemeral-storage", "1Gi")}
	c.Pods = append(Pods("a", 3), Pod("b", Asking("cpu", "1500m", "memory", "2Gi", "ephemeral-storage", "2Gi", v1alpha1.ResourceGPUShared, "2")))
	return c
}

// launch returns a launch of the first offering of the instance type and capacity type in us-east-1a for the pods.
func launch(t *testing.T, view *snapshot.View, instanceType, capacityType string, pods ...string) planner.Launch {
	t.Helper()
	i := slices.IndexFunc(view.Snapshot.Offerings, func(o planner.Offering) bool {
		return o.InstanceType == instanceType && o.Zone == "us-east-1a" && o.CapacityType == capacityType
	})
	if i < 0 {
		t.Fatalf("no offering of %s, %s", instanceType, capacityType)
	}
	return planner.Launch{Offering: i, Pods: pods}
}

func TestClaimHoldsExactlyWhatKarpenterNeeds(t *testing.T) {
	t.Parallel()
	view := snapshot.Build(cluster())
	got := render.NodeClaim(&view, launch(t, &view, "g4dn.12xlarge", "spot", "default/a-000", "default/a-002", "default/b"), nil)
	pool := view.Pools[0].NodePool
	in := func(key string, values ...string) karpv1.NodeSelectorRequirementWithMinValues {
		return Require(key, corev1.NodeSelectorOpIn, values...)
	}
	month := 720 * time.Hour
	want := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name:   got.Name,
			Labels: map[string]string{"owner": "ml", "team": "blue", karpv1.NodePoolLabelKey: "gpu-shared", v1alpha1.GPUNodeClassLabel: "gpu-shared"},
			Annotations: map[string]string{
				"example.com/note": "kept", nodecontract.ResourceAnnotation: "nvidia.com/gpu.shared", nodecontract.GPUsAnnotation: "4",
				nodecontract.ReplicasPerGPUAnnotation: "10", v1alpha1.PriceAnnotation: "1304000", v1alpha1.PlannedPodsAnnotation: "97a7341947=1,c0354d3bfa=2",
				karpv1.NodePoolHashAnnotationKey: pool.Hash(), karpv1.NodePoolHashVersionAnnotationKey: karpv1.NodePoolHashVersion,
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "karpenter.sh/v1", Kind: "NodePool", Name: "gpu-shared", UID: "pool-gpu-shared", BlockOwnerDeletion: new(true),
			}},
		},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "gpu"},
			Requirements: []karpv1.NodeSelectorRequirementWithMinValues{
				Require("example.com/rack", corev1.NodeSelectorOpNotIn, "10", "9"),
				Require("karpenter.k8s.aws/instance-cpu", corev1.NodeSelectorOpGt, "2"),
				in(karpv1.CapacityTypeLabelKey, "spot"),
				in(corev1.LabelArchStable, "amd64", "arm64"),
				in(corev1.LabelInstanceTypeStable, "g4dn.12xlarge"),
				in("team", "blue"),
				in(corev1.LabelTopologyZone, "us-east-1a"),
			},
			Taints: []corev1.Taint{{Key: v1alpha1.ResourceGPUShared, Effect: corev1.TaintEffectNoSchedule}},
			StartupTaints: []corev1.Taint{
				{Key: "cilium", Effect: corev1.TaintEffectNoExecute}, {Key: v1alpha1.ReplicasNotReadyTaintKey, Effect: corev1.TaintEffectNoSchedule},
			},
			// Two pods of 300m and 1Gi, one of 1500m and 2Gi, and the DaemonSet. There are no GPUs, replicas or ephemeral storage.
			Resources:              karpv1.ResourceRequirements{Requests: Amounts("cpu", "2200m", "memory", "4352Mi")},
			ExpireAfter:            karpv1.NillableDuration{Duration: &month},
			TerminationGracePeriod: &metav1.Duration{Duration: time.Hour},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("claim (-want +got):\n%s", diff)
	}
}

func TestClaimHasEveryTemplateField(t *testing.T) {
	t.Parallel()
	c := cluster()
	spec := &c.NodePools[0].Spec.Template.Spec
	added := metav1.NewTime(Now)
	taints := func(name string) []corev1.Taint {
		return []corev1.Taint{
			{Key: name + "/a", Value: "x", Effect: corev1.TaintEffectNoSchedule, TimeAdded: &added},
			{Key: name + "/b", Effect: corev1.TaintEffectNoExecute},
			{Key: name + "/c", Effect: corev1.TaintEffectPreferNoSchedule},
		}
	}
	life := 3 * time.Hour
	spec.Taints, spec.StartupTaints = taints("example.com"), taints("example.org")
	spec.ExpireAfter, spec.TerminationGracePeriod = karpv1.NillableDuration{Duration: &life}, &metav1.Duration{Duration: time.Minute}
	Tolerating("example.com/a", "example.com/b")(&c.Pods[0])
	view := snapshot.Build(c)
	claim := render.NodeClaim(&view, launch(t, &view, "g4dn.xlarge", "on-demand", "default/a-000"), nil)
	want := karpv1.NodeClaimSpec{
		Taints: taints("example.com"), StartupTaints: append(taints("example.org"), render.ReplicasNotReadyTaint()),
		ExpireAfter: spec.ExpireAfter, TerminationGracePeriod: spec.TerminationGracePeriod,
	}
	got := claim.Spec
	got.NodeClassRef, got.Requirements, got.Resources = nil, nil, karpv1.ResourceRequirements{}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("claim (-want +got):\n%s", diff)
	}
	if claim.Labels["owner"] != "ml" || claim.Annotations["example.com/note"] != "kept" {
		t.Errorf("labels %v, annotations %v", claim.Labels, claim.Annotations)
	}
}

func TestClaimListsAlternativesForMinValues(t *testing.T) {
	t.Parallel()
	c := cluster()
	c.NodePools[0].Spec.Template.Spec.Requirements = slices.Delete(c.NodePools[0].Spec.Template.Spec.Requirements, 2, 3)
	np := &c.NodePools[0].Spec.Template.Spec
	np.Requirements = append(np.Requirements,
		karpv1.NodeSelectorRequirementWithMinValues{Key: "beta.kubernetes.io/instance-type", Operator: corev1.NodeSelectorOpExists, MinValues: new(3)},
		karpv1.NodeSelectorRequirementWithMinValues{Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpExists, MinValues: new(2)},
		karpv1.NodeSelectorRequirementWithMinValues{Key: "karpenter.k8s.aws/instance-family", Operator: corev1.NodeSelectorOpExists, MinValues: new(1)})
	view := snapshot.Build(c)
	l := launch(t, &view, "g4dn.12xlarge", "spot", "default/b")
	plain := render.NodeClaim(&view, l, nil)
	for _, other := range []struct{ instanceType, capacityType string }{{"g4dn.xlarge", "spot"}, {"g4dn.4xlarge", "on-demand"}} {
		l.Alternatives = append(l.Alternatives, launch(t, &view, other.instanceType, other.capacityType, "default/b").Offering)
	}
	claim := render.NodeClaim(&view, l, nil)
	got := map[string]karpv1.NodeSelectorRequirementWithMinValues{}
	for _, req := range claim.Spec.Requirements {
		got[req.Key] = req
	}
	for _, want := range []karpv1.NodeSelectorRequirementWithMinValues{
		{Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"g4dn.12xlarge", "g4dn.xlarge", "g4dn.4xlarge"}, MinValues: new(3)},
		{Key: karpv1.CapacityTypeLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{"spot", "on-demand"}},
		{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"us-east-1a"}},
		{Key: "karpenter.k8s.aws/instance-family", Operator: corev1.NodeSelectorOpExists, MinValues: new(1)},
	} {
		if diff := cmp.Diff(want, got[want.Key], cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("requirement %s (-want +got):\n%s", want.Key, diff)
		}
	}
	if gpus := claim.Annotations[nodecontract.GPUsAnnotation]; gpus != "1" {
		t.Errorf("it promises %s GPUs, which the smallest of its machines does not have", gpus)
	}
	if claim.Name != plain.Name {
		t.Errorf("the same launch has two names, %s and %s", claim.Name, plain.Name)
	}
	if instanceType, zone, capacityType := records.ShapeOf(claim); instanceType != "g4dn.12xlarge" || zone != "us-east-1a" || capacityType != "spot" {
		t.Errorf("the expected shape is %s in %s (%s)", instanceType, zone, capacityType)
	}
}

// The validation rules of the NodeClaim CRD that a requirement can break.
func TestClaimPassesAPIValidation(t *testing.T) {
	t.Parallel()
	view := snapshot.Build(cluster())
	claim := render.NodeClaim(&view, launch(t, &view, "g4dn.xlarge", "on-demand", "default/b"), nil)
	for _, req := range claim.Spec.Requirements {
		if errs := validation.IsQualifiedName(req.Key); len(errs) > 0 || req.Key == corev1.LabelHostname {
			t.Errorf("requirement of key %q: %v", req.Key, errs)
		}
		if domain, _, _ := strings.Cut(req.Key, "/"); strings.HasSuffix(domain, "karpenter.sh") && req.Key != karpv1.CapacityTypeLabelKey {
			t.Errorf("requirement %q is in Karpenter's domain", req.Key)
		}
		if req.Operator == corev1.NodeSelectorOpIn && len(req.Values) == 0 {
			t.Errorf("requirement %q has the operator In without values", req.Key)
		}
	}
	for key, value := range claim.Labels {
		if errs := slices.Concat(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)); len(errs) > 0 {
			t.Errorf("label %s=%s: %v", key, value, errs)
		}
	}
	if requests := slices.Sorted(maps.Keys(claim.Spec.Resources.Requests)); !slices.Equal(requests, []corev1.ResourceName{"cpu", "memory"}) {
		t.Errorf("requests: %v", requests)
	}
}

func TestTerminationGracePeriodDefaultsToGPUNodeClass(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]*metav1.Duration{
		"": {Duration: time.Hour}, "90m": {Duration: 90 * time.Minute}, v1alpha1.IdleNever: nil, "nonsense": nil,
	} {
		c := cluster()
		c.GPUNodeClasses[0].Spec.TerminationGracePeriod = said
		view := snapshot.Build(c)
		claim := render.NodeClaim(&view, launch(t, &view, "g4dn.xlarge", "on-demand", "default/a-000"), nil)
		if diff := cmp.Diff(want, claim.Spec.TerminationGracePeriod); diff != "" {
			t.Errorf("%q (-want +got):\n%s", said, diff)
		}
	}
}

func TestTerminationGracePeriodOfPoolIsKept(t *testing.T) {
	t.Parallel()
	c := cluster()
	c.NodePools[0].Spec.Template.Spec.TerminationGracePeriod = &metav1.Duration{Duration: time.Minute}
	c.NodePools[0].Spec.Template.Spec.ExpireAfter = karpv1.NillableDuration{}
	view := snapshot.Build(c)
	claim := render.NodeClaim(&view, launch(t, &view, "g4dn.xlarge", "on-demand", "default/b"), nil)
	if claim.Spec.TerminationGracePeriod.Duration != time.Minute || claim.Spec.ExpireAfter.Duration != nil {
		t.Errorf("grace %v, expires %v", claim.Spec.TerminationGracePeriod, claim.Spec.ExpireAfter)
	}
}

func TestStartupTaintIsNotDuplicated(t *testing.T) {
	t.Parallel()
	c := cluster()
	c.NodePools[0].Spec.Template.Spec.StartupTaints = []corev1.Taint{render.ReplicasNotReadyTaint()}
	view := snapshot.Build(c)
	claim := render.NodeClaim(&view, launch(t, &view, "g4dn.xlarge", "on-demand", "default/b"), nil)
	if diff := cmp.Diff([]corev1.Taint{render.ReplicasNotReadyTaint()}, claim.Spec.StartupTaints); diff != "" {
		t.Errorf("startup taints (-want +got):\n%s", diff)
	}
}

// Each distinct set of labels creates another launch template.
func TestLaunchesOfOneOfferingHaveSameLabels(t *testing.T) {
	t.Parallel()
	view := snapshot.Build(cluster())
	one := render.NodeClaim(&view, launch(t, &view, "g4dn.xlarge", "on-demand", "default/a-000"), nil)
	other := render.NodeClaim(&view, launch(t, &view, "g4dn.xlarge", "on-demand", "default/a-001", "default/b"), nil)
	if diff := cmp.Diff(one.Labels, other.Labels); diff != "" {
		t.Errorf("labels (-one +other):\n%s", diff)
	}
	if one.Name == other.Name {
		t.Errorf("both are called %s", one.Name)
	}
}

func TestClaimSharesNoMemoryWithPool(t *testing.T) {
	t.Parallel()
	c := cluster()
	c.NodePools[0].Spec.Template.Spec.TerminationGracePeriod = &metav1.Duration{Duration: time.Minute}
	before := c.NodePools[0].DeepCopy()
	view := snapshot.Build(c)
	claim := render.NodeClaim(&view, launch(t, &view, "g4dn.xlarge", "on-demand", "default/b"), nil)
	claim.Spec.Taints[0].Key, claim.Spec.StartupTaints[0].Key = "changed", "changed"
	claim.Spec.TerminationGracePeriod.Duration, *claim.Spec.ExpireAfter.Duration = 0, 0
	claim.Labels["owner"], claim.Annotations["example.com/note"] = "changed", "changed"
	for i := range claim.Spec.Requirements {
		claim.Spec.Requirements[i].Values[0] = "changed"
	}
	if diff := cmp.Diff(before, &c.NodePools[0]); diff != "" {
		t.Errorf("the pool (-before +after):\n%s", diff)
	}
}

func TestNodeClaimIsDeterministic(t *testing.T) {
	t.Parallel()
	view := snapshot.Build(cluster())
	l := launch(t, &view, "g4dn.xlarge", "on-demand", "default/a-000", "default/b")
	first := render.NodeClaim(&view, l, nil)
	for range 10 {
		again := snapshot.Build(cluster())
		if diff := cmp.Diff(first, render.NodeClaim(&again, l, nil)); diff != "" {
			t.Fatalf("claims (-first +again):\n%s", diff)
		}
	}
}

func TestNameDependsOnPoolOfferingAndPods(t *testing.T) {
	t.Parallel()
	pool := Pool("gpu-shared", "x")
	offering := func(instanceType, zone, capacityType string, labels map[string]string) *snapshot.Offering {
		return &snapshot.Offering{Type: TypeNamed(instanceType), Zone: zone, CapacityType: capacityType, CustomLabels: labels}
	}
	xlarge := offering("g4dn.xlarge", "a", "spot", map[string]string{"k": "1", "l": "2"})
	name := render.Name(&pool, xlarge, []types.UID{"1", "2", "3"})
	pods := []types.UID{"3", "1", "2"}
	if got := render.Name(&pool, xlarge, pods); got != name || !slices.Equal(pods, []types.UID{"3", "1", "2"}) {
		t.Errorf("in another order: %s instead of %s; pods now %v", got, name, pods)
	}
	recreated := Pool("gpu-shared", "x", func(np *karpv1.NodePool) { np.UID = "another" })
	names := map[string]string{name: "the first"}
	for what, got := range map[string]string{
		"other pods":            render.Name(&pool, xlarge, []types.UID{"1", "2"}),
		"another pool":          render.Name(&recreated, xlarge, pods),
		"another type":          render.Name(&pool, offering("g4dn.2xlarge", "a", "spot", xlarge.CustomLabels), pods),
		"another zone":          render.Name(&pool, offering("g4dn.xlarge", "b", "spot", xlarge.CustomLabels), pods),
		"another capacity":      render.Name(&pool, offering("g4dn.xlarge", "a", "on-demand", xlarge.CustomLabels), pods),
		"another label":         render.Name(&pool, offering("g4dn.xlarge", "a", "spot", map[string]string{"k": "1", "l": "3"}), pods),
		"no labels":             render.Name(&pool, offering("g4dn.xlarge", "a", "spot", nil), pods),
		"concatenated pod UIDs": render.Name(&pool, xlarge, []types.UID{"12", "3"}),
	} {
		if same, ok := names[got]; ok {
			t.Errorf("%s has the name of %s, %s", what, same, got)
		}
		names[got] = what
	}
}

// A pod that is still pending after a machine was launched for it gets another machine: its place was taken, or its machine is being replaced.
func TestSecondLaunchForSamePodsHasNewName(t *testing.T) {
	t.Parallel()
	view := snapshot.Build(cluster())
	l := launch(t, &view, "g4dn.xlarge", "on-demand", "default/a-000", "default/b")
	names := map[string]bool{}
	for range 3 {
		claim := render.NodeClaim(&view, l, nil)
		if names[claim.Name] {
			t.Fatalf("%s is there already", claim.Name)
		}
		names[claim.Name] = true
		view.Machines = append(view.Machines, records.Machine{Claim: claim})
		if again := render.NodeClaim(&view, l, nil); again.Name != claim.Name {
			t.Errorf("%s has not started, and another one is launched as %s", claim.Name, again.Name)
		}
		Initialized(Now)(claim)
		node := Node(claim, TypeNamed("g4dn.xlarge"), 10)
		view.Machines[len(view.Machines)-1].Node = &node
	}
}

// A controller that restarted counts equal pods anew: the first ones are on the machine that was launched for others, and the last ones are those of its name.
func TestLaunchBesideAMachineForEqualPodsHasNewName(t *testing.T) {
	t.Parallel()
	c := cluster()
	view := snapshot.Build(c)
	first := render.NodeClaim(&view, launch(t, &view, "g4dn.xlarge", "on-demand", "default/a-000", "default/b"), nil)
	c.NodeClaims = append(c.NodeClaims, *first)
	view = snapshot.Build(c)
	l := launch(t, &view, "g4dn.xlarge", "on-demand", "default/a-000", "default/b")
	if view.MachineOn(0) == nil {
		t.Fatal("the first node is not the machine")
	}
	for name, c := range map[string]struct {
		placements []planner.Placement
		again      bool
	}{
		"equal pods on it": {[]planner.Placement{{Node: 0, Pods: []string{"default/a-001"}}}, false},
		"no pods on it":    {[]planner.Placement{{Node: len(view.Nodes)}}, true},
	} {
		if got := render.NodeClaim(&view, l, c.placements); (got.Name == first.Name) != c.again {
			t.Errorf("%s: %s and %s", name, first.Name, got.Name)
		}
	}
}

// A machine that was launched for the pods never started, and something keeps it.
func TestLaunchThatReplacesBrokenMachineHasNewName(t *testing.T) {
	t.Parallel()
	c := cluster()
	view := snapshot.Build(c)
	first := render.NodeClaim(&view, launch(t, &view, "g4dn.xlarge", "on-demand", "default/a-000", "default/b"), nil)
	Launched(Now)(first)
	c.NodeClaims = append(c.NodeClaims, *first)
	for after, again := range map[time.Duration]bool{c.ReplicasTimeout - 1: true, c.ReplicasTimeout: false} {
		aged := *c
		aged.Now = Now.Add(after)
		view := snapshot.Build(&aged)
		if got := render.NodeClaim(&view, launch(t, &view, "g4dn.xlarge", "on-demand", "default/a-000", "default/b"), nil); (got.Name == first.Name) != again {
			t.Errorf("after %s: %s and %s", after, first.Name, got.Name)
		}
	}
}

func TestReplacesAnnotationNamesFormerNodesOfPods(t *testing.T) {
	t.Parallel()
	view := snapshot.Build(cluster())
	l := launch(t, &view, "g4dn.xlarge", "on-demand", "default/a-000", "default/b")
	if got, ok := render.NodeClaim(&view, l, nil).Annotations[v1alpha1.ReplacesAnnotation]; ok {
		t.Errorf("for pods that wait: %q", got)
	}
	Running("node-2")(view.Pods["default/a-000"])
	Running("node-1")(view.Pods["default/b"])
	if got := render.NodeClaim(&view, l, nil).Annotations[v1alpha1.ReplacesAnnotation]; got != "node-1,node-2" {
		t.Errorf("got %q", got)
	}
}

func TestNameIsDNSLabelForAnyPoolName(t *testing.T) {
	t.Parallel()
	offering := &snapshot.Offering{Type: TypeNamed("g4dn.xlarge")}
	for _, pool := range []string{
		"gpu", "0", "gpu.shared.v2", strings.Repeat("long-", 12) + "end", strings.Repeat("a", 49) + "-b", strings.Repeat("a", 49) + ".b", strings.Repeat("x", 250),
	} {
		np := Pool(pool, "x")
		name := render.Name(&np, offering, []types.UID{"1"})
		if errs := validation.IsDNS1123Label(name); len(errs) > 0 || len(name) > 63 || len(validation.IsValidLabelValue(name)) > 0 {
			t.Errorf("pool %s: name %s (%d): %v", pool, name, len(name), errs)
		}
		if prefix := strings.ReplaceAll(pool[:min(len(pool), 40)], ".", "-"); !strings.HasPrefix(name, prefix) {
			t.Errorf("pool %s: name %s does not tell it", pool, name)
		}
	}
}

func TestClaimSaysHowGPUsAreSharedWithMPS(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sharing v1alpha1.Sharing
		want    string
	}{
		"time-slicing": {v1alpha1.Sharing{Strategy: v1alpha1.StrategyTimeSlicing, Replicas: new(int32(10))}, ""},
		"MPS":          {v1alpha1.Sharing{Strategy: v1alpha1.StrategyMPS, Replicas: new(int32(10))}, `{"memoryOvercommitPercent":100,"users":"Any"}`},
		"MPS with settings": {v1alpha1.Sharing{Strategy: v1alpha1.StrategyMPS, Replicas: new(int32(10)), MPS: &v1alpha1.MPSSharing{
			MemoryOvercommitPercent: new(int32(200)), ActiveThreadPercent: new(int32(25)), Users: v1alpha1.MPSUsersSingle,
		}}, `{"memoryOvercommitPercent":200,"activeThreadPercent":25,"users":"Single"}`},
	} {
		s := cluster()
		s.GPUNodeClasses[0].Spec.Sharing = c.sharing
		view := snapshot.Build(s)
		claim := render.NodeClaim(&view, launch(t, &view, "g4dn.12xlarge", "spot", "default/a-000"), nil)
		if got := claim.Annotations[nodecontract.MPSAnnotation]; got != c.want || claim.Annotations[nodecontract.ReplicasPerGPUAnnotation] != "10" {
			t.Errorf("%s: %q, want %q: %v", name, got, c.want, claim.Annotations)
		}
	}
}

func TestClaimSaysHowGPUsAreDivided(t *testing.T) {
	t.Parallel()
	s := cluster()
	class := s.NodeClasses[NodeClassRef]
	class.InstanceTypes = slices.Clone(class.InstanceTypes)
	for i := range class.InstanceTypes {
		class.InstanceTypes[i].GPU.Name, class.InstanceTypes[i].GPU.MemoryMiB = "a100", 40960
	}
	s.NodeClasses[NodeClassRef] = class
	s.GPUNodeClasses[0].Spec.Sharing = v1alpha1.Sharing{
		Strategy: v1alpha1.StrategyMIG, MIG: &v1alpha1.MIGSharing{Naming: v1alpha1.MIGNamingSingle, Layouts: []v1alpha1.MIGLayout{{GPUName: "a100", Profile: "2g.10gb"}}}, Replicas: new(int32(5)),
	}
	view := snapshot.Build(s)
	claim := render.NodeClaim(&view, launch(t, &view, "g4dn.12xlarge", "spot", "default/a-000"), nil)
	for key, want := range map[string]string{
		nodecontract.ResourceAnnotation: "nvidia.com/gpu.shared", nodecontract.GPUsAnnotation: "4", nodecontract.ReplicasPerGPUAnnotation: "15",
		nodecontract.MIGAnnotation: `{"profile":"2g.10gb","count":3,"memoryMiB":9600,"naming":"Single"}`,
	} {
		if got := claim.Annotations[key]; got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
}

func TestClaimPromisesSlots(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		memory v1alpha1.MemorySharing
		want   string
	}{
		"by default":     {v1alpha1.MemorySharing{Sizes: []string{"2Gi", "4Gi"}}, `{"sizesMiB":[2048,4096],"reserveMiB":512,"enforcement":"Watch","gpus":[[1,2]]}`},
		"with a reserve": {v1alpha1.MemorySharing{Sizes: []string{"2Gi", "4Gi"}, Reserve: "1Gi"}, `{"sizesMiB":[2048,4096],"reserveMiB":1024,"enforcement":"Watch","gpus":[[1,2]]}`},
		"unwatched":      {v1alpha1.MemorySharing{Sizes: []string{"2Gi", "4Gi"}, Enforcement: v1alpha1.MemoryEnforcementNone}, `{"sizesMiB":[2048,4096],"reserveMiB":512,"enforcement":"None","gpus":[[1,2]]}`},
		"with MPS":       {v1alpha1.MemorySharing{Sizes: []string{"2Gi", "4Gi"}, Enforcement: v1alpha1.MemoryEnforcementMPS}, `{"sizesMiB":[2048,4096],"reserveMiB":512,"enforcement":"MPS","gpus":[[1,2]]}`},
	} {
		cluster := Shared()
		cluster.GPUNodeClasses[0].Spec.Sharing = v1alpha1.Sharing{Strategy: v1alpha1.StrategyMemorySlots, Memory: &c.memory}
		cluster.Pods = append(Pods("middle", 2, Asking("cpu", "1", "nvidia.com/gpu-4gb", "1")), Pod("small", Asking("cpu", "1", "nvidia.com/gpu-2gb", "1")))
		view := snapshot.Build(cluster)
		plan := solve.Plan(view.Snapshot)
		if len(plan.Launches) != 1 {
			t.Fatalf("%s: %+v", name, plan)
		}
		claim := render.NodeClaim(&view, plan.Launches[0], nil)
		if got := claim.Annotations[nodecontract.SlotsAnnotation]; got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		if _, has := claim.Spec.Resources.Requests["nvidia.com/gpu-2gb"]; has || claim.Annotations[nodecontract.ResourceAnnotation] != "nvidia.com/gpu-2gb" {
			t.Errorf("%s: the claim requests %v, and promises %s", name, claim.Spec.Resources.Requests, claim.Annotations[nodecontract.ResourceAnnotation])
		}
	}
}

// Karpenter does not know them, and would set them or find no instance type for them.
func TestClaimHasNoLabelsThatOthersWrite(t *testing.T) {
	t.Parallel()
	c := cluster()
	np := &c.NodePools[0]
	Requiring("nvidia.com/gpu.product", corev1.NodeSelectorOpIn, "Tesla-T4", "NVIDIA-A10G")(np)
	Requiring("nvidia.com/gpu.memory", corev1.NodeSelectorOpGt, "10000")(np)
	Requiring("topology.ebs.csi.aws.com/zone", corev1.NodeSelectorOpIn, "us-east-1a")(np)
	Labeled(map[string]string{"owner": "ml", "nvidia.com/gpu.present": "true", "topology.ebs.csi.aws.com/zone": "us-east-1a"})(np)
	view := snapshot.Build(c)
	got := render.NodeClaim(&view, launch(t, &view, "g4dn.xlarge", "on-demand", "default/a-000"), nil)
	for key := range got.Labels {
		if strings.HasPrefix(key, "nvidia.com/") || strings.HasPrefix(key, "topology.") {
			t.Errorf("the label %s", key)
		}
	}
	for _, req := range got.Spec.Requirements {
		if strings.HasPrefix(req.Key, "nvidia.com/") || strings.HasPrefix(req.Key, "topology.ebs") || req.Key == corev1.LabelTopologyZone && !slices.Equal(req.Values, []string{"us-east-1a"}) {
			t.Errorf("the requirement %+v", req)
		}
	}
	for _, o := range view.Snapshot.Offerings {
		if o.Zone != "us-east-1a" {
			t.Errorf("an offering in %s", o.Zone)
		}
	}
}
