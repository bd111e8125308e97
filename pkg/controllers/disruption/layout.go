package disruption

import (
	"slices"
	"strings"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/disruption/reason"
	"karve.sh/karve/pkg/fleet/layout"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/consolidate"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
)

// A cheaper layout is reached in steps. A step is a set of machines: without them, the other machines cost less per hour, including those that are
// launched for their pods. A step begins once the waste without it pays for the restarts of its pods (waste.go). To begin a step, Karve only marks the
// machines together. The rest is the same as for all machines that are replaced, and each machine keeps its mark as long as removing it still saves.

// proposal is a step to a cheaper layout.
type proposal struct {
	// claims has the NodeClaims of the machines, sorted.
	claims []string
	// pods has the sorted names of their pods, and restarts their restart costs by GPUNodeClass.
	pods     []string
	restarts map[string]planner.MicroUSD
	// found is the hourly saving on top of the search's other proposals, without most constraints of the pods. saving is the saving that counts: found, or
	// less if a plan with all constraints finds less. It is 0 if unknown.
	found, saving planner.MicroUSD
}

func (p proposal) String() string { return strings.Join(p.claims, " ") }

// searchResult is the result of a search for a cheaper layout.
type searchResult struct {
	// proposals are steps, the most promising first. Constraints between pods are checked before a step begins.
	proposals []proposal
	// surplus has the NodeClaims of the surplus machines, which the cheapest layout does not need.
	surplus []string
	// price is the hourly price of the layout's machines. bound is a lower bound on the price of any machines for the same pods.
	price, bound planner.MicroUSD
}

// with merges the result of a search among the machines in claims. It drops earlier results about any of them.
func (r searchResult) with(claims []string, found searchResult) searchResult {
	again := map[string]bool{}
	for _, claim := range claims {
		again[claim] = true
	}
	isAgain := func(claim string) bool { return again[claim] }
	proposals := slices.DeleteFunc(slices.Clone(r.proposals), func(p proposal) bool { return slices.ContainsFunc(p.claims, isAgain) })
	surplus := slices.DeleteFunc(slices.Clone(r.surplus), isAgain)
	return searchResult{proposals: slices.Concat(found.proposals, proposals), surplus: slices.Concat(found.surplus, surplus)}
}

// propose searches for a cheaper layout.
func propose(l *layout.Layout, search solve.Solver) searchResult {
	found := consolidate.Plan(search, l.Layout)
	out := searchResult{price: found.Price, bound: found.Bound}
	nodes := map[int]string{}
	for i, m := range l.Machines {
		nodes[l.Layout.Machines[i].Node] = m.Claim.Name
	}
	for _, node := range found.Surplus {
		if claim, ok := nodes[node]; ok && found.Price > found.Bound { // Otherwise nothing can be cheaper.
			out.surplus = append(out.surplus, claim)
		}
	}
	if !slices.ContainsFunc(l.Machines, func(m *snapshot.Machine) bool {
		return !slices.Contains(out.surplus, m.Claim.Name) && m.Exposed() > m.ReplicasInUse()
	}) {
		out.surplus = nil // There is no room to steer pods to.
	}
	for _, step := range found.Steps {
		p := proposal{found: step.Saving, restarts: map[string]planner.MicroUSD{}}
		for _, i := range step.Leave {
			m := l.Machines[i]
			if len(l.Layout.Machines[i].Pods) == 0 {
				continue // It has no pods, or they are ending. Unused machines are deleted, if at all, when they have been idle long enough.
			}
			p.claims = append(p.claims, m.Claim.Name)
			class := l.View.Pools[l.Layout.Machines[i].Pool].Class.Name
			p.restarts[class] += 0
			for n, cost := range l.Restarts[i] {
				p.restarts[class] += cost
				p.pods = append(p.pods, l.Layout.Machines[i].Pods[n].Name)
			}
		}
		if len(p.claims) > 0 {
			slices.Sort(p.claims)
			slices.Sort(p.pods)
			out.proposals = append(out.proposals, p)
		}
	}
	return out
}

func usd(amount planner.MicroUSD) string {
	return "$" + v1alpha1.FormatUSD(int64(amount))
}

// verdicts records which machines that are marked as underutilized should keep their marks.
type verdicts struct {
	// stand has the reason for each mark that stays, by NodeClaim. judged has all machines that were checked.
	stand  map[string]*reason.Candidate
	judged []string
	// pending are the machines for which there was no time. The next check begins with them.
	pending []string
}

// standing checks whether removing the machines that are marked as underutilized still saves, because prices change and pods arrive. A machine whose
// removal does not save stays, and the others are checked together with it, one by one. Each check makes a plan for the whole cluster, so standing ends
// after the first check for which stop returns true. Marks that were not checked keep their earlier verdict, and new ones stay.
func (s *pass) standing(before verdicts, stop func() bool) verdicts {
	marked := slices.DeleteFunc(markedForCost(s.machines), func(name string) bool { return !s.named(name).NodePool.MovesPods })
	now := verdicts{stand: map[string]*reason.Candidate{}, judged: slices.Clone(marked)}
	if len(before.pending) > 0 { // This check continues the last one, so marks that were rejected then stay rejected.
		marked = slices.DeleteFunc(marked, func(name string) bool {
			_, stood := before.stand[name]
			return !stood && slices.Contains(before.judged, name)
		})
	}
	first := slices.DeleteFunc(slices.Clone(before.pending), func(name string) bool { return !slices.Contains(marked, name) })
	order := slices.Concat(first, slices.DeleteFunc(slices.Clone(marked), func(name string) bool { return slices.Contains(first, name) }))
	for _, name := range marked {
		verdict, stood := before.stand[name]
		if !stood {
			verdict = reason.Cheaper(0, 1)
		}
		if stood || !slices.Contains(before.judged, name) {
			now.stand[name] = verdict
		}
	}
	now.pending = order
	for len(now.pending) > 0 {
		if now.pending = s.cover(marked, now); len(now.pending) == 0 {
			break
		}
		name := now.pending[0]
		others := slices.DeleteFunc(slices.Clone(marked), func(other string) bool { return other == name })
		saving, why := s.whatIf.saving(others, []string{name})
		if why == "" && saving > 0 {
			now.stand[name] = reason.Cheaper(saving, 1)
			now.pending = now.pending[1:]
		} else {
			// The verdicts before it assumed that it leaves, so they must be checked again.
			delete(now.stand, name)
			order = slices.DeleteFunc(order, func(other string) bool { return other == name })
			marked, now.pending = others, order
		}
		if stop() {
			break
		}
	}
	return now
}

