package instancetype_test

import (
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	ec2v1 "github.com/aws/karpenter-provider-aws/pkg/apis/v1"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud/aws/api"
	"karve.sh/karve/pkg/cloud/aws/instancetype"
	fakeaws "karve.sh/karve/test/harness/aws"
)

// reservation is one of the reservations that EC2 lists.
type reservation struct {
	ID        string `xml:"capacityReservationId"`
	Type      string `xml:"instanceType"`
	Total     int    `xml:"totalInstanceCount"`
	Available int    `xml:"availableInstanceCount"`
	State     string `xml:"state"`
}

// desk answers for the reservations of an account, one a page. It passes other calls on to the region.
type desk struct {
	region http.Handler

	mu     sync.Mutex
	lists  []reservation
	denies bool
	calls  int
	// hangs is closed when the desk answers again. It is nil if it answers.
	hangs chan struct{}
}

func (d *desk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	form, _ := url.ParseQuery(string(body))
	if form.Get("Action") != "DescribeCapacityReservations" {
		d.region.ServeHTTP(w, r)
		return
	}
	d.mu.Lock()
	hangs := d.hangs
	d.calls++
	d.mu.Unlock()
	if hangs != nil {
		<-hangs
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.denies {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `<Response><Errors><Error><Code>UnauthorizedOperation</Code><Message>You are not authorized to perform this operation.</Message></Error></Errors><RequestID>1</RequestID></Response>`)
		return
	}
	var kinds []string
	for key, name := range map[string]string{"Filter.1": form.Get("Filter.1.Name"), "Filter.2": form.Get("Filter.2.Name")} {
		for i := 1; name == "instance-type" && form.Has(fmt.Sprintf("%s.Value.%d", key, i)); i++ {
			kinds = append(kinds, form.Get(fmt.Sprintf("%s.Value.%d", key, i)))
		}
	}
	matching := slices.DeleteFunc(slices.Clone(d.lists), func(r reservation) bool { return !slices.Contains(kinds, r.Type) })
	var answer struct {
		XMLName xml.Name      `xml:"DescribeCapacityReservationsResponse"`
		Set     []reservation `xml:"capacityReservationSet>item"`
		Next    string        `xml:"nextToken,omitempty"`
	}
	page := 0
	_, _ = fmt.Sscan(form.Get("NextToken"), &page) // It is 0 on the first page.
	if page < len(matching) {
		answer.Set = matching[page : page+1]
	}
	if page+1 < len(matching) {
		answer.Next = fmt.Sprint(page + 1)
	}
	_ = xml.NewEncoder(w).Encode(answer)
}

func (d *desk) set(denies bool, lists ...reservation) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lists, d.denies = lists, denies
}

func (d *desk) asked() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls
}

// newDesk returns a region in which the desk answers for reservations.
func newDesk(t *testing.T) (*world, *desk) {
	t.Helper()
	d := &desk{}
	w := newWorld(t, fakeaws.Config{}, func(c *instancetype.Config) {
		load := c.Load
		c.Load = func(ctx context.Context) (*api.Clients, error) {
			clients, err := load(ctx)
			if err != nil {
				return nil, err
			}
			behind, err := url.Parse(*clients.EC2.Options().BaseEndpoint)
			if err != nil {
				return nil, err
			}
			d.region = httputil.NewSingleHostReverseProxy(behind)
			front := httptest.NewServer(d)
			t.Cleanup(front.Close)
			return api.New(fakeaws.ClientConfig(front.URL)), nil
		}
	})
	return w, d
}

