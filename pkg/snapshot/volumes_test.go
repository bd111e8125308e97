package snapshot_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

const ebs = "ebs.csi.aws.com"

// zonal places a volume in a zone, in the format of the EBS CSI driver.
func zonal(zone string) func(*corev1.PersistentVolume) {
	return func(pv *corev1.PersistentVolume) {
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: ebs}
		pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			expression("topology.ebs.csi.aws.com/zone", corev1.NodeSelectorOpIn, zone),
		}}}
	}
}

// bound adds a PersistentVolumeClaim and the volume to which it is bound.
func bound(name string, edit func(*corev1.PersistentVolume)) func(*facts.Cluster) {
	return func(c *facts.Cluster) {
		pv := corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}}
		edit(&pv)
		c.PersistentVolumes = append(c.PersistentVolumes, pv)
		claimed(name, func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.VolumeName = pv.Name
			claim.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
		})(c)
	}
}

// claimed adds a PersistentVolumeClaim.
func claimed(name string, edit func(*corev1.PersistentVolumeClaim)) func(*facts.Cluster) {
	return func(c *facts.Cluster) {
		claim := corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		edit(&claim)
		c.PersistentVolumeClaims = append(c.PersistentVolumeClaims, claim)
	}
}

// ofClass adds an unbound PersistentVolumeClaim, and a StorageClass with the same name.
func ofClass(name string, edit func(*storagev1.StorageClass)) func(*facts.Cluster) {
	return func(c *facts.Cluster) {
		claimed(name, func(claim *corev1.PersistentVolumeClaim) { claim.Spec.StorageClassName = &name })(c)
		waits := storagev1.VolumeBindingWaitForFirstConsumer
		class := storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: ebs, VolumeBindingMode: &waits}
		edit(&class)
		c.StorageClasses = append(c.StorageClasses, class)
	}
}

func allowing(terms ...map[string][]string) func(*storagev1.StorageClass) {
	return func(class *storagev1.StorageClass) {
		for _, term := range terms {
			var t corev1.TopologySelectorTerm
			for key, values := range term {
				t.MatchLabelExpressions = append(t.MatchLabelExpressions, corev1.TopologySelectorLabelRequirement{Key: key, Values: values})
			}
			class.AllowedTopologies = append(class.AllowedTopologies, t)
		}
	}
}

func TestPodsAreAdmittedWhereTheirVolumesAreAvailable(t *testing.T) {
	t.Parallel()
	const a, b = "us-east-1a", "us-east-1b"
	local := func(pv *corev1.PersistentVolume) {
		zonal("")(pv)
		pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0] = expression(corev1.LabelHostname, corev1.NodeSelectorOpIn, "m")
	}
	zones := map[string][]string{corev1.LabelTopologyZone: {a}}
	ephemeral := func(pod *corev1.Pod) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}})
	}
	for name, tc := range map[string]struct {
		edit  func(*facts.Cluster)
		pod   func(*corev1.Pod)
		zones []string
		node  bool
	}{
		"without volumes":                  {func(*facts.Cluster) {}, Claiming(), []string{a, b}, true},
		"a volume in a zone":               {bound("data", zonal(b)), Claiming("data"), []string{b}, false},
		"a volume in the zone of the node": {bound("data", zonal(a)), Claiming("data"), []string{a}, true},
		"a volume available everywhere":    {bound("data", func(*corev1.PersistentVolume) {}), Claiming("data"), []string{a, b}, true},
		"a volume with a zone label": {
			bound("data", func(pv *corev1.PersistentVolume) {
				pv.Labels = map[string]string{corev1.LabelTopologyZone: "elsewhere__" + b}
			}),
			Claiming("data"),
			[]string{b},
			false,
		},
		"a volume with a deprecated zone label": {
			bound("data", func(pv *corev1.PersistentVolume) { pv.Labels = map[string]string{corev1.LabelFailureDomainBetaZone: b} }), Claiming("data"), []string{b}, false,
		},
		"two volumes in two zones": {
			func(c *facts.Cluster) { bound("data", zonal(a))(c); bound("more", zonal(b))(c) }, Claiming("data", "more"), nil, false,
		},
		"a local volume":                  {bound("data", local), Claiming("data"), nil, true},
		"an unbound volume for any zone":  {ofClass("fast", func(*storagev1.StorageClass) {}), Claiming("fast"), []string{a, b}, true},
		"an unbound volume for one zone":  {ofClass("fast", allowing(zones)), Claiming("fast"), []string{a}, true},
		"an unbound volume for two zones": {ofClass("fast", allowing(zones, map[string][]string{"topology.ebs.csi.aws.com/zone": {b}})), Claiming("fast"), []string{a, b}, true},
		"an ephemeral volume": {
			func(c *facts.Cluster) {
				ofClass("a-scratch", allowing(zones))(c)
				c.PersistentVolumeClaims[0].OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: "a", UID: "pod-a", Controller: new(true)}}
			}, ephemeral, []string{a}, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := machine(Initialized(Now), 10, node(func(n *corev1.Node) {
				n.Labels[corev1.LabelHostname], n.Labels["topology.ebs.csi.aws.com/zone"] = n.Name, a
			}), tc.edit)
			c.Pods = []corev1.Pod{Pod("a", tc.pod)}
			view := snapshot.Build(c)
			class := view.Classes[0]
			got := map[string]bool{}
			for _, i := range class.Offerings {
				got[view.Snapshot.Offerings[i].Zone] = true
			}
			want := map[string]bool{}
			for _, zone := range tc.zones {
				want[zone] = true
			}
			if diff := cmp.Diff(want, got); diff != "" || tc.node != (len(class.Nodes) == 1) {
				t.Errorf("on nodes %v, in zones (-want +got):\n%s", class.Nodes, diff)
			}
			if (len(tc.zones) > 0 || tc.node) != (class.Blocked == nil) {
				t.Errorf("blocked: %+v", class.Blocked)
			}
		})
	}
}

