package disruption

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/disruption/reason"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/snapshot"
)

// reportStay records an event about why a machine stays, once for each reason.
func (c *Controller) reportStay(m *reason.Machine, event, why, what string) {
	if r := c.memory.of(m); r.reported != why {
		r.reported = why
		c.Recorder.Eventf(m.Node, nil, corev1.EventTypeNormal, event, "Keep", "%s", plain.Shorten(what+", and kept: "+why, plain.MaxNote))
	}
}

// removed records that the NodeClaim of a machine was deleted. m is the machine as read from the API server.
func (c *Controller) removed(ctx context.Context, decided *reason.Machine, m *snapshot.Machine) {
	logger := log.FromContext(ctx).WithValues("node", klog.KObj(m.Node), "nodeClaim", klog.KObj(m.Claim), "nodePool", m.Pool())
	if word := m.Replacing(); word != "" {
		candidate := decided.Candidate
		c.Metrics.ClaimsDeleted.WithLabelValues(m.Pool(), string(candidate.Reason)).Inc()
		c.Metrics.Replacements.WithLabelValues(m.Pool(), word, string(metrics.ReplacementDone)).Inc()
		c.Metrics.PodsMoved.WithLabelValues(m.Pool(), word).Add(float64(len(m.Moving())))
		c.Recorder.Eventf(m.Claim, m.Node, corev1.EventTypeNormal, "Replaced", "GiveBack", "node %s is given back, its %d pods have a new place: %s",
			m.Node.Name, len(m.Moving()), plain.Shorten(candidate.Message, plain.MaxNote/2))
		logger.Info("Gave back a replaced node", "reason", word, "pods", len(m.Moving()))
		return
	}
	c.Metrics.ClaimsDeleted.WithLabelValues(m.Pool(), string(metrics.DeletionIdle)).Inc()
	c.Recorder.Eventf(m.Claim, m.Node, corev1.EventTypeNormal, "Idle", "GiveBack", "node %s has been idle since %s (idleAfter %s) and is given back",
		m.Node.Name, m.Node.Annotations[v1alpha1.IdleSinceAnnotation], *decided.NodePool.IdleAfter)
	logger.Info("Gave back an idle node", "microUSDPerHour", m.Promise.MicroUSDPerHour)
}

// measure sets the gauges of drifted, replaced, surplus and unhealthy machines.
func (c *Controller) measure(s *pass) {
	surplusNames := sets.New(c.search.found.surplus...)
	for name, p := range s.pools {
		if p.Budgets == nil {
			continue // The pool no longer exists, so it has no metrics.
		}
		drifted, replacing, surplus := 0, 0, 0
		for _, m := range s.machines {
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
	for _, m := range s.machines {
		if m.Health != nil {
			c.Metrics.NodesUnhealthy.WithLabelValues(m.Pool(), m.Health.Reason).Inc()
		}
	}
}
