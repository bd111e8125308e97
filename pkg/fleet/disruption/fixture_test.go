package disruption

import (
	"testing"
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/layout"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/planning/checked"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// pass has the input of decisions, which tests edit, and what was decided.
type pass struct {
	*decider
	seen *Seen
	decisions
	// proposals are the steps to a cheaper layout, and accounts and savings the memory of them.
	proposals []Proposal
	accounts  Accounts
	savings   map[string]saved
	searched  bool
	begun
}

func always() bool { return true }

// over returns the pass over what was seen, without memory.
func over(seen *Seen) *pass {
	d := &decider{fleet: seen.copied(), handed: map[string]handed{}, waiting: seen.waiting}
	d.whatIf = newWhatIf(seen.view, seen.others, seen.unhealthy(), always)
	accounts := Accounts{}
	for i := range seen.view.Pools {
		if class := seen.view.Pools[i].Class; class != nil {
			accounts[class.Name] = Account{At: seen.now}
		}
	}
	return &pass{decider: d, seen: seen, accounts: accounts, savings: map[string]saved{}}
}

// look returns what a round sees of a cluster. It diagnoses machines only if the tolerations for unhealthy machines are given.
func look(cluster *facts.Cluster, borne ...repair.Tolerations) *Seen {
	plan, headroom := checked.Suppose(snapshot.Build(cluster), 0)
	var diagnosis repair.Diagnosis
	for _, tolerations := range borne {
		diagnosis = repair.Diagnose(cluster, plan.View.Machines, tolerations)
	}
	return Look(cluster, &plan, &headroom, diagnosis, karpenter.Evictions{}, 0)
}

// passOf returns the pass over a cluster as it is.
func passOf(cluster *facts.Cluster, borne ...repair.Tolerations) *pass {
	return over(look(cluster, borne...))
}

// decide decides the steps of the machines.
func decide(s *pass) ([]Command, time.Duration) {
	s.decisions = s.decider.decide(func(*records.Machine) {})
	return s.decisions.commands, s.decisions.again
}

// consolidate decides which of the proposals begin.
func (s *pass) consolidate() []Command {
	b := beginning{decider: s.decider, acted: actedOn(s.decisions.commands), tally: s.decisions.tally, saved: s.savings}
	s.begun = b.begin(s.proposals, s.accounts, s.searched)
	return s.begun.commands
}

func (s *pass) toSteer() []string {
	var names []string
	for _, m := range s.decider.toSteer(s.targets) {
		names = append(names, m.Claim.Name)
	}
	return names
}

func (s *pass) standing(before verdicts, stop func() bool) verdicts {
	return s.fleet.standing(s.whatIf, before, stop)
}

func (s *pass) searcher() *searcher {
	return &searcher{&s.fleet, s.seen.view, s.seen.placed, count(s.machines), Limits{}}
}

func (s *pass) lay(part *layout.Part, keeps func(*records.Machine) string) layout.Layout {
	return s.searcher().lay(part, keeps)
}

// fakePods returns the pass's fake for pods, and installs it first if necessary. fakeWhatIf does the same for the simulator.
func (s *pass) fakePods() *fakePods {
	f, ok := s.pods.(*fakePods)
	if !ok {
		f = &fakePods{stays: s.pods.Keeps, hold: s.pods.Hold}
		s.pods = f
	}
	return f
}

func (s *pass) fakeWhatIf() *fakeWhatIf {
	f, ok := s.whatIf.(*fakeWhatIf)
	if !ok {
		f = &fakeWhatIf{simulator: s.whatIf}
		s.whatIf = f
	}
	return f
}

// keeper runs rounds one after the other and remembers what the controller would.
type keeper struct {
	memory Memory
	limits Limits
	// written has the accounts that were written. If fails is true, no more are.
	written []*v1alpha1.Waste
	fails   bool
	// searches counts the searches for a cheaper layout.
	searches int
}

// seen returns what a round sees of the cluster if every pod may be evicted and nothing has to settle.
func (s *simulation) seen() *Seen {
	seen := look(s.cluster)
	seen.pods = &fakePods{blocker: nothingBlocks, stays: seen.pods.Keeps, hold: seen.pods.Hold}
	return seen
}

// looks runs a round, some time after the last one. It returns the commands for steps to a cheaper layout, and false if the accounts could not be written.
func (s *simulation) looks(k *keeper, after time.Duration) ([]Command, bool) {
	s.cluster.Now = s.cluster.Now.Add(after)
	round, _ := Begin(s.seen(), k.memory, k.limits)
	again, did := round.Search(maxWait, k.limits)
	if did.Ran {
		k.searches++
	}
	before := round.Memory()
	commands := round.Cheapen(again)
	k.memory = round.Memory()
	for _, account := range commands.Accounts {
		if k.fails {
			k.memory = k.memory.Unpaid(before)
			return nil, false
		}
		k.written = append(k.written, account.Waste)
		k.memory = k.memory.Written(account)
	}
	return commands.Steps, true
}

// waits runs rounds, some time after each other, in which no step begins.
func (s *simulation) waits(t *testing.T, k *keeper, looks int, after time.Duration) {
	t.Helper()
	for range looks {
		if commands, ok := s.looks(k, after); !ok || len(commands) > 0 {
			t.Fatalf("%v, written: %t", steps(commands), ok)
		}
	}
}

// searchesLayout runs the search for a cheaper layout, and returns when the next one is due.
func (s *simulation) searchesLayout(k *keeper) time.Duration {
	seen := s.seen()
	m, f := k.memory.at(seen), seen.copied()
	x := searcher{&f, seen.view, seen.placed, count(f.machines), k.limits}
	did, again := x.run(m)
	if did.Ran {
		k.searches++
	}
	k.memory = *m
	return again
}
