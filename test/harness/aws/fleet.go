package aws

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

const insufficientCapacity = "InsufficientInstanceCapacity"

// pool is an offering that a fleet may launch: a type in a zone, from a template.
type pool struct {
	capacityType string // "reserved" if it targets a reservation
	reservation  string // the ID of the reservation that it targets; "" without one
	machine      machine
	template     template
	override     ec2types.FleetLaunchTemplateOverridesRequest
	zone, subnet string
	image        string
	price        float64
}

// createFleet launches an instant fleet. It tries the pools in the order of the allocation strategy and launches all instances in the first one with
// capacity, as far as a reservation has slots. The pools that it tried become the errors of the response.
func (s *Server) createFleet(in *ec2.CreateFleetInput) (*ec2.CreateFleetOutput, error) {
	if in.Type != ec2types.FleetTypeInstant {
		return nil, badRequest("InvalidParameterValue", "the local AWS launches fleets of type instant only")
	}
	asked := in.TargetCapacitySpecification.DefaultTargetCapacityType
	pools, err := s.pools(in, string(asked))
	if err != nil {
		return nil, err
	}
	out := &ec2.CreateFleetOutput{FleetId: new(s.nextID("fleet"))}
	left := int(value(in.TargetCapacitySpecification.TotalTargetCapacity))
	for _, p := range pools {
		if left == 0 {
			break
		}
		launches := left
		f := s.launchFailure(p, asked)
		if f == nil && p.reservation != "" {
			launches = min(left, s.free(s.reservations[p.reservation]))
			if launches < left {
				f = reservationExceeded()
			}
		} else if f != nil {
			launches = 0
		}
		answered, lifecycle := p.answered(), s.lifecycleOf(p)
		if f != nil {
			out.Errors = append(out.Errors, ec2types.CreateFleetError{
				ErrorCode: &f.code, ErrorMessage: &f.message, LaunchTemplateAndOverrides: answered, Lifecycle: lifecycle,
			})
		}
		if launches == 0 {
			continue
		}
		launched := ec2types.CreateFleetInstance{InstanceType: p.override.InstanceType, LaunchTemplateAndOverrides: answered, Lifecycle: lifecycle}
		for range launches {
			launched.InstanceIds = append(launched.InstanceIds, s.launch(p, in.TagSpecifications))
		}
		out.Instances = append(out.Instances, launched)
		left -= launches
	}
	return out, nil
}

// answered returns a pool as responses describe it.
func (p *pool) answered() *ec2types.LaunchTemplateAndOverridesResponse {
	return &ec2types.LaunchTemplateAndOverridesResponse{
		LaunchTemplateSpecification: &ec2types.FleetLaunchTemplateSpecification{
			LaunchTemplateId: p.template.LaunchTemplateId, LaunchTemplateName: p.template.LaunchTemplateName, Version: new("1"),
		},
		Overrides: &ec2types.FleetLaunchTemplateOverrides{
			InstanceType: p.override.InstanceType, AvailabilityZone: &p.zone, SubnetId: &p.subnet, ImageId: &p.image, Priority: p.override.Priority,
		},
	}
}

// lifecycleOf returns the lifecycle of the instances of a pool.
func (s *Server) lifecycleOf(p pool) ec2types.InstanceLifecycle {
	if r, ok := s.reservations[p.reservation]; ok && r.Kind.lifecycle() != "" {
		return ec2types.InstanceLifecycle(r.Kind.lifecycle())
	}
	if p.capacityType == spot {
		return ec2types.InstanceLifecycleSpot
	}
	return ec2types.InstanceLifecycleOnDemand
}

// pools returns the pools of a fleet in the order in which its strategy tries them.
func (s *Server) pools(in *ec2.CreateFleetInput, capacityType string) ([]pool, error) {
	var pools []pool
	for _, config := range in.LaunchTemplateConfigs {
		t, err := s.template(config.LaunchTemplateSpecification.LaunchTemplateName, config.LaunchTemplateSpecification.LaunchTemplateId)
		if err != nil {
			return nil, err
		}
		for _, o := range config.Overrides {
			p, err := s.pool(t, o, capacityType)
			if err != nil {
				return nil, err
			}
			pools = append(pools, p)
		}
	}
	byPriority := in.OnDemandOptions != nil && in.OnDemandOptions.AllocationStrategy == ec2types.FleetOnDemandAllocationStrategyPrioritized ||
		in.SpotOptions != nil && in.SpotOptions.AllocationStrategy == ec2types.SpotAllocationStrategyCapacityOptimizedPrioritized
	slices.SortStableFunc(pools, func(a, b pool) int {
		if byPriority {
			return cmp.Compare(value(a.override.Priority), value(b.override.Priority))
		}
		return cmp.Compare(a.price, b.price) // for spot too: the local AWS has the same capacity everywhere
	})
	return pools, nil
}

