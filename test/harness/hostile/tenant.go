package hostile

import (
	"fmt"
	"reflect"
	"regexp"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// largest is the size of the largest object that etcd stores, by default.
const largest = 1.5 * (1 << 20)

// Tenant returns objects of a namespace as a user writes them, one or two of any kinds that Karve reads and that refer to each other. They have the status that
// controllers give them. All fields that Karve reads are set in some of them.
func (g *Generator) Tenant() []client.Object {
	pod := g.TenantPod(true)
	switch g.rand.IntN(14) {
	case 0, 1, 2:
		return []client.Object{pod}
	case 3:
		return []client.Object{g.TenantPod(false)}
	case 4:
		pod.Spec.NodeName, pod.Status = pick(g, SaneMachine, SaneNode), corev1.PodStatus{Phase: corev1.PodRunning}
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: meta("budget"), Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromString("50%")), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "tenant"}},
		}}
		return []client.Object{pod, budget}
	case 5:
		volume := &corev1.PersistentVolumeClaim{ObjectMeta: meta("data"), Spec: volumeSpec()}
		volume.Status.Phase = corev1.ClaimPending
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}})
		return []client.Object{volume, pod}
	case 6, 7:
		return g.claiming(pod, false)
	case 8, 9:
		return g.claiming(pod, true)
	case 10:
		return []client.Object{&appsv1.DaemonSet{ObjectMeta: meta("daemon"), Spec: appsv1.DaemonSetSpec{Selector: selects(), Template: g.template()}}}
	}
	return g.Buffered()
}

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: Namespace, Name: name, Labels: map[string]string{"app": "tenant"}, Annotations: map[string]string{}, CreationTimestamp: metav1.NewTime(snapshottest.Now)}
}

func selects() *metav1.LabelSelector {
	return &metav1.LabelSelector{
		MatchLabels:      map[string]string{"app": "tenant"},
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: []string{"tenant", "other"}}},
	}
}

// tenantPod returns a pending pod, with a request for a GPU or without.
func (g *Generator) TenantPod(gpu bool) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: meta("pod")}
	pod.Annotations = map[string]string{
		v1alpha1.GPUMemoryAnnotation: "1Gi", v1alpha1.EvictWhenUnusedAnnotation: "2h", nodecontract.GPUThreadsAnnotation: "10", "controller.kubernetes.io/pod-deletion-cost": "5",
		"karpenter.sh/do-not-disrupt": "true", "example.com/note": "of no meaning",
	}
	pod.Spec = g.tenantSpec(gpu)
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable},
	}}
	return pod
}

func (g *Generator) template() corev1.PodTemplateSpec {
	pod := g.TenantPod(true)
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations}, Spec: pod.Spec}
}

func (g *Generator) tenantSpec(gpu bool) corev1.PodSpec {
	ctr := corev1.Container{Name: "main", Image: "app", Ports: []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8081}}}
	ctr.Resources.Requests = snapshottest.Amounts("cpu", "100m", "memory", "128Mi", "ephemeral-storage", "1Gi")
	ctr.Env = []corev1.EnvVar{{Name: "A", Value: "b"}}
	if gpu {
		ctr.Resources.Limits = snapshottest.Amounts(v1alpha1.ResourceGPUShared, "1")
	}
	sidecar := corev1.Container{Name: "sidecar", Image: "app", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}
	sidecar.Resources.Requests = snapshottest.Amounts("cpu", "10m")
	spec := corev1.PodSpec{
		Containers: []corev1.Container{ctr}, InitContainers: []corev1.Container{sidecar},
		Tolerations: []corev1.Toleration{{Key: v1alpha1.ResourceGPUShared, Operator: corev1.TolerationOpExists}, {Key: pick(g, "sane", "dra"), Operator: corev1.TolerationOpEqual, Effect: corev1.TaintEffectNoSchedule}},
		Volumes: []corev1.Volume{
			{Name: "cache", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: new(resource.MustParse("1Gi"))}}},
			{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: volumeSpec()}}}},
		},
	}
	if g.maybe(0.8) {
		spec.Volumes = spec.Volumes[:1] // Karve launches nothing for some volumes.
	}
	if g.maybe(0.6) {
		spec.NodeSelector, spec.Affinity = map[string]string{corev1.LabelArchStable: "amd64"}, g.tenantAffinity()
	}
	if g.maybe(0.5) {
		spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 5, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: pick(g, corev1.DoNotSchedule, corev1.ScheduleAnyway), LabelSelector: selects(), MatchLabelKeys: []string{"pod-template-hash"},
		}}
	}
	return spec
}

