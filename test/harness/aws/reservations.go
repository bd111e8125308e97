package aws

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// ReservationKind is how instances get into a capacity reservation.
type ReservationKind string

// The kinds of reservations.
const (
	// Open reservations also take on-demand instances that match and name no reservation, unless their preference is none.
	Open ReservationKind = "open"
	// Targeted reservations take only instances that name them.
	Targeted ReservationKind = "targeted"
	// Interruptible reservations are targeted, and can be reclaimed: see [Server.Reclaim].
	Interruptible ReservationKind = "interruptible"
	// Block is a capacity block. EC2 warns about its end 40 minutes before, and terminates its instances 30 minutes before.
	Block ReservationKind = "block"
)

// ReservationState is the state of a reservation, as EC2 names it.
type ReservationState string

// The states of reservations that the local AWS knows.
const (
	ReservationScheduled   ReservationState = "scheduled"
	ReservationActive      ReservationState = "active"
	ReservationUnavailable ReservationState = "unavailable" // being reclaimed
	ReservationExpired     ReservationState = "expired"
	ReservationCanceled    ReservationState = "cancelled" //nolint:misspell // EC2 spells it so.
)

// The times at which EC2 warns about the end of a capacity block and terminates its instances.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-monitor.html
const (
	blockWarning = 40 * time.Minute
	blockReclaim = 30 * time.Minute
)

// Reservation is a capacity reservation.
type Reservation struct {
	ID         string           // "cr-…"; made up when empty
	Kind       ReservationKind  // Open when empty
	State      ReservationState // ReservationActive when empty
	Type, Zone string           // "g4dn.xlarge", "us-east-1a"
	Owner      string           // the account that owns it; the server's own account when empty
	Tags       map[string]string
	// Total is the number of slots. Elsewhere is how many of them other accounts use, with which the reservation is shared.
	Total, Elsewhere int
	// Claimed is the number of free slots that DescribeCapacityReservations returns. If it is nil, that is the truth.
	Claimed *int
	// End is when it ends; never if it is zero.
	End time.Time
	// SlotDelay is the time from the end of an instance to the return of its slot.
	SlotDelay time.Duration
}

// reservation adds what only EC2 knows.
type reservation struct {
	Reservation
	created time.Time
	plans   int // how often its end was planned: earlier plans are void
}

// Reserve adds a capacity reservation and returns it with its ID.
func (s *Server) Reserve(r Reservation) Reservation {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.ID == "" {
		r.ID = s.nextID("cr")
	}
	if r.Kind == "" {
		r.Kind = Open
	}
	if r.State == "" {
		r.State = ReservationActive
	}
	if r.Owner == "" {
		r.Owner = account
	}
	added := &reservation{Reservation: r, created: s.now()}
	s.reservations[r.ID] = added
	s.planEnd(added)
	return r
}

// ChangeReservation changes a reservation, as its owner or time does. A reservation that expires or is canceled leaves its instances running on demand. It
// returns an error if there is no such reservation.
func (s *Server) ChangeReservation(id string, change func(*Reservation)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.reservations[id]
	if !ok {
		return fmt.Errorf("there is no capacity reservation %s", id)
	}
	change(&r.Reservation)
	s.planEnd(r)
	return nil
}

// FreeSlots returns how many instances can be launched into a reservation, whatever DescribeCapacityReservations says; 0 if it does not exist.
func (s *Server) FreeSlots(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.reservations[id]; ok {
		return s.free(r)
	}
	return 0
}

// Reclaim takes an interruptible reservation back: no instance is launched into it any more, the warning about each of its instances goes to the queue, and
// the instances end after the notice. EC2 gives two minutes. It returns an error if there is no such reservation.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitor-interruptible-cr.html
func (s *Server) Reclaim(id string, notice time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.reservations[id]
	if !ok || r.Kind != Interruptible {
		return fmt.Errorf("there is no interruptible capacity reservation %s", id)
	}
	r.State = ReservationUnavailable
	for _, i := range s.instancesIn(id) {
		if i.State == Terminated {
			continue // only its slot is not back yet
		}
		if err := s.notify(i, ReservationInterruption); err != nil {
			return err
		}
		s.later(notice, func() { s.terminate(i) })
	}
	return nil
}

