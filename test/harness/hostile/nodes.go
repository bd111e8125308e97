package hostile

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// promises are the annotations that describe a machine.
var promises = []string{
	nodecontract.ResourceAnnotation, nodecontract.GPUsAnnotation, nodecontract.ReplicasPerGPUAnnotation, nodecontract.BackendAnnotation, v1alpha1.PriceAnnotation, v1alpha1.ListPriceAnnotation, v1alpha1.ReplicasRaisedAnnotation,
	v1alpha1.IdleSinceAnnotation, v1alpha1.DisruptingSinceAnnotation, v1alpha1.ReplacingAnnotation, v1alpha1.ReplacingSinceAnnotation,
	v1alpha1.ReplacementFailuresAnnotation, v1alpha1.ReplaceAfterAnnotation, v1alpha1.ReplicasShortSinceAnnotation, v1alpha1.RepairsAnnotation,
	nodecontract.UnusedSinceAnnotation, nodecontract.HoldersAnnotation, nodecontract.GPUResetAnnotation, nodecontract.GPUCordonAnnotation, "karpenter.sh/do-not-disrupt",
}

// Node returns a node that Karve has not launched, whatever its labels and annotations say.
func (g *Generator) Node() *corev1.Node {
	node := &corev1.Node{ObjectMeta: g.meta("Node")}
	node.Labels, node.Annotations = g.labels(500), g.annotations(promises...)
	for _, key := range []string{karpv1.NodePoolLabelKey, v1alpha1.GPUNodeClassLabel, v1alpha1.CanaryLabel, karpv1.NodeRegisteredLabelKey, karpv1.NodeInitializedLabelKey} {
		if g.maybe(0.1) {
			node.Labels[key] = pick(g, g.known("NodePool"), "true", "")
		}
	}
	node.Spec.Taints = g.taints(1000)
	node.Spec.Unschedulable = g.maybe(0.05)
	if g.maybe(0.5) {
		node.Spec.ProviderID = "aws:///" + pick(g, node.Name, "same", strings.Repeat("p", 500))
	}
	node.Status.Capacity, node.Status.Allocatable = g.nodeAmounts(), g.nodeAmounts()
	for range g.count(20) {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: pick(g, corev1.NodeReady, corev1.NodeMemoryPressure, "GPUHealthy", nodecontract.HardwareCondition, nodecontract.CordonCondition), Status: pick(g, corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown, "Odd"),
			Reason: g.text(100), Message: g.text(1000), LastTransitionTime: g.time(),
		})
	}
	return node
}

func (g *Generator) nodeAmounts() corev1.ResourceList {
	list := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		if g.maybe(0.9) {
			list[name] = g.quantity()
		}
	}
	for _, name := range []corev1.ResourceName{corev1.ResourcePods, v1alpha1.ResourceGPU, v1alpha1.ResourceGPUShared, "example.com/fpga"} {
		if g.maybe(0.5) {
			list[name] = g.whole()
		}
	}
	for i := range g.count(100) {
		list[corev1.ResourceName(fmt.Sprintf("example.com/d%d", i))] = g.whole()
	}
	return list
}

func (g *Generator) time() metav1.Time {
	return metav1.NewTime(pick(g, snapshottest.Now, snapshottest.Now.Add(-time.Hour), snapshottest.Now.Add(1000*time.Hour), time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC), time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)))
}

