package disruption

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/controllers/disruption/reason"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/snapshot"
)

// budget counts the machines of a pool that use its disruption budgets.
type budget struct {
	// draining is the number of machines that are being deleted, disrupting or not ready. leaving also includes machines that are marked and wait for room
	// for their pods. notReady is how many are counted only because they are not ready: they use no budget for Unhealthy.
	draining, leaving, notReady int
}

// counts reports whether a machine counts for the disruption budgets, in the total and among the disrupted ones. As in Karpenter, a machine that has not been
// initialized does not count.
func counts(m *snapshot.Machine) bool {
	return m.Initialized() && lifecycle.Of(m.State()).Budgeted
}

// budgeted returns the total number of the pool's machines for its budgets.
func budgeted(machines []snapshot.Machine, pool string) int {
	n := 0
	for i := range machines {
		if m := &machines[i]; m.Pool() == pool && counts(m) {
			n++
		}
	}
	return n
}

// count counts the disrupted machines of all pools. As in Karpenter, a machine that is not ready counts as disrupted.
func (s *pass) count() {
	for _, p := range s.pools {
		p.budget = budget{}
	}
	for _, m := range s.machines {
		if !counts(m.Machine) {
			continue
		}
		draining := m.Deleting() || disrupting(m.Machine) || notReady(m.Node)
		if draining {
			s.pool(m).draining++
		}
		if draining || m.Leaving() {
			s.pool(m).leaving++
		}
		if draining && !m.Deleting() && !disrupting(m.Machine) && !m.Leaving() {
			s.pool(m).notReady++
		}
	}
}

// follow updates the counts for a command.
func (s *pass) follow(c *command) {
	m := c.machine
	if !counts(m.Machine) {
		return
	}
	if notReady(m.Node) { // It is counted already.
		if c.step == taint && !disrupting(m.Machine) && !m.Leaving() {
			s.pool(m).notReady--
		}
		return
	}
	p, was := s.pool(m), disrupting(m.Machine)
	switch c.step {
	case taint:
		if !was {
			p.draining++
			if !m.Leaving() {
				p.leaving++
			}
		}
	case keep:
		if was {
			p.draining--
			p.leaving--
		}
	case hold:
		p.draining--
	case stop, giveUp:
		if was {
			p.draining--
		}
		p.leaving--
	case markIdle, remove, blocked, replace, stay, force, handOver:
	}
}

// used returns how many machines of the pool use the budget for the reason of a candidate. As in Karpenter, a machine that is only not ready does not use
// that for Unhealthy: otherwise many such machines would keep each other from being repaired.
func (s *pass) used(m *reason.Machine, c *reason.Candidate) budget {
	b := s.pool(m).budget
	if c.Reason == reason.Unhealthy {
		b.draining, b.leaving = b.draining-b.notReady, b.leaving-b.notReady
	}
	return b
}

// notReady reports whether a Node has the condition Ready and is not ready. It returns false for nil.
func notReady(node *corev1.Node) bool {
	if node == nil {
		return false
	}
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	return i >= 0 && node.Status.Conditions[i].Status != corev1.ConditionTrue
}

func overBudget(m *reason.Machine, allowed int) string {
	return fmt.Sprintf("the disruption budgets of NodePool %s allow %d at present", m.Pool(), allowed)
}

// drained records which machines are being drained with pods of PodDisruptionBudgets.
func (s *pass) drained() {
	s.drains = map[string]string{}
	for _, m := range s.machines {
		if m.Deleting() {
			s.drain(m)
		}
	}
}

func (s *pass) drain(m *reason.Machine) {
	for _, pdb := range s.pods.Budgets(m.Pods) {
		if s.drains[pdb] == "" {
			s.drains[pdb] = m.Claim.Name
		}
	}
}

// removal returns the command that deletes a machine. If another machine is being drained with pods of the same PodDisruptionBudget, the machine waits:
// each machine was checked as if it alone used the budget, and pods that the budget still blocks at the end of the drain would be deleted.
func (s *pass) removal(m *reason.Machine, word string) *command {
	for _, pdb := range s.pods.Budgets(m.Pods) {
		other := s.drains[pdb]
		if other == "" || other == m.Claim.Name {
			continue
		}
		why := fmt.Sprintf("%s is drained first, which has pods of the same PodDisruptionBudget %s", other, pdb)
		if m.Replacing() == "" {
			return &command{step: blocked, machine: m, reason: why}
		}
		if c := s.wait(m, why, true); c.step == giveUp {
			return c
		}
		return &command{step: stay, machine: m, reason: why}
	}
	s.drain(m)
	return &command{step: remove, machine: m, reason: word}
}
