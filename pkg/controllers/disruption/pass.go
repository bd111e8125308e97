package disruption

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/controllers/disruption/reason"
	"karve.sh/karve/pkg/fleet/retention"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/watchdog"
)

// pass is the input of the decisions in one pass of the controller, together with the decisions so far.
type pass struct {
	now time.Time
	// view is the view from which the machines were read. What-if questions edit it.
	view *snapshot.View
	// settle is how long a tainted Node is watched before its NodeClaim is deleted, and how long a candidate must last before it is marked.
	settle time.Duration
	// machines has all machines, sorted by name. pools has each pool that exists or has machines, by name.
	machines []*reason.Machine
	pools    map[string]*pool
	// byName has the machines by the names of their NodeClaims.
	byName map[string]*reason.Machine
	// waiting are the pending pods. placed maps the names of pending pods and headroom to the names of the Nodes on which the plans place them.
	waiting []*corev1.Pod
	placed  map[string]string
	// proposals are steps to a cheaper layout, the best first.
	proposals []proposal
	// searched reports whether all machines have been searched for proposals since the controller began.
	searched bool
	// saved has the known savings of proposals, by their names. accounts has the accounts of the GPUNodeClasses.
	saved    map[string]saved
	accounts map[string]account
	// offered are the proposals that could begin in this pass, in the order in which they are paid for. begun are those that begin.
	offered, begun []proposal
	pods           pods
	whatIf         simulator
	// visits reports the machine about which the pass decides to the watchdog. It may be nil.
	visits watchdog.Visit

	// going holds the NodeClaims that are marked and whose pods have room elsewhere. idle holds the idle machines that are about to be deleted.
	going []string
	idle  []*reason.Machine
	// drains maps the name of a PodDisruptionBudget to the NodeClaim that is being drained with its pods.
	drains map[string]string
	// acted has the NodeClaims of machines with a command in this pass, and whether the command changes them. If it does, they take part in no step to a
	// cheaper layout.
	acted map[string]bool
}

// pool is the record of a pool in one pass.
type pool struct {
	reason.Pool
	// budget has the machines that use the budgets for all reasons but Unhealthy, and repairs those that use the one for Unhealthy.
	budget
	repairs budget
	// leavers are its machines that are due to be deleted and have pods.
	leavers []*reason.Machine
	// target is the name of the Node to which its pods are being handed over, or "" if the Node does not exist yet. It is nil if no pods are handed over.
	target *string
	// handed records when pods of its machines were last handed over, from the controller's memory.
	handed handed
}

// pods answers what keeps pods on their nodes.
type pods interface {
	reason.Pods
	// Budgets returns the PodDisruptionBudgets of the pods that a drain would evict.
	Budgets(pods []*corev1.Pod) []string
	// Hold returns which foreign pod would have no room if all of the machines were removed and others took these resources of nodes. It returns "" if all
	// foreign pods would have room.
	Hold(going []*snapshot.Machine, taken map[string]planner.Resources) string
}

// clusterPods implements pods for a snapshot of a cluster.
type clusterPods struct {
	karpenter.Evictions
	*retention.OtherNodes
	keeps func(*snapshot.Machine) string
}

func (p clusterPods) Keeps(m *snapshot.Machine) string { return p.keeps(m) }

// questionsFor is how long a pass asks what-if questions. It asks at least one question of each kind.
const questionsFor = time.Second

// later is the answer to a question for which this pass has no time. The next passes ask it again.
const later = "whether its pods have another place is not known yet"

// simulator answers what would happen to pods and to the price if machines were removed. Machines are named by their NodeClaims. Each answer requires a
// plan for the cluster, so one pass has time for only some answers. It gets the answer later to the other questions.
type simulator interface {
	// expect announces the machines of the next questions, in order, so that one plan can answer for many of them.
	expect(q question, claims []string)
	// planned returns why the last of the machines, after the others, should not be marked: its pods would have no room, even on machines that are
	// launched for them. It returns "" if all pods would have room.
	planned(claims []string) string
	// place is like planned, but considers only room on machines that have started and are healthy.
	place(claims []string) string
	// placements returns where the pods of the machines would be placed now, by the names of the pods.
	placements(claims []string) map[string]placement
	// together returns the highest hourly price of the machines that are launched or stay for the pods of these machines if all of these are removed. It
	// also returns why they cannot all be removed, or "" if they can.
	together(claims []string) (planner.MicroUSD, string)
	// saving returns the hourly saving of removing claims after the marked machines. It also returns why they should not be removed, or "" if they may.
	saving(marked, claims []string) (planner.MicroUSD, string)
	// saves returns the saving of a proposal after the marked machines. It also returns why the proposal must not begin, or "" if it may.
	saves(marked []string, p proposal) (planner.MicroUSD, string)
}

// visit reports the machine about which the pass decides from now on.
func (s *pass) visit(m *snapshot.Machine) {
	if s.visits != nil {
		s.visits("NodeClaim", m.Claim)
	}
}

// pool returns the record of a machine's pool.
func (s *pass) pool(m *reason.Machine) *pool { return s.pools[m.Pool()] }

// named returns the machine of a NodeClaim, or nil if there is none.
func (s *pass) named(claim string) *reason.Machine { return s.byName[claim] }

// blocked returns what keeps a candidate now, or "" if nothing does. It only checks the pods in asked.
func (s *pass) blocked(m *reason.Machine, c *reason.Candidate, asked []*corev1.Pod) string {
	return reason.Of(c.Reason).Blocked(m, c, asked, s.pods)
}

// allowed returns how many machines of the pool may be disrupted at the same time for the reason of the candidate.
func (s *pass) allowed(m *reason.Machine, c *reason.Candidate) int {
	return reason.Of(c.Reason).Allowed(m.NodePool)
}
