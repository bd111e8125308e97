package snapshot

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/nodecontract/mig"
	"karve.sh/karve/pkg/planner"
)

// Machines whose GPUs have MIG instances of several profiles have several resources. For the planner, the replicas of such a machine are those of all its
// instances, and each resource is a quota besides. Pods have quotas of these resources only if a machine or an offering has several of them. On a machine
// with one profile, the number of replicas decides, and the quota of its resource is without limit.
//
// The instances differ in memory, and the agent chooses among those of a resource. So a machine has one GPU for the planner, with the replicas and the
// memory of all instances, and it admits pods that state at most the memory of a replica of their resource. As many as there are replicas then always fit.

// isInstance reports whether a resource is one of MIG instances that are named after their profile.
func isInstance(name corev1.ResourceName) bool { return mig.IsResource(string(name)) }

// offersOf returns what a machine with a number of GPUs has of each resource of instances. It is nil if it has one resource, or none.
func offersOf(m nodecontract.MIG, gpus int64) []mig.Offer {
	if !m.Mixed() {
		return nil
	}
	return mig.Offers(m, gpus)
}

// offers returns what the machine is to have of each resource of instances. It is nil if it has one resource, or none.
func (p Promise) offers() []mig.Offer { return offersOf(p.MIG, p.GPUs) }

// publishedOffers returns what a node that Karve did not launch has of each resource of instances. It is nil if it has one resource, or none.
func publishedOffers(node *corev1.Node) []mig.Offer {
	var all []mig.Offer
	for _, name := range slices.Sorted(maps.Keys(node.Status.Allocatable)) {
		if n := valueOf(node.Status.Allocatable, name); isInstance(name) && n > 0 {
			all = append(all, mig.Offer{Resource: string(name), Replicas: n})
		}
	}
	if len(all) < 2 {
		return nil
	}
	return all
}

// offered returns what offers have of a resource. It returns false if there is none.
func offered(offers []mig.Offer, name corev1.ResourceName) (mig.Offer, bool) {
	i := slices.IndexFunc(offers, func(o mig.Offer) bool { return o.Resource == string(name) })
	if i < 0 {
		return mig.Offer{}, false
	}
	return offers[i], true
}

// totalOf returns the replicas of all instances, and their memory in MiB.
func totalOf(offers []mig.Offer) (replicas, mib int64) {
	for _, o := range offers {
		replicas, mib = replicas+o.Replicas, mib+o.Replicas/max(1, o.PerInstance)*o.MemoryMiB
	}
	return replicas, mib
}

// replicaMiB returns the memory in MiB of a replica of an offer, or 0 if it is unknown.
func replicaMiB(o mig.Offer) int64 { return o.MemoryMiB / max(1, o.PerInstance) }

// asOneGPU returns the instances of a machine as one GPU that no pod uses.
func asOneGPU(offers []mig.Offer, replicas int64) []planner.GPU {
	_, mib := totalOf(offers)
	return []planner.GPU{{Replicas: replicas, MemoryBytes: mib * bytesPerMiB}}
}

// holdsOn reports whether a replica of each resource that a shape requests has the device memory that it states.
func (s *shape) holdsOn(offers []mig.Offer) bool {
	for name := range s.demand.requests {
		if o, ok := offered(offers, name); ok && o.MemoryMiB > 0 && s.gpuMemory > replicaMiB(o)*bytesPerMiB {
			return false
		}
	}
	return true
}

// mixes reports whether an offering or a room has instances of several resources.
func (v *View) mixes(rooms []room) bool {
	return slices.ContainsFunc(v.Offerings, func(o *Offering) bool { return o.instances != nil }) ||
		slices.ContainsFunc(rooms, func(r room) bool { return r.instances != nil })
}

// instancesLeft returns what is left of a resource of instances on a machine of the offering.
func (o *Offering) instancesLeft(name corev1.ResourceName) int64 {
	if o.instances == nil {
		if name == o.Resource() {
			return planner.Unlimited
		}
		return 0
	}
	has, _ := offered(o.instances, name)
	return has.Replicas - resourceOf(o.daemons, name)
}

// instancesLeft returns what is left of a resource of instances on the node.
func (r *room) instancesLeft(name corev1.ResourceName) int64 {
	if r.instances == nil {
		if name == r.gpu {
			return planner.Unlimited
		}
		return 0
	}
	has := r.extended(name)
	if o, ok := offered(r.instances, name); ok && r.starting && r.machine.awaitsInstances() {
		has = max(has, o.Replicas)
	}
	toCome := max(0, resourceOf(r.daemons, name)-r.use.daemons.amounts[name])
	return has - r.use.all.amounts[name] - toCome
}

// awaitsInstances reports whether a machine that has not started will still get the instances of its promise.
func (m *Machine) awaitsInstances() bool {
	return m.AwaitsReplicas() && (m.Exposed() <= 0 || !m.GPUsCordoned())
}

// exposedInstances returns how many replicas of the promised instances the Node has.
func (m *Machine) exposedInstances() int64 {
	var sum int64
	for _, o := range m.Promise.offers() {
		sum += min(o.Replicas, valueOf(m.Node.Status.Allocatable, corev1.ResourceName(o.Resource)))
	}
	return sum
}

// instanceMiB returns the memory in MiB of the replicas of instances in a list.
func instanceMiB(offers []mig.Offer, list corev1.ResourceList) int64 {
	var mib int64
	for _, o := range offers {
		mib += valueOf(list, corev1.ResourceName(o.Resource)) * replicaMiB(o)
	}
	return mib
}
