package snapshot_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// offered returns the distinct offerings of the cluster's first pool as "size/zone/capacity type".
func offered(c *facts.Cluster) []string {
	var names []string
	for _, o := range snapshot.Pools(c)[0].Offerings {
		names = append(names, strings.TrimPrefix(o.Type.Name, "g4dn.")+"/"+strings.TrimPrefix(o.Zone, "us-east-")+"/"+o.CapacityType)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func TestOfferingsMeetPoolRequirements(t *testing.T) {
	t.Parallel()
	const gpuCount, cpus, kind = "karpenter.k8s.aws/instance-gpu-count", "karpenter.k8s.aws/instance-cpu", corev1.LabelInstanceTypeStable
	oneA := Requiring(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, "us-east-1a")
	for name, tc := range map[string]struct {
		edits []func(*karpv1.NodePool)
		want  []string
	}{
		"only on-demand without a capacity type requirement": {
			[]func(*karpv1.NodePool){Requiring(kind, corev1.NodeSelectorOpIn, "g4dn.xlarge")},
			[]string{"xlarge/1a/on-demand", "xlarge/1b/on-demand"},
		},
		"reserved capacity is left alone": {
			[]func(*karpv1.NodePool){oneA, Requiring(kind, corev1.NodeSelectorOpIn, "g4dn.xlarge"), Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "spot", "reserved")},
			[]string{"xlarge/1a/spot"},
		},
		"a template label is a requirement": {
			[]func(*karpv1.NodePool){Labeled(map[string]string{corev1.LabelTopologyZone: "us-east-1b", karpv1.CapacityTypeLabelKey: "spot", cpus: "4"})},
			[]string{"xlarge/1b/spot"},
		},
		"a template label under its deprecated name is a requirement": {
			[]func(*karpv1.NodePool){oneA, Labeled(map[string]string{"beta.kubernetes.io/arch": "arm64"})}, nil,
		},
		"In":           {[]func(*karpv1.NodePool){oneA, Requiring(cpus, corev1.NodeSelectorOpIn, "4", "48")}, []string{"12xlarge/1a/on-demand", "xlarge/1a/on-demand"}},
		"NotIn":        {[]func(*karpv1.NodePool){oneA, Requiring(kind, corev1.NodeSelectorOpNotIn, "g4dn.xlarge", "g4dn.2xlarge")}, []string{"12xlarge/1a/on-demand", "4xlarge/1a/on-demand"}},
		"NotIn absent": {[]func(*karpv1.NodePool){oneA, Requiring(cpus, corev1.NodeSelectorOpIn, "4"), Requiring("karpenter.k8s.aws/instance-local-nvme", corev1.NodeSelectorOpNotIn, "1")}, []string{"xlarge/1a/on-demand"}},
		"Exists":       {[]func(*karpv1.NodePool){oneA, Requiring(cpus, corev1.NodeSelectorOpIn, "4"), Requiring(gpuCount, corev1.NodeSelectorOpExists)}, []string{"xlarge/1a/on-demand"}},
		"Exists on a label that the cloud does not set": {
			[]func(*karpv1.NodePool){Requiring("karpenter.k8s.aws/instance-accelerator-name", corev1.NodeSelectorOpExists)}, nil,
		},
		"DoesNotExist": {[]func(*karpv1.NodePool){Requiring(gpuCount, corev1.NodeSelectorOpDoesNotExist)}, nil},
		"DoesNotExist on a label that the cloud does not set": {
			[]func(*karpv1.NodePool){oneA, Requiring(cpus, corev1.NodeSelectorOpIn, "4"), Requiring("karpenter.k8s.aws/instance-accelerator-name", corev1.NodeSelectorOpDoesNotExist)},
			[]string{"xlarge/1a/on-demand"},
		},
		"Gt":                         {[]func(*karpv1.NodePool){oneA, Requiring(cpus, corev1.NodeSelectorOpGt, "16")}, []string{"12xlarge/1a/on-demand"}},
		"Lt":                         {[]func(*karpv1.NodePool){oneA, Requiring(cpus, corev1.NodeSelectorOpLt, "8")}, []string{"xlarge/1a/on-demand"}},
		"Gte":                        {[]func(*karpv1.NodePool){oneA, Requiring(cpus, karpv1.NodeSelectorOpGte, "16")}, []string{"12xlarge/1a/on-demand", "4xlarge/1a/on-demand"}},
		"Lte":                        {[]func(*karpv1.NodePool){oneA, Requiring(cpus, karpv1.NodeSelectorOpLte, "8")}, []string{"2xlarge/1a/on-demand", "xlarge/1a/on-demand"}},
		"Gt and Lt":                  {[]func(*karpv1.NodePool){oneA, Requiring(cpus, corev1.NodeSelectorOpGt, "4"), Requiring(cpus, corev1.NodeSelectorOpLt, "16")}, []string{"2xlarge/1a/on-demand"}},
		"contradicting requirements": {[]func(*karpv1.NodePool){oneA, Requiring(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, "us-east-1b")}, nil},
		"a custom label against a custom requirement": {
			[]func(*karpv1.NodePool){Labeled(map[string]string{"team": "a"}), Requiring("team", corev1.NodeSelectorOpIn, "b")}, nil,
		},
		"an unmet custom requirement stays on the claim": {
			[]func(*karpv1.NodePool){oneA, Requiring(cpus, corev1.NodeSelectorOpIn, "4"), Requiring("team", corev1.NodeSelectorOpExists)}, []string{"xlarge/1a/on-demand"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Shared()
			types := c.InstanceTypes()
			for i := range types {
				types[i].Offerings = append(types[i].Offerings, catalog.Offering{
					Zone: "us-east-1a", CapacityType: "reserved", MicroUSDPerHour: 1,
					Labels: map[string]string{corev1.LabelTopologyZone: "us-east-1a", karpv1.CapacityTypeLabelKey: "reserved"},
				})
			}
			for _, edit := range tc.edits {
				edit(&c.NodePools[0])
			}
			if diff := cmp.Diff(tc.want, offered(c)); diff != "" {
				t.Errorf("offerings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTypesWithoutGPUsAreNotOffered(t *testing.T) {
	t.Parallel()
	c := Shared()
	types := c.InstanceTypes()
	for i := range types {
		types[i].GPU = catalog.GPU{}
	}
	if got := offered(c); got != nil {
		t.Errorf("offerings: %v", got)
	}
}

func TestCustomRequirementWithSeveralValuesBecomesLabelChoice(t *testing.T) {
	t.Parallel()
	c := Shared()
	for _, edit := range []func(*karpv1.NodePool){
		Requiring(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "g4dn.xlarge"), Requiring(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, "us-east-1a"),
		Requiring("team", corev1.NodeSelectorOpIn, "red", "blue", "green"), Requiring("team", corev1.NodeSelectorOpNotIn, "green"),
		Requiring("tier", corev1.NodeSelectorOpIn, "1"), Labeled(map[string]string{"owner": "ml"}), Requiring("owner", corev1.NodeSelectorOpIn, "ml", "web"),
	} {
		edit(&c.NodePools[0])
	}
	var choices []map[string]string
	for _, o := range snapshot.Pools(c)[0].Offerings {
		choices = append(choices, o.CustomLabels)
		for key, value := range map[string]string{"team": o.CustomLabels["team"], "owner": "ml", "tier": "1", karpv1.NodePoolLabelKey: "gpu-shared"} {
			if o.Labels[key] != value {
				t.Errorf("the node carries %s=%q", key, o.Labels[key])
			}
		}
	}
	if diff := cmp.Diff([]map[string]string{{"team": "blue", "tier": "1"}, {"team": "red", "tier": "1"}}, choices); diff != "" {
		t.Errorf("choices (-want +got):\n%s", diff)
	}
	c.Pods = []corev1.Pod{Pod("a", Selecting("team", "red"))}
	view := snapshot.Build(c)
	if got := view.Classes[0].Offerings; len(got) != 1 || view.Offerings[got[0]].CustomLabels["team"] != "red" {
		t.Errorf("a pod that selects team=red is admitted by %v", got)
	}
}

func TestLabelChoicesAreBounded(t *testing.T) {
	t.Parallel()
	c := Shared()
	values := strings.Split("abcdefghijklmnopqrstuvwxyz", "")
	for _, key := range []string{"one", "two", "three"} {
		Requiring(key, corev1.NodeSelectorOpIn, values...)(&c.NodePools[0])
	}
	Requiring(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "g4dn.xlarge")(&c.NodePools[0])
	if got := len(snapshot.Pools(c)[0].Offerings); got != 2*64 {
		t.Errorf("%d offerings", got)
	}
}

func TestDaemonSetOverheadCountsOnlyWhereDaemonSetRuns(t *testing.T) {
	t.Parallel()
	small := func(ds *appsv1.DaemonSet) {
		ds.Spec.Template.Spec.NodeSelector = map[string]string{"karpenter.k8s.aws/instance-cpu": "4"}
	}
	for name, tc := range map[string]struct {
		edit func(*appsv1.DaemonSet)
		want planner.Resources
	}{
		"tolerates the taint": {func(*appsv1.DaemonSet) {}, planner.Resources{MilliCPU: 200, MemoryBytes: 1 << 30, Pods: 1}},
		"does not tolerate the taint": {
			func(ds *appsv1.DaemonSet) { ds.Spec.Template.Spec.Tolerations = nil }, planner.Resources{},
		},
		"node selector matches": {small, planner.Resources{MilliCPU: 200, MemoryBytes: 1 << 30, Pods: 1}},
		"node selector does not match": {
			func(ds *appsv1.DaemonSet) { ds.Spec.Template.Spec.NodeSelector = map[string]string{"team": "web"} }, planner.Resources{},
		},
		"requires initialized nodes": {
			func(ds *appsv1.DaemonSet) {
				ds.Spec.Template.Spec.NodeSelector = map[string]string{karpv1.NodeInitializedLabelKey: "true", "beta.kubernetes.io/os": "linux"}
			},
			planner.Resources{MilliCPU: 200, MemoryBytes: 1 << 30, Pods: 1},
		},
		"limits stand in for requests": {
			func(ds *appsv1.DaemonSet) {
				ds.Spec.Template.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: Amounts("cpu", "50m"), Limits: Amounts("cpu", "1", "memory", "2Gi")}
			},
			planner.Resources{MilliCPU: 50, MemoryBytes: 2 << 30, Pods: 1},
		},
		"takes replicas": {
			func(ds *appsv1.DaemonSet) {
				ds.Spec.Template.Spec.Containers[0].Resources.Requests = Amounts(v1alpha1.ResourceGPUShared, "1")
			},
			planner.Resources{Pods: 1, Replicas: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Shared()
			Requiring(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "g4dn.xlarge")(&c.NodePools[0])
			c.DaemonSets = []appsv1.DaemonSet{DaemonSet("plugin", "cpu", "200m", "memory", "1Gi")}
			tc.edit(&c.DaemonSets[0])
			o := snapshot.Build(c).Offerings[0]
			if diff := cmp.Diff(tc.want, o.Daemons); diff != "" {
				t.Errorf("daemons (-want +got):\n%s", diff)
			}
			want := planner.Resources{
				MilliCPU: 3900 - tc.want.MilliCPU, MemoryBytes: 15<<30 - tc.want.MemoryBytes, EphemeralBytes: 90 << 30,
				Pods: 29 - tc.want.Pods, Replicas: 10 - tc.want.Replicas,
			}
			if diff := cmp.Diff(want, o.Free()); diff != "" {
				t.Errorf("free (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReplicasCanBeOverriddenByGPUName(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.GPUNodeClasses[0].Spec.Sharing.Overrides = []v1alpha1.ReplicasOverride{{GPUName: "a10g", Replicas: 3}, {GPUName: "t4", Replicas: 5}}
	for _, o := range snapshot.Build(c).Offerings {
		if want := o.Type.GPU.Count * 5; o.ReplicasPerGPU != 5 || o.Free().Replicas != want || o.Physical().Replicas != want {
			t.Errorf("%s: %d replicas per GPU, free %+v, physical %+v", o.Type.Name, o.ReplicasPerGPU, o.Free(), o.Physical())
		}
	}
}

func TestRefusedOfferingIsUnavailableUntilNotBefore(t *testing.T) {
	t.Parallel()
	c := Shared()
	Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpExists)(&c.NodePools[0])
	refused := v1alpha1.RefusedOffering{
		InstanceType: "g4dn.xlarge", Zone: "us-east-1a", CapacityType: "spot", Failures: 3, NotBefore: metav1.NewTime(Now.Add(time.Minute)), Message: "no capacity",
	}
	for name, tc := range map[string]struct {
		class string
		edit  func(*v1alpha1.RefusedOffering)
		after time.Duration
		want  []string
	}{
		"only the refused offering": {"gpu-shared", func(*v1alpha1.RefusedOffering) {}, 0, []string{"g4dn.xlarge us-east-1a spot"}},
		"until a moment before":     {"gpu-shared", func(*v1alpha1.RefusedOffering) {}, time.Minute - 1, []string{"g4dn.xlarge us-east-1a spot"}},
		"available from notBefore":  {"gpu-shared", func(*v1alpha1.RefusedOffering) {}, time.Minute, nil},
		"not for another class":     {"other", func(*v1alpha1.RefusedOffering) {}, 0, nil},
		"in every zone":             {"gpu-shared", func(r *v1alpha1.RefusedOffering) { r.Zone = "*" }, 0, []string{"g4dn.xlarge us-east-1a spot", "g4dn.xlarge us-east-1b spot"}},
		"every type in a zone": {"gpu-shared", func(r *v1alpha1.RefusedOffering) { r.InstanceType = "*" }, 0, []string{
			"g4dn.12xlarge us-east-1a spot", "g4dn.2xlarge us-east-1a spot", "g4dn.4xlarge us-east-1a spot", "g4dn.xlarge us-east-1a spot",
		}},
		"a vCPU limit affects types with as many vCPUs": {"gpu-shared", func(r *v1alpha1.RefusedOffering) {
			r.InstanceType, r.Reason = "g4dn.4xlarge", v1alpha1.RefusalVCPULimit
		}, 0, []string{"g4dn.12xlarge us-east-1a spot", "g4dn.4xlarge us-east-1a spot"}},
		"a vCPU limit of an unknown type": {"gpu-shared", func(r *v1alpha1.RefusedOffering) {
			r.InstanceType, r.Reason = "gr6.4xlarge", v1alpha1.RefusalSpotQuota
		}, 0, []string{"g4dn.12xlarge us-east-1a spot", "g4dn.2xlarge us-east-1a spot", "g4dn.4xlarge us-east-1a spot", "g4dn.xlarge us-east-1a spot"}},
		"a vCPU limit of another quota": {"gpu-shared", func(r *v1alpha1.RefusedOffering) {
			r.InstanceType, r.Reason = "p3.2xlarge", v1alpha1.RefusalVCPULimit
		}, 0, nil},
		"while the node class is unchanged":         {"gpu-shared", func(r *v1alpha1.RefusedOffering) { r.NodeClassGeneration = 4 }, 0, []string{"g4dn.xlarge us-east-1a spot"}},
		"available once the node class has changed": {"gpu-shared", func(r *v1alpha1.RefusedOffering) { r.NodeClassGeneration = 3 }, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, r := *c, refused
			tc.edit(&r)
			state := c.NodeClasses[NodeClassRef]
			state.Generation = 4
			c.NodeClasses = map[v1alpha1.NodeClassReference]facts.NodeClassState{NodeClassRef: state}
			c.Refused = map[string][]v1alpha1.RefusedOffering{tc.class: {r}}
			c.Now = Now.Add(tc.after)
			var got []string
			for _, o := range snapshot.Build(&c).Snapshot.Offerings {
				if o.Unavailable == nil {
					continue
				}
				got = append(got, o.InstanceType+" "+o.Zone+" "+o.CapacityType)
				if o.Unavailable.Reason != planner.ReasonUnavailable || !strings.Contains(o.Unavailable.Message, "was refused 3 times, next try after 12:01:00Z: no capacity") {
					t.Errorf("refusal: %+v", o.Unavailable)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("refused (-want +got):\n%s", diff)
			}
		})
	}
}