// planEnd plans what happens at the end of a reservation, in place of earlier plans.
func (s *Server) planEnd(r *reservation) {
	r.plans++
	if r.State == ReservationExpired || r.State == ReservationCanceled {
		s.release(r)
		return
	}
	if r.End.IsZero() {
		return
	}
	plan := r.plans
	at := func(when time.Time, do func()) {
		s.later(max(0, when.Sub(s.now())), func() {
			if r.plans == plan {
				do()
			}
		})
	}
	if r.Kind == Block {
		at(r.End.Add(-blockWarning), func() {
			s.send(s.event("aws.ec2", "Capacity Block Reservation Expiration Warning", s.reservationARN(r), map[string]any{
				"capacity-reservation-id": r.ID, "end-date": r.End.UTC().Format(time.RFC3339),
			}))
		})
		at(r.End.Add(-blockReclaim), func() {
			for _, i := range s.instancesIn(r.ID) {
				s.terminate(i)
			}
		})
	}
	at(r.End, func() {
		r.State = ReservationExpired
		s.release(r)
	})
}

// release makes the instances of a reservation that has ended on-demand instances.
func (s *Server) release(r *reservation) {
	for _, i := range s.instancesIn(r.ID) {
		i.reservation = nil
		i.Reservation, i.CapacityType = "", onDemand
		s.notifyWatchers(i)
	}
}

// instancesIn returns the instances that use slots of a reservation.
func (s *Server) instancesIn(id string) []*instance {
	return slices.DeleteFunc(slices.Clone(s.launched), func(i *instance) bool { return i.reservation == nil || i.reservation.ID != id })
}

// free returns how many instances can be launched into a reservation.
func (s *Server) free(r *reservation) int {
	ending := r.Kind == Block && !r.End.IsZero() && !s.now().Before(r.End.Add(-blockReclaim))
	if r.State != ReservationActive || ending {
		return 0
	}
	return max(0, r.Total-r.Elsewhere-len(s.instancesIn(r.ID)))
}

// openReservation returns an open reservation with a free slot for an instance that names none, or nil.
func (s *Server) openReservation(instanceType, zone string) *reservation {
	for _, id := range sortedKeys(s.reservations) {
		if r := s.reservations[id]; r.Kind == Open && r.Type == instanceType && r.Zone == zone && s.free(r) > 0 {
			return r
		}
	}
	return nil
}

// targets returns the ID of the reservation that a template requires, or "".
func targets(t template) string {
	spec := t.data.CapacityReservationSpecification
	if spec == nil || spec.CapacityReservationTarget == nil {
		return ""
	}
	return value(spec.CapacityReservationTarget.CapacityReservationId)
}

// marketOf returns the market type of a template; on-demand if it has none.
func marketOf(t template) ec2types.MarketType {
	if options := t.data.InstanceMarketOptions; options != nil {
		return options.MarketType
	}
	return ec2types.MarketTypeOnDemand
}

// market returns the market type of the templates and the target capacity type of the fleets that launch into reservations of this kind.
func (k ReservationKind) market() (ec2types.MarketType, ec2types.DefaultTargetCapacityType) {
	switch k {
	case Block:
		return ec2types.MarketTypeCapacityBlock, ec2types.DefaultTargetCapacityTypeCapacityBlock
	case Interruptible:
		return ec2types.MarketTypeInterruptibleCapacityReservation, ec2types.DefaultTargetCapacityTypeReservedCapacity
	default:
		return ec2types.MarketTypeOnDemand, ec2types.DefaultTargetCapacityTypeOnDemand
	}
}

// lifecycle returns the lifecycle of the instances of this kind. On-demand instances have none, except in the responses of CreateFleet.
func (k ReservationKind) lifecycle() ec2types.InstanceLifecycleType {
	switch k {
	case Block:
		return ec2types.InstanceLifecycleTypeCapacityBlock
	case Interruptible:
		return ec2types.InstanceLifecycleTypeInterruptibleCapacityReservation
	default:
		return ""
	}
}

// reservationFailure returns why nothing can be launched into the reservation that a pool targets, or nil.
func (s *Server) reservationFailure(p pool, asked ec2types.DefaultTargetCapacityType) *failure {
	r, ok := s.reservations[p.reservation]
	if !ok {
		f := noReservation(p.reservation)
		return &f
	}
	market, capacity := r.Kind.market()
	switch {
	case marketOf(p.template) != market || asked != capacity:
		return &failure{code: "InvalidFleetConfiguration", message: fmt.Sprintf(
			"The Capacity Reservation %s cannot be used with market type %s and target capacity type %s.", r.ID, marketOf(p.template), asked)}
	case r.State == ReservationScheduled:
		return &failure{code: "InvalidCapacityReservationState.PendingActivation", message: "Your Capacity Block is not active yet."}
	case r.State != ReservationActive:
		return &failure{code: "InvalidCapacityReservationState.Unavailable", message: "The Capacity Reservation " + r.ID + " is " + string(r.State) + "."}
	case r.Type != p.machine.name() || r.Zone != p.zone || s.free(r) == 0:
		return reservationExceeded()
	}
	return nil
}

