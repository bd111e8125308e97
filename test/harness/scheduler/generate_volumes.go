package scheduler

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// zonalDriver creates disks that can be attached in one zone only.
const zonalDriver = "disks.example.com"

// Storage classes, by when they bind volumes.
const (
	classWaits     = "waits"
	classWaitsHere = "waits-in-some-zones"
	classAtOnce    = "at-once"
)

func (d *draw) storage() {
	if !d.has(volumes) {
		return
	}
	for _, name := range []string{classWaits, classWaitsHere, classAtOnce} {
		class := storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: zonalDriver, VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
		}
		switch name {
		case classAtOnce:
			class.VolumeBindingMode = new(storagev1.VolumeBindingImmediate)
		case classWaitsHere:
			class.AllowedTopologies = []corev1.TopologySelectorTerm{{
				MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: corev1.LabelTopologyZone, Values: some(d, zones...)}},
			}}
		}
		d.s.StorageClasses = append(d.s.StorageClasses, class)
	}
}

// volumeTemplate describes the volume of an app's pods; nil for pods without one.
type volumeTemplate struct {
	d     *draw
	kind  volumeKind
	class string
	// shared means that all pods use one claim, and exclusive that only one of them can at a time.
	shared, exclusive bool
	// labeled means that only a label tells the zone of a disk, as on old volumes.
	labeled bool
}

type volumeKind int

const (
	// claimBound gives each pod a claim of its own with an existing disk.
	claimBound volumeKind = iota
	// claimWaits gives each pod a claim of its own, whose disk is created in the pod's zone.
	claimWaits
	// ephemeral is like claimWaits, but with an ephemeral volume.
	ephemeral
	// claimMissing means that the claim does not exist.
	claimMissing
	// claimUnbound means that the claim should be bound but is not.
	claimUnbound
	// claimLost means that the disk is gone.
	claimLost
)

func (d *draw) volumesOf(pod *corev1.Pod) *volumeTemplate {
	if !d.has(volumes) || d.chance(0.4) {
		return nil
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	v := &volumeTemplate{d: d, kind: one(d, claimBound, claimBound, claimWaits, claimWaits, ephemeral, claimMissing, claimUnbound, claimLost)}
	v.class = one(d, classWaits, classWaitsHere)
	if v.kind == claimUnbound {
		v.class = classAtOnce
	}
	v.labeled = d.chance(0.1)
	v.shared = v.kind == claimBound && d.chance(0.2)
	v.exclusive = v.shared && d.chance(0.4)
	return v
}

// giveTo gives a pod its volume. For a pod that runs on a node, the volume already exists.
func (v *volumeTemplate) giveTo(pod *corev1.Pod, node *corev1.Node) {
	if v == nil {
		return
	}
	name := pod.Name + "-data"
	if v.shared {
		name = pod.Labels["app"] + "-data"
	}
	source := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
	claim := corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: name, UID: types.UID("claim-" + name)},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: new(v.class),
			Resources: corev1.VolumeResourceRequirements{Requests: snapshottest.Amounts("storage", "10Gi")},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
	if v.exclusive {
		claim.Spec.AccessModes[0] = corev1.ReadWriteOncePod
	}
	if v.kind == ephemeral {
		source = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: claim.Spec}}}
		claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: new(true)}}
	}
	pod.Spec.Volumes = append(slices.Clone(pod.Spec.Volumes), corev1.Volume{Name: "data", VolumeSource: source})
	switch {
	case slices.ContainsFunc(v.d.s.PersistentVolumeClaims, func(c corev1.PersistentVolumeClaim) bool { return c.Namespace == pod.Namespace && c.Name == name }):
		return
	case node != nil:
		v.bind(&claim, node.Labels[corev1.LabelTopologyZone])
	case v.kind == claimBound:
		v.bind(&claim, one(v.d, v.d.zones...))
	case v.kind == claimMissing:
		return
	case v.kind == claimLost:
		claim.Spec.VolumeName, claim.Status.Phase = "gone", corev1.ClaimLost
		claim.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
	}
	v.d.s.PersistentVolumeClaims = append(v.d.s.PersistentVolumeClaims, claim)
}

// bind creates a disk in the zone for the claim.
func (v *volumeTemplate) bind(claim *corev1.PersistentVolumeClaim, zone string) {
	name := "disk-" + claim.Namespace + "-" + claim.Name
	claim.Spec.VolumeName, claim.Status.Phase = name, corev1.ClaimBound
	claim.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
	volume := corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: v.class, AccessModes: claim.Spec.AccessModes, Capacity: claim.Spec.Resources.Requests,
			ClaimRef:               &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: zonalDriver, VolumeHandle: name}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}},
			}}}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
	if v.labeled {
		volume.Spec.NodeAffinity = nil
		volume.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	}
	v.d.s.PersistentVolumes = append(v.d.s.PersistentVolumes, volume)
}
