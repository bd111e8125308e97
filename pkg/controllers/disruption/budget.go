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
	// for their pods.
	draining, leaving int
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

// count counts the disrupted machines of all pools. As in Karpenter, a machine that is not ready counts as disrupted, except for repairs: otherwise many such
// machines would keep each other from being repaired.
func (s *pass) count() {
	for _, p := range s.pools {
		p.budget, p.repairs = budget{}, budget{}
	}
	for _, m := range s.machines {
		if !counts(m.Machine) {
			continue
		}
		p, draining := s.pool(m), m.Deleting() || disrupting(m.Machine)
		p.repairs.add(draining, m.Leaving())
		p.budget.add(draining || notReady(m.Node), m.Leaving())
	}
}

func (b *budget) add(draining, marked bool) {
	if draining {
		b.draining++
	}
	if draining || marked {
		b.leaving++
	}
}

// mark counts a machine that is marked now.
func (p *pool) mark() {
	p.leaving++
	p.repairs.leaving++
}

// used returns the machines of the pool that use the budget for the reason of a candidate.
func (s *pass) used(m *reason.Machine, c *reason.Candidate) *budget {
	if c.Reason == reason.Unhealthy {
		return &s.pool(m).repairs
	}
	return &s.pool(m).budget
}

// follow updates the counts for a command.
func (s *pass) follow(c *command) {
	if !counts(c.machine.Machine) {
		return
	}
	s.pool(c.machine).repairs.follow(c)
	if !notReady(c.machine.Node) { // Otherwise it is counted before and after the command.
		s.pool(c.machine).budget.follow(c)
	}
}

func (b *budget) follow(c *command) {
	was := disrupting(c.machine.Machine)
	switch c.step {
	case taint:
		if !was {
			b.draining++
			if !c.machine.Leaving() {
				b.leaving++
			}
		}
	case keep:
		if was {
			b.draining--
			b.leaving--
		}
	case hold:
		b.draining--
	case stop, giveUp:
		if was {
			b.draining--
		}
		b.leaving--
	case markIdle, remove, blocked, replace, stay, force, handOver:
	}
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
