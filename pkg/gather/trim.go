package gather

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	toolscache "k8s.io/client-go/tools/cache"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/provreq"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// Trim returns a transform function for the caches that removes what no decision needs: most of a pod is environment, mounts, probes and the status of
// its containers. Equal parts of objects share memory, since the pods of a Deployment differ in little but their names. The objects can be patched, but
// an update would remove what the function removed.
func Trim() toolscache.TransformFunc {
	t := trimmer{specs: newShared[corev1.PodSpec](), labels: newShared[map[string]string](), amounts: newShared[corev1.ResourceList](), owners: newShared[[]metav1.OwnerReference](), strings: newShared[string]()}
	return t.trim
}

// trimmer trims objects and holds the parts that they share.
type trimmer struct {
	specs   *shared[corev1.PodSpec]
	labels  *shared[map[string]string]
	amounts *shared[corev1.ResourceList]
	owners  *shared[[]metav1.OwnerReference]
	strings *shared[string]
}

func (t *trimmer) trim(object any) (any, error) {
	if o, ok := object.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	switch o := object.(type) {
	case *corev1.Pod:
		t.pod(o)
	case *corev1.Node:
		t.node(o)
	case *karpv1.NodeClaim:
		t.claim(o)
	case *corev1.PersistentVolumeClaim:
		t.volumeClaim(o)
	case *corev1.PersistentVolume:
		t.volume(o)
	case *storagev1.CSINode:
		t.csiNode(o)
	case *corev1.Namespace:
		t.userMeta(&o.ObjectMeta)
	case *policyv1.PodDisruptionBudget:
		t.bareMeta(&o.ObjectMeta)
		boundBudget(o)
	case *unstructured.Unstructured:
		switch kind := o.GroupVersionKind().GroupKind(); {
		case kind == karpenter.CapacityBufferKind:
			karpenter.TrimBuffer(o)
		case kind == facts.GroupAPI(kind.Group).PodGroupKind():
			facts.TrimPodGroup(o)
		case kind == provreq.Kind.GroupKind():
			provreq.Trim(o)
		}
	default:
		t.ofDRA(object)
		t.workload(object)
	}
	return object, nil
}

func (t *trimmer) volumeClaim(o *corev1.PersistentVolumeClaim) {
	t.userMeta(&o.ObjectMeta)
	o.Labels = nil
	spec := corev1.PersistentVolumeClaimSpec{VolumeName: clip(o.Spec.VolumeName, nameBytes), StorageClassName: o.Spec.StorageClassName}
	if facts.IsExclusive(o) {
		spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	}
	o.Spec = spec
	o.Status = corev1.PersistentVolumeClaimStatus{Phase: o.Status.Phase}
}

func (t *trimmer) csiNode(o *storagev1.CSINode) {
	t.meta(&o.ObjectMeta)
	for i := range o.Spec.Drivers {
		d := &o.Spec.Drivers[i]
		*d = storagev1.CSINodeDriver{Name: t.strings.shareValue(d.Name, d.Name), Allocatable: d.Allocatable}
	}
}

// ofDRA trims an object of Dynamic Resource Allocation.
func (t *trimmer) ofDRA(object any) {
	switch o := object.(type) {
	case *resourcev1.ResourceSlice:
		t.userMeta(&o.ObjectMeta)
		trimDevices(&o.Spec)
	case *resourcev1.ResourceClaim:
		t.bareMeta(&o.ObjectMeta)
		claims.Cut(&o.Spec)
		claims.CutStatus(&o.Status)
	case *resourcev1.ResourceClaimTemplate:
		t.bareMeta(&o.ObjectMeta)
		claims.Cut(&o.Spec.Spec)
		o.Spec.ObjectMeta = metav1.ObjectMeta{}
	case *resourcev1.DeviceTaintRule:
		t.bareMeta(&o.ObjectMeta)
		o.Status = resourcev1.DeviceTaintRuleStatus{}
	case *resourcev1.DeviceClass:
		t.bareMeta(&o.ObjectMeta)
		claims.CutClass(o)
	}
}

// workload trims an object with a template of pods.
func (t *trimmer) workload(object any) {
	switch o := object.(type) {
	case *appsv1.DaemonSet:
		t.bareMeta(&o.ObjectMeta)
		o.Spec, o.Status = appsv1.DaemonSetSpec{Template: t.template(&o.Spec.Template)}, appsv1.DaemonSetStatus{}
	case *appsv1.Deployment:
		t.bareMeta(&o.ObjectMeta)
		o.Spec, o.Status = appsv1.DeploymentSpec{Replicas: o.Spec.Replicas, Template: t.template(&o.Spec.Template)}, appsv1.DeploymentStatus{}
	case *appsv1.ReplicaSet:
		t.bareMeta(&o.ObjectMeta)
		o.Spec, o.Status = appsv1.ReplicaSetSpec{Replicas: o.Spec.Replicas, Template: t.template(&o.Spec.Template)}, appsv1.ReplicaSetStatus{}
	case *appsv1.StatefulSet:
		t.bareMeta(&o.ObjectMeta)
		o.Spec, o.Status = appsv1.StatefulSetSpec{Replicas: o.Spec.Replicas, Template: t.template(&o.Spec.Template)}, appsv1.StatefulSetStatus{}
	case *corev1.PodTemplate:
		t.bareMeta(&o.ObjectMeta)
		o.Template = t.template(&o.Template)
	}
}

