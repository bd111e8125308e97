package gather

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// trimmed returns a copy of the cluster with trimmed objects.
func trimmed(t *testing.T, c *facts.Cluster, trim func(any) (any, error)) *facts.Cluster {
	t.Helper()
	now := *c
	now.Pods, now.Nodes, now.NodeClaims = copies(t, trim, c.Pods), copies(t, trim, c.Nodes), copies(t, trim, c.NodeClaims)
	now.DaemonSets, now.Namespaces = copies(t, trim, c.DaemonSets), copies(t, trim, c.Namespaces)
	now.PersistentVolumeClaims, now.PersistentVolumes, now.CSINodes = copies(t, trim, c.PersistentVolumeClaims), copies(t, trim, c.PersistentVolumes), copies(t, trim, c.CSINodes)
	return &now
}

func copies[T any, P interface {
	*T
	DeepCopy() *T
}](t *testing.T, trim func(any) (any, error), all []T) []T {
	t.Helper()
	made := make([]T, len(all))
	for i := range all {
		o, err := trim(P(&all[i]).DeepCopy())
		if err != nil {
			t.Fatal(err)
		}
		made[i] = *o.(*T)
	}
	return made
}

// varied returns a small version of the large cluster with pods of all kinds that matter for placement.
func varied() *facts.Cluster {
	c := snapshottest.Large(40)
	machine := c.NodeClaims[0].Name
	count := int32(25)
	c.CSINodes = []storagev1.CSINode{{ObjectMeta: metav1.ObjectMeta{Name: machine}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
		{Name: "ebs.csi.aws.com", NodeID: "i-1", Allocatable: &storagev1.VolumeNodeResources{Count: &count}},
	}}}}
	c.PersistentVolumes = []corev1.PersistentVolume{{ObjectMeta: metav1.ObjectMeta{Name: "pv", Labels: map[string]string{corev1.LabelTopologyZone: snapshottest.Zones[0]}}}}
	c.PersistentVolumes[0].Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "ebs.csi.aws.com", VolumeHandle: "vol-1"}
	c.PersistentVolumeClaims = []corev1.PersistentVolumeClaim{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}},
	}}
	add := func(name string, edits ...func(*corev1.Pod)) {
		for i, place := range []func(*corev1.Pod){func(*corev1.Pod) {}, snapshottest.Running(machine)} {
			pod := snapshottest.Pod(fmt.Sprintf("%s-%d", name, i), append(edits, place)...)
			pod.Annotations = map[string]string{"other": "annotation", v1alpha1.GPUMemoryAnnotation: "1Gi"}
			c.Pods = append(c.Pods, pod)
		}
	}
	add("plain")
	add("ported", snapshottest.HostPort(8080))
	add("claiming", snapshottest.Claiming("data"))
	c.PersistentVolumeClaims = append(c.PersistentVolumeClaims, *c.PersistentVolumeClaims[0].DeepCopy())
	c.PersistentVolumeClaims[1].Name, c.PersistentVolumeClaims[1].Spec.AccessModes = "exclusive", []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	add("exclusive", snapshottest.Claiming("exclusive"))
	add("ephemeral", func(pod *corev1.Pod) {
		pod.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
	})
	for i := range 2 { // Each pod controls its claim.
		name := fmt.Sprintf("ephemeral-%d", i)
		claim := *c.PersistentVolumeClaims[0].DeepCopy()
		claim.Name, claim.OwnerReferences = name+"-scratch", []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: name, UID: snapshottest.Pod(name).UID, Controller: new(true)}}
		c.PersistentVolumeClaims = append(c.PersistentVolumeClaims, claim)
	}
	add("exclusive", snapshottest.Claiming("exclusive"))
	exclusive := *c.PersistentVolumeClaims[0].DeepCopy()
	exclusive.Name, exclusive.Spec.AccessModes = "exclusive", []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	c.PersistentVolumeClaims = append(c.PersistentVolumeClaims, exclusive)
	add("with-a-sidecar", func(pod *corev1.Pod) {
		always := corev1.ContainerRestartPolicyAlways
		pod.Spec.InitContainers = []corev1.Container{{Name: "side", RestartPolicy: &always, Resources: corev1.ResourceRequirements{Requests: snapshottest.Amounts("cpu", "2")}}}
	})
	add("with-overhead", func(pod *corev1.Pod) { pod.Spec.Overhead = snapshottest.Amounts("cpu", "1") })
	add("of-a-priority", func(pod *corev1.Pod) { pod.Spec.Priority = new(int32(7)) })
	add("selecting", snapshottest.Selecting(corev1.LabelTopologyZone, snapshottest.Zones[0]))
	add("extended", snapshottest.Asking("cpu", "1", v1alpha1.ResourceGPUShared, "1", "example.com/fpga", "1"))
	ds := snapshottest.DaemonSet("limited")
	ds.Spec.Template.Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: snapshottest.Amounts("cpu", "333m")}
	c.DaemonSets = append(c.DaemonSets, ds)
	return c
}

func TestTrimmedObjectsGiveSameSnapshot(t *testing.T) {
	t.Parallel()
	c, trim := varied(), Trim()
	once := trimmed(t, c, trim)
	want, got := snapshot.Build(c), snapshot.Build(once)
	if diff := cmp.Diff(want.Snapshot, got.Snapshot); diff != "" {
		t.Errorf("(-whole +trimmed):\n%s", diff)
	}
	if len(want.Classes) < 8 || len(want.Quotas) < 3 {
		t.Errorf("the cluster has only %d classes and %d quotas", len(want.Classes), len(want.Quotas))
	}
	if diff := cmp.Diff(once.Pods, trimmed(t, once, trim).Pods); diff != "" {
		t.Errorf("trimming again changes pods (-once +twice):\n%s", diff)
	}
}

