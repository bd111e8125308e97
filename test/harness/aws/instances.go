package aws

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

const (
	spot     = "spot"
	onDemand = "on-demand"
	reserved = "reserved"
)

// State is the state of an instance, as EC2 names it.
type State string

// The states, in the order in which an instance passes through them.
const (
	Pending      State = "pending"
	Running      State = "running"
	ShuttingDown State = "shutting-down"
	Terminated   State = "terminated"
)

// codes are EC2's numeric codes of the states.
var codes = map[State]int32{Pending: 0, Running: 16, ShuttingDown: 32, Terminated: 48}

// Instance is an EC2 instance.
type Instance struct {
	ID   string // "i-…"
	Type string // "g4dn.xlarge"
	Zone string // "us-east-1a"
	// CapacityType is "on-demand", "spot", or "reserved" if the instance was launched for a reservation.
	CapacityType string
	// Reservation is the ID of the capacity reservation whose slot it uses; "" without one.
	Reservation string
	Image       string // "ami-…"
	Subnet      string // "subnet-…"
	// LaunchTemplate is the name of its launch template.
	LaunchTemplate string
	// UserData is the decoded user data: for AL2023 a MIME document with nodeadm's configuration, for Bottlerocket TOML.
	UserData string
	// PrivateDNS is the name of its Node.
	PrivateDNS string
	PrivateIP  string
	Tags       map[string]string
	State      State
	Launched   time.Time
}

// ProviderID returns spec.providerID of the instance's Node.
func (i Instance) ProviderID() string { return "aws:///" + i.Zone + "/" + i.ID }

// instance adds what only EC2 knows.
type instance struct {
	Instance
	interfaces []ec2types.InstanceNetworkInterface
	retires    bool // a scheduled event will terminate it
	// reservation is the reservation whose slot it uses. It is kept until the slot is free again, which can be some time after the instance's end.
	reservation *reservation
	lifecycle   ec2types.InstanceLifecycleType
	specified   *ec2types.CapacityReservationSpecificationResponse
}

func (i *instance) copied() Instance {
	c := i.Instance
	c.Tags = maps.Clone(c.Tags)
	return c
}

// Instances returns all instances that were launched, including terminated ones, in the order of their launch.
func (s *Server) Instances() []Instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Instance, 0, len(s.launched))
	for _, i := range s.launched {
		all = append(all, i.copied())
	}
	return all
}

// watcher holds the events that a watch has not delivered yet.
type watcher struct {
	pending []Instance
	wake    chan struct{}
}

// Watch sends every existing instance, and then every change of an instance's state or tags. It keeps the order and loses no event. It closes the
// channel when the context is done.
func (s *Server) Watch(ctx context.Context) <-chan Instance {
	w := &watcher{wake: make(chan struct{}, 1)}
	s.mu.Lock()
	for _, i := range s.launched {
		w.send(i.copied())
	}
	s.watchers = append(s.watchers, w)
	s.mu.Unlock()

	out := make(chan Instance)
	go func() {
		defer close(out)
		defer s.forget(w)
		for {
			select {
			case <-ctx.Done():
				return
			case <-w.wake:
			}
			s.mu.Lock()
			untold := w.pending
			w.pending = nil
			s.mu.Unlock()
			for _, i := range untold {
				select {
				case <-ctx.Done():
					return
				case out <- i:
				}
			}
		}
	}()
	return out
}

func (w *watcher) send(i Instance) {
	w.pending = append(w.pending, i)
	select {
	case w.wake <- struct{}{}:
	default: // it is already awake
	}
}

func (s *Server) forget(w *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers = slices.DeleteFunc(s.watchers, func(other *watcher) bool { return other == w })
}

// notifyWatchers sends an instance to all watchers.
func (s *Server) notifyWatchers(i *instance) {
	for _, w := range s.watchers {
		w.send(i.copied())
	}
}

// become changes the state of an instance and sends the change to the watchers and to the queue.
func (s *Server) become(i *instance, state State) {
	i.State = state
	s.notifyWatchers(i)
	s.send(s.event("aws.ec2", "EC2 Instance State-change Notification", s.instanceARN(i), map[string]any{"instance-id": i.ID, "state": state}))
}

