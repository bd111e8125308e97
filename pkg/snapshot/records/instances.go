package records

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/nodecontract/mig"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Machines whose GPUs have MIG instances of several profiles have several resources. For the planner, the replicas of such a machine are those of all its
// instances, and each resource is a quota besides. Pods have quotas of these resources only if a machine or an offering has several of them. On a machine
// with one profile, the number of replicas decides, and the quota of its resource is without limit.
//
// The instances differ in memory, and the agent chooses among those of a resource. So a machine has one GPU for the planner, with the replicas and the
// memory of all instances, and it admits pods that state at most the memory of a replica of their resource. As many as there are replicas then always fit.

// PublishedOffers returns what a node that Karve did not launch has of each resource of instances. It is nil if it has one resource, or none.
func PublishedOffers(node *corev1.Node) []mig.Offer {
	var all []mig.Offer
	for _, name := range slices.Sorted(maps.Keys(node.Status.Allocatable)) {
		if n := facts.ValueOf(node.Status.Allocatable, name); facts.IsInstance(name) && n > 0 {
			all = append(all, mig.Offer{Resource: string(name), Replicas: n})
		}
	}
	if len(all) < 2 {
		return nil
	}
	return all
}

// OfferOf returns what offers have of a resource. It returns false if there is none.
func OfferOf(offers []mig.Offer, name corev1.ResourceName) (mig.Offer, bool) {
	i := slices.IndexFunc(offers, func(o mig.Offer) bool { return o.Resource == string(name) })
	if i < 0 {
		return mig.Offer{}, false
	}
	return offers[i], true
}

// TotalOf returns the replicas of all instances, and their memory in MiB.
func TotalOf(offers []mig.Offer) (replicas, mib int64) {
	for _, o := range offers {
		replicas, mib = replicas+o.Replicas, mib+o.Replicas/max(1, o.PerInstance)*o.MemoryMiB
	}
	return replicas, mib
}

// ReplicaMiB returns the memory in MiB of a replica of an offer, or 0 if it is unknown.
func ReplicaMiB(o mig.Offer) int64 { return o.MemoryMiB / max(1, o.PerInstance) }

// AsOneGPU returns the instances of a machine as one GPU that no pod uses.
func AsOneGPU(offers []mig.Offer, replicas int64) []planner.GPU {
	_, mib := TotalOf(offers)
	return []planner.GPU{{Replicas: replicas, MemoryBytes: mib * facts.BytesPerMiB}}
}

// AwaitsInstances reports whether a machine that has not started will still get the instances of its promise.
func (m *Machine) AwaitsInstances() bool {
	return m.AwaitsReplicas() && (m.Exposed() <= 0 || !m.GPUsCordoned())
}

// exposedInstances returns how many replicas of the promised instances the Node has.
func (m *Machine) exposedInstances() int64 {
	var sum int64
	for _, o := range m.Promise.Offers() {
		sum += min(o.Replicas, facts.ValueOf(m.Node.Status.Allocatable, corev1.ResourceName(o.Resource)))
	}
	return sum
}

// instanceMiB returns the memory in MiB of the replicas of instances in a list.
func instanceMiB(offers []mig.Offer, list corev1.ResourceList) int64 {
	var mib int64
	for _, o := range offers {
		mib += facts.ValueOf(list, corev1.ResourceName(o.Resource)) * ReplicaMiB(o)
	}
	return mib
}