func (s *Server) template(name, id *string) (template, error) {
	for n, t := range s.templates {
		if n == value(name) || *t.LaunchTemplateId == value(id) {
			return t, nil
		}
	}
	return template{}, noTemplate(value(name) + value(id))
}

func (s *Server) pool(t template, o ec2types.FleetLaunchTemplateOverridesRequest, capacityType string) (pool, error) {
	m, ok := s.machines[string(o.InstanceType)]
	if !ok {
		return pool{}, badRequest("InvalidInstanceType", "The instance type '"+string(o.InstanceType)+"' does not exist")
	}
	p := pool{machine: m, template: t, override: o, subnet: value(o.SubnetId), image: value(o.ImageId), capacityType: capacityType, reservation: targets(t)}
	if p.reservation != "" {
		p.capacityType = reserved
	}
	if p.subnet == "" { // the template's network interfaces name the subnet
		for _, card := range t.data.NetworkInterfaces {
			p.subnet = value(card.SubnetId)
		}
	}
	for _, subnet := range s.subnets() {
		if *subnet.SubnetId == p.subnet || p.subnet == "" && *subnet.AvailabilityZone == value(o.AvailabilityZone) {
			p.zone, p.subnet = *subnet.AvailabilityZone, *subnet.SubnetId
		}
	}
	if p.zone == "" {
		return pool{}, badRequest("InvalidSubnetID.NotFound", "The subnet ID '"+p.subnet+"' does not exist")
	}
	if p.image == "" {
		p.image = value(t.data.ImageId)
	}
	p.price = s.onDemandPrice(m)
	if capacityType == spot {
		p.price = s.spotPrice(m, p.zone)
	}
	return p, nil
}

// launchFailure returns why a pool launches nothing, or nil.
func (s *Server) launchFailure(p pool, asked ec2types.DefaultTargetCapacityType) *failure {
	name := p.machine.name()
	if code := s.refused(p); code != "" {
		return &failure{code: code, message: refusalMessage(code, name, p.zone)}
	}
	if !slices.Contains(s.zones(p.machine), p.zone) {
		return &failure{code: "InvalidFleetConfiguration", message: fmt.Sprintf("Your requested instance type (%s) is not supported in your requested Availability Zone (%s).", name, p.zone)}
	}
	if p.reservation == "" && !p.machine.offered(ec2types.UsageClassType(asked)) {
		return &failure{code: "Unsupported", message: fmt.Sprintf("The instance type %s is not supported for %s instances.", name, asked)}
	}
	n := slices.IndexFunc(s.images, func(i Image) bool { return i.ID == p.image })
	if n < 0 {
		return &failure{code: "InvalidAMIID.NotFound", message: "The image id '[" + p.image + "]' does not exist"}
	}
	if arch := s.images[n].Arch; !slices.Contains(texts(p.machine.Info.ProcessorInfo.SupportedArchitectures), arch) {
		return &failure{code: "InvalidParameterValue", message: fmt.Sprintf("The architecture '%s' of the specified instance type does not match the architecture '%s' of the specified AMI.",
			p.machine.Info.ProcessorInfo.SupportedArchitectures[0], arch)}
	}
	if profile := p.template.data.IamInstanceProfile; profile != nil {
		if _, ok := s.profiles[value(profile.Name)]; !ok {
			return &failure{code: "InvalidParameterValue", message: "Value (" + value(profile.Name) + ") for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name"}
		}
	}
	if p.reservation != "" {
		return s.reservationFailure(p, asked)
	}
	return nil
}

