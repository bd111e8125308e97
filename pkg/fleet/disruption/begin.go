package disruption

import (
	"slices"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/fleet/disruption/reason"
	"karve.sh/karve/pkg/planner"
)

// beginning decides which steps to a cheaper layout begin.
type beginning struct {
	*decider
	// acted has the NodeClaims of machines with a command in this round, and whether the command changes them. If it does, they take part in no step.
	acted map[string]bool
	tally tally
	// saved has the known savings of proposals, by their names.
	saved map[string]saved
}

// begun is what was decided about steps to a cheaper layout.
type begun struct {
	// commands are for the steps that begin now, and for machines that should leave but are kept. They are sorted by name.
	commands []Command
	// known are the proposals without those that do not save. offered could begin now, in the order in which they are paid for, and paid do.
	known, offered, paid []Proposal
}

// actedOn returns the NodeClaims of machines with a command, and whether the command changes them.
func actedOn(commands []Command) map[string]bool {
	acted := map[string]bool{}
	for _, c := range commands {
		acted[c.Machine.Claim.Name] = !c.Step.Reports()
	}
	return acted
}

// begin decides which proposals begin. It pays for them with the accounts. searched reports whether all machines have been searched since the controller began:
// until then, there may be other proposals, and accounts do not grow.
func (b *beginning) begin(proposals []Proposal, accounts Accounts, searched bool) begun {
	marked := markedForCost(b.machines)
	out := b.possible(proposals, marked)
	if searched {
		accounts.Look(b.now, out.offered, out.known)
	}
	decided := map[string]bool{}
	stay := func(p Proposal, saving planner.MicroUSD, why string) {
		out.commands = append(out.commands, staying(b.machinesOf(p), saving, why)...)
	}
	out.paid = accounts.Spend(out.offered, func(p Proposal) bool {
		why := b.refusesTogether(b.machinesOf(p), b.tally)
		if why != "" {
			stay(p, p.Saving, why)
		}
		return why == ""
	}, func(p Proposal) Answer {
		saving, why := b.whatIf.saves(marked, p)
		if why == later {
			return Unknown
		}
		delete(b.saved, p.String())
		if why != "" {
			stay(p, saving, why)
			return Refused
		}
		for _, m := range b.machinesOf(p) {
			marked = append(marked, m.Claim.Name)
			b.tally.mark(m)
			out.commands = append(out.commands, Command{
				Step: Replace, Machine: m, Candidate: reason.Cheaper(saving, len(p.Claims)), Reason: string(karpv1.DisruptionReasonUnderutilized),
			})
		}
		return Begins
	})
	for _, c := range out.commands {
		decided[c.Machine.Claim.Name] = true
	}
	for _, m := range b.machines {
		if m.KeptInLayout != "" && undecided(m) && !decided[m.Claim.Name] {
			out.commands = append(out.commands, Command{Step: Stay, Machine: m, Candidate: reason.Cheaper(0, 1), Reason: m.KeptInLayout})
		}
	}
	out.commands = slices.DeleteFunc(out.commands, func(c Command) bool { // It has a report of its own.
		_, acted := b.acted[c.Machine.Claim.Name]
		return acted && c.Step == Stay
	})
	sortByName(out.commands)
	return out
}

// possible returns the proposals that could begin now, with their savings, and commands for the machines of those that do not save. It computes unknown
// savings.
func (b *beginning) possible(proposals []Proposal, marked []string) (out begun) {
	for _, p := range proposals {
		machines := b.ready(p)
		if machines == nil {
			out.known = append(out.known, p)
			continue
		}
		if known, ok := b.saved[p.String()]; ok && b.now.Before(known.until) {
			p.Saving = known.perHour
		} else {
			saving, why := b.whatIf.saves(marked, p)
			switch why {
			case "":
				p.Saving = min(saving, p.Found)
				b.saved[p.String()] = saved{p.Saving, b.now.Add(savedFor)}
			case later:
				out.known = append(out.known, p)
				continue
			default:
				out.commands = append(out.commands, staying(machines, saving, why)...)
				continue
			}
		}
		out.known, out.offered = append(out.known, p), append(out.offered, p)
	}
	out.offered = Ranked(out.offered)
	return out
}

func (f *fleet) machinesOf(p Proposal) []*reason.Machine {
	var machines []*reason.Machine
	for _, name := range p.Claims {
		machines = append(machines, f.named(name))
	}
	return machines
}

func staying(machines []*reason.Machine, saving planner.MicroUSD, why string) []Command {
	var commands []Command
	for _, m := range machines {
		commands = append(commands, Command{Step: Stay, Machine: m, Candidate: reason.Cheaper(saving, len(machines)), Reason: why})
	}
	return commands
}

// ready returns the machines of a proposal. It returns nil if one of them is leaving anyway, has a command in this round, is wanted for pending pods,
// has not been proposed for the settle time, or has other pods than those that the proposal counts. It also returns nil while machines of their pools
// are starting, because their pods may change the layout.
func (b *beginning) ready(p Proposal) []*reason.Machine {
	var machines []*reason.Machine
	var pods []string
	for _, name := range p.Claims {
		m := b.named(name)
		if m == nil || !undecided(m) || b.acted[name] || m.Wanted || !m.Proposed || m.NodePool.Launching {
			return nil
		}
		machines = append(machines, m)
		for _, pod := range m.Moving() {
			pods = append(pods, podName(pod))
		}
	}
	if slices.Sort(pods); !slices.Equal(pods, p.Pods) {
		return nil
	}
	return machines
}

// undecided reports whether nothing has been decided about the machine yet.
func undecided(m *reason.Machine) bool {
	return m.Candidate == nil && !m.Leaving() && m.Started() && !Disrupting(m.Machine)
}

// refusesTogether returns why the machines of a step are not marked now, or "" if they are.
func (f *fleet) refusesTogether(machines []*reason.Machine, t tally) string {
	more := map[string]int{}
	for _, m := range machines {
		more[m.Pool()]++
	}
	for _, m := range machines {
		if allowed := f.allowed(m, reason.Cheaper(0, 1)); t.of(m.Pool()).all.leaving+more[m.Pool()] > allowed {
			return overBudget(m, allowed)
		}
		if why := f.refuses(m, reason.Cheaper(0, 1), t); why != "" {
			return why
		}
	}
	return ""
}

// untilProposed returns the settle time if a proposal has not lasted that long yet.
func (f *fleet) untilProposed(proposals []Proposal) time.Duration {
	for _, p := range proposals {
		for _, name := range p.Claims {
			if m := f.named(name); m == nil || !m.Proposed {
				return f.settle
			}
		}
	}
	return maxWait
}
