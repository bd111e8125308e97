package doctor

import (
	"fmt"
	"slices"
	"strings"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud/clouds"
	"karve.sh/karve/pkg/snapshot"
)

// selecting returns the GPUNodeClasses whose node classes select reservations.
func (f *Facts) selecting() []*v1alpha1.GPUNodeClass {
	if f.Cluster == nil {
		return nil
	}
	var all []*v1alpha1.GPUNodeClass
	for i := range f.Cluster.GPUNodeClasses {
		class := &f.Cluster.GPUNodeClasses[i]
		if f.Cluster.NodeClasses[class.Spec.NodeClassRef].SelectsReservations {
			all = append(all, class)
		}
	}
	return all
}

// reservationsOff warns about the feature gate without which Karpenter launches nothing into reservations.
func reservationsOff(f *Facts) []Finding {
	classes := f.selecting()
	if len(classes) == 0 {
		return nil
	}
	ref := classes[0].Spec.NodeClassRef
	var all []Finding
	for _, p := range f.Karpenters {
		if p.sets("ReservedCapacity=false") {
			all = append(all, Finding{
				Warning, p.String(), fmt.Sprintf("its feature gate ReservedCapacity is off, so nothing is launched into the reservations that %s %s selects", ref.Kind, ref.Name),
				"settings.featureGates.reservedCapacity=true in Karpenter's chart: docs/reservations.md",
			})
		}
	}
	return all
}

// reservationsNotFound warns about node classes that select reservations and have none.
func reservationsNotFound(f *Facts) []Finding {
	var all []Finding
	for _, class := range f.selecting() {
		ref := class.Spec.NodeClassRef
		if len(f.Cluster.NodeClasses[ref].Reservations) > 0 {
			continue
		}
		all = append(all, Finding{
			Warning, ref.Kind + " " + ref.Name, fmt.Sprintf("its %s select no capacity reservation that is active", clouds.OfRef(ref).ReservationField),
			command("kubectl describe %s %s, and see its condition CapacityReservationsReady", strings.ToLower(ref.Kind), ref.Name),
		})
	}
	return all
}

// reservationsUnused warns about NodePools that launch nothing into the reservations of their node classes.
func reservationsUnused(f *Facts) []Finding {
	var all []Finding
	for _, p := range f.pools() {
		if p.Class == nil || len(p.Offerings) == 0 {
			continue
		}
		ref := p.Class.Spec.NodeClassRef
		reservations := f.Cluster.NodeClasses[ref].Reservations
		offers := func(o snapshot.Offering) bool { return o.CapacityType == karpv1.CapacityTypeReserved }
		if len(reservations) == 0 || slices.ContainsFunc(p.Offerings, offers) {
			continue
		}
		all = append(all, Finding{
			Warning, "NodePool " + p.NodePool.Name, fmt.Sprintf("its requirements allow none of the %d capacity reservations that %s %s selects", len(reservations), ref.Kind, ref.Name),
			fmt.Sprintf("add reserved to the values of %s in spec.template.spec.requirements, and the reservations' instance types and zones: docs/reservations.md", karpv1.CapacityTypeLabelKey),
		})
	}
	return all
}
