package pool

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/usage"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planning"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/watchdog"
)

// holding has the totals of a set of machines.
type holding struct {
	planner.Physical
	inUse int64
	// microUSDPerHour is what the machines cost, and listMicroUSDPerHour what they cost in the cloud's list.
	microUSDPerHour, listMicroUSDPerHour int64
	// unusedNodes is the number of machines whose GPUs nobody uses, and unusedMicroUSDPerHour their price.
	unusedNodes, unusedMicroUSDPerHour int64
}

// hold returns the totals of machines. The class is nil if it is unknown.
func hold(machines []records.Machine, class *v1alpha1.GPUNodeClass, now time.Time) holding {
	h := holding{Physical: records.Hardware(machines)}
	h.Replicas = 0 // Replicas are summed from the promises, regardless of the current catalog.
	for i := range machines {
		m := &machines[i]
		h.Replicas += m.Promise.Replicas()
		h.inUse = amount.Add(h.inUse, m.ReplicasInUse())
		h.microUSDPerHour += m.Promise.MicroUSDPerHour
		h.listMicroUSDPerHour += m.Promise.ListMicroUSDPerHour
		if _, ok := usage.NobodyUses(m, class, now); ok {
			h.unusedNodes++
			h.unusedMicroUSDPerHour += m.Promise.MicroUSDPerHour
		}
	}
	return h
}

func byState(machines []records.Machine, now time.Time, replicasTimeout time.Duration) map[string]metrics.Claims {
	states := map[string]metrics.Claims{}
	for i := range machines {
		m := &machines[i]
		state := m.State()
		if m.Broken(now, replicasTimeout) {
			state = lifecycle.Broken
		}
		claims := states[string(state)]
		states[string(state)] = metrics.Claims{Count: claims.Count + 1, Oldest: max(claims.Oldest, now.Sub(m.Claim.CreationTimestamp.Time))}
	}
	return states
}

// reportPool sets the status of one of Karve's NodePools, as Karpenter does for its own.
func reportPool(np *karpv1.NodePool, pool *snapshot.Pool, h holding, clk clock.Clock, others ...status.Condition) {
	set := np.StatusConditions(status.WithClock(clk))
	for _, conditionType := range []string{karpv1.ConditionTypeValidationSucceeded, karpv1.ConditionTypeNodeClassReady} {
		i := slices.IndexFunc(pool.Problems, func(p snapshot.Problem) bool { return p.Condition == conditionType })
		switch {
		case i >= 0:
			set.Set(condition(conditionType, metav1.ConditionFalse, pool.Problems[i].Reason, pool.Problems[i].Message))
		case pool.Class == nil:
			set.SetUnknownWithReason(conditionType, "GPUNodeClassNotFound", "cannot be told without the GPUNodeClass")
		default:
			set.SetTrue(conditionType)
		}
	}
	for _, c := range others {
		set.Set(c)
	}
	if !slices.ContainsFunc(others, func(c status.Condition) bool { return c.Type == v1alpha1.ConditionHeadroomReady }) {
		np.Status.Conditions = slices.DeleteFunc(np.Status.Conditions, func(c status.Condition) bool { return c.Type == v1alpha1.ConditionHeadroomReady })
	}

	np.Status.Nodes = new(h.Nodes)
	np.Status.Resources = corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(h.MilliCPU, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(h.MemoryBytes, resource.BinarySI),
		"nodes":               *resource.NewQuantity(h.Nodes, resource.DecimalSI),
		v1alpha1.ResourceGPU:  *resource.NewQuantity(h.GPUs, resource.DecimalSI),
	}
	if pool.Class == nil {
		return
	}
	if names := pool.Resources(); len(names) == 1 && names[0] != v1alpha1.ResourceGPU {
		np.Status.Resources[names[0]] = *resource.NewQuantity(h.Replicas, resource.DecimalSI)
	}
}

// nodesHealthy returns the condition NodesHealthy of a pool. It is False if unhealthy machines are not replaced.
func nodesHealthy(health repair.PoolHealth) status.Condition {
	return unless(v1alpha1.ConditionNodesHealthy, v1alpha1.ConditionNodesHealthy, health.Closed, health.Message)
}

// planningHealthy returns the condition PlanningHealthy, which is the same for all pools. Its message also says whether a plan took longer than usual.
func planningHealthy(aside []watchdog.Entry, extended *planning.Extended) status.Condition {
	if len(aside) == 0 {
		message := ""
		if extended != nil {
			message = extended.String()
		}
		return condition(v1alpha1.ConditionPlanningHealthy, metav1.ConditionTrue, v1alpha1.ConditionPlanningHealthy, message)
	}
	messages := make([]string, len(aside))
	for i := range aside {
		messages[i] = aside[i].Why()
	}
	return condition(v1alpha1.ConditionPlanningHealthy, metav1.ConditionFalse, "StepTooLong", strings.Join(messages, "; "))
}