// Terminate terminates an instance as if a user had done so in the console.
func (s *Server) Terminate(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, ok := s.instances[id]; ok {
		s.terminate(i)
	}
}

func (s *Server) terminate(i *instance) {
	if i.State == ShuttingDown || i.State == Terminated {
		return
	}
	s.become(i, ShuttingDown)
	s.later(s.config.ShutdownTime, func() {
		s.become(i, Terminated)
		if i.reservation != nil {
			s.later(i.reservation.SlotDelay, func() { i.reservation = nil })
		}
	})
}

// Notice is EC2's warning that it will take an instance away.
type Notice string

// The notices, by the type of their EventBridge event.
const (
	// SpotInterruption warns two minutes before the interruption.
	SpotInterruption Notice = "EC2 Spot Instance Interruption Warning"
	// RebalanceRecommendation announces an elevated risk of a spot interruption.
	RebalanceRecommendation Notice = "EC2 Instance Rebalance Recommendation"
	// ScheduledChange is maintenance that retires the instance. DescribeInstanceStatus returns it too.
	ScheduledChange Notice = "AWS Health Event"
	// ReservationInterruption warns two minutes before an interruptible reservation takes the instance back.
	ReservationInterruption Notice = "EC2 Capacity Reservation Instance Interruption Warning"
)

// Interrupt sends a notice about an instance to the queue. The instance keeps running: to end it, call Terminate. Every change of state sends a message
// of its own, "EC2 Instance State-change Notification".
func (s *Server) Interrupt(id string, notice Notice) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.instances[id]
	if !ok {
		return fmt.Errorf("there is no instance %s", id)
	}
	return s.notify(i, notice)
}

func (s *Server) notify(i *instance, notice Notice) error {
	id, arn := i.ID, s.instanceARN(i)
	switch notice {
	case SpotInterruption:
		s.send(s.event("aws.ec2", string(notice), arn, map[string]any{"instance-id": id, "instance-action": "terminate"}))
	case ReservationInterruption:
		s.send(s.event("aws.ec2", string(notice), arn, map[string]any{
			"instance-id": id, "instance-action": "terminate", "instance-termination-time": s.now().Add(interruptionNotice).UTC().Format(time.RFC3339),
			"availability-zone-id": zoneID(i.Zone), "instance-lifecycle": i.lifecycle,
		}))
	case RebalanceRecommendation:
		s.send(s.event("aws.ec2", string(notice), arn, map[string]any{"instance-id": id}))
	case ScheduledChange:
		i.retires = true
		s.send(s.event("aws.health", string(notice), arn, map[string]any{
			"service": "EC2", "eventTypeCode": "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED", "eventTypeCategory": "scheduledChange",
			"startTime": s.retirement().Format(time.RFC1123), "affectedEntities": []map[string]string{{"entityValue": id}},
		}))
	default:
		return fmt.Errorf("there is no notice %q", notice)
	}
	return nil
}

// interruptionNotice is how long before an interruption EC2 warns.
const interruptionNotice = 2 * time.Minute

func (s *Server) instanceARN(i *instance) string {
	return "arn:aws:ec2:" + s.config.Region + ":" + account + ":instance/" + i.ID
}

// retirement returns when EC2 would retire an instance for which it gives notice now. AWS does so two weeks ahead.
func (s *Server) retirement() time.Time { return s.now().AddDate(0, 0, 14).UTC() }

func (s *Server) describeInstances(in *ec2.DescribeInstancesInput) (*ec2.DescribeInstancesOutput, error) {
	wanted := s.launched
	if len(in.InstanceIds) > 0 {
		wanted = nil
		for _, id := range in.InstanceIds {
			i, ok := s.instances[id]
			if !ok {
				return nil, noInstance(id)
			}
			wanted = append(wanted, i)
		}
	}
	found, err := selected(wanted, in.Filters, func(i *instance) property {
		return tagged(i.Tags, fields(map[string][]string{
			"instance-id":         {i.ID},
			"instance-state-name": {string(i.State)},
			"instance-type":       {i.Type},
			"availability-zone":   {i.Zone},
			"image-id":            {i.Image},
			"private-dns-name":    {i.PrivateDNS},
		}))
	})
	if err != nil {
		return nil, err
	}
	found, next, err := page(found, in.MaxResults, 500, in.NextToken)
	out := &ec2.DescribeInstancesOutput{Reservations: []ec2types.Reservation{}, NextToken: next}
	for _, i := range found {
		out.Reservations = append(out.Reservations, ec2types.Reservation{
			ReservationId: new("r-" + strings.TrimPrefix(i.ID, "i-")), OwnerId: new(account), Instances: []ec2types.Instance{i.described()},
		})
	}
	return out, err
}