func TestReasonNamesWhatVolumesWaitFor(t *testing.T) {
	t.Parallel()
	immediate := storagev1.VolumeBindingImmediate
	for says, edit := range map[string]func(*facts.Cluster){
		"PersistentVolumeClaim default/data does not exist: create it":         func(*facts.Cluster) {},
		"PersistentVolumeClaim default/data is not bound and names no":         claimed("data", func(*corev1.PersistentVolumeClaim) {}),
		"its StorageClass data binds without waiting for a node: see the ":     ofClass("data", func(class *storagev1.StorageClass) { class.VolumeBindingMode = &immediate }),
		"its StorageClass data binds without waiting for a node: see":          ofClass("data", func(class *storagev1.StorageClass) { class.VolumeBindingMode = nil }),
		"its StorageClass data makes no volumes":                               ofClass("data", func(class *storagev1.StorageClass) { class.Provisioner = "kubernetes.io/no-provisioner" }),
		"its StorageClass lost does not exist: create it":                      claimed("data", func(claim *corev1.PersistentVolumeClaim) { claim.Spec.StorageClassName = new("lost") }),
		"is not bound to PersistentVolume pv yet: see the events of the claim": claimed("data", func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = "pv" }),
		"is bound to PersistentVolume pv-data, which does not exist": func(c *facts.Cluster) {
			bound("data", zonal("us-east-1a"))(c)
			c.PersistentVolumes = nil
		},
		"has lost its PersistentVolume pv-data": func(c *facts.Cluster) {
			bound("data", zonal("us-east-1a"))(c)
			c.PersistentVolumeClaims[0].Status.Phase = corev1.ClaimLost
		},
		"default/data is being deleted": func(c *facts.Cluster) {
			bound("data", zonal("us-east-1a"))(c)
			c.PersistentVolumeClaims[0].DeletionTimestamp = new(metav1.NewTime(Now))
		},
	} {
		c := Shared()
		edit(c)
		c.Pods = []corev1.Pod{Pod("a", Claiming("data"))}
		wantBlocked(t, c, planner.ReasonVolumes, says)
	}
	c := Shared()
	c.Pods = []corev1.Pod{Pod("a", func(pod *corev1.Pod) {
		pod.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
	})}
	wantBlocked(t, c, planner.ReasonVolumes, "PersistentVolumeClaim default/a-scratch does not exist yet")
	bound("a-scratch", zonal("us-east-1a"))(c)
	wantBlocked(t, c, planner.ReasonVolumes, "default/a-scratch is not of this pod")
}

// exclusively returns a cluster with a claim that one pod at a time may use.
func exclusively(pods ...corev1.Pod) *facts.Cluster {
	c := machine(Initialized(Now), 10)
	ofClass("data", func(*storagev1.StorageClass) {})(c)
	c.PersistentVolumeClaims[0].Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	c.Pods = pods
	return c
}