// NodePool returns a NodePool of Karve's, or a stock one.
func (g *Generator) NodePool() *karpv1.NodePool {
	np := &karpv1.NodePool{ObjectMeta: g.meta("NodePool")}
	np.Generation = 1
	if g.maybe(0.5) {
		np.Spec.Weight = new(pick(g, int32(1), 10, 100))
	}
	if g.maybe(0.5) {
		np.Spec.Limits = karpv1.Limits{}
		for range 1 + g.count(20) {
			np.Spec.Limits[pick(g, corev1.ResourceCPU, corev1.ResourceMemory, "nodes", v1alpha1.ResourceGPU, v1alpha1.ResourceGPUShared, "example.com/fpga")] = g.quantity()
		}
	}
	t := &np.Spec.Template
	t.Labels = map[string]string{}
	for i := range g.count(90) {
		t.Labels[fmt.Sprintf("example.com/l%d", i)] = g.value()
	}
	t.Annotations = g.annotations(promises...)
	t.Spec.NodeClassRef = pick(g, ourClass("sane"), ourClass(g.known("GPUNodeClass")), ourClass(g.known("GPUNodeClass")),
		&karpv1.NodeClassReference{Group: snapshottest.NodeClassRef.Group, Kind: snapshottest.NodeClassRef.Kind, Name: pick(g, "gpu", "missing")})
	t.Spec.Taints = g.taints(50)
	if t.Spec.NodeClassRef.Group == v1alpha1.Group && g.maybe(0.8) {
		t.Spec.Taints = append(t.Spec.Taints, corev1.Taint{Key: "nvidia.com/gpu.shared", Value: "x", Effect: corev1.TaintEffectNoExecute})
	}
	t.Spec.StartupTaints = g.taints(5)
	for range g.count(40) {
		t.Spec.Requirements = append(t.Spec.Requirements, g.requirement())
	}
	t.Spec.ExpireAfter = karpv1.MustParseNillableDuration(pick(g, "720h", "0s", "Never", "1s", "2562047h"))
	if g.maybe(0.3) {
		t.Spec.TerminationGracePeriod = &metav1.Duration{Duration: pick(g, 0, time.Second, 2562047*time.Hour)}
	}
	for _, condition := range []string{v1alpha1.ConditionReplicasHealthy, v1alpha1.ConditionLaunchHealthy, v1alpha1.ConditionNodesHealthy, status.ConditionReady} {
		if g.maybe(0.3) {
			np.Status.Conditions = append(np.Status.Conditions, status.Condition{
				Type: condition, Status: pick(g, metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown), Reason: "Said", Message: g.text(1000), LastTransitionTime: g.time(),
			})
		}
	}
	np.Spec.Disruption = karpv1.Disruption{
		ConsolidationPolicy: pick(g, karpv1.ConsolidationPolicyWhenEmpty, karpv1.ConsolidationPolicyWhenEmptyOrUnderutilized),
		ConsolidateAfter:    karpv1.MustParseNillableDuration(pick(g, "0s", "Never", "2562047h")),
	}
	for range g.count(50) {
		np.Spec.Disruption.Budgets = append(np.Spec.Disruption.Budgets, g.budget())
	}
	return np
}

func ourClass(name string) *karpv1.NodeClassReference {
	return &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: name}
}

func (g *Generator) budget() karpv1.Budget {
	b := karpv1.Budget{Nodes: pick(g, "0", "100%", "0%", "2147483647", "99999999999999999999", "1")}
	if g.maybe(0.4) {
		b.Schedule = new(pick(g, "0 0 30 2 *", "* * * * *", "@yearly", "0 0 29 2 *"))
		b.Duration = &metav1.Duration{Duration: pick(g, time.Minute, 2562047*time.Hour)}
	}
	return b
}

func (g *Generator) requirement() karpv1.NodeSelectorRequirementWithMinValues {
	key := pick(g, corev1.LabelInstanceTypeStable, corev1.LabelTopologyZone, karpv1.CapacityTypeLabelKey, corev1.LabelArchStable, "karpenter.k8s.aws/instance-family", "karpenter.k8s.aws/instance-cpu",
		"karpenter.k8s.aws/instance-gpu-count", "example.com/r", "example.com/s")
	switch g.rand.IntN(4) {
	case 0:
		return karpv1.NodeSelectorRequirementWithMinValues{Key: key, Operator: pick(g, corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist)}
	case 1:
		return karpv1.NodeSelectorRequirementWithMinValues{Key: key, Operator: pick(g, corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt), Values: []string{pick(g, "0", "1", "2147483647", "9223372036854775807")}}
	}
	r := karpv1.NodeSelectorRequirementWithMinValues{Key: key, Operator: pick(g, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn)}
	for i := range 1 + g.count(1000) {
		r.Values = append(r.Values, pick(g, "g4dn.xlarge", "g4dn.12xlarge", "g4dn", "us-east-1a", "amd64", "spot", "", fmt.Sprintf("v%d", i)))
	}
	r.Values = unique(r.Values)
	if r.Operator == corev1.NodeSelectorOpIn && g.maybe(0.3) {
		r.MinValues = new(min(len(r.Values), pick(g, 1, 2, 50)))
	}
	return r
}

