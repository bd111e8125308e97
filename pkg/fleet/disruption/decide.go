package disruption

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/fleet/disruption/reason"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

const (
	// maxWait is the longest time between two rounds. Schedules of budgets open and close meanwhile.
	maxWait = time.Minute
	// soon is the delay before a step that is almost due.
	soon = time.Second
)

// decider decides the next steps of the machines. It has what the decisions read. What they add up to is in [progress].
type decider struct {
	fleet
	whatIf simulator
	// handed records when pods of the machines of each pool were last handed over.
	handed map[string]handed
	// waiting are the pending pods.
	waiting []*corev1.Pod
}

// progress is what the steps of a round add up to so far. Later steps depend on it: machines share budgets, room and PodDisruptionBudgets.
type progress struct {
	tally tally
	// going holds the NodeClaims that are marked and whose pods have room elsewhere. idle holds the idle machines that are about to be deleted.
	going []string
	idle  []*reason.Machine
	// due holds, by pool, the marked machines that are due to be deleted and have pods.
	due map[string][]*reason.Machine
	// drains maps the name of a PodDisruptionBudget to the NodeClaim that is being drained with its pods.
	drains map[string]string
}

// move is what is decided about one machine.
type move struct {
	// command is its next step, or nil if there is none now.
	command *Command
	// wait is when another step may be due, or 0 if that is unknown.
	wait time.Duration
	// goes reports whether the machine is about to be deleted, and due whether it is due and its pods have to be handed over first.
	goes, due bool
}

// begins returns the progress before the first step.
func (f *fleet) begins() progress {
	p := progress{tally: count(f.machines), due: map[string][]*reason.Machine{}, drains: map[string]string{}}
	for _, m := range f.machines {
		if m.Deleting() {
			f.drain(p.drains, m)
		}
	}
	return p
}

// drain records that a machine is being drained with the pods of PodDisruptionBudgets.
func (f *fleet) drain(drains map[string]string, m *reason.Machine) {
	for _, pdb := range f.pods.Budgets(m.Pods) {
		if drains[pdb] == "" {
			drains[pdb] = m.Claim.Name
		}
	}
}

// follow adds what was decided about a machine.
func (d *decider) follow(p *progress, m *reason.Machine, decided move) {
	switch {
	case decided.goes && m.Replacing() != "":
		p.going = append(p.going, m.Claim.Name)
	case decided.goes:
		p.idle = append(p.idle, m)
	}
	if decided.due {
		p.due[m.Pool()] = append(p.due[m.Pool()], m)
	}
	if decided.command != nil {
		p.tally.follow(decided.command)
		if decided.command.Step == Remove {
			d.drain(p.drains, m)
		}
	}
}

// decisions are the next steps of the machines, at most one for each and sorted by name.
type decisions struct {
	progress
	commands []Command
	// again is the latest time of the next round.
	again time.Duration
	// targets has the names of the Nodes to which pods are being handed over, by pool. The name is "" if the Node does not exist yet.
	targets map[string]string
}

// decide returns the next steps. It begins no step to a cheaper layout. visit is called with each machine before a decision about it.
func (d *decider) decide(visit func(*records.Machine)) decisions {
	out := decisions{progress: d.begins(), again: maxWait, targets: map[string]string{}}
	forced, alone := d.forced()
	out.commands = forced
	if alone {
		out.again = soon
		return out
	}
	machines := slices.DeleteFunc(d.ordered(), func(m *reason.Machine) bool {
		return reason.Forced(m) || m.Deleting() || m.Node == nil || facts.IsSetAside(m.Claim)
	})
	d.whatIf.expect(asIs, claimsOf(slices.DeleteFunc(slices.Clone(machines), func(m *reason.Machine) bool { return m.Replacing() == "" || m.Candidate == nil })))
	for _, m := range machines {
		visit(m.Machine)
		decided := d.next(m, &out.progress)
		d.follow(&out.progress, m, decided)
		if decided.command != nil {
			out.commands = append(out.commands, *decided.command)
		}
		if decided.wait > 0 {
			out.again = min(out.again, decided.wait)
		}
	}
	for _, pool := range slices.Sorted(maps.Keys(out.due)) {
		commands, target := d.nextHandOvers(pool, &out.progress)
		out.targets[pool] = target
		out.commands = append(out.commands, commands...)
		out.again = min(out.again, soon)
	}
	out.again = min(out.again, d.untilUnhealthy(), d.untilSteady())
	out.commands = merged(out.commands, d.marks(out.tally))
	return out
}

// merged adds the commands for marks. A mark replaces a command for an idle machine.
func merged(commands, marks []Command) []Command {
	at := map[string]int{}
	for i := range commands {
		at[commands[i].Machine.Claim.Name] = i
	}
	for _, c := range marks {
		i, ok := at[c.Machine.Claim.Name]
		switch {
		case !ok:
			commands = append(commands, c)
		case c.Step == Replace:
			commands[i] = c
		}
	}
	sortByName(commands)
	return commands
}

func sortByName(commands []Command) {
	slices.SortStableFunc(commands, func(a, b Command) int { return strings.Compare(a.Machine.Claim.Name, b.Machine.Claim.Name) })
}

// next decides about a machine.
func (d *decider) next(m *reason.Machine, p *progress) move {
	if m.Replacing() != "" {
		return d.nextReplaced(m, p)
	}
	return d.nextIdle(m, p)
}

// forced returns the commands for machines that are deleted immediately. If alone is true, this round does nothing else, because the NodeClaim of one of
// them is not being deleted yet. Karve decides about other machines once the pods of that machine count as demand.
func (d *decider) forced() (commands []Command, alone bool) {
	for _, m := range d.ordered() {
		if reason.Forced(m) && !drainOver(m.Machine, d.now) {
			commands = append(commands, Command{Step: Force, Machine: m, Reason: m.Health.Message})
			alone = alone || !m.Deleting()
		}
	}
	if alone {
		sortByName(commands)
	}
	return commands, alone
}

// ordered returns the machines in the order of decisions. Marked machines that are disrupting come first, because their pods take room first. Empty
// machines come before idle ones with pods, because an empty machine that is deleted offers no room for those pods.
func (d *decider) ordered() []*reason.Machine {
	machines := slices.Clone(d.machines)
	slices.SortStableFunc(machines, func(a, b *reason.Machine) int { return cmp.Compare(rank(a), rank(b)) })
	return machines
}

func rank(m *reason.Machine) int {
	switch {
	case m.Replacing() != "" && Disrupting(m.Machine):
		return 0
	case !m.NoReplicasHeld():
		return 1
	case m.Empty():
		return 2
	}
	return 3
}

// untilUnhealthy returns the time until the next unhealthy machine is no longer tolerated.
func (d *decider) untilUnhealthy() time.Duration {
	soonest := maxWait
	for _, m := range d.machines {
		if m.Health != nil && m.Health.Wait > 0 {
			soonest = min(soonest, m.Health.Wait)
		}
	}
	return soonest
}

// untilSteady returns the settle time if a candidate has not lasted that long yet.
func (d *decider) untilSteady() time.Duration {
	for _, m := range d.machines {
		if m.Candidate != nil && !m.Steady {
			return d.settle
		}
	}
	return maxWait
}