func (g *Generator) tenantAffinity() *corev1.Affinity {
	term := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: corev1.LabelArchStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"amd64"}}, {Key: "karpenter.k8s.aws/instance-cpu", Operator: corev1.NodeSelectorOpGt, Values: []string{"1"}},
	}}
	other := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "example.com/other", Operator: corev1.NodeSelectorOpDoesNotExist}}}
	pods := corev1.PodAffinityTerm{LabelSelector: selects(), TopologyKey: corev1.LabelTopologyZone, Namespaces: []string{Namespace}, NamespaceSelector: selects()}
	apart := corev1.PodAffinityTerm{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "nobody"}}, TopologyKey: corev1.LabelHostname}
	a := &corev1.Affinity{}
	if g.maybe(0.7) {
		a.NodeAffinity = &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution:  &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term, other}},
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 10, Preference: term}},
		}
	}
	if g.maybe(0.5) {
		a.PodAffinity = &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 10, PodAffinityTerm: pods}}}
	}
	if g.maybe(0.5) {
		a.PodAntiAffinity = &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution:  []corev1.PodAffinityTerm{apart},
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 10, PodAffinityTerm: apart}},
		}
	}
	return a
}

func volumeSpec() corev1.PersistentVolumeClaimSpec {
	return corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: new("disk"),
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}
}

// claiming returns a ResourceClaim or a ResourceClaimTemplate, and the pod that refers to it.
func (g *Generator) claiming(pod *corev1.Pod, byTemplate bool) []client.Object {
	driver := pick(g, nodecontract.DRADriver, nodecontract.DRADriver, nodecontract.NVIDIADRADriver)
	spec := g.claimed(driver)
	ref, ctr := corev1.PodResourceClaim{Name: "gpu"}, &pod.Spec.Containers[0]
	ctr.Resources.Claims, ctr.Resources.Limits = []corev1.ResourceClaim{{Name: "gpu"}}, nil
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{ref}
	if !byTemplate {
		pod.Spec.ResourceClaims[0].ResourceClaimName = new("gpu")
		return []client.Object{&resourcev1.ResourceClaim{ObjectMeta: meta("gpu"), Spec: spec}, pod}
	}
	pod.Spec.ResourceClaims[0].ResourceClaimTemplateName = new("gpu")
	return []client.Object{&resourcev1.ResourceClaimTemplate{ObjectMeta: meta("gpu"), Spec: resourcev1.ResourceClaimTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "tenant"}}, Spec: spec,
	}}, pod}
}

// claimed returns the spec of a claim for a GPU of a driver.
func (g *Generator) claimed(driver string) resourcev1.ResourceClaimSpec {
	request := resourcev1.DeviceRequest{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{
		DeviceClassName: driver, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1,
		Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: "device.attributes['" + driver + "'].architecture == 'turing' || device.driver == '" + driver + "'"}}},
	}}
	if driver == nodecontract.DRADriver {
		request.Exactly.Capacity = &resourcev1.CapacityRequirements{Requests: map[resourcev1.QualifiedName]resource.Quantity{
			nodecontract.DRAReplicas: resource.MustParse("1"), nodecontract.DRAMemory: resource.MustParse("1Gi"),
		}}
	}
	spec := resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{request}}}
	if g.maybe(0.3) {
		spec.Devices.Constraints = []resourcev1.DeviceConstraint{{Requests: []string{"gpu"}, MatchAttribute: new(resourcev1.FullyQualifiedName(nodecontract.DRADriver + "/" + nodecontract.DRAUUID))}}
	}
	if g.maybe(0.3) {
		spec.Devices.Config = []resourcev1.DeviceClaimConfiguration{{Requests: []string{"gpu"}, DeviceConfiguration: resourcev1.DeviceConfiguration{Opaque: &resourcev1.OpaqueDeviceConfiguration{
			Driver:     nodecontract.NVIDIADRADriver,
			Parameters: runtime.RawExtension{Raw: []byte(`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"TimeSlicing"}}`)},
		}}}}
	}
	return spec
}