func TestOnlyOnePodAtATimeUsesAnExclusiveVolume(t *testing.T) {
	t.Parallel()
	created := func(d time.Duration) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.CreationTimestamp = metav1.NewTime(Now.Add(d)) }
	}
	of := func(priority int32) func(*corev1.Pod) { return func(pod *corev1.Pod) { pod.Spec.Priority = &priority } }
	data := Claiming("data")
	deleted := func(pod *corev1.Pod) { pod.DeletionTimestamp = new(metav1.NewTime(Now)) }
	ended := func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded }
	gated := func(pod *corev1.Pod) { pod.Status.Conditions[0].Reason = corev1.PodReasonSchedulingGated }
	nominated := func(pod *corev1.Pod) { pod.Status.NominatedNodeName = "m" }
	beyond := func(pod *corev1.Pod) { preferring(nodeTerms("x", 1_000, 1))(pod) }
	const uses, first = "pod default/a uses it: wait until that pod is gone", "pod default/a, which waits too, uses it first"
	for name, c := range map[string]struct {
		pods []corev1.Pod
		// says is what pod b is told, or "" if it has a place.
		says string
	}{
		"alone":                                {[]corev1.Pod{Pod("b", data)}, ""},
		"a running pod uses it":                {[]corev1.Pod{Pod("a", data, Running("m")), Pod("b", data)}, uses},
		"a pod without GPUs uses it":           {[]corev1.Pod{Pod("a", data, Asking("cpu", "1"), Running("elsewhere")), Pod("b", data)}, uses},
		"its user is being deleted":            {[]corev1.Pod{Pod("a", data, Running("m"), deleted), Pod("b", data)}, uses},
		"its user has ended":                   {[]corev1.Pod{Pod("a", data, Running("m"), ended), Pod("b", data)}, ""},
		"a pod of another namespace":           {[]corev1.Pod{Pod("a", data, Running("m"), in("other")), Pod("b", data)}, ""},
		"an older pod waits":                   {[]corev1.Pod{Pod("a", data, created(-time.Minute)), Pod("b", data, created(0))}, first},
		"a younger pod waits":                  {[]corev1.Pod{Pod("a", data, created(time.Minute)), Pod("b", data, created(0))}, ""},
		"a younger pod with a higher priority": {[]corev1.Pod{Pod("a", data, created(time.Minute), of(7)), Pod("b", data, created(0))}, first},
		"a nominated pod":                      {[]corev1.Pod{Pod("a", data, created(time.Minute), nominated), Pod("b", data, created(0), of(7))}, first},
		"an older pod is gated":                {[]corev1.Pod{Pod("a", data, created(-time.Minute), gated), Pod("b", data, created(0))}, ""},
		"an older pod is beyond a bound":       {[]corev1.Pod{Pod("a", data, created(-time.Minute), beyond), Pod("b", data, created(0))}, ""},
		"an older pod is being deleted":        {[]corev1.Pod{Pod("a", data, created(-time.Minute), deleted), Pod("b", data, created(0))}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			view := snapshot.Build(exclusively(c.pods...))
			blocked := view.Classes[classOf(view, "b")].Blocked
			switch {
			case c.says == "" && blocked != nil:
				t.Errorf("it is told %s", blocked.Message)
			case c.says != "" && (blocked == nil || blocked.Reason != planner.ReasonVolumes || !strings.Contains(blocked.Message, "PersistentVolumeClaim default/data has the access mode ReadWriteOncePod and "+c.says)):
				t.Errorf("it is told %+v, want %q", blocked, c.says)
			}
			shared := exclusively(c.pods...)
			shared.PersistentVolumeClaims[0].Spec.AccessModes[0] = corev1.ReadWriteOnce
			view = snapshot.Build(shared)
			if blocked := view.Classes[classOf(view, "b")].Blocked; blocked != nil {
				t.Errorf("with ReadWriteOnce it is told %s", blocked.Message)
			}
		})
	}
}

func TestPodsOfADeploymentOnAnExclusiveVolumeGetOneNode(t *testing.T) {
	t.Parallel()
	c := exclusively(Pods("a", 3, Claiming("data"), Asking("cpu", "1", "nvidia.com/gpu.shared", "10"))...)
	c.Nodes, c.NodeClaims = nil, nil
	view := snapshot.Build(c)
	plan := solve.Plan(view.Snapshot)
	if err := check.Plan(view.Snapshot, plan); err != nil {
		t.Fatal(err)
	}
	if len(plan.Launches) != 1 || len(plan.Unplaced) != 2 {
		t.Errorf("want one launch and two pods that wait: %+v", plan)
	}
}

func TestAPodWithAnExclusiveVolumeMovesWithItsMachine(t *testing.T) {
	t.Parallel()
	c := exclusively(Pod("a", Claiming("data"), Running("m")))
	view := snapshot.Build(c)
	leaving := view.WhatIf(snapshot.WhatIf{Leaving: []string{"m"}})
	if len(leaving.Classes) != 1 || leaving.Classes[0].Blocked != nil {
		t.Errorf("classes: %+v", leaving.Classes)
	}
}

// Each pod of a StatefulSet has its own PersistentVolumeClaim.
func TestPodsWithVolumesInSameZoneShareClass(t *testing.T) {
	t.Parallel()
	c := Shared()
	for i := range 4 {
		name := fmt.Sprintf("data-%d", i)
		bound(name, zonal([]string{"us-east-1a", "us-east-1b"}[i%2]))(c)
		c.Pods = append(c.Pods, Pod(name, Claiming(name), func(pod *corev1.Pod) { pod.UID = types.UID(name) }))
	}
	view := snapshot.Build(c)
	if len(view.Classes) != 2 || len(view.Classes[0].Pods) != 2 {
		t.Errorf("classes: %+v", view.Classes)
	}
}

func TestDriverOf(t *testing.T) {
	t.Parallel()
	for want, source := range map[string]corev1.PersistentVolumeSource{
		"other.csi":             {CSI: &corev1.CSIPersistentVolumeSource{Driver: "other.csi"}},
		ebs:                     {AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{}},
		"pd.csi.storage.gke.io": {GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{}},
		"":                      {HostPath: &corev1.HostPathVolumeSource{}},
	} {
		pv := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: source}}
		if got := records.DriverOf(pv); got != want {
			t.Errorf("the driver is %q, want %q", got, want)
		}
	}
}
