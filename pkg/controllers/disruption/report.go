package disruption

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/disruption"
	"karve.sh/karve/pkg/fleet/disruption/reason"
	"karve.sh/karve/pkg/fleet/retention"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/words"
)

// reportMark reports that a mark was added to or removed from a NodeClaim.
func (c *Controller) reportMark(ctx context.Context, cmd disruption.Command, claim *karpv1.NodeClaim) {
	m := cmd.Machine
	logger := log.FromContext(ctx).WithValues("node", klog.KObj(m.Node), "nodeClaim", klog.KObj(claim), "nodePool", m.Pool())
	switch cmd.Step {
	case disruption.Replace:
		what := cmd.Why()
		c.Metrics.Replacements.WithLabelValues(m.Pool(), cmd.Reason, string(metrics.ReplacementBegun)).Inc()
		kind, word := corev1.EventTypeNormal, "Replacing"
		if cmd.Reason == reason.Unhealthy {
			kind, word = corev1.EventTypeWarning, reason.Unhealthy
		}
		c.Recorder.Eventf(m.Node, claim, kind, word, "Replace", "%s", plain.Shorten(what+"; its pods get a new place first", plain.MaxNote))
		logger.Info("Replacing a node", "reason", cmd.Reason, "why", what)
	case disruption.GiveUp:
		c.Metrics.Replacements.WithLabelValues(m.Pool(), m.Replacing(), string(metrics.ReplacementGivenUp)).Inc()
		c.Recorder.Eventf(m.Node, claim, corev1.EventTypeWarning, "ReplacementFailed", "Replace", "%s", plain.Shorten(fmt.Sprintf(
			"stays, since its pods got no new place within %s: %s; tried again after %s", lifecycle.ReplacingPatience, cmd.Reason, claim.Annotations[v1alpha1.ReplaceAfterAnnotation]), plain.MaxNote))
		logger.Info("Gave up replacing a node", "reason", cmd.Reason, "failures", retention.Failures(&records.Machine{Claim: claim}))
	default:
		c.Metrics.Replacements.WithLabelValues(m.Pool(), m.Replacing(), string(metrics.ReplacementStopped)).Inc()
		logger.Info("A node is not replaced after all", "reason", cmd.Reason)
	}
}

// count counts the steps to a cheaper layout that were refused or begin, and sets the gauges of the accounts.
func (c *Controller) count(commands disruption.Commands) {
	for _, pool := range commands.Refused {
		c.Metrics.LayoutSteps.WithLabelValues(pool, string(metrics.StepRefused)).Inc()
	}
	for _, pool := range commands.Begun {
		c.Metrics.LayoutSteps.WithLabelValues(pool, string(metrics.StepBegun)).Inc()
	}
	if commands.Wasted == nil {
		return
	}
	c.Metrics.Wasted.Reset()
	for class, wasted := range commands.Wasted {
		c.Metrics.Wasted.WithLabelValues(class).Set(metrics.USD(int64(wasted)))
	}
}

// reportRemoval records that the NodeClaim of a machine was deleted. m is the machine as read from the API server.
func (c *Controller) reportRemoval(ctx context.Context, cmd disruption.Command, m *records.Machine) {
	logger := log.FromContext(ctx).WithValues("node", klog.KObj(m.Node), "nodeClaim", klog.KObj(m.Claim), "nodePool", m.Pool())
	if word := m.Replacing(); word != "" {
		candidate := cmd.Candidate
		c.Metrics.ClaimsDeleted.WithLabelValues(m.Pool(), string(candidate.Reason)).Inc()
		c.Metrics.Replacements.WithLabelValues(m.Pool(), word, string(metrics.ReplacementDone)).Inc()
		c.Metrics.PodsMoved.WithLabelValues(m.Pool(), word).Add(float64(len(m.Moving())))
		c.Recorder.Eventf(m.Claim, m.Node, corev1.EventTypeNormal, "Replaced", "GiveBack", "node %s is given back, with a new place for its %s: %s",
			m.Node.Name, words.Count(len(m.Moving()), "pod"), plain.Shorten(candidate.Message, plain.MaxNote/2))
		logger.Info("Gave back a replaced node", "reason", word, "pods", len(m.Moving()))
		return
	}
	c.Metrics.ClaimsDeleted.WithLabelValues(m.Pool(), string(metrics.DeletionIdle)).Inc()
	c.Recorder.Eventf(m.Claim, m.Node, corev1.EventTypeNormal, "Idle", "GiveBack", "node %s has been idle since %s (idleAfter %s) and is given back",
		m.Node.Name, m.Node.Annotations[v1alpha1.IdleSinceAnnotation], *cmd.Machine.NodePool.IdleAfter)
	logger.Info("Gave back an idle node", "microUSDPerHour", m.Promise.MicroUSDPerHour)
}

// measure sets the gauges of drifted, replaced, surplus and unhealthy machines.
func (c *Controller) measure(round *disruption.Round) {
	surplusNames := sets.New(round.Surplus()...)
	for name, p := range round.Pools() {
		if p.Budgets == nil {
			continue // The pool no longer exists, so it has no metrics.
		}
		drifted, replacing, surplus := 0, 0, 0
		for _, m := range round.Machines() {
			if m.Pool() != name {
				continue
			}
			if m.Candidate != nil && m.Candidate.Reason == karpv1.DisruptionReasonDrifted {
				drifted++
			}
			if m.Replacing() != "" {
				replacing++
			}
			if surplusNames.Has(m.Claim.Name) {
				surplus++
			}
		}
		c.Metrics.PoolSurplus.WithLabelValues(name).Set(float64(surplus))
		c.Metrics.PoolDrifted.WithLabelValues(name).Set(float64(drifted))
		c.Metrics.PoolReplacing.WithLabelValues(name).Set(float64(replacing))
	}
	c.Metrics.NodesUnhealthy.Reset()
	for _, m := range round.Machines() {
		if m.Health != nil {
			c.Metrics.NodesUnhealthy.WithLabelValues(m.Pool(), m.Health.Reason).Inc()
		}
	}
}
