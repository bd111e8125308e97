package launching

import (
	"slices"
	"testing"
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

func TestRefusalOfSlotIsAboutItsReservation(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	slot := func(id string) Shape {
		return Shape{Class: "shared", Pool: "gpu", InstanceTypes: []string{"p5.48xlarge"}, Zones: []string{"us-east-1a"}, CapacityType: "reserved", Reservation: id}
	}
	for name, message := range map[string]string{
		"as cached by Karpenter": "creating instance, insufficient capacity, all requested instance types were unavailable during launch",
		"full":                   whole("ReservationCapacityExceeded: The requested reservation does not have sufficient compatible and available capacity for this request."),
		"ended":                  whole("InvalidCapacityReservationState.Unavailable: The capacity reservation is not active."),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := NewLedger()
			for _, id := range []string{"cr-1", "cr-2", "cr-1"} {
				l.Await("claim-"+id, "", slot(id))
				for _, r := range Attribute(slot(id), message, aCloud) {
					l.Refuse("shared", r, now)
				}
			}
			var ids []string
			for _, r := range l.ForStatus("shared", now) {
				if r.Reason != v1alpha1.RefusalInsufficientCapacity || r.CapacityType != "reserved" || r.InstanceType != "p5.48xlarge" || r.Failures != 1 {
					t.Errorf("the refusal is %+v", r)
				}
				ids = append(ids, r.Reservation)
			}
			if slices.Sort(ids); !slices.Equal(ids, []string{"cr-1", "cr-2"}) {
				t.Errorf("the refusals are about %q", ids)
			}

			restarted := NewLedger()
			restarted.Learn("shared", l.ForStatus("shared", now), now)
			restarted.Await("claim-cr-2", "", slot("cr-2"))
			restarted.Launched("claim-cr-2", "shared", "p5.48xlarge", "us-east-1a", "reserved", now)
			if left := restarted.ForStatus("shared", now); len(left) != 1 || left[0].Reservation != "cr-1" {
				t.Errorf("after a launch into cr-2, the refusals are %+v", left)
			}
		})
	}
}

// TestARefusedSlotIsTriedAgainOnceKarpenterHasCounted checks that a refusal of a slot is remembered for the time in which Karpenter counts, and longer each time.
func TestARefusedSlotIsTriedAgainOnceKarpenterHasCounted(t *testing.T) {
	t.Parallel()
	now, l := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), NewLedger()
	refusal := Refusal{InstanceTypes: []string{"p5.48xlarge"}, Zones: []string{"us-east-1a"}, CapacityType: "reserved", Reservation: "cr-1", Reason: v1alpha1.RefusalInsufficientCapacity}
	for _, seconds := range []int{75, 150, 300, 600, 1200, 2400, 3600, 3600} {
		least := time.Duration(seconds) * time.Second
		news := l.Refuse("shared", refusal, now)
		if len(news) != 1 || news[0].NotBefore.Sub(now) < least || news[0].NotBefore.Sub(now) > least+least/10+time.Second {
			t.Fatalf("after %s: %+v, want a rest of %s", now, news, least)
		}
		now = news[0].NotBefore.Time
	}
	refusal.Reservation, refusal.CapacityType = "", "on-demand"
	if news := l.Refuse("shared", refusal, now); news[0].NotBefore.Sub(now) < providersMemory {
		t.Errorf("a machine on demand rests until %s", news[0].NotBefore)
	}
}