// cover judges the marks that a single plan for all of them can answer, and returns the remaining pending marks. A machine that costs more than
// everything that is launched or stays for the pods of the marked machines saves in any case.
func (s *pass) cover(marked []string, v verdicts) []string {
	price, why := s.whatIf.together(marked)
	if why != "" {
		return v.pending
	}
	return slices.DeleteFunc(slices.Clone(v.pending), func(name string) bool {
		saving := planner.MicroUSD(s.named(name).MicroUSDPerHour()) - price
		if saving > 0 {
			v.stand[name] = reason.Cheaper(saving, 1)
		}
		return saving > 0
	})
}

// consolidate returns the commands for the steps to a cheaper layout that begin now, and for machines that should leave but are kept. They are sorted
// by name.
func (s *pass) consolidate() []command {
	marked := markedForCost(s.machines)
	possible, commands := s.possible(marked)
	s.look(possible)
	s.offered = possible
	saves := map[string]bool{} // A class that saves up for one step pays for no other.
	for _, p := range possible {
		var machines []*reason.Machine
		for _, name := range p.claims {
			machines = append(machines, s.named(name))
		}
		if why := s.refusesTogether(machines); why != "" {
			commands = append(commands, stays(machines, p.saving, why)...)
			continue
		}
		if !s.covers(p, saves) {
			for class := range p.restarts {
				saves[class] = true
			}
			continue
		}
		saving, why := s.whatIf.saves(marked, p)
		if why == later {
			break
		}
		delete(s.saved, p.String())
		if why != "" {
			commands = append(commands, stays(machines, saving, why)...)
			continue
		}
		s.pay(p)
		for _, m := range machines {
			m.Candidate = reason.Cheaper(saving, len(machines))
			marked = append(marked, m.Claim.Name)
			s.pool(m).mark()
			commands = append(commands, command{step: replace, machine: m, reason: string(karpv1.DisruptionReasonUnderutilized)})
		}
	}
	for _, m := range s.machines {
		if m.KeptInLayout == "" || !undecided(m) {
			continue
		}
		m.Candidate = reason.Cheaper(0, 1)
		commands = append(commands, command{step: stay, machine: m, reason: m.KeptInLayout})
	}
	commands = slices.DeleteFunc(commands, func(c command) bool { // It has a report of its own.
		_, decided := s.acted[c.machine.Claim.Name]
		return decided && c.step == stay
	})
	sortByName(commands)
	return commands
}

// stays returns the commands that report why the machines of a step stay.
func stays(machines []*reason.Machine, saving planner.MicroUSD, why string) []command {
	var commands []command
	for _, m := range machines {
		m.Candidate = reason.Cheaper(saving, len(machines))
		commands = append(commands, command{step: stay, machine: m, reason: why})
	}
	return commands
}

// markedForCost returns the NodeClaims of machines that are marked as underutilized and not being deleted.
func markedForCost(machines []*reason.Machine) []string {
	var names []string
	for _, m := range machines {
		if reason.MarkedUnderutilized(m.Machine) && !m.Deleting() {
			names = append(names, m.Claim.Name)
		}
	}
	return names
}

// ready returns the machines of a proposal. It returns nil if one of them is leaving anyway, has a command in this pass, is wanted for pending pods,
// has not been proposed for the settle time, or has other pods than those that the proposal counts. It also returns nil while machines of their pools
// are starting, because their pods may change the layout.
func (s *pass) ready(p proposal) []*reason.Machine {
	var machines []*reason.Machine
	var pods []string
	for _, name := range p.claims {
		m := s.named(name)
		if m == nil || !undecided(m) || s.acted[name] || m.Wanted || !m.Proposed || m.NodePool.Launching {
			return nil
		}
		machines = append(machines, m)
		for _, pod := range m.Moving() {
			pods = append(pods, podName(pod))
		}
	}
	if slices.Sort(pods); !slices.Equal(pods, p.pods) {
		return nil
	}
	return machines
}

// undecided reports whether nothing has been decided about the machine yet.
func undecided(m *reason.Machine) bool {
	return m.Candidate == nil && !m.Leaving() && m.Started() && !disrupting(m.Machine)
}

// refusesTogether returns why the machines of a step are not marked now, or "" if they are.
func (s *pass) refusesTogether(machines []*reason.Machine) string {
	more := map[string]int{}
	for _, m := range machines {
		more[m.Pool()]++
	}
	for _, m := range machines {
		if allowed := s.allowed(m, reason.Cheaper(0, 1)); s.pool(m).leaving+more[m.Pool()] > allowed {
			return overBudget(m, allowed)
		}
		if why := s.refuses(m, reason.Cheaper(0, 1)); why != "" {
			return why
		}
	}
	return ""
}