// selecting makes a class select reservations of the g4dn.xlarge, of which the first is a block.
func selecting(ids ...string) func(*ec2v1.EC2NodeClass) {
	return func(class *ec2v1.EC2NodeClass) {
		for i, id := range ids {
			r := ec2v1.CapacityReservation{
				ID: id, AvailabilityZone: "us-east-1a", InstanceType: "g4dn.xlarge", InstanceMatchCriteria: "targeted", OwnerID: "123456789012",
				ReservationType: ec2v1.CapacityReservationTypeDefault, State: ec2v1.CapacityReservationStateActive,
			}
			if i == 0 {
				r.ReservationType, r.EndTime = ec2v1.CapacityReservationTypeCapacityBlock, new(metav1.NewTime(time.Date(2026, 3, 2, 11, 30, 0, 0, time.UTC)))
			}
			class.Status.CapacityReservations = append(class.Status.CapacityReservations, r)
		}
	}
}

func TestReservationsHaveOfferingsAndFreeSlots(t *testing.T) {
	t.Parallel()
	w, d := newDesk(t)
	d.set(false, reservation{"cr-1", "g4dn.xlarge", 4, 3, "active"}, reservation{"cr-other", "g4dn.xlarge", 9, 9, "active"}, reservation{"cr-2", "g4dn.xlarge", 2, 0, "active"},
		reservation{"cr-cpu", "m5.large", 9, 9, "active"})
	class := object(t, nodeClass("gpu", selecting("cr-1", "cr-2", "cr-gone")))
	l := w.until(class, "listed with all that is known", fresh)
	var got []string
	for _, r := range l.Reservations {
		got = append(got, fmt.Sprintf("%s %s %s %d/%d block %t", r.ID, r.InstanceType, r.Zone, r.Free, r.Total, !r.Leaves.IsZero()))
		if r.Read.IsZero() || r.ListMicroUSDPerHour != 526_000 || !r.Leaves.IsZero() && r.End.Sub(r.Leaves) != 40*time.Minute {
			t.Errorf("%+v", r)
		}
	}
	if want := []string{
		"cr-1 g4dn.xlarge us-east-1a 3/4 block true", "cr-2 g4dn.xlarge us-east-1a 0/2 block false", "cr-gone g4dn.xlarge us-east-1a 0/0 block false",
	}; !slices.Equal(got, want) {
		t.Errorf("the reservations are %q, want %q", got, want)
	}
	it := named(t, l, "g4dn.xlarge")
	slots := slices.DeleteFunc(slices.Clone(it.Offerings), func(o catalog.Offering) bool { return o.CapacityType != "reserved" })
	if len(slots) != 3 {
		t.Fatalf("the offerings are %+v", it.Offerings)
	}
	if o := slots[0]; o.Reservation != "cr-1" || o.Zone != "us-east-1a" || o.MicroUSDPerHour != 5 || o.ListMicroUSDPerHour != 526_000 || o.Labels[ec2v1.LabelCapacityReservationID] != "cr-1" ||
		o.Labels[ec2v1.LabelCapacityReservationType] != "capacity-block" || o.Labels[ec2v1.LabelTopologyZoneID] != "use1-az1" {
		t.Errorf("the offering is %+v", o)
	}

	d.set(false, reservation{"cr-1", "g4dn.xlarge", 4, 1, "active"})
	w.until(class, "counted again", func(l catalog.Listing) bool { return l.Reservations[0].Free == 1 })
}

// Readers refuse what the controller publishes if a number is beyond those of any reservation. The SDK cuts numbers beyond its integers.
func TestCountsThatLieAreSaturated(t *testing.T) {
	t.Parallel()
	w, d := newDesk(t)
	d.set(false, reservation{"cr-1", "g4dn.xlarge", -4, -3, "active"}, reservation{"cr-2", "g4dn.xlarge", 2, 1, "active"}, reservation{"cr-2", "g4dn.xlarge", 2, 1, "active"},
		reservation{"cr-3", "g4dn.xlarge", 1, 2_147_483_647, "active"}, reservation{"cr-4", "g4dn.xlarge", 99_999_999_999, 99_999_999_999, "active"})
	class := object(t, nodeClass("gpu", selecting("cr-1", "cr-2", "cr-2", "cr-3", "cr-4")))
	l := w.until(class, "counted", func(l catalog.Listing) bool { return fresh(l) && l.Reservations[1].Free > 0 })
	var got []string
	for _, r := range l.Reservations {
		got = append(got, fmt.Sprintf("%s %d/%d", r.ID, r.Free, r.Total))
	}
	if want := []string{"cr-1 0/0", "cr-2 1/2", "cr-3 1000000/1", "cr-4 1000000/1000000"}; !slices.Equal(got, want) {
		t.Errorf("the reservations are %q, want %q", got, want)
	}
	if len(named(t, l, "g4dn.xlarge").Offerings) < 4 {
		t.Error("the offerings of the reservations are missing")
	}
}

