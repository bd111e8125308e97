// Package scale measures the CPU time, the memory and the latency of the controller on large clusters. etcd and the API server are real, and the controller
// runs in its own process. Nodes and pods are only objects. The package plays the cloud, the kubelets, the scheduler and the workloads: see [World].
package scale

import "fmt"

// Size is the number of nodes and pods of a cluster.
type Size struct {
	// Nodes and Pods are the totals. Pods includes one pod of a DaemonSet on each node.
	Nodes, Pods int
	// Machines is the number of nodes that belong to the NodePool, with one GPU each. Replicas is the number of pods that hold a GPU replica.
	Machines, Replicas int
	// Still forbids the disruption of machines.
	Still bool
}

// Sizes lists the sizes that `make bench-scale` measures. A fifth of the pods hold replicas and fill a fifth of the nodes.
var Sizes = []Size{sized(100), sized(1_000), sized(5_000)}

func sized(nodes int) Size {
	return Size{Nodes: nodes, Pods: 10 * nodes, Machines: nodes / 5, Replicas: nodes / 5 * replicasPerNode}
}

func (s Size) String() string { return fmt.Sprintf("%d/%d", s.Nodes, s.Pods) }

const (
	// namespaces is the number of namespaces of the pods.
	namespaces = 200
	// replicasPerNode is the number of replicas that a GPU node exposes: it has one GPU, shared by ten.
	replicasPerNode = 10
	// burstShare is the divisor for the pods that a burst adds: a tenth of all pods.
	burstShare = 10
	// lateShare is the divisor for the pods that are pending at the restart of the controller: 1 of 500, but at least lateLeast.
	lateShare, lateLeast = 500, 10
)

// burst returns the number of pods of the burst.
func (s Size) burst() int { return s.Pods / burstShare }

// late returns the number of pods that are pending at the restart of the controller.
func (s Size) late() int { return max(s.Pods/lateShare, lateLeast) }