func reservationExceeded() *failure {
	return &failure{
		code: "ReservationCapacityExceeded", message: "The requested reservation does not have sufficient compatible and available capacity for this request.",
	}
}

func noReservation(id string) failure {
	return badRequest("InvalidCapacityReservationId.NotFound", "The capacity reservation ID '"+id+"' was not found")
}

// mostReservations is how many reservations a page has at most. EC2 allows 1000.
const mostReservations = 5

func (s *Server) describeCapacityReservations(in *ec2.DescribeCapacityReservationsInput) (*ec2.DescribeCapacityReservationsOutput, error) {
	wanted := in.CapacityReservationIds
	if len(wanted) > 0 && in.MaxResults != nil {
		return nil, badRequest("InvalidParameterCombination", "The parameter CapacityReservationIds cannot be used with the parameter MaxResults")
	}
	most := mostReservations
	if len(wanted) > 0 {
		most = len(wanted)
	} else {
		wanted = sortedKeys(s.reservations)
	}
	all := []ec2types.CapacityReservation{}
	for _, id := range wanted {
		r, ok := s.reservations[id]
		if !ok {
			return nil, noReservation(id)
		}
		all = append(all, s.describedReservation(r))
	}
	found, err := selected(all, in.Filters, func(r ec2types.CapacityReservation) property {
		return tagged(tagsOf(r.Tags), fields(map[string][]string{
			"availability-zone":       {*r.AvailabilityZone},
			"end-date-type":           {string(r.EndDateType)},
			"instance-match-criteria": {string(r.InstanceMatchCriteria)},
			"instance-platform":       {string(r.InstancePlatform)},
			"instance-type":           {*r.InstanceType},
			"owner-id":                {*r.OwnerId},
			"state":                   {string(r.State)},
			"tenancy":                 {string(r.Tenancy)},
		}))
	})
	if err != nil {
		return nil, err
	}
	found, next, err := page(found, in.MaxResults, most, in.NextToken)
	return &ec2.DescribeCapacityReservationsOutput{CapacityReservations: found, NextToken: next}, err
}

func (s *Server) describedReservation(r *reservation) ec2types.CapacityReservation {
	free := s.free(r)
	if r.Claimed != nil {
		free = *r.Claimed
	}
	d := ec2types.CapacityReservation{
		CapacityReservationId: new(r.ID), CapacityReservationArn: new(s.reservationARN(r)), OwnerId: new(r.Owner), Tags: tagList(maps.Clone(r.Tags)),
		State: ec2types.CapacityReservationState(r.State), InstanceType: new(r.Type), InstancePlatform: ec2types.CapacityReservationInstancePlatformLinuxUnix,
		AvailabilityZone: new(r.Zone), AvailabilityZoneId: new(zoneID(r.Zone)), Tenancy: ec2types.CapacityReservationTenancyDefault,
		TotalInstanceCount: count(r.Total), AvailableInstanceCount: count(free),
		InstanceMatchCriteria: ec2types.InstanceMatchCriteriaTargeted, ReservationType: ec2types.CapacityReservationTypeDefault,
		Interruptible: new(r.Kind == Interruptible), EbsOptimized: new(true), EphemeralStorage: new(false),
		CreateDate: new(r.created), StartDate: new(r.created), EndDateType: ec2types.EndDateTypeUnlimited,
	}
	if r.Kind == Open {
		d.InstanceMatchCriteria = ec2types.InstanceMatchCriteriaOpen
	}
	if r.Kind == Block {
		d.ReservationType = ec2types.CapacityReservationTypeCapacityBlock
	}
	if !r.End.IsZero() {
		d.EndDate, d.EndDateType = new(r.End), ec2types.EndDateTypeLimited
	}
	return d
}

// count returns a number of slots as EC2 does.
func count(n int) *int32 { return new(int32(n)) }

func (s *Server) reservationARN(r *reservation) string {
	return "arn:aws:ec2:" + s.config.Region + ":" + r.Owner + ":capacity-reservation/" + r.ID
}

// String describes a reservation for failure messages.
func (r Reservation) String() string {
	return r.ID + ": " + string(r.Kind) + " " + r.Type + " in " + r.Zone + ", " + strconv.Itoa(r.Total) + " slots"
}
