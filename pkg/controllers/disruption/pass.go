package disruption

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/controllers/disruption/reason"
	"karve.sh/karve/pkg/fleet/retention"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
)

// pass is the input of the decisions in one pass of the controller, together with the decisions so far.
type pass struct {
	now time.Time
	// view is what the machines were read from. Questions about other states are edits of it.
	view *snapshot.View
	// settle is how long a tainted Node is watched before its NodeClaim is deleted, and how long a candidate must have been one before it is marked.
	settle time.Duration
	// machines has all machines, sorted by name. pools has each pool that exists or has machines, by name.
	machines []*reason.Machine
	pools    map[string]*pool
	// waiting are the pending pods.
	waiting []*corev1.Pod
	// proposals are steps to a cheaper layout, the best first.
	proposals []proposal
	pods      pods
	whatIf    simulator

	// going has the NodeClaims that are marked and whose pods have room elsewhere, and idle the idle machines that are about to be deleted.
	going []string
	idle  []*reason.Machine
	// drains has the NodeClaim that is being drained with pods of a PodDisruptionBudget, by the name of the latter.
	drains map[string]string
}

// pool is the record of a pool in one pass.
type pool struct {
	reason.Pool
	budget
	// leavers are its machines that are due to be deleted and have pods.
	leavers []*reason.Machine
	// target is the name of the Node that its pods are handed over to now, and "" if it does not exist yet. It is nil if no pods are handed over.
	target *string
	// handed describes when pods of its machines were last handed over, from the controller's memory.
	handed handed
}

// pods tells what keeps pods on their nodes.
type pods interface {
	reason.Pods
	// Budgets returns the PodDisruptionBudgets of the pods that a drain would evict.
	Budgets(pods []*corev1.Pod) []string
	// Hold returns which foreign pod would have no room if all of the machines were removed and others took these resources of nodes. It returns "" if all would
	// have room.
	Hold(going []*snapshot.Machine, taken map[string]planner.Resources) string
}

// clusterPods implements pods for a cluster as it was read.
type clusterPods struct {
	karpenter.Evictions
	*retention.OtherNodes
	keeps func(*snapshot.Machine) string
}

func (p clusterPods) Keeps(m *snapshot.Machine) string { return p.keeps(m) }

// simulator tells what would happen to pods and to the price if machines were removed. Machines are named by their NodeClaims.
type simulator interface {
	// planned returns why the last of the machines, after the others, should not be marked: its pods would have no room, even on machines that are launched for
	// them. It returns "" if all pods would have room.
	planned(claims []string) string
	// place returns the same, but only for room on machines that have started and are healthy.
	place(claims []string) string
	// placements returns where the pods of the machines would be placed now, by the names of the pods.
	placements(claims []string) map[string]placement
	// saving returns the saving per hour if claims are removed after those that are marked. It also returns why they should not be removed, and "" if they may.
	saving(marked, claims []string) (planner.MicroUSD, string)
	// saves returns the saving of a proposal after those that are marked. It also returns why the proposal must not be taken, and "" if it may.
	saves(marked []string, p proposal) (planner.MicroUSD, string)
}

// pool returns the record of a machine's pool.
func (s *pass) pool(m *reason.Machine) *pool { return s.pools[m.Pool()] }

// named returns the machine of a NodeClaim, and nil if there is none.
func (s *pass) named(claim string) *reason.Machine {
	for _, m := range s.machines {
		if m.Claim.Name == claim {
			return m
		}
	}
	return nil
}

// blocked returns what keeps a candidate now, and "" if nothing does. Only the pods in asked are checked.
func (s *pass) blocked(m *reason.Machine, c *reason.Candidate, asked []*corev1.Pod) string {
	return reason.Of(c.Reason).Blocked(m, c, asked, s.pods)
}

// allowed returns how many machines of the pool may be disrupted at the same time for the reason of the candidate.
func (s *pass) allowed(m *reason.Machine, c *reason.Candidate) int {
	return reason.Of(c.Reason).Allowed(m.NodePool)
}
