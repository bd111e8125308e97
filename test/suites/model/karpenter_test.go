package model

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

var errBudget = apierrors.NewTooManyRequests("the budget does not allow it", 1)

// karpenter takes Karpenter's next step for a claim, if there is one.
func (w *world) karpenter(claim *karpv1.NodeClaim) {
	node := w.node(claim)
	switch {
	case !claim.DeletionTimestamp.IsZero():
		w.drain(claim, node)
	case !has(claim, karpv1.ConditionTypeLaunched):
		w.launch(claim)
	case !has(claim, karpv1.ConditionTypeRegistered):
		w.register(claim)
	case node != nil && !node.DeletionTimestamp.IsZero():
		w.store.remove(claim)
	case node != nil && !has(claim, karpv1.ConditionTypeInitialized):
		w.initialize(claim, node)
	}
}

// launch is the cloud's answer to a launch.
func (w *world) launch(claim *karpv1.NodeClaim) {
	if w.refusing {
		w.logf("the cloud refuses %s", claim.Name)
		w.store.drop(claim)
		return
	}
	instanceType, zone, capacityType := records.ShapeOf(claim)
	t := snapshottest.TypeNamed(instanceType)
	labels := maps.Clone(t.Labels)
	maps.Copy(labels, claim.Labels)
	labels[corev1.LabelTopologyZone], labels[karpv1.CapacityTypeLabelKey] = zone, capacityType
	claim.Labels = labels
	claim.Status.ProviderID = "aws:///" + claim.Name
	claim.Status.Allocatable = snapshottest.Amounts("cpu", cpuOf(t.Allocatable.MilliCPU), "memory", "15Gi", "pods", "29", "ephemeral-storage", "90Gi")
	if w.hardware[claim.Name] == nil {
		w.hardware[claim.Name] = &hardware{registers: true, connects: !w.networkBroken, exposes: !w.pluginBroken, clears: !w.csiBroken}
	}
	w.setCondition(claim, karpv1.ConditionTypeLaunched)
}

func cpuOf(milli int64) string {
	if milli > 4000 {
		return "7900m"
	}
	return "3900m"
}

// register registers the claim's Node, or deletes the claim after Karpenter's registration timeout.
func (w *world) register(claim *karpv1.NodeClaim) {
	if !w.hardware[claim.Name].registers {
		if w.now().Sub(claim.CreationTimestamp.Time) >= 15*time.Minute {
			w.logf("Karpenter gives %s up, which has not registered", claim.Name)
			w.store.remove(claim)
		}
		return
	}
	claim.Status.NodeName = claim.Name
	w.setCondition(claim, karpv1.ConditionTypeRegistered)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: claim.Name, UID: types.UID("node-" + string(claim.UID)), Labels: maps.Clone(claim.Labels), Annotations: maps.Clone(claim.Annotations), Finalizers: []string{karpv1.TerminationFinalizer},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: claim.Name, UID: claim.UID}}, CreationTimestamp: metav1.NewTime(w.now()),
	}}
	node.Labels[karpv1.NodeRegisteredLabelKey] = "true"
	node.Spec.ProviderID = claim.Status.ProviderID
	node.Spec.Taints = slices.Concat(claim.Spec.Taints, claim.Spec.StartupTaints)
	node.Status.Allocatable = claim.Status.Allocatable.DeepCopy()
	w.store.put(node)
	w.ready(node, corev1.ConditionFalse) // The network comes up later.
}

func (w *world) initialize(claim *karpv1.NodeClaim, node *corev1.Node) {
	if !isReady(node) || tainted(node, csi) || tainted(node, v1alpha1.ReplicasNotReadyTaintKey) {
		return
	}
	w.setCondition(claim, karpv1.ConditionTypeInitialized)
	node.Labels[karpv1.NodeInitializedLabelKey] = "true"
	w.store.touch(node)
}

// drain evicts the pods of a machine that is being removed, deletes the remaining pods once the grace period is over, and then terminates the machine.
func (w *world) drain(claim *karpv1.NodeClaim, node *corev1.Node) {
	if node == nil {
		w.gone(claim)
		return
	}
	if !tainted(node, karpv1.DisruptedTaintKey) {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: karpv1.DisruptedTaintKey, Effect: corev1.TaintEffectNoSchedule})
	}
	w.store.remove(node)
	over := false
	if grace := claim.Spec.TerminationGracePeriod; grace != nil {
		over = !w.now().Before(claim.DeletionTimestamp.Add(grace.Duration))
	}
	if at, err := time.Parse(time.RFC3339, claim.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey]); err == nil {
		over = over || !w.now().Before(at)
	}
	left := 0
	for _, pod := range w.on(node.Name) {
		switch stuck := w.hardware[claim.Name].dead && !pod.DeletionTimestamp.IsZero() && w.now().Sub(pod.DeletionTimestamp.Time) > 2*time.Minute; {
		case over:
			w.store.drop(pod)
		case stuck:
		case !pod.DeletionTimestamp.IsZero():
			left++
		case !karpenter.IsDisruptable(pod, w.clock):
			left++
		default:
			_ = w.evict(pod) // The eviction is retried.
			left++
		}
	}
	if left == 0 {
		w.gone(claim)
	}
}

// gone terminates a machine.
func (w *world) gone(claim *karpv1.NodeClaim) {
	if node := w.node(claim); node != nil {
		for _, pod := range w.on(node.Name) {
			w.store.drop(pod)
		}
		w.store.drop(node)
	}
	w.store.drop(claim)
	w.logf("%s is gone", claim.Name)
	delete(w.hardware, claim.Name)
}
