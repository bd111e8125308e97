package snapshot

import (
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/nodelabels"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// offeringsOf returns all offerings that the pool's requirements allow, and each again at its limited prices. A slot of a reservation has only its limited price. Without a
// requirement for the capacity type it allows all but spot, because Karpenter prefers spot without one.
func offeringsOf(c *facts.Cluster, p *Pool, t *template) []Offering {
	taints := p.NodePool.Spec.Template.Spec.Taints
	choices := t.labelChoices()
	daemons, least := records.DaemonDemands(c), p.minReplicas(t.types)

	var offerings []Offering
	for i := range t.types {
		instanceType := &t.types[i]
		if instanceType.GPU.Count <= 0 {
			continue
		}
		shares := p.sharesOf(instanceType, least)
		for _, o := range instanceType.Offerings {
			if !t.launches(&o) {
				continue
			}
			machine := records.MergedLabels(instanceType.Labels, o.Labels)
			if !admits(machine, t.fixed, t.requirements, t.described) {
				continue
			}
			for _, custom := range choices {
				for i := range shares {
					share := shares[i].Share
					labels := nodelabels.Labels{Known: records.WhenStarted(records.MergedLabels(machine, t.fixed, custom, shares[i].foretold.Known)), Doubts: shares[i].foretold.Doubts}
					if _, verdict := t.admitsLater(labels); verdict < nodelabels.Yes {
						continue
					}
					gpu, empty := corev1.ResourceName(share.Resource), records.AllocatableOf(instanceType)
					empty.Replicas = share.Least * instanceType.GPU.Count
					instances := facts.OffersOf(share.MIG, instanceType.GPU.Count)
					runs := records.DaemonsOn(daemons, taints, "", labels, empty, gpu)
					at := Offering{
						Type: instanceType, Zone: o.Zone, CapacityType: o.CapacityType, MicroUSDPerHour: o.MicroUSDPerHour, ListMicroUSDPerHour: o.ListPrice(), Reservation: o.Reservation, reservation: t.reservations[o.Reservation],
						Labels: labels.Known, doubts: labels.Doubts, CustomLabels: custom, Share: share, instances: instances,
						ReplicasPerGPU: share.Least,
						Daemons:        records.Overhead(runs, gpu),
						daemons:        runs,
					}
					if o.Reservation == "" {
						offerings = append(offerings, at)
					}
					for l := range o.Limited {
						at.MicroUSDPerHour, at.limited = o.Limited[l].MicroUSDPerHour, &o.Limited[l]
						offerings = append(offerings, at)
					}
				}
			}
		}
	}
	slices.SortStableFunc(offerings, compareOfferings)
	return offerings
}

// launches reports whether Karve launches machines of an offering if the requirements allow them. A NodeClaim for a reservation allows one instance type in one zone, so
// it cannot meet minValues.
func (t *template) launches(o *catalog.Offering) bool {
	if t.reservedOnly && o.CapacityType != karpv1.CapacityTypeReserved {
		return false
	}
	switch o.CapacityType {
	case karpv1.CapacityTypeReserved:
		return t.reservations[o.Reservation] != nil && !t.hasMinValues()
	case karpv1.CapacityTypeSpot:
		return t.requirements.Has(karpv1.CapacityTypeLabelKey)
	}
	return true
}

// foretoldShare is a share of the GPUs of an instance type, with the labels that others write on its nodes.
type foretoldShare struct {
	v1alpha1.Share
	foretold nodelabels.Labels
}

// sharesOf returns the shares of an instance type with at least one replica. least is the smallest number of replicas that a NodeClaim may promise.
func (p *Pool) sharesOf(t *catalog.InstanceType, least int64) []foretoldShare {
	var all []foretoldShare
	for _, share := range p.Class.Spec.Sharing.Shares(t.GPU.Name, t.GPU.MemoryMiB, t.GPU.Count) {
		if !share.Slots.IsZero() {
			share.Least = share.Slots.Most(t.GPU.UsableMiB())
			share.Most = share.Least
		}
		if share.Most >= 1 {
			all = append(all, foretoldShare{share, p.foretold(t, &share, least)})
		}
	}
	return all
}

// minReplicas returns the smallest number of replicas of a GPU that a NodeClaim may promise: a NodeClaim that allows several types promises what all of them
// have.
func (p *Pool) minReplicas(types []catalog.InstanceType) int64 {
	least := int64(math.MaxInt64)
	if len(p.Class.Spec.Sharing.Overrides) > 0 {
		for i := range types {
			if types[i].GPU.Count > 0 {
				replicas, _ := p.Class.Spec.Sharing.ReplicasRange(types[i].GPU.Name)
				least = min(least, replicas)
			}
		}
	}
	return least
}

// foretold returns the labels that others write on a machine of the pool with the share.
func (p *Pool) foretold(t *catalog.InstanceType, share *v1alpha1.Share, least int64) nodelabels.Labels {
	return nodelabels.Of(&nodelabels.Node{
		Type: t.Name, Nitro: records.IsNitro(t), GPU: t.GPU, Resource: share.Resource, MinReplicas: min(least, share.Least), MaxReplicas: share.Most,
		MPS: p.Class.Spec.Sharing.MPSSettings() != nodecontract.MPS{}, MIG: share.MIG, Slots: !share.Slots.IsZero(),
	})
}
