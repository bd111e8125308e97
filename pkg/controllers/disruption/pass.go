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

// pass is what one pass of the controller decides on, and while it decides what it has decided so far.
type pass struct {
	now time.Time
	// settle is how long a tainted Node is watched before its NodeClaim is deleted, and how long a candidate has to be one before it is marked.
	settle time.Duration
	// machines are all, by name. pools has the record of each pool that has machines or is there, by name.
	machines []*reason.Machine
	pools    map[string]*pool
	// waiting are the pods that are not bound.
	waiting []*corev1.Pod
	// proposals are steps to a cheaper layout, the best first.
	proposals []proposal
	pods      pods
	whatIf    simulator

	// going are the names of the NodeClaims that are marked and whose pods have their new place, idle the idle machines that are about to go.
	going []string
	idle  []*reason.Machine
	// drains names the NodeClaim that is drained with pods of a PodDisruptionBudget, by the name of the latter.
	drains map[string]string
}

// pool is the record of a pool.
type pool struct {
	reason.Pool
	budget
	// leavers are its machines whose time to go has come and that hold pods.
	leavers []*reason.Machine
	// target is the Node that its pods are handed over to at present, "" where it is to come; nil when none are.
	target *string
	// handed is when pods of its machines were last handed over, as the controller remembers it.
	handed handed
}

// pods knows what keeps pods where they are.
type pods interface {
	reason.Pods
	// Budgets returns the PodDisruptionBudgets of those of the pods that a drain would evict.
	Budgets(pods []*corev1.Pod) []string
	// Hold returns which pod that holds no replica would have no place if all of the machines went, and others took so much of nodes; "" when none.
	Hold(going []*snapshot.Machine, taken map[string]planner.Resources) string
}

// clusterPods are the pods of a cluster as it was read.
type clusterPods struct {
	karpenter.Evictions
	*retention.OtherNodes
	keeps func(*snapshot.Machine) string
}

func (p clusterPods) Keeps(m *snapshot.Machine) string { return p.keeps(m) }

// simulator answers what would become of pods, and of what the machines cost, if machines left. Machines are named by their NodeClaims.
type simulator interface {
	// planned returns why the last of the machines, after the others, should not be marked: whose pods would have no place then, on machines to come either. It returns
	// "" when all have one.
	planned(claims []string) string
	// place returns the same for the machines that have started and are healthy.
	place(claims []string) string
	// placements returns where the pods of the machines would go now, by the pods' names.
	placements(claims []string) map[string]placement
	// saving returns by how much the machines cost less an hour when those of claims leave after those that are marked, and why they should not; "" when they may.
	saving(marked, claims []string) (planner.MicroUSD, string)
	// saves returns the saving of a proposal after those that are marked, and why it is not to be taken; "" when it is.
	saves(marked []string, p proposal) (planner.MicroUSD, string)
}

// pool returns the record of a machine's pool.
func (s *pass) pool(m *reason.Machine) *pool { return s.pools[m.Pool()] }

// named returns the machine of a NodeClaim; nil when there is none.
func (s *pass) named(claim string) *reason.Machine {
	for _, m := range s.machines {
		if m.Claim.Name == claim {
			return m
		}
	}
	return nil
}

// blocked returns what on a candidate keeps it at present, of its pods only those that are asked; "" when nothing does.
func (s *pass) blocked(m *reason.Machine, c *reason.Candidate, asked []*corev1.Pod) string {
	return reason.Of(c.Reason).Blocked(m, c, asked, s.pods)
}

// allowed returns how many machines of the pool may be disrupted at once as such candidates.
func (s *pass) allowed(m *reason.Machine, c *reason.Candidate) int {
	return reason.Of(c.Reason).Allowed(m.NodePool)
}