// meta trims the metadata of a kind that only administrators, nodes and controllers write.
func (t *trimmer) meta(m *metav1.ObjectMeta) {
	labels, annotations := m.Labels, m.Annotations
	t.userMeta(m)
	m.Labels, m.Annotations = labels, t.annotations(annotations)
}

// userMeta trims the metadata of a kind that users write. It returns false if it leaves out labels.
func (t *trimmer) userMeta(m *metav1.ObjectMeta) bool {
	labels, all := boundedLabels(m.Labels)
	*m = metav1.ObjectMeta{
		Namespace: t.strings.shareValue(m.Namespace, m.Namespace), Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, Generation: m.Generation,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
		Labels: labels, Annotations: userAnnotations(m.Annotations), OwnerReferences: boundedOwners(m.OwnerReferences),
	}
	if len(m.OwnerReferences) > 0 {
		var key strings.Builder
		for _, o := range m.OwnerReferences {
			key.WriteString(o.String())
		}
		m.OwnerReferences = t.owners.shareValue(key.String(), m.OwnerReferences)
	}
	return all
}

// bareMeta trims the metadata of a kind of which decisions read neither labels nor annotations nor owners.
func (t *trimmer) bareMeta(m *metav1.ObjectMeta) {
	t.userMeta(m)
	m.Labels, m.Annotations, m.OwnerReferences = nil, nil, nil
}

// annotations returns the annotations of a node or NodeClaim that the controller or Karpenter reads, or nil if there are none. It drops the agent's report of
// holders, which changes with every pod: each change of it would count as a change that affects decisions.
func (t *trimmer) annotations(all map[string]string) map[string]string {
	var kept map[string]string
	for key, value := range all {
		domain, _, _ := strings.Cut(key, "/")
		switch {
		case key == nodecontract.HoldersAnnotation:
		case domain == v1alpha1.Group, strings.HasPrefix(domain, "karpenter."):
			if kept == nil {
				kept = map[string]string{}
			}
			kept[t.strings.shareValue(key, key)] = value
		}
	}
	return kept
}

func (t *trimmer) pod(p *corev1.Pod) {
	all := t.userMeta(&p.ObjectMeta)
	p.Labels = t.labelMap(p.Labels)
	spec, cut := t.spec(&p.Spec)
	spec.NodeName, spec.ActiveDeadlineSeconds = t.strings.shareValue(p.Spec.NodeName, p.Spec.NodeName), p.Spec.ActiveDeadlineSeconds
	if !all {
		cut = strings.TrimSuffix(fmt.Sprintf("labels of more than %d KiB and %s", labelsBytes>>10, cut), " and ")
	}
	if cut != "" {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, facts.CutAnnotation, cut)
	}
	p.Spec, p.Status = spec, t.status(p, spec.ResourceClaims)
}

// status returns the parts of a pod's status that decisions read.
func (t *trimmer) status(p *corev1.Pod, claims []corev1.PodResourceClaim) corev1.PodStatus {
	status := corev1.PodStatus{Phase: p.Status.Phase, NominatedNodeName: p.Status.NominatedNodeName, StartTime: p.Status.StartTime}
	for _, s := range p.Status.ResourceClaimStatuses {
		if slices.ContainsFunc(claims, func(c corev1.PodResourceClaim) bool { return c.Name == s.Name }) && len(status.ResourceClaimStatuses) < maxClaims {
			status.ResourceClaimStatuses = append(status.ResourceClaimStatuses, s)
		}
	}
	for i := range p.Status.Conditions {
		// These conditions say why a pod was not scheduled, and that it is not ready: some PodDisruptionBudgets allow the eviction of pods that are not
		// ready.
		c := &p.Status.Conditions[i]
		if c.Type == corev1.PodScheduled && p.Spec.NodeName == "" || c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse {
			status.Conditions = append(status.Conditions, corev1.PodCondition{Type: c.Type, Status: c.Status, Reason: t.strings.shareValue(c.Reason, clip(c.Reason, messageBytes))})
		}
	}
	if p.Status.Phase == corev1.PodSucceeded { // The durations of a Job's pods predict how long the others will take.
		var end metav1.Time
		for i := range p.Status.ContainerStatuses {
			if ended := p.Status.ContainerStatuses[i].State.Terminated; ended != nil && end.Before(&ended.FinishedAt) {
				end = ended.FinishedAt
			}
		}
		if !end.IsZero() {
			status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: end}}}}
		}
	}
	return status
}

