package facts

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
)

// MaxReplicasPerGPU is far more than a GPUNodeClass allows. Larger numbers in annotations, which users can edit, are ignored.
const MaxReplicasPerGPU = 1 << 16

// NumberIn returns the number in a label or annotation, or 0 if it is missing, invalid or greater than most.
func NumberIn(values map[string]string, key string, most int64) int64 {
	n, err := strconv.ParseInt(values[key], 10, 64)
	if err != nil || n < 0 || n > most {
		return 0
	}
	return n
}

// lastHeartbeat returns the time of the latest heartbeat of a Node.
func lastHeartbeat(node *corev1.Node) time.Time {
	var last time.Time
	if node == nil {
		return last
	}
	for i := range node.Status.Conditions {
		if at := node.Status.Conditions[i].LastHeartbeatTime.Time; at.After(last) {
			last = at
		}
	}
	return last
}

// GPUOf returns the GPU resource that a Node has, or "" if it has none. If it has several, it is the whole GPU, or else the renamed one, or else the
// first.
func GPUOf(node *corev1.Node) corev1.ResourceName {
	for _, gpu := range []corev1.ResourceName{v1alpha1.ResourceGPU, v1alpha1.ResourceGPUShared} {
		if ValueOf(node.Status.Allocatable, gpu) > 0 {
			return gpu
		}
	}
	for _, name := range slices.Sorted(maps.Keys(node.Status.Allocatable)) {
		if nodecontract.IsGPUResource(string(name)) && ValueOf(node.Status.Allocatable, name) > 0 {
			return name
		}
	}
	return ""
}

func GPUsCordoned(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == nodecontract.CordonCondition && c.Status == corev1.ConditionTrue
	})
}

func KeepsPodsAway(t corev1.Taint) bool {
	return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
}

// TimeOf parses the time in an annotation. It returns the zero time for missing or invalid values.
func TimeOf(value string) time.Time {
	if value == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, value)
	if err != nil {
		return time.Time{}
	}
	return t
}

// TakesPods reports whether the scheduler may place pods on the node and the node is not about to be removed.
func TakesPods(node *corev1.Node) bool {
	return node.DeletionTimestamp.IsZero() && !node.Spec.Unschedulable && node.Labels[v1alpha1.CanaryLabel] == "" && !HasTaint(node, karpv1.DisruptedTaintKey)
}

// HasTaint reports whether a node has a taint with the key.
func HasTaint(node *corev1.Node, key string) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

// IsOurs reports whether a NodePool refers to a GPUNodeClass. Karve provisions for it, and Karpenter ignores it.
func IsOurs(np *karpv1.NodePool) bool {
	ref := np.Spec.Template.Spec.NodeClassRef
	return ref != nil && ref.Group == v1alpha1.Group && ref.Kind == v1alpha1.Kind
}

// IsOurClaim reports whether Karve created the NodeClaim for pods.
func IsOurClaim(claim *karpv1.NodeClaim) bool {
	return claim.Annotations[nodecontract.ResourceAnnotation] != "" && claim.Labels[karpv1.NodePoolLabelKey] != "" && !IsCanary(claim)
}

// IsCanary reports whether Karve created the NodeClaim to test a machine image. Karve plans no pods for it.
func IsCanary(claim *karpv1.NodeClaim) bool { return claim.Labels[v1alpha1.CanaryLabel] != "" }

// Condition returns the condition with a type, or nil if there is none. Karpenter's StatusConditions cannot be used: it adds missing conditions to the
// object, and these objects are read-only.
func Condition(conditions []status.Condition, conditionType string) *status.Condition {
	for i := range conditions {
		if conditions[i].Type == conditionType {
			return &conditions[i]
		}
	}
	return nil
}
