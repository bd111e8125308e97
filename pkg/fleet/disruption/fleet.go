package disruption

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/fleet/disruption/reason"
	"karve.sh/karve/pkg/fleet/retention"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/records"
)

// fleet has the machines and pools of a round. Decisions read it and do not change it.
type fleet struct {
	now time.Time
	// settle is how long a tainted Node is watched before its NodeClaim is deleted, and how long a candidate must last before it is marked.
	settle time.Duration
	// machines has all machines, sorted by name, and byName the same by the names of their NodeClaims.
	machines []*reason.Machine
	byName   map[string]*reason.Machine
	// pools has each pool that exists or has machines, by name.
	pools map[string]*reason.Pool
	pods  pods
}

// pods answers what keeps pods on their nodes.
type pods interface {
	reason.Pods
	// Budgets returns the PodDisruptionBudgets of the pods that a drain would evict.
	Budgets(pods []*corev1.Pod) []string
	// Hold returns which foreign pod would have no room if all of the machines were removed and others took these resources of nodes. It returns "" if all
	// foreign pods would have room.
	Hold(going []*records.Machine, taken map[string]planner.Resources) string
}

// clusterPods implements pods for a snapshot of a cluster.
type clusterPods struct {
	karpenter.Evictions
	*retention.OtherNodes
	keeps func(*records.Machine) string
}

func (p clusterPods) Keeps(m *records.Machine) string { return p.keeps(m) }

// poolNamed returns the record of a pool, and creates it if necessary.
func (f *fleet) poolNamed(name string) *reason.Pool {
	if f.pools[name] == nil {
		f.pools[name] = &reason.Pool{Name: name}
	}
	return f.pools[name]
}

func (f *fleet) add(m *records.Machine) *reason.Machine {
	record := &reason.Machine{Machine: m, NodePool: f.poolNamed(m.Pool())}
	f.machines = append(f.machines, record)
	f.byName[m.Claim.Name] = record
	return record
}

// copied returns a fleet with copies of the machines, so that decisions for a round do not change what was read.
func (f *fleet) copied() fleet {
	c := *f
	c.machines, c.byName = nil, map[string]*reason.Machine{}
	for _, m := range f.machines {
		same := *m
		c.machines = append(c.machines, &same)
		c.byName[m.Claim.Name] = &same
	}
	return c
}

// named returns the machine of a NodeClaim, or nil if there is none.
func (f *fleet) named(claim string) *reason.Machine { return f.byName[claim] }

// blocked returns what keeps a candidate now, or "" if nothing does. It only checks the pods in asked.
func (f *fleet) blocked(m *reason.Machine, c *reason.Candidate, asked []*corev1.Pod) string {
	return reason.Of(c.Reason).Blocked(m, c, asked, f.pods)
}

// allowed returns how many machines of the pool may be disrupted at the same time for the reason of the candidate.
func (f *fleet) allowed(m *reason.Machine, c *reason.Candidate) int {
	return reason.Of(c.Reason).Allowed(m.NodePool)
}

// unhealthy returns the names of the Nodes of unhealthy machines.
func (f *fleet) unhealthy() []string {
	var names []string
	for _, m := range f.machines {
		if m.Health != nil && m.Node != nil {
			names = append(names, m.Node.Name)
		}
	}
	return names
}

// choose sets the candidate of each machine.
func (f *fleet) choose() {
	for _, m := range f.machines {
		m.Candidate = reason.First(m, f.now)
	}
}

// poolsOf returns the pools of a proposal's machines, starting with that of the first machine.
func (f *fleet) poolsOf(p Proposal) []string {
	var pools []string
	seen := map[string]bool{}
	for _, name := range p.Claims {
		if pool := f.named(name).Pool(); !seen[pool] {
			seen[pool] = true
			pools = append(pools, pool)
		}
	}
	return pools
}

func claimsOf(machines []*reason.Machine) []string {
	var names []string
	for _, m := range machines {
		names = append(names, m.Claim.Name)
	}
	return names
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

func podName(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }
