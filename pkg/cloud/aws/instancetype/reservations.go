package instancetype

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	ec2v1 "github.com/aws/karpenter-provider-aws/pkg/apis/v1"
	"github.com/aws/karpenter-provider-aws/pkg/providers/capacityreservation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud/aws/api"
	"karve.sh/karve/pkg/lifecycle"
)

const (
	// countEvery is how often free slots are counted, which is how often Karpenter does.
	countEvery = time.Minute
	// staleCount is how old a count may be before it is reported.
	staleCount = 5 * time.Minute
	// wantedFor is how long reservations are counted after a node class last had them.
	wantedFor = 10 * time.Minute
	// blockExpires is how long before the end of a capacity block Karpenter deletes its machines (CapacityReservationFromEC2 in its pkg/apis/v1, v1.15.0). EC2 ends
	// them ten minutes later.
	blockExpires = 40 * time.Minute
	// reservationsPerPage is the maximum that EC2 allows.
	reservationsPerPage = int32(1000)
	// typesPerCall is the maximum number of values of a filter.
	typesPerCall = 200
)

// uncounted makes the provider offer the slots of reservations, whatever is free. The planner counts them.
type uncounted struct{ capacityreservation.Provider }

func (uncounted) GetAvailableInstanceCount(string) int { return 1 }

// reservations counts the free slots of the reservations that node classes select. AWS is not called while there are none. Catalog.mu guards the fields, except for wake.
type reservations struct {
	// wanted has the reservations to count.
	wanted map[string]wantedReservation
	// counts are as last read. A reservation that EC2 did not list has no slots.
	counts map[string]count
	// attempted has the reservations for which EC2 was asked since they are wanted, or for which somebody has waited long enough.
	attempted map[string]bool
	failure   *failure
	// wake interrupts the wait for the next count, and next is closed after it.
	wake chan struct{}
	next chan struct{}
}

type wantedReservation struct {
	instanceType string
	// asked is when a node class was last listed that has it.
	asked time.Time
}

type count struct {
	free, total int64
	read        time.Time
}

func newReservations() reservations {
	return reservations{
		wanted: map[string]wantedReservation{}, counts: map[string]count{}, attempted: map[string]bool{}, wake: make(chan struct{}, 1), next: make(chan struct{}),
	}
}

// reservationsOf returns the reservations in the status of a class, sorted by ID, each once.
func (c *Catalog) reservationsOf(class *ec2v1.EC2NodeClass) []catalog.Reservation {
	var all []catalog.Reservation
	for _, r := range class.CapacityReservations() {
		reservation := catalog.Reservation{
			ID: r.ID, InstanceType: r.InstanceType, Zone: r.AvailabilityZone, End: ptr.Deref(r.EndTime, metav1.Time{}).Time,
			ListMicroUSDPerHour: c.known.listPrice(ec2types.InstanceType(r.InstanceType)),
		}
		if r.ReservationType == ec2v1.CapacityReservationTypeCapacityBlock && !reservation.End.IsZero() {
			reservation.Leaves = reservation.End.Add(-blockExpires)
		}
		all = append(all, reservation)
	}
	slices.SortStableFunc(all, func(a, b catalog.Reservation) int { return strings.Compare(a.ID, b.ID) })
	return slices.CompactFunc(all, func(a, b catalog.Reservation) bool { return a.ID == b.ID })
}

// counted returns the reservations with their slots. It returns a failure if these are unknown or were counted long ago. If no attempt was made to count some of them, it
// also returns a channel that is closed after the next attempt.
func (c *Catalog) counted(all []catalog.Reservation) (counted []catalog.Reservation, f *failure, counting <-chan struct{}) {
	r, now := &c.reservations, c.config.Clock.Now()
	counted = slices.Clone(all)
	oldest := now
	for i := range counted {
		id := counted[i].ID
		r.wanted[id] = wantedReservation{counted[i].InstanceType, now}
		n := r.counts[id]
		counted[i].Free, counted[i].Total, counted[i].Read = n.free, n.total, n.read
		if n.read.Before(oldest) {
			oldest = n.read
		}
		if !r.attempted[id] {
			counting = r.next
		}
	}
	if counting != nil {
		select {
		case r.wake <- struct{}{}:
		default: // It is awake.
		}
	}
	switch {
	case r.failure == nil:
	case oldest.IsZero():
		f = &failure{r.failure.reason, "the free slots of its reservations are unknown, so none is used: " + r.failure.message}
	case now.Sub(oldest) > staleCount:
		f = &failure{r.failure.reason, fmt.Sprintf("the free slots of its reservations are those of %s, and were not read since: %s", oldest.UTC().Format(time.RFC3339), r.failure.message)}
	}
	return counted, f, counting
}