// fieldsHonored returns the condition FieldsHonored, with the fields that have no effect. The reason is that of the first field.
func fieldsHonored(reports []snapshot.FieldReport) status.Condition {
	reason, messages := "", make([]string, len(reports))
	for i, r := range reports {
		reason, messages[i] = cmp.Or(reason, r.Reason), r.Message
	}
	return unless(v1alpha1.ConditionFieldsHonored, v1alpha1.ConditionFieldsHonored, reason, strings.Join(messages, "; "))
}

// maxMessage is the longest message of a condition, in bytes, so that it stays readable. The API server rejects a message of more than 32,768
// characters, together with the rest of the status.
const maxMessage = 2000

// reportClass sets the status of a GPUNodeClass.
func reportClass(class *v1alpha1.GPUNodeClass, state facts.NodeClassState, dra facts.DRA, h holding, refused []v1alpha1.RefusedOffering, unknown []string) {
	reason, message := rejected(class)
	accepted := unless(v1alpha1.ConditionAccepted, "Accepted", reason, message)
	switch {
	case reason != "":
		reason = "NotAccepted"
	case !state.Ready:
		reason, message = cmp.Or(state.Reason, "NodeClassNotReady"), state.Message
	default:
		reason, message = dra.Problem(class)
	}
	all := []status.Condition{
		accepted, unless(v1alpha1.ConditionReady, "Ready", reason, message),
		unless(v1alpha1.ConditionCatalogFresh, "Fresh", state.CatalogReason, state.CatalogMessage), fieldsHonored(snapshot.UnknownFields(unknown)),
	}
	if known := reservationsKnown(class.Spec.NodeClassRef, &state); known != nil {
		all = append(all, *known)
	} else {
		meta.RemoveStatusCondition(&class.Status.Conditions, v1alpha1.ConditionReservationsKnown)
	}
	for _, c := range all {
		c.ObservedGeneration = class.Generation
		meta.SetStatusCondition(&class.Status.Conditions, metav1.Condition(c))
	}
	class.Status.ObservedGeneration = class.Generation
	class.Status.Nodes, class.Status.GPUs = h.Nodes, h.GPUs
	class.Status.Replicas, class.Status.ReplicasInUse = h.Replicas, h.inUse
	class.Status.USDPerHour = v1alpha1.FormatUSD(h.microUSDPerHour)
	class.Status.UnusedNodes, class.Status.UnusedUSDPerHour = h.unusedNodes, v1alpha1.FormatUSD(h.unusedMicroUSDPerHour)
	class.Status.RefusedOfferings = refused
}

// rejected returns why a GPUNodeClass is not accepted, and what follows. It returns "" if it is.
func rejected(class *v1alpha1.GPUNodeClass) (reason, message string) {
	spec := &class.Spec
	_, _, idle := spec.Consolidation.IdleDuration()
	_, _, unused := spec.Consolidation.UnusedDuration()
	_, drain := spec.DrainDuration()
	for _, p := range []struct {
		err                    error
		reason, field, instead string
	}{
		{idle, "InvalidIdleAfter", "spec.consolidation.idleAfter: ", "idle machines are kept"},
		{unused, "InvalidUnusedAfter", "spec.consolidation.unusedAfter: ", "nothing is reported"},
		{drain, "InvalidTerminationGracePeriod", "spec.terminationGracePeriod: ", "machines drain for as long as it takes"},
		{snapshot.HeadroomError(class), "InvalidHeadroom", "", "nothing is kept free for it"},
		{cmp.Or(spec.Sharing.OverridesError(), spec.Sharing.LayoutsError()), "UnsupportedGPU", "", "no such GPU is launched"},
		{spec.Sharing.SizesError(), "InvalidSizes", "", "nothing is launched"},
	} {
		if p.err != nil {
			return p.reason, p.field + p.err.Error() + "; " + p.instead
		}
	}
	return "", ""
}

// unless returns a condition that is True for the reason good, or False if there is a reason against it.
func unless(conditionType, good, against, message string) status.Condition {
	if against == "" {
		return condition(conditionType, metav1.ConditionTrue, good, "")
	}
	return condition(conditionType, metav1.ConditionFalse, against, message)
}

func condition(conditionType string, s metav1.ConditionStatus, reason, message string) status.Condition {
	return status.Condition{Type: conditionType, Status: s, Reason: reason, Message: plain.Shorten(message, maxMessage)}
}
