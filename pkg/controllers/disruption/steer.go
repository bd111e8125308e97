package disruption

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/disruption/reason"
	"karve.sh/karve/pkg/snapshot"
)

// toSteer returns the machines that should get or lose the surplus taint, which steers new pods to other machines. While pods move, the taint is on all
// machines with room that the plan has not chosen for them. Otherwise the scheduler would spread the pods, and the saving would be lost. While pods are handed
// over in groups, only the target of the current group counts as chosen.
func (s *pass) toSteer() []*reason.Machine {
	moving := map[string]bool{}
	for _, m := range s.machines {
		if m.Replacing() != "" && (m.Deleting() || disrupting(m.Machine)) {
			moving[m.Pool()] = true
		}
	}
	var machines []*reason.Machine
	for _, m := range s.machines {
		if m.Node == nil || m.Deleting() {
			continue
		}
		if hasSurplusTaint(m.Machine) != s.away(m, moving[m.Pool()]) {
			machines = append(machines, m)
		}
	}
	return machines
}

// away reports whether pods should be steered away from a machine. moving reports whether pods of its pool move.
func (s *pass) away(m *reason.Machine, moving bool) bool {
	target := s.pool(m).target
	handing := target != nil
	chosen := handing && m.Node.Name == *target
	room := m.Started() && m.Replacing() == "" && m.Exposed() > m.ReplicasInUse() && (handing || !m.Wanted)
	return reason.MarkedUnderutilized(m.Machine) || !chosen && (m.Surplus || moving && room)
}

func hasSurplusTaint(m *snapshot.Machine) bool {
	return m.Node != nil && slices.ContainsFunc(m.Node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == v1alpha1.SurplusTaintKey })
}

// steer adds or removes the surplus taint of a machine.
func (c *Controller) steer(ctx context.Context, m *reason.Machine) error {
	away := hasSurplusTaint(m.Machine)
	log.FromContext(ctx).V(1).Info("Steering new pods", "node", klog.KObj(m.Node), "away", !away)
	return c.patch(ctx, m.Node, func(n *corev1.Node) { setSurplusTaint(n, !away) })
}

// setSurplusTaint adds the surplus taint, so that the scheduler prefers other Nodes, or removes it.
func setSurplusTaint(n *corev1.Node, away bool) {
	n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == v1alpha1.SurplusTaintKey })
	if away {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: v1alpha1.SurplusTaintKey, Effect: corev1.TaintEffectPreferNoSchedule})
	}
}