func refusalMessage(code, instanceType, zone string) string {
	switch code {
	case insufficientCapacity:
		return fmt.Sprintf("We currently do not have sufficient %s capacity in the Availability Zone you requested (%s). Our system will be working on provisioning additional capacity.", instanceType, zone)
	case "VcpuLimitExceeded":
		return "You have requested more vCPU capacity than your current vCPU limit of 0 allows for the instance bucket that the specified instance type belongs to."
	case "MaxSpotInstanceCountExceeded":
		return "Max spot instance count exceeded"
	default:
		return fmt.Sprintf("%s of %s in %s", code, instanceType, zone)
	}
}

// launch starts an instance and returns its ID.
func (s *Server) launch(p pool, specs []ec2types.TagSpecification) string {
	number := len(s.launched)
	address := fmt.Sprintf("10.%d.%d.%d", strings.Index(zoneLetters, p.zone[len(p.zone)-1:]), number/250, 4+number%250)
	userData, err := base64.StdEncoding.DecodeString(value(p.template.data.UserData))
	if err != nil {
		userData = []byte(value(p.template.data.UserData))
	}
	i := &instance{Instance: Instance{
		ID: s.nextID("i"), Type: p.machine.name(), Zone: p.zone, CapacityType: p.capacityType, Image: p.image, Subnet: p.subnet,
		LaunchTemplate: *p.template.LaunchTemplateName, UserData: string(userData), PrivateDNS: s.dnsName(address), PrivateIP: address,
		Tags: map[string]string{}, State: Pending, Launched: s.now(),
	}}
	s.takeSlot(i, p)
	for _, spec := range p.template.data.TagSpecifications {
		if spec.ResourceType == ec2types.ResourceTypeInstance {
			maps.Copy(i.Tags, tagsOf(spec.Tags))
		}
	}
	for _, spec := range specs {
		if spec.ResourceType == ec2types.ResourceTypeInstance {
			maps.Copy(i.Tags, tagsOf(spec.Tags))
		}
	}
	for _, card := range p.template.data.NetworkInterfaces {
		i.interfaces = append(i.interfaces, ec2types.InstanceNetworkInterface{
			InterfaceType: new(cmp.Or(value(card.InterfaceType), "interface")), SubnetId: &p.subnet, VpcId: new(vpc),
		})
	}
	s.instances[i.ID] = i
	s.launched = append(s.launched, i)
	s.become(i, Pending)
	s.later(s.config.LaunchTime, func() {
		if i.State == Pending {
			s.become(i, Running)
		}
	})
	return i.ID
}

// takeSlot puts an instance into the reservation that its pool targets, or into one that it matches.
func (s *Server) takeSlot(i *instance, p pool) {
	if p.capacityType == spot {
		i.lifecycle = ec2types.InstanceLifecycleTypeSpot
		return
	}
	i.specified = &ec2types.CapacityReservationSpecificationResponse{CapacityReservationPreference: ec2types.CapacityReservationPreferenceOpen}
	if spec := p.template.data.CapacityReservationSpecification; spec != nil && spec.CapacityReservationPreference != "" {
		i.specified.CapacityReservationPreference = spec.CapacityReservationPreference
	}
	r := s.reservations[p.reservation]
	if r != nil {
		i.specified.CapacityReservationTarget = &ec2types.CapacityReservationTargetResponse{CapacityReservationId: &r.ID}
	} else if i.specified.CapacityReservationPreference == ec2types.CapacityReservationPreferenceOpen {
		r = s.openReservation(i.Type, i.Zone)
	}
	if r != nil {
		i.reservation, i.Reservation, i.lifecycle = r, r.ID, r.Kind.lifecycle()
	}
}

func (s *Server) dnsName(address string) string {
	domain := s.config.Region + ".compute.internal"
	if s.config.Region == "us-east-1" {
		domain = "ec2.internal"
	}
	return "ip-" + strings.ReplaceAll(address, ".", "-") + "." + domain
}

// later calls do after a delay, with the region locked. Without a delay it calls do at once.
func (s *Server) later(wait time.Duration, do func()) {
	if wait == 0 {
		do()
		return
	}
	time.AfterFunc(wait, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		do()
	})
}

// runInstances serves dry runs only. Those are answered before this is called.
func (*Server) runInstances(*ec2.RunInstancesInput) (*ec2.RunInstancesOutput, error) {
	return nil, badRequest("Unsupported", "the local AWS launches fleets only")
}