func noInstance(id string) failure {
	return badRequest("InvalidInstanceID.NotFound", "The instance ID '"+id+"' does not exist")
}

func (i *instance) described() ec2types.Instance {
	d := ec2types.Instance{
		InstanceId: &i.ID, InstanceType: ec2types.InstanceType(i.Type), ImageId: &i.Image, LaunchTime: &i.Launched, SubnetId: &i.Subnet, VpcId: new(vpc),
		Placement:      &ec2types.Placement{AvailabilityZone: &i.Zone, AvailabilityZoneId: new(zoneID(i.Zone)), Tenancy: ec2types.TenancyDefault},
		State:          &ec2types.InstanceState{Name: ec2types.InstanceStateName(i.State), Code: new(codes[i.State])},
		PrivateDnsName: &i.PrivateDNS, PrivateIpAddress: &i.PrivateIP,
		SecurityGroups:    []ec2types.GroupIdentifier{{GroupId: new(group)}},
		NetworkInterfaces: i.interfaces,
		Tags:              tagList(i.Tags),
		InstanceLifecycle: i.lifecycle, CapacityReservationSpecification: i.specified,
	}
	if i.Reservation != "" {
		d.CapacityReservationId = &i.Reservation
	}
	if i.CapacityType == spot {
		d.SpotInstanceRequestId = new("sir-" + strings.TrimPrefix(i.ID, "i-"))
	}
	return d
}

func (s *Server) terminateInstances(in *ec2.TerminateInstancesInput) (*ec2.TerminateInstancesOutput, error) {
	for _, id := range in.InstanceIds {
		if _, ok := s.instances[id]; !ok {
			return nil, noInstance(id)
		}
	}
	out := &ec2.TerminateInstancesOutput{TerminatingInstances: []ec2types.InstanceStateChange{}}
	for _, id := range in.InstanceIds {
		i := s.instances[id]
		before := i.State
		s.terminate(i)
		out.TerminatingInstances = append(out.TerminatingInstances, ec2types.InstanceStateChange{
			InstanceId:    &id,
			PreviousState: &ec2types.InstanceState{Name: ec2types.InstanceStateName(before), Code: new(codes[before])},
			CurrentState:  &ec2types.InstanceState{Name: ec2types.InstanceStateName(i.State), Code: new(codes[i.State])},
		})
	}
	return out, nil
}

func (s *Server) describeInstanceStatus(in *ec2.DescribeInstanceStatusInput) (*ec2.DescribeInstanceStatusOutput, error) {
	running := slices.DeleteFunc(slices.Clone(s.launched), func(i *instance) bool {
		return i.State != Running || len(in.InstanceIds) > 0 && !slices.Contains(in.InstanceIds, i.ID)
	})
	found, err := selected(running, in.Filters, func(i *instance) property {
		var events []string
		if i.retires {
			events = append(events, string(ec2types.EventCodeInstanceRetirement))
		}
		return fields(map[string][]string{
			"instance-status.status": {string(ec2types.SummaryStatusOk)}, "system-status.status": {string(ec2types.SummaryStatusOk)}, "event.code": events,
		})
	})
	out := &ec2.DescribeInstanceStatusOutput{InstanceStatuses: []ec2types.InstanceStatus{}}
	for _, i := range found {
		status := ec2types.InstanceStatus{
			InstanceId: &i.ID, AvailabilityZone: &i.Zone, InstanceState: i.described().State,
			InstanceStatus: &ec2types.InstanceStatusSummary{Status: ec2types.SummaryStatusOk},
			SystemStatus:   &ec2types.InstanceStatusSummary{Status: ec2types.SummaryStatusOk},
		}
		if i.retires {
			status.Events = []ec2types.InstanceStatusEvent{{Code: ec2types.EventCodeInstanceRetirement, NotBefore: new(s.retirement())}}
		}
		out.InstanceStatuses = append(out.InstanceStatuses, status)
	}
	return out, err
}