func TestReservationsAreCountedOnlyIfSelected(t *testing.T) {
	t.Parallel()
	w, d := newDesk(t)
	w.until(object(t, nodeClass("gpu")), "listed", fresh)
	for range 100 {
		w.clock.Step(time.Minute)
		time.Sleep(time.Millisecond)
	}
	if n := d.asked(); n > 0 {
		t.Errorf("EC2 was asked %d times for the reservations of nobody", n)
	}
}

func TestUncountedReservationsAreReported(t *testing.T) {
	t.Parallel()
	w, d := newDesk(t)
	d.set(true)
	class := object(t, nodeClass("gpu", selecting("cr-1")))
	l := w.until(class, "reported", because("AccessDenied"))
	for _, part := range []string{`EC2NodeClass "gpu"`, "the free slots of its reservations are unknown, so none is used", "EC2 DescribeCapacityReservations is denied", "IAM policy of Karve's role"} {
		if !strings.Contains(l.Message, part) {
			t.Errorf("the message is %q, which lacks %q", l.Message, part)
		}
	}
	if r := l.Reservations[0]; len(l.InstanceTypes) == 0 || r.Free != 0 || !r.Read.IsZero() {
		t.Errorf("%d types, and the reservation is %+v", len(l.InstanceTypes), r)
	}

	d.set(false, reservation{"cr-1", "g4dn.xlarge", 4, 3, "active"})
	counted := w.until(class, "counted", func(l catalog.Listing) bool { return l.Reservations[0].Free == 3 }).Reservations[0]
	w.until(class, "fresh", fresh)

	// What was last known stays, and is reported once it is old.
	d.set(true)
	if l := w.until(class, "reported again", because("AccessDenied")); l.Reservations[0].Free != 3 || l.Reservations[0].Read.Before(counted.Read) ||
		!strings.Contains(l.Message, "were not read since") {
		t.Errorf("the reservation is %+v: %s", l.Reservations[0], l.Message)
	}
	if n := testutil.ToFloat64(w.metrics.CatalogRefreshes.WithLabelValues("capacity-reservations", "AccessDenied")); n < 2 {
		t.Errorf("%v failures were counted", n)
	}
}

// Only the first read waits for EC2, and not longer than for other data.
func TestNobodyWaitsTwiceForCounts(t *testing.T) {
	t.Parallel()
	w, d := newDesk(t)
	w.until(object(t, nodeClass("other")), "listed", fresh)
	d.hangs = make(chan struct{})
	t.Cleanup(func() { close(d.hangs) })
	class := object(t, nodeClass("gpu", selecting("cr-1")))
	began := w.clock.Now()
	first := make(chan catalog.Listing)
	go func() { first <- w.InstanceTypes(t.Context(), class) }()
	var l catalog.Listing
	w.waitFor("listed without a count", func() bool {
		select {
		case l = <-first:
			return true
		default:
			return false
		}
	})
	if waited := w.clock.Since(began); waited < 15*time.Second || len(l.InstanceTypes) == 0 || !l.Reservations[0].Read.IsZero() {
		t.Errorf("after %s there are %d types, and the reservation is %+v", waited, len(l.InstanceTypes), l.Reservations[0])
	}
	began = w.clock.Now()
	w.InstanceTypes(t.Context(), class) // It would wait for the clock.
	if w.clock.Since(began) > 0 || d.asked() != 1 {
		t.Errorf("the second read waited %s, and EC2 was asked %d times", w.clock.Since(began), d.asked())
	}
}