// spec returns the parts of a spec that affect a pod's placement, and which of them are left out because they are too large. It shares memory with equal specs.
func (t *trimmer) spec(s *corev1.PodSpec) (spec corev1.PodSpec, cut string) {
	spec = facts.Placement(s)
	if s.SchedulerName != corev1.DefaultSchedulerName {
		spec.SchedulerName = s.SchedulerName
	}
	if group := s.SchedulingGroup; group != nil {
		spec.SchedulingGroup = &corev1.PodSchedulingGroup{}
		if group.PodGroupName != nil {
			spec.SchedulingGroup.PodGroupName = new(clip(*group.PodGroupName, nameBytes))
		}
	}
	pod := facts.Bounded(&corev1.Pod{Spec: spec})
	spec, cut = pod.Spec, pod.Annotations[facts.CutAnnotation]
	volumes := spec.Volumes // They differ between the pods of a StatefulSet.
	spec.Volumes = nil
	if key, err := spec.Marshal(); err == nil { // Others cannot be compared.
		spec = t.specs.shareValue(string(key), spec)
	}
	spec.Volumes = volumes
	return spec, cut
}

func (t *trimmer) template(p *corev1.PodTemplateSpec) corev1.PodTemplateSpec {
	labels, _ := boundedLabels(p.Labels)
	kept := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: userAnnotations(p.Annotations)}}
	spec, cut := t.spec(&p.Spec)
	if kept.Spec = spec; cut != "" {
		metav1.SetMetaDataAnnotation(&kept.ObjectMeta, facts.CutAnnotation, cut)
	}
	return kept
}

func (t *trimmer) node(n *corev1.Node) {
	t.meta(&n.ObjectMeta)
	labels := make(map[string]string, len(n.Labels))
	for key, value := range n.Labels {
		labels[t.strings.shareValue(key, key)] = t.strings.shareValue(value, value)
	}
	n.Labels = labels
	n.Spec = corev1.NodeSpec{ProviderID: n.Spec.ProviderID, Taints: n.Spec.Taints, Unschedulable: n.Spec.Unschedulable}
	for i := range n.Status.Conditions {
		c := &n.Status.Conditions[i]
		reason, message := clip(c.Reason, messageBytes), clip(c.Message, messageBytes)
		c.Reason, c.Message = t.strings.shareValue(reason, reason), t.strings.shareValue(message, message)
	}
	n.Status = corev1.NodeStatus{Capacity: t.resourceList(n.Status.Capacity), Allocatable: t.resourceList(n.Status.Allocatable), Conditions: n.Status.Conditions}
}

// claim trims NodeClaims that are not Karve's. They only show which nodes Karpenter launched, and with which image. Each of them may name a hundred
// instance types.
func (t *trimmer) claim(c *karpv1.NodeClaim) {
	if facts.IsOurClaim(c) || facts.IsCanary(c) {
		return
	}
	t.meta(&c.ObjectMeta)
	c.Spec = karpv1.NodeClaimSpec{NodeClassRef: c.Spec.NodeClassRef}
	c.Status = karpv1.NodeClaimStatus{NodeName: c.Status.NodeName, ProviderID: c.Status.ProviderID, ImageID: c.Status.ImageID}
}

func (t *trimmer) volume(v *corev1.PersistentVolume) {
	t.meta(&v.ObjectMeta)
	spec := corev1.PersistentVolumeSpec{NodeAffinity: v.Spec.NodeAffinity}
	if driver := records.DriverOf(v); driver != "" {
		spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: t.strings.shareValue(driver, driver)}
	}
	v.Spec, v.Status = spec, corev1.PersistentVolumeStatus{}
}

// labelMap returns an equal map that is shared.
func (t *trimmer) labelMap(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	var key strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m)) {
		key.WriteString(k)
		key.WriteByte(0)
		key.WriteString(m[k])
		key.WriteByte(0)
	}
	return t.labels.shareValue(key.String(), m)
}

// resourceList returns an equal list that is shared.
func (t *trimmer) resourceList(l corev1.ResourceList) corev1.ResourceList {
	l = amount.ClampAll(l)
	var key strings.Builder
	for _, name := range slices.Sorted(maps.Keys(l)) {
		q := l[name]
		key.WriteString(string(name))
		key.WriteByte('=')
		key.WriteString(amount.Text(q))
		key.WriteByte(0)
	}
	return t.amounts.shareValue(key.String(), l)
}

// trimDevices keeps only the parts of a slice that [facts.PublishedOf] reads. Slices of drivers for which Karve does not plan keep no devices.
func trimDevices(spec *resourcev1.ResourceSliceSpec) {
	reads, ours := claims.Reads(spec.Driver)
	if !ours {
		spec.Devices = nil
	}
	for i := range spec.Devices {
		d := &spec.Devices[i]
		kept := resourcev1.Device{Name: d.Name, Capacity: d.Capacity, Taints: d.Taints, AllowMultipleAllocations: d.AllowMultipleAllocations}
		if value, has := d.Attributes[reads]; has {
			kept.Attributes = map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{reads: value}
		}
		spec.Devices[i] = kept
	}
}