func TestWhoHoldsReplicasIsNoChangeOfANode(t *testing.T) {
	t.Parallel()
	nodes := []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{nodecontract.HoldersAnnotation: "{}", nodecontract.UnusedSinceAnnotation: "{}"}}}}
	before := copies(t, Trim(), nodes)
	nodes[0].Annotations[nodecontract.HoldersAnnotation] = `{"asOf":"2026-03-01T12:00:00Z"}`
	after := copies(t, Trim(), nodes)
	if !facts.Same(&before[0], &after[0]) || len(after[0].Annotations) != 1 {
		t.Errorf("decisions can tell %v from %v", before[0].Annotations, after[0].Annotations)
	}
}

func TestPodsOfDeploymentShareMemory(t *testing.T) {
	t.Parallel()
	pods := copies(t, Trim(), snapshottest.Pods("web", 2, snapshottest.WithLabels("app", "web"), func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: pod.Name}}
	}))
	if &pods[0].Spec.Containers[0] != &pods[1].Spec.Containers[0] {
		t.Error("two pods of one template have containers of their own")
	}
	if pods[0].Spec.Containers[0].Env != nil {
		t.Error("the environment is kept")
	}
}

func TestTrimKeepsFieldsOfForeignNodeClaimsThatDecisionsRead(t *testing.T) {
	t.Parallel()
	pool := snapshottest.KarpenterPool("stock")
	claim := snapshottest.Claim("other", &pool, snapshottest.TypeNamed("g4dn.xlarge"), snapshottest.Registered(snapshottest.Now), func(c *karpv1.NodeClaim) {
		c.Annotations = map[string]string{"karpenter.k8s.aws/ec2nodeclass-hash": "1"}
		c.Status.ImageID = "ami-1"
		c.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "karpenter"}}
	})
	got := copies(t, Trim(), []karpv1.NodeClaim{claim})[0]
	if got.Status.ProviderID != claim.Status.ProviderID || got.Status.ImageID != "ami-1" || got.Annotations["karpenter.k8s.aws/ec2nodeclass-hash"] != "1" || got.Labels[karpv1.NodePoolLabelKey] != "stock" {
		t.Errorf("lost what decisions read: %+v", got)
	}
	if got.Spec.Requirements != nil || got.ManagedFields != nil {
		t.Errorf("kept what no decision reads: %+v", got)
	}
}

func TestTrimKeepsWhatSlicesPublish(t *testing.T) {
	t.Parallel()
	node, kind, resource := "n", "gpu", "nvidia.com/mig-1g.5gb"
	slice := func(driver string) *resourcev1.ResourceSlice {
		return &resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{
			Driver: driver, NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1},
			Devices: []resourcev1.Device{{
				Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
					"type": {StringValue: &kind}, nodecontract.DRAResource: {StringValue: &resource}, nodecontract.DRAUUID: {StringValue: &node},
				},
				Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{
					nodecontract.DRAReplicas: {Value: *quantity.NewQuantity(7, quantity.DecimalSI)}, "shares": {Value: *quantity.NewQuantity(4, quantity.DecimalSI)},
				},
				AllowMultipleAllocations: new(true),
			}},
		}}
	}
	for _, driver := range []string{nodecontract.DRADriver, nodecontract.NVIDIADRADriver, "example.com"} {
		whole, trimmed := slice(driver), slice(driver)
		if _, err := Trim()(trimmed); err != nil {
			t.Fatal(err)
		}
		want, got := facts.PublishedOf([]resourcev1.ResourceSlice{*whole}, nil), facts.PublishedOf([]resourcev1.ResourceSlice{*trimmed}, nil)
		if diff := cmp.Diff(want, got); diff != "" || (len(want) == 0) != (driver == "example.com") {
			t.Errorf("the trimmed slice of %s publishes something else: %s", driver, diff)
		}
		for _, d := range trimmed.Spec.Devices {
			if _, kept := d.Attributes[nodecontract.DRAUUID]; kept || driver == "example.com" {
				t.Errorf("the slice of %s keeps %+v", driver, d)
			}
		}
	}
}

// Pods of other schedulers, and of groups, are not planned for before their scheduler has tried them.
func TestWhoSchedulesAPodIsKept(t *testing.T) {
	t.Parallel()
	untried := func(p *corev1.Pod) { p.Status.Conditions = nil }
	for name, c := range map[string]struct {
		edit func(*corev1.Pod)
		want bool
	}{
		"the default scheduler": {func(p *corev1.Pod) { p.Spec.SchedulerName = corev1.DefaultSchedulerName }, true},
		"another one":           {func(p *corev1.Pod) { p.Spec.SchedulerName = "volcano" }, false},
		"a group":               {func(p *corev1.Pod) { p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("g")} }, false},
		"a scheduling gate": {func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated}}
		}, false},
	} {
		pod := copies(t, Trim(), []corev1.Pod{snapshottest.Pod("a", untried, c.edit)})[0]
		if facts.Untried(&pod) != c.want {
			t.Errorf("%s: untried is %t", name, !c.want)
		}
	}
}
