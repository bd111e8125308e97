package pool

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/wording"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
)

// holding is what a set of machines has.
type holding struct {
	planner.Physical
	inUse           int64
	microUSDPerHour int64
}

func hold(machines []snapshot.Machine) holding {
	h := holding{Physical: snapshot.Hardware(machines)}
	h.Replicas = 0 // What the machines promised, whatever the catalogue says of their types by now.
	for i := range machines {
		m := &machines[i]
		h.Replicas += m.Promise.Replicas()
		h.inUse += m.ReplicasInUse()
		h.microUSDPerHour += m.Promise.MicroUSDPerHour
	}
	return h
}

// reportPool writes the status of a NodePool of ours, as stock Karpenter does for its own.
func reportPool(np *karpv1.NodePool, pool *snapshot.Pool, h holding, healthy, launching status.Condition, clk clock.Clock) {
	set := np.StatusConditions(status.WithClock(clk))
	for _, conditionType := range []string{karpv1.ConditionTypeValidationSucceeded, karpv1.ConditionTypeNodeClassReady} {
		i := slices.IndexFunc(pool.Problems, func(p snapshot.Problem) bool { return p.Condition == conditionType })
		switch {
		case i >= 0:
			set.SetFalse(conditionType, pool.Problems[i].Reason, pool.Problems[i].Message)
		case pool.Class == nil:
			set.SetUnknownWithReason(conditionType, "GPUNodeClassNotFound", "cannot be told without the GPUNodeClass")
		default:
			set.SetTrue(conditionType)
		}
	}
	set.Set(healthy)
	set.Set(launching)

	np.Status.Nodes = new(h.Nodes)
	np.Status.Resources = corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(h.MilliCPU, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(h.MemoryBytes, resource.BinarySI),
		"nodes":               *resource.NewQuantity(h.Nodes, resource.DecimalSI),
		v1alpha1.ResourceGPU:  *resource.NewQuantity(h.GPUs, resource.DecimalSI),
	}
	if pool.Class != nil && pool.Resource() != v1alpha1.ResourceGPU {
		np.Status.Resources[pool.Resource()] = *resource.NewQuantity(h.Replicas, resource.DecimalSI)
	}
}

// launching says whether the cloud refuses offerings of the pool at present.
func launching(pool *snapshot.Pool, refused []v1alpha1.RefusedOffering, now time.Time) status.Condition {
	var left []string
	for _, r := range refused {
		if !now.Before(r.NotBefore.Time) || !slices.ContainsFunc(pool.Offerings, func(o snapshot.Offering) bool { return o.Type.Name == r.InstanceType }) {
			continue
		}
		left = append(left, fmt.Sprintf("%s in zone %s (%s) until %s: %s", r.InstanceType, r.Zone, r.CapacityType, r.NotBefore.UTC().Format(time.RFC3339), r.Message))
	}
	if len(left) == 0 {
		return condition(v1alpha1.ConditionLaunchHealthy, metav1.ConditionTrue, "LaunchHealthy", "")
	}
	slices.Sort(left)
	return condition(v1alpha1.ConditionLaunchHealthy, metav1.ConditionFalse, "LaunchRefused", "left alone after refused launches: "+wording.Shorten(strings.Join(left, "; "), maxMessage))
}

// maxMessage keeps a condition's message readable; the GPUNodeClass's status has all of it.
const maxMessage = 2000

// reportClass writes the status of a GPUNodeClass.
func reportClass(class *v1alpha1.GPUNodeClass, state snapshot.NodeClassState, h holding, refused []v1alpha1.RefusedOffering) {
	accepted := metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: "Accepted"}
	if _, _, err := class.Spec.Consolidation.IdleDuration(); err != nil {
		accepted.Status, accepted.Reason = metav1.ConditionFalse, "InvalidIdleAfter"
		accepted.Message = fmt.Sprintf("spec.consolidation.idleAfter: %v; idle machines are kept", err)
	}
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Ready"}
	switch {
	case accepted.Status != metav1.ConditionTrue:
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, "NotAccepted", accepted.Message
	case !state.Ready:
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, state.Reason, state.Message
	}
	for _, c := range []metav1.Condition{accepted, ready} {
		c.ObservedGeneration = class.Generation
		meta.SetStatusCondition(&class.Status.Conditions, c)
	}
	class.Status.Nodes, class.Status.GPUs = h.Nodes, h.GPUs
	class.Status.Replicas, class.Status.ReplicasInUse = h.Replicas, h.inUse
	class.Status.USDPerHour = usd(h.microUSDPerHour)
	class.Status.RefusedOfferings = refused
}

// usd writes micro-dollars as dollars, with three decimals or as many as it takes.
func usd(micro int64) string {
	s := strconv.FormatInt(micro/1e6, 10) + "." + fmt.Sprintf("%06d", micro%1e6)
	for range 3 {
		s = strings.TrimSuffix(s, "0")
	}
	return s
}
