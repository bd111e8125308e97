package pool

import (
	"fmt"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud/clouds"
	"karve.sh/karve/pkg/snapshot/facts"
)

// reservationsKnown returns the condition with the reservations that a node class selects, or nil if it selects none. Its text does not depend on how many machines are free, because
// that changes each minute: metrics and kubectl karve inspect have the numbers.
func reservationsKnown(ref v1alpha1.NodeClassReference, state *facts.NodeClassState) *status.Condition {
	if !state.SelectsReservations && len(state.Reservations) == 0 {
		return nil
	}
	var counted, uncounted []string
	for i := range state.Reservations {
		r := &state.Reservations[i]
		text := fmt.Sprintf("%s (%s, %s)", r.ID, r.InstanceType, r.Zone)
		if r.Read.IsZero() {
			uncounted = append(uncounted, text)
		} else {
			counted = append(counted, text)
		}
	}
	switch {
	case len(state.Reservations) == 0:
		return new(condition(v1alpha1.ConditionReservationsKnown, metav1.ConditionFalse, "NoneFound", fmt.Sprintf("%s of %s %q select no capacity reservation that is active: see the condition CapacityReservationsReady of the %s", clouds.OfRef(ref).ReservationField, ref.Kind, ref.Name, ref.Kind)))
	case len(uncounted) > 0:
		return new(condition(v1alpha1.ConditionReservationsKnown, metav1.ConditionFalse, "NotCounted", fmt.Sprintf("the free machines of %s are not counted yet, so none is launched: if this lasts, the condition %s says why", strings.Join(uncounted, ", "), v1alpha1.ConditionCatalogFresh)))
	}
	return new(condition(v1alpha1.ConditionReservationsKnown, metav1.ConditionTrue, "Counted", strings.Join(counted, ", ")))
}
