package disruption

import (
	"fmt"

	"karve.sh/karve/pkg/fleet/disruption/reason"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/snapshot/records"
)

// use counts the machines of a pool that use a disruption budget.
type use struct {
	// draining is the number of machines that are being deleted, disrupting or not ready. leaving also includes machines that are marked and wait for room
	// for their pods.
	draining, leaving int
}

// uses has the machines of a pool that use the budgets for all reasons but Unhealthy, and those that use the one for Unhealthy.
type uses struct{ all, repairs use }

// tally has the uses of the budgets by pool.
type tally map[string]*uses

// counts reports whether a machine counts for the disruption budgets, in the total and among the disrupted ones. As in Karpenter, a machine that has not been
// initialized does not count.
func counts(m *records.Machine) bool {
	return m.Initialized() && lifecycle.Of(m.State()).Budgeted
}

// budgeted returns the total number of the pool's machines for its budgets.
func budgeted(machines []records.Machine, pool string) int {
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
func count(machines []*reason.Machine) tally {
	t := tally{}
	for _, m := range machines {
		if !counts(m.Machine) {
			continue
		}
		u, draining := t.of(m.Pool()), m.Deleting() || Disrupting(m.Machine)
		u.repairs.add(draining, m.Leaving())
		u.all.add(draining || NotReady(m.Node), m.Leaving())
	}
	return t
}

func (t tally) of(pool string) *uses {
	if t[pool] == nil {
		t[pool] = &uses{}
	}
	return t[pool]
}

func (u *use) add(draining, marked bool) {
	if draining {
		u.draining++
	}
	if draining || marked {
		u.leaving++
	}
}

func (t tally) mark(m *reason.Machine) {
	u := t.of(m.Pool())
	u.all.leaving++
	u.repairs.leaving++
}

func (t tally) used(m *reason.Machine, c *reason.Candidate) use {
	if c.Reason == reason.Unhealthy {
		return t.of(m.Pool()).repairs
	}
	return t.of(m.Pool()).all
}

// follow updates the counts for a command.
func (t tally) follow(c *Command) {
	if !counts(c.Machine.Machine) {
		return
	}
	u := t.of(c.Machine.Pool())
	u.repairs.follow(c)
	if !NotReady(c.Machine.Node) { // Otherwise it is counted before and after the command.
		u.all.follow(c)
	}
}

func (u *use) follow(c *Command) {
	was := Disrupting(c.Machine.Machine)
	switch c.Step {
	case Taint:
		if !was {
			u.draining++
			if !c.Machine.Leaving() {
				u.leaving++
			}
		}
	case Keep:
		if was {
			u.draining--
			u.leaving--
		}
	case Hold:
		u.draining--
	case Stop, GiveUp:
		if was {
			u.draining--
		}
		u.leaving--
	case MarkIdle, Remove, Blocked, Replace, Stay, Force, HandOver:
	}
}

func overBudget(m *reason.Machine, allowed int) string {
	return fmt.Sprintf("the disruption budgets of NodePool %s allow %d at present", m.Pool(), allowed)
}
