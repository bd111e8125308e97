package snapshot

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/nodecontract/mig"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// holdsOn reports whether a replica of each resource that a shape requests has the device memory that it states.
func (s *shape) holdsOn(offers []mig.Offer) bool {
	for name := range s.demand.Requests {
		if o, ok := records.OfferOf(offers, name); ok && o.MemoryMiB > 0 && s.gpuMemory > records.ReplicaMiB(o)*facts.BytesPerMiB {
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
	has, _ := records.OfferOf(o.instances, name)
	return has.Replicas - records.ResourceOf(o.daemons, name)
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
	if o, ok := records.OfferOf(r.instances, name); ok && r.starting && r.machine.AwaitsInstances() {
		has = max(has, o.Replicas)
	}
	toCome := max(0, records.ResourceOf(r.daemons, name)-r.use.Daemons.Amounts[name])
	return has - r.use.All.Amounts[name] - toCome
}