// Claiming returns a ResourceClaimTemplate for GPUs of Karve's agents, and a pod that refers to it.
func (g *Generator) Claiming() []client.Object {
	objects := g.claiming(g.TenantPod(true), true)
	if template, ok := objects[0].(*resourcev1.ResourceClaimTemplate); ok {
		template.Spec.Spec = g.claimed(nodecontract.DRADriver)
	}
	return objects
}

// Buffered returns a CapacityBuffer and the object to which it refers.
func (g *Generator) Buffered() []client.Object {
	buffer := &autoscalingv1beta1.CapacityBuffer{ObjectMeta: meta("buffer")}
	buffer.Spec.ProvisioningStrategy, buffer.Spec.Replicas = new(autoscalingv1beta1.ActiveProvisioningStrategy), new(int32(2))
	buffer.Status.Replicas = new(int32(2))
	buffer.Status.Conditions = []metav1.Condition{{Type: autoscalingv1beta1.ReadyForProvisioningCondition, Status: metav1.ConditionTrue, Reason: "Ready", LastTransitionTime: metav1.NewTime(snapshottest.Now)}}
	t := g.template()
	var of client.Object
	switch kind := pick(g, "PodTemplate", "Deployment", "ReplicaSet", "StatefulSet"); kind {
	case "PodTemplate":
		of, buffer.Spec.PodTemplateRef = &corev1.PodTemplate{ObjectMeta: meta("of"), Template: t}, &autoscalingv1beta1.LocalObjectRef{Name: "of"}
	default:
		buffer.Spec.ScalableRef = &autoscalingv1beta1.ScalableRef{APIGroup: "apps", Kind: kind, Name: "of"}
		of = map[string]client.Object{
			"Deployment":  &appsv1.Deployment{ObjectMeta: meta("of"), Spec: appsv1.DeploymentSpec{Replicas: new(int32(0)), Selector: selects(), Template: t}},
			"ReplicaSet":  &appsv1.ReplicaSet{ObjectMeta: meta("of"), Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(0)), Selector: selects(), Template: t}},
			"StatefulSet": &appsv1.StatefulSet{ObjectMeta: meta("of"), Spec: appsv1.StatefulSetSpec{Replicas: new(int32(0)), Selector: selects(), Template: t, ServiceName: "of"}},
		}[kind]
	}
	return []client.Object{buffer, of}
}

// Copy returns the i-th copy of objects, with names of their own and references to each other.
func Copy(i int, objects []client.Object) []client.Object {
	copies := make([]client.Object, len(objects))
	for j, o := range objects {
		copies[j], _ = o.DeepCopyObject().(client.Object)
		copies[j].SetName(fmt.Sprint(o.GetName(), "-", i))
		visit(reflect.ValueOf(copies[j]).Elem(), "", func(path string, v reflect.Value) bool {
			if v.Kind() == reflect.Pointer && !v.IsNil() && v.Elem().Kind() == reflect.String {
				v = v.Elem()
			}
			if v.Kind() == reflect.String && refers.MatchString(path) {
				v.SetString(fmt.Sprint(v.String(), "-", i))
			}
			return false
		})
	}
	return copies
}

// refers matches the paths of references to objects in the same namespace.
var refers = regexp.MustCompile(`(\.ClaimName|\.ResourceClaimName|\.ResourceClaimTemplateName|TemplateRef\.Name|ScalableRef\.Name)$`)

// keepStatus sets the status of an object to that of another one of the same type.
func keepStatus(to, from client.Object) {
	if status := reflect.ValueOf(to).Elem().FieldByName("Status"); status.IsValid() {
		status.Set(reflect.ValueOf(from).Elem().FieldByName("Status"))
	}
}
