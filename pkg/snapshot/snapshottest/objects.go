package snapshottest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/awslabs/operatorpkg/status"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/nodecontract"
)

// Amounts returns a resource list from alternating names and quantities.
func Amounts(namesAndQuantities ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for pair := range slices.Chunk(namesAndQuantities, 2) {
		list[corev1.ResourceName(pair[0])] = resource.MustParse(pair[len(pair)-1])
	}
	return list
}

// Pod returns a pod that the scheduler found unschedulable. It requests 300m of CPU, 1 GiB of memory and one nvidia.com/gpu.shared, and tolerates the taint
// of that name.
func Pod(name string, edits ...func(*corev1.Pod)) corev1.Pod {
	return edited(corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("pod-" + name)},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: "main", Resources: corev1.ResourceRequirements{Requests: Amounts("cpu", "300m", "memory", "1Gi", v1alpha1.ResourceGPUShared, "1")},
			}},
			Tolerations: []corev1.Toleration{{Key: v1alpha1.ResourceGPUShared, Operator: corev1.TolerationOpExists}},
		},
		Status: corev1.PodStatus{
			Phase:      corev1.PodPending,
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}},
		},
	}, edits)
}

// Pods returns n pods that [Pod] makes, with names from prefix-000.
func Pods(prefix string, n int, edits ...func(*corev1.Pod)) []corev1.Pod {
	pods := make([]corev1.Pod, n)
	for i := range pods {
		pods[i] = Pod(fmt.Sprintf("%s-%03d", prefix, i), edits...)
	}
	return pods
}

// Asking replaces the requests of the pod's container. It takes alternating names and quantities.
func Asking(namesAndQuantities ...string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.Containers[0].Resources.Requests = Amounts(namesAndQuantities...) }
}

// Selecting adds a label to the pod's node selector.
func Selecting(key, value string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		selector := map[string]string{}
		maps.Copy(selector, pod.Spec.NodeSelector)
		selector[key] = value
		pod.Spec.NodeSelector = selector
	}
}

// Tolerating replaces the pod's tolerations with tolerations of taints with the keys.
func Tolerating(keys ...string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Tolerations = nil
		for _, key := range keys {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
		}
	}
}

// GPUMemory sets the device memory that the pod requests.
func GPUMemory(quantity string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		annotations := map[string]string{}
		maps.Copy(annotations, pod.Annotations)
		annotations[v1alpha1.GPUMemoryAnnotation] = quantity
		pod.Annotations = annotations
	}
}

// HostPort adds a TCP host port to the pod's container.
func HostPort(port int32) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		ctr := &pod.Spec.Containers[0]
		ctr.Ports = append(slices.Clone(ctr.Ports), corev1.ContainerPort{ContainerPort: 80, HostPort: port, Protocol: corev1.ProtocolTCP})
	}
}

// WithLabels adds labels to the pod. It takes alternating keys and values.
func WithLabels(keysAndValues ...string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		labels := map[string]string{}
		maps.Copy(labels, pod.Labels)
		for pair := range slices.Chunk(keysAndValues, 2) {
			labels[pair[0]] = pair[len(pair)-1]
		}
		pod.Labels = labels
	}
}

// Claiming adds volumes with the PersistentVolumeClaims to the pod.
func Claiming(claims ...string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		for i, claim := range claims {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprintf("%s-%d", claim, i), VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}})
		}
	}
}

// Running binds the pod to a node.
func Running(node string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.NodeName = node
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning}
	}
}

// OwnedBy makes a controller the pod's owner.
func OwnedBy(apiVersion, kind, name string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, Controller: new(true)}}
	}
}

// DaemonSet returns a DaemonSet whose pods tolerate every taint. It takes the requests as alternating names and quantities.
func DaemonSet(name string, namesAndQuantities ...string) appsv1.DaemonSet {
	ds := appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}}
	ds.Spec.Template.Spec = corev1.PodSpec{
		Containers:  []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: Amounts(namesAndQuantities...)}}},
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
	}
	return ds
}

// TypeNamed returns the instance type of [Types] with the name. It panics if there is none.
func TypeNamed(name string) *catalog.InstanceType {
	all := Types()
	for i := range all {
		if all[i].Name == name {
			return &all[i]
		}
	}
	panic("there is no instance type " + name)
}