// waitNoMore makes nobody wait again for the first count of reservations, such as while EC2 does not answer.
func (c *Catalog) waitNoMore(all []catalog.Reservation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range all {
		c.reservations.attempted[all[i].ID] = true
	}
}

// keepCounting counts slots until the context ends, while any are wanted.
func (c *Catalog) keepCounting(ctx context.Context, clients *api.Clients) {
	for failures := 0; ; {
		wait := countEvery
		if wanted := c.wanted(); len(wanted) > 0 {
			read := c.config.Clock.Now()
			attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
			counts, err := describeReservations(attempt, clients, wanted, read)
			cancel()
			if ctx.Err() != nil {
				return
			}
			var f *failure
			if failures++; err == nil {
				failures = 0
			} else {
				wait, f = max(wait, lifecycle.Backoff(firstBackoff, maxBackoff, failures)), diagnose(ctx, clients, err)
			}
			c.recount(ctx, wanted, counts, f)
		}
		if !c.sleepUnless(ctx, wait, c.reservations.wake) {
			return
		}
	}
}

func (c *Catalog) wanted() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, now := &c.reservations, c.config.Clock.Now()
	maps.DeleteFunc(r.wanted, func(id string, w wantedReservation) bool {
		old := now.Sub(w.asked) > wantedFor
		if old {
			delete(r.counts, id)
			delete(r.attempted, id)
		}
		return old
	})
	wanted := map[string]string{}
	for id, w := range r.wanted {
		wanted[id] = w.instanceType
	}
	return wanted
}

func (c *Catalog) recount(ctx context.Context, wanted map[string]string, counts map[string]count, f *failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := &c.reservations
	if was := r.failure; (was == nil) != (f == nil) {
		if f == nil {
			log.FromContext(ctx).Info("Read from AWS again", "source", reservationsSource)
		} else {
			log.FromContext(ctx).Info("Not read from AWS", "source", reservationsSource, "reason", f.reason, "message", f.message)
		}
	}
	r.failure = f
	outcome := "Success"
	if f == nil {
		maps.Copy(r.counts, counts)
		c.config.Metrics.CatalogRefreshed.WithLabelValues(reservationsSource).Set(float64(c.config.Clock.Now().Unix()))
	} else {
		outcome = f.reason
	}
	c.config.Metrics.CatalogRefreshes.WithLabelValues(reservationsSource, outcome).Inc()
	for id := range wanted {
		r.attempted[id] = true
	}
	close(r.next)
	r.next = make(chan struct{})
}

const reservationsSource = "capacity-reservations"

// describeReservations counts the slots of reservations, which are given with their instance types. Those that EC2 does not list as active have none. The filter by
// instance type keeps the answer short in an account with many reservations, and a request for all of them at once would fail if one is unknown.
func describeReservations(ctx context.Context, clients *api.Clients, wanted map[string]string, read time.Time) (map[string]count, error) {
	counts := map[string]count{}
	for id := range wanted {
		counts[id] = count{read: read}
	}
	instanceTypes := slices.Compact(slices.Sorted(maps.Values(wanted)))
	for some := range slices.Chunk(instanceTypes, typesPerCall) {
		pages := ec2.NewDescribeCapacityReservationsPaginator(clients.EC2, &ec2.DescribeCapacityReservationsInput{
			Filters: []ec2types.Filter{
				{Name: new("state"), Values: []string{string(ec2types.CapacityReservationStateActive)}},
				{Name: new("instance-type"), Values: some},
			},
			MaxResults: new(reservationsPerPage),
		})
		for pages.HasMorePages() {
			page, err := pages.NextPage(ctx)
			if err != nil {
				return nil, fmt.Errorf("counting the free slots of reservations: %w", err)
			}
			for _, r := range page.CapacityReservations {
				if id := ptr.Deref(r.CapacityReservationId, ""); wanted[id] != "" {
					counts[id] = count{catalog.Slots(int64(ptr.Deref(r.AvailableInstanceCount, 0))), catalog.Slots(int64(ptr.Deref(r.TotalInstanceCount, 0))), read}
				}
			}
		}
	}
	return counts, nil
}