// NodeClaim returns a NodeClaim that Karve has not created, whatever its fields say, for a NodePool of the generator.
func (g *Generator) NodeClaim() *karpv1.NodeClaim {
	claim := &karpv1.NodeClaim{ObjectMeta: g.meta("NodeClaim")}
	claim.CreationTimestamp = g.time()
	claim.Labels, claim.Annotations = g.labels(100), g.annotations(promises...)
	claim.Labels[karpv1.NodePoolLabelKey] = g.known("NodePool")
	if g.maybe(0.5) {
		claim.Annotations[nodecontract.ResourceAnnotation] = pick(g, v1alpha1.ResourceGPUShared, v1alpha1.ResourceGPU, g.text(200))
		claim.Labels[v1alpha1.GPUNodeClassLabel] = pick(g, "sane", g.known("GPUNodeClass"))
		claim.Labels[karpv1.CapacityTypeLabelKey] = pick(g, karpv1.CapacityTypeSpot, karpv1.CapacityTypeOnDemand, "", "borrowed")
	}
	claim.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: snapshottest.NodeClassRef.Group, Kind: snapshottest.NodeClassRef.Kind, Name: pick(g, "gpu", "missing")}
	claim.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{} // The API server refuses nil.
	for range g.count(40) {
		claim.Spec.Requirements = append(claim.Spec.Requirements, g.requirement())
	}
	for _, key := range []string{corev1.LabelInstanceTypeStable, corev1.LabelTopologyZone} { // As on Karve's own claims, but of any length.
		if r := (karpv1.NodeSelectorRequirementWithMinValues{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{"g4dn.xlarge", "us-east-1a"}}); g.maybe(0.5) {
			for i := range g.count(1000) {
				r.Values = append(r.Values, fmt.Sprintf("v%d", i))
			}
			claim.Spec.Requirements = append(claim.Spec.Requirements, r)
		}
	}
	for i := range claim.Spec.Requirements { // The CRD does not check these values.
		if r := &claim.Spec.Requirements[i]; r.Operator == corev1.NodeSelectorOpIn && g.maybe(0.2) {
			r.Values = append([]string{pick(g, "*", "", "borrowed", strings.Repeat("x", 1000), g.text(100))}, r.Values...)
		}
	}
	claim.Spec.Taints, claim.Spec.StartupTaints = g.taints(50), g.taints(5)
	claim.Spec.Resources.Requests = g.nodeAmounts()
	claim.Spec.ExpireAfter = karpv1.MustParseNillableDuration(pick(g, "720h", "Never", "1s"))
	claim.Status.Capacity, claim.Status.Allocatable = g.nodeAmounts(), g.nodeAmounts()
	claim.Status.NodeName = pick(g, "", g.known("Node"), claim.Name)
	claim.Status.ProviderID = pick(g, "", "aws:///same", "aws:///"+claim.Name)
	claim.Status.ImageID = pick(g, "", "ami-1")
	for _, condition := range []string{karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized, "Drifted", "Ready"} {
		if g.maybe(0.5) {
			claim.Status.Conditions = append(claim.Status.Conditions, status.Condition{
				Type: condition, Status: pick(g, metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown),
				Reason: pick(g, "Said", "AwaitingReconciliation", "LaunchFailed", "InsufficientCapacity", v1alpha1.RefusalNodeClassNotReady), Message: g.refusal(), LastTransitionTime: g.time(),
			})
		}
	}
	if g.maybe(0.1) {
		claim.DeletionTimestamp, claim.Finalizers = new(g.time()), []string{karpv1.TerminationFinalizer}
	}
	return claim
}

// GPUNodeClass returns a GPUNodeClass.
func (g *Generator) GPUNodeClass() *v1alpha1.GPUNodeClass {
	class := snapshottest.Class("x", pick(g, int32(2), 10, 128))
	class.ObjectMeta = g.meta("GPUNodeClass")
	class.Spec.NodeClassRef.Name = pick(g, "gpu", "missing")
	if g.maybe(0.3) {
		class.Spec.Sharing.MaxReplicas = new(int32(128))
	}
	if g.maybe(0.3) {
		class.Spec.Sharing.Overrides = []v1alpha1.ReplicasOverride{{GPUName: pick(g, "t4", strings.Repeat("g", 63)), Replicas: pick(g, int32(1), 128)}}
	}
	class.Spec.Consolidation.IdleAfter = pick(g, "0s", "Never", "720h", "5m")
	if g.maybe(0.5) {
		class.Spec.Headroom = []v1alpha1.Headroom{{Replicas: pick(g, int32(1), 10_000)}}
		if g.maybe(0.5) {
			class.Spec.Headroom[0].Schedule, class.Spec.Headroom[0].Duration = pick(g, "0 0 30 2 *", "* * * * *"), pick(g, "1m", "2562047h")
		}
	}
	if g.maybe(0.3) {
		class.Spec.Launch.MaxPremiumPercent = new(pick(g, int32(0), 100))
	}
	for range g.count(250) {
		class.Status.RefusedOfferings = append(class.Status.RefusedOfferings, v1alpha1.RefusedOffering{
			InstanceType: pick(g, v1alpha1.Any, "g4dn.xlarge", "g4dn.12xlarge", "x"), Zone: pick(g, v1alpha1.Any, "us-east-1a"), CapacityType: pick(g, v1alpha1.Any, "spot", "on-demand"),
			Failures: g.integer(1), NotBefore: g.time(), Reason: pick(g, "", "Said", v1alpha1.RefusalVanished), Message: g.text(500), NodeClassGeneration: pick(g, int64(0), 1, math.MaxInt64),
		})
	}
	return &class
}

// limit returns the volume limit of a CSINode, which is an int32.
func (g *Generator) limit() int32 { return pick(g, int32(0), 1, 25, math.MaxInt32) }
