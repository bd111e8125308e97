package snapshottest

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/snapshot/facts"
)

// ReservationLabel is the label with the ID of the reservation of a machine.
const ReservationLabel = "karpenter.k8s.aws/capacity-reservation-id"

// Reserve adds a reservation to the cloud node class, in the first zone and counted a minute before [Now] unless it says otherwise.
func Reserve(c *facts.Cluster, r catalog.Reservation) {
	if r.Zone == "" {
		r.Zone = Zones[0]
	}
	if r.Read.IsZero() {
		r.Read = Now.Add(-time.Minute)
	}
	state := c.NodeClasses[NodeClassRef]
	state.InstanceTypes = slices.Clone(state.InstanceTypes)
	for i := range state.InstanceTypes {
		t := &state.InstanceTypes[i]
		if t.Name != r.InstanceType {
			continue
		}
		r.ListMicroUSDPerHour = t.Offerings[0].MicroUSDPerHour
		o := catalog.Offering{Zone: r.Zone, CapacityType: karpv1.CapacityTypeReserved, Labels: map[string]string{
			corev1.LabelTopologyZone: r.Zone, karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeReserved, ReservationLabel: r.ID,
		}}
		o.Reserve(r.ID, r.ListMicroUSDPerHour)
		t.Offerings = append(slices.Clone(t.Offerings), o)
	}
	state.Reservations = append(slices.Clone(state.Reservations), r)
	c.NodeClasses[NodeClassRef] = state
}

// Reserved makes the NodeClaim one for a slot of a reservation.
func Reserved(id string) func(*karpv1.NodeClaim) {
	return func(claim *karpv1.NodeClaim) {
		for i := range claim.Spec.Requirements {
			if r := &claim.Spec.Requirements[i]; r.Key == karpv1.CapacityTypeLabelKey {
				r.Values = []string{karpv1.CapacityTypeReserved}
			}
		}
		claim.Spec.Requirements = append(claim.Spec.Requirements, Require(ReservationLabel, corev1.NodeSelectorOpIn, id))
	}
}

// slotOf returns the ID of the reservation that a NodeClaim names, or "" if it names none.
func slotOf(claim *karpv1.NodeClaim) string {
	for _, r := range claim.Spec.Requirements {
		if r.Key == ReservationLabel {
			return r.Values[0]
		}
	}
	return ""
}
