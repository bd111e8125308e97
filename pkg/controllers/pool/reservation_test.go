package pool

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/api/meta"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// inReservation returns a cluster with a started machine and one in flight in a reservation of five, of which two were free.
func inReservation() *facts.Cluster {
	c, kind := snapshottest.Shared(), snapshottest.TypeNamed("g4dn.xlarge")
	snapshottest.Reserve(c, catalog.Reservation{ID: "cr-1", InstanceType: "g4dn.xlarge", Free: 2, Total: 5, End: now.Add(time.Hour)})
	started := snapshottest.Claim("a", &c.NodePools[0], kind, snapshottest.Reserved("cr-1"), snapshottest.Initialized(now.Add(-time.Hour)))
	c.NodeClaims = append(c.NodeClaims, started, snapshottest.Claim("b", &c.NodePools[0], kind, snapshottest.Reserved("cr-1")))
	c.Nodes = append(c.Nodes, snapshottest.Node(&started, kind, 10))
	return c
}

func TestSlotsOfReservationsAreMeasured(t *testing.T) {
	t.Parallel()
	r := prometheus.NewRegistry()
	controller, c := &Controller{Config: Config{Metrics: metrics.New(r)}}, inReservation()
	slots := records.SlotsOf(c, records.Machines(c), records.Canaries(c))
	slots = append(slots, records.Slots{Reservation: catalog.Reservation{ID: "cr-gone", InstanceType: "p5.48xlarge", Zone: "us-east-1a", Total: 1}})
	controller.measureReservations(slots, snapshot.RoomIn(c, slots))
	controller.measureReservations(slots[:1], snapshot.RoomIn(c, slots[:1])) // What is gone has no series.
	end := strconv.FormatFloat(float64(now.Add(time.Hour).Unix()), 'g', -1, 64)
	want := `
		# HELP karve_reservation_end_timestamp_seconds When a reservation ends, or the machines of a block are deleted.
		# TYPE karve_reservation_end_timestamp_seconds gauge
		karve_reservation_end_timestamp_seconds{instance_type="g4dn.xlarge",reservation="cr-1",zone="us-east-1a"} ` + end + `
		# HELP karve_reservation_free_replicas Replicas that the free machines of a reservation would have.
		# TYPE karve_reservation_free_replicas gauge
		karve_reservation_free_replicas{nodepool="gpu-shared",reservation="cr-1",resource="nvidia.com/gpu.shared"} 10
		# HELP karve_reservation_free_usd_per_hour List price of the free machines of a reservation, which are paid.
		# TYPE karve_reservation_free_usd_per_hour gauge
		karve_reservation_free_usd_per_hour{instance_type="g4dn.xlarge",reservation="cr-1",zone="us-east-1a"} 0.526
		# HELP karve_reservation_slots Machines of a capacity reservation or block: used by Karve, by others, or free.
		# TYPE karve_reservation_slots gauge
		karve_reservation_slots{instance_type="g4dn.xlarge",reservation="cr-1",state="free",zone="us-east-1a"} 1
		karve_reservation_slots{instance_type="g4dn.xlarge",reservation="cr-1",state="others",zone="us-east-1a"} 2
		karve_reservation_slots{instance_type="g4dn.xlarge",reservation="cr-1",state="used",zone="us-east-1a"} 2
	`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "karve_reservation_slots", "karve_reservation_free_usd_per_hour", "karve_reservation_free_replicas", "karve_reservation_end_timestamp_seconds"); err != nil {
		t.Error(err)
	}
}

func TestSlotsAreBilledAtTheirListPrice(t *testing.T) {
	t.Parallel()
	c := inReservation()
	for _, n := range bills(records.Machines(c), nil, nil) {
		if n.MicroUSDPerHour != 526_000 || n.CapacityType != "reserved" {
			t.Errorf("%s (%s) is billed with %d", n.Name, n.CapacityType, n.MicroUSDPerHour)
		}
	}
	if h := hold(records.Machines(c), nil, now); h.microUSDPerHour != 2*526_000 {
		t.Errorf("the pool costs %d", h.microUSDPerHour)
	}
}

func TestAClassSaysWhichReservationsItSelectsAndWhetherTheyAreRead(t *testing.T) {
	t.Parallel()
	class := v1alpha1.GPUNodeClass{}
	class.Spec.NodeClassRef = snapshottest.NodeClassRef
	counted := catalog.Reservation{ID: "cr-1", InstanceType: "g4dn.xlarge", Zone: "us-east-1a", Free: 2, Total: 5, Read: now}
	more := counted
	more.Free = 1
	uncounted := catalog.Reservation{ID: "cr-2", InstanceType: "p5.48xlarge", Zone: "us-east-1b"}
	for _, step := range []struct {
		state  facts.NodeClassState
		reason string
		says   string
	}{
		{facts.NodeClassState{}, "", ""},
		{facts.NodeClassState{SelectsReservations: true}, "NoneFound", "spec.capacityReservationSelectorTerms of EC2NodeClass \"gpu\" select no capacity reservation"},
		{facts.NodeClassState{SelectsReservations: true, Reservations: []catalog.Reservation{counted, uncounted}}, "NotCounted", "the free machines of cr-2 (p5.48xlarge, us-east-1b) are not counted yet"},
		{facts.NodeClassState{SelectsReservations: true, Reservations: []catalog.Reservation{counted}}, "Counted", "cr-1 (g4dn.xlarge, us-east-1a)"},
		{facts.NodeClassState{SelectsReservations: true, Reservations: []catalog.Reservation{more}}, "Counted", "cr-1 (g4dn.xlarge, us-east-1a)"},
		{facts.NodeClassState{}, "", ""},
	} {
		reportClass(&class, step.state, facts.DRA{}, holding{}, nil, nil)
		c := meta.FindStatusCondition(class.Status.Conditions, v1alpha1.ConditionReservationsKnown)
		switch {
		case c == nil && step.reason == "":
		case c == nil || c.Reason != step.reason || !strings.HasPrefix(c.Message, step.says) || (c.Status == "True") != (c.Reason == "Counted"):
			t.Errorf("%+v, want %s: %s", c, step.reason, step.says)
		}
	}
}