// Claim returns the NodeClaim of an on-demand machine in the first zone. It belongs to the pool, was created at [Now], and is not launched. It promises ten
// nvidia.com/gpu.shared for each GPU.
func Claim(name string, pool *karpv1.NodePool, t *catalog.InstanceType, edits ...func(*karpv1.NodeClaim)) karpv1.NodeClaim {
	claim := karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID("claim-" + name), CreationTimestamp: metav1.NewTime(Now),
		Labels: map[string]string{
			karpv1.NodePoolLabelKey: pool.Name, v1alpha1.GPUNodeClassLabel: pool.Spec.Template.Spec.NodeClassRef.Name,
		},
		Annotations: map[string]string{
			nodecontract.ResourceAnnotation: v1alpha1.ResourceGPUShared, nodecontract.GPUsAnnotation: strconv.FormatInt(t.GPU.Count, 10),
			nodecontract.ReplicasPerGPUAnnotation: "10", v1alpha1.PriceAnnotation: strconv.FormatInt(t.Offerings[0].MicroUSDPerHour, 10),
		},
	}}
	maps.Copy(claim.Labels, pool.Spec.Template.Labels)
	claim.Spec = karpv1.NodeClaimSpec{
		NodeClassRef: &karpv1.NodeClassReference{Group: NodeClassRef.Group, Kind: NodeClassRef.Kind, Name: NodeClassRef.Name},
		Requirements: []karpv1.NodeSelectorRequirementWithMinValues{
			Require(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, t.Name),
			Require(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, Zones[0]),
			Require(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, karpv1.CapacityTypeOnDemand),
		},
		Taints:        pool.Spec.Template.Spec.Taints,
		StartupTaints: []corev1.Taint{{Key: v1alpha1.ReplicasNotReadyTaintKey, Effect: corev1.TaintEffectNoSchedule}},
		Resources:     karpv1.ResourceRequirements{Requests: Amounts("cpu", "300m", "memory", "1Gi")},
	}
	return edited(claim, edits)
}

// Launched sets the condition Launched at the time, and a provider ID.
func Launched(at time.Time) func(*karpv1.NodeClaim) {
	return func(claim *karpv1.NodeClaim) {
		set(claim, karpv1.ConditionTypeLaunched, at)
		claim.Status.ProviderID = "aws:///" + claim.Name
	}
}

// Registered sets the conditions Launched and Registered at the time. The Node has the name of the NodeClaim.
func Registered(at time.Time) func(*karpv1.NodeClaim) {
	return func(claim *karpv1.NodeClaim) {
		Launched(at)(claim)
		set(claim, karpv1.ConditionTypeRegistered, at)
		claim.Status.NodeName = claim.Name
	}
}

// Initialized sets the conditions Launched, Registered and Initialized at the time.
func Initialized(at time.Time) func(*karpv1.NodeClaim) {
	return func(claim *karpv1.NodeClaim) {
		Registered(at)(claim)
		set(claim, karpv1.ConditionTypeInitialized, at)
	}
}

func set(claim *karpv1.NodeClaim, condition string, at time.Time) {
	claim.Status.Conditions = append(claim.Status.Conditions, status.Condition{
		Type: condition, Status: metav1.ConditionTrue, Reason: condition, LastTransitionTime: metav1.NewTime(at),
	})
}

// CordonedGPUs makes a Node report this many nvidia.com/gpu.shared, because its agent keeps pods off the other GPUs.
func CordonedGPUs(replicas int64) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Allocatable = maps.Clone(n.Status.Allocatable)
		n.Status.Allocatable[v1alpha1.ResourceGPUShared] = *resource.NewQuantity(replicas, resource.DecimalSI)
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
			Type: nodecontract.CordonCondition, Status: corev1.ConditionTrue, Reason: nodecontract.ReasonCordoned, Message: "GPU 0 (GPU-a) takes no new pods",
		})
	}
}

// Node returns the Node of the NodeClaim with its labels and taints. It reports the number of replicas, and has the startup taints until the NodeClaim is
// initialized.
func Node(claim *karpv1.NodeClaim, t *catalog.InstanceType, replicas int64, edits ...func(*corev1.Node)) corev1.Node {
	node := corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: claim.Name, UID: types.UID("node-" + claim.Name), Labels: map[string]string{}, Annotations: map[string]string{},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: claim.Name, UID: claim.UID}},
		},
		Spec: corev1.NodeSpec{ProviderID: "aws:///" + claim.Name},
	}
	for _, labels := range []map[string]string{t.Labels, t.Offerings[0].Labels, claim.Labels} {
		maps.Copy(node.Labels, labels)
	}
	if id := slotOf(claim); id != "" {
		node.Labels[karpv1.CapacityTypeLabelKey], node.Labels[ReservationLabel] = karpv1.CapacityTypeReserved, id
	}
	maps.Copy(node.Annotations, claim.Annotations)
	node.Spec.Taints = append(node.Spec.Taints, claim.Spec.Taints...)
	for _, c := range claim.Status.Conditions {
		switch c.Type {
		case karpv1.ConditionTypeRegistered:
			node.Labels[karpv1.NodeRegisteredLabelKey] = "true"
		case karpv1.ConditionTypeInitialized:
			node.Labels[karpv1.NodeInitializedLabelKey] = "true"
		}
	}
	if node.Labels[karpv1.NodeInitializedLabelKey] == "" {
		node.Spec.Taints = append(node.Spec.Taints, claim.Spec.StartupTaints...)
	}
	node.Status.Capacity = list(t.Capacity, claim.Annotations[nodecontract.ResourceAnnotation], replicas)
	node.Status.Allocatable = list(t.Allocatable, claim.Annotations[nodecontract.ResourceAnnotation], replicas)
	return edited(node, edits)
}

func list(r catalog.Resources, gpu string, replicas int64) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewMilliQuantity(r.MilliCPU, resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(r.MemoryBytes, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(r.EphemeralBytes, resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(r.Pods, resource.DecimalSI),
		corev1.ResourceName(gpu):        *resource.NewQuantity(replicas, resource.DecimalSI),
	}
}
