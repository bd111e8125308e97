package snapshot

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// View is a planner.Snapshot together with the objects that it was made from.
type View struct {
	planner.Snapshot
	// Pools has the same indices as Snapshot.Pools.
	Pools []Pool
	// Offerings has the same indices as Snapshot.Offerings.
	Offerings []*Offering
	// Machines are all machines of Karve's pools, except canaries.
	Machines []records.Machine
	// canaries are the machines that test images.
	canaries []records.Machine
	// Pods has the pods that the planner places, by their names in the snapshot: pending pods, and pods on machines that are leaving.
	Pods map[string]*corev1.Pod
	// Postponed has the pending pods that are left to a later round, by name.
	Postponed []*corev1.Pod
	// leftPods are pending pods of this round that no pool of Karve can serve.
	leftPods []*corev1.Pod
	// leftTo has Karpenter's own NodePool that serves each of them.
	leftTo  map[*corev1.Pod]string
	shapeOf func(*corev1.Pod) *shape
	// grouping has the groups of the pods.
	grouping *grouping
	// longer is, by class, how many times as long pods take on the fastest machine that they may have as on one whose GPUs they have to themselves. It is nil if no
	// pod states its throughput.
	longer []slowness
	// slow has, by index, the offerings that are copies of others at the price of work, and how slow pods may be there.
	slow map[int]slowness
	// rooms has the same indices as Snapshot.Nodes.
	rooms []room
	// deeper has the offerings at other depths by the index of the offering.
	deeper map[int][]int
	// shallow has the nodes on which too many pods may share a GPU for the pods of a class, at the indices of Snapshot.Classes.
	shallow [][]int
	// Requested are the ProvisioningRequests that are not over, the oldest first.
	Requested []*Requested
	// Reserves are the headroom to keep free.
	Reserves []Reserve
	// keys has the shortened shape keys of Snapshot.Classes, at the same indices. keyOf returns the key of a pod.
	keys  []string
	keyOf func(*corev1.Pod) string
	// mismatches are the machines whose labels do not admit waiting pods for which they were launched, by the name of the GPUNodeClass.
	mismatches map[string][]v1alpha1.NodeMismatch
	// cluster is the input of the view.
	cluster *facts.Cluster
	// broken reports whether a machine did not start in time.
	broken func(*records.Machine) bool
}

// Now returns the time for which the view was made.
func (v *View) Now() time.Time { return v.cluster.Now }

// Decided reports whether the launch of a machine has an outcome: it started, it is broken, or it is leaving.
func (v *View) Decided(m *records.Machine) bool {
	return m.Started() || m.Leaving() || v.broken != nil && v.broken(m)
}

// LeftToKarpenter returns the pending pods that one of Karpenter's own NodePools serves and none of Karve's, with its name.
func (v *View) LeftToKarpenter() map[*corev1.Pod]string { return v.leftTo }

// MachineOn returns the machine of a node of the snapshot, or nil if the node is not Karve's.
func (v *View) MachineOn(node int) *records.Machine {
	if node >= len(v.rooms) {
		return nil
	}
	return v.rooms[node].machine
}

// Starting reports whether a node of the snapshot has not started yet.
func (v *View) Starting(node int) bool { return v.rooms[node].starting }

// PoolNamed returns the pool with a name, or nil if there is none.
func (v *View) PoolNamed(name string) *Pool {
	for i := range v.Pools {
		if v.Pools[i].NodePool.Name == name {
			return &v.Pools[i]
		}
	}
	return nil
}

// ClassOf returns the GPUNodeClass of the pool with a name, or nil if there is no such pool or class.
func (v *View) ClassOf(pool string) *v1alpha1.GPUNodeClass {
	if p := v.PoolNamed(pool); p != nil {
		return p.Class
	}
	return nil
}

// Reserve is headroom of one kind. Its class has placeholder pods, whose names show where the headroom comes from.
type Reserve struct {
	// Pool is the index of the pool to which the headroom is assigned. If several pools could serve it, it is the one with the highest weight.
	Pool  int
	Class planner.Class
	// waiting is the class from which the headroom was made. It is nil for headroom that is a number of replicas.
	waiting *waitingClass
}

// slowness is how many times as long a machine works for what the fastest offering of a class does in an hour, in millionths. It is 0 if the class does not use
// the machine.
type slowness int64

const asFast slowness = 1_000_000
