package snapshot

import (
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// nominating decides whether pods that are nominated for a node still need a plan. If other pods have to end first, the nomination is the scheduler's,
// for preemption, and the pod needs no other machine.
type nominating struct {
	cluster *facts.Cluster
	index   *facts.Index
	// machines has the machines by the names of their Nodes.
	machines func() map[string]*records.Machine
}

func newNominating(c *facts.Cluster, machines []records.Machine) *nominating {
	return &nominating{c, c.Indexed(), sync.OnceValue(func() map[string]*records.Machine {
		named := make(map[string]*records.Machine, len(machines))
		for i := range machines {
			if m := &machines[i]; m.Node != nil {
				named[m.Node.Name] = m
			}
		}
		return named
	})}
}

func (n *nominating) needsPlan(pod *corev1.Pod) bool {
	node := pod.Status.NominatedNodeName
	if node == "" || !n.isFreeToPlan(node) {
		return karpenter.IsProvisionable(pod)
	}
	free := *pod // The nominated node is Karve's or gone.
	free.Status.NominatedNodeName = ""
	return karpenter.IsProvisionable(&free)
}

// isFreeToPlan reports whether pods that are nominated for a node need a plan, because the node does not exist, or is Karve's and no pod has to end there first.
func (n *nominating) isFreeToPlan(node string) bool {
	if n.index.Site(node) == nil {
		return true
	}
	m := n.machines()[node]
	return m != nil && (m.Leaving() || m.Broken(n.cluster.Now, n.cluster.ReplicasTimeout) ||
		!slices.ContainsFunc(m.Pods, func(pod *corev1.Pod) bool { return !pod.DeletionTimestamp.IsZero() && facts.IsWorkload(pod) }))
}

// moving holds the running pods that will soon be pending, because their machine is leaving. Their replacements have other names. To avoid counting a pod
// twice, a pod that is being deleted is not moving, unless its owner replaces it only after it is gone.
type moving map[*corev1.Pod]bool

// movingOf returns the moving pods of machines that are leaving and for which goes returns true.
func movingOf(machines []records.Machine, goes func(*records.Machine) bool) moving {
	m := moving{}
	for i := range machines {
		if !machines[i].Leaving() || !goes(&machines[i]) {
			continue
		}
		for _, pod := range machines[i].Moving() {
			m[pod] = true
		}
	}
	return m
}

// asInt returns 1 for true, so that false comes first.
func asInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
