package render_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/render"
	"karve.sh/karve/pkg/snapshot"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

func TestClaimForSlotNamesItsReservation(t *testing.T) {
	t.Parallel()
	c := Shared()
	for _, id := range []string{"cr-1", "cr-2"} {
		Reserve(c, catalog.Reservation{ID: id, InstanceType: "g4dn.xlarge", Free: 1})
	}
	Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "on-demand", "reserved")(&c.NodePools[0])
	Requiring(ReservationLabel, corev1.NodeSelectorOpExists)(&c.NodePools[0])
	c.Pods = Pods("a", 1)
	view := snapshot.Build(c)
	names := map[string]bool{}
	for i, o := range view.Offerings {
		if o.CapacityType != karpv1.CapacityTypeReserved {
			continue
		}
		claim := render.NodeClaim(&view, planner.Launch{Offering: i, Pods: []string{"default/a-000"}}, nil)
		names[claim.Name] = true
		want := []karpv1.NodeSelectorRequirementWithMinValues{
			Require(ReservationLabel, corev1.NodeSelectorOpIn, o.Reservation),
			Require(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "reserved"),
			Require(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "g4dn.xlarge"),
			Require(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, Zones[0]),
		}
		if diff := cmp.Diff(want, claim.Spec.Requirements); diff != "" {
			t.Errorf("requirements (-want +got):\n%s", diff)
		}
		if value, ok := claim.Labels[ReservationLabel]; ok {
			t.Errorf("the label %s is %q, and only the cloud may write it", ReservationLabel, value)
		}
	}
	if len(names) != 2 {
		t.Errorf("claims for the same pods in two reservations have the names %v", names)
	}
}
