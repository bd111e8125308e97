package aws

import (
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// withTemplate returns a server with a launch template "t" for an image.
func withTemplate(t *testing.T, c Config, image func(*Server) Image) (*Server, clients) {
	t.Helper()
	s, api := started(t, c)
	must[*ec2.CreateLaunchTemplateOutput](t)(api.ec2.CreateLaunchTemplate(t.Context(), templateInput(s, "t", image(s).ID)))
	return s, api
}

func gpuImage(t *testing.T) func(*Server) Image {
	t.Helper()
	return func(s *Server) Image { return s.gpuImage(t, AL2023, "x86_64") }
}

// refusals returns the errors of a fleet as "type zone: code".
func refusals(out *ec2.CreateFleetOutput) []string {
	var all []string
	for _, e := range out.Errors {
		o := e.LaunchTemplateAndOverrides.Overrides
		all = append(all, string(o.InstanceType)+" "+*o.AvailabilityZone+": "+*e.ErrorCode)
	}
	return all
}

func TestFleetUsesCheapestPoolThatIsNotRefused(t *testing.T) {
	t.Parallel()
	s, c := withTemplate(t, Config{}, gpuImage(t))
	in := fleetInput("t", onDemand, offering{"g5.xlarge", "us-east-1a"}, offering{"g4dn.xlarge", "us-east-1b"}, offering{"g4dn.xlarge", "us-east-1a"})
	in.TargetCapacitySpecification.TotalTargetCapacity = new(int32(2))
	s.Refuse(Refusal{Type: "g4dn.xlarge", Zone: "us-east-1b"})
	out := must[*ec2.CreateFleetOutput](t)(c.ec2.CreateFleet(t.Context(), in))

	if diff := cmp.Diff([]string{"g4dn.xlarge us-east-1b: InsufficientInstanceCapacity"}, refusals(out)); diff != "" {
		t.Errorf("refusals (-want +got):\n%s", diff)
	}
	if len(out.Instances) != 1 || len(out.Instances[0].InstanceIds) != 2 || out.Instances[0].InstanceType != "g4dn.xlarge" {
		t.Fatalf("launched %+v", out.Instances)
	}
	want := Instance{
		Type: "g4dn.xlarge", Zone: "us-east-1a", CapacityType: "on-demand", Image: gpuImage(t)(s).ID, Subnet: "subnet-0123456789abcdefa", LaunchTemplate: "t",
		UserData: "hello", State: Running, Tags: map[string]string{"karpenter.sh/nodepool": "gpu", "eks:eks-cluster-name": "karve"},
	}
	for n, got := range s.Instances() {
		if got.ID != out.Instances[0].InstanceIds[n] || got.ProviderID() != "aws:///us-east-1a/"+got.ID {
			t.Errorf("instance %d is %s, %s", n, got.ID, got.ProviderID())
		}
		got.ID, got.Launched, got.PrivateDNS, got.PrivateIP = "", want.Launched, "", ""
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("instance %d (-want +got):\n%s", n, diff)
		}
	}
	if s.Calls("CreateFleet") != 1 {
		t.Errorf("CreateFleet was called %d times", s.Calls("CreateFleet"))
	}
}

func TestPrioritizedFleetUsesPriorities(t *testing.T) {
	t.Parallel()
	_, c := withTemplate(t, Config{}, gpuImage(t))
	for capacityType, prioritize := range map[string]func(*ec2.CreateFleetInput){
		onDemand: func(in *ec2.CreateFleetInput) {
			in.OnDemandOptions = &ec2types.OnDemandOptionsRequest{AllocationStrategy: ec2types.FleetOnDemandAllocationStrategyPrioritized}
		},
		spot: func(in *ec2.CreateFleetInput) {
			in.SpotOptions = &ec2types.SpotOptionsRequest{AllocationStrategy: ec2types.SpotAllocationStrategyCapacityOptimizedPrioritized}
		},
	} {
		in := fleetInput("t", capacityType, offering{"g4dn.xlarge", "us-east-1a"}, offering{"g5.xlarge", "us-east-1a"})
		in.LaunchTemplateConfigs[0].Overrides[0].Priority = new(2.0)
		in.LaunchTemplateConfigs[0].Overrides[1].Priority = new(1.0)
		prioritize(in)
		if out := must[*ec2.CreateFleetOutput](t)(c.ec2.CreateFleet(t.Context(), in)); out.Instances[0].InstanceType != "g5.xlarge" {
			t.Errorf("%s: launched %s", capacityType, out.Instances[0].InstanceType)
		}
	}
}

func TestSpotFleetUsesSpotPricesOfZones(t *testing.T) {
	t.Parallel()
	s, c := withTemplate(t, Config{}, gpuImage(t))
	s.SetSpotPrice("g5.xlarge", "us-east-1c", 0.01)
	s.SetSpotPrice("g5.xlarge", "us-east-1a", 0.02)
	in := fleetInput("t", spot, offering{"g5.xlarge", "us-east-1a"}, offering{"g5.xlarge", "us-east-1c"}, offering{"g4dn.xlarge", "us-east-1a"})
	out := must[*ec2.CreateFleetOutput](t)(c.ec2.CreateFleet(t.Context(), in))
	if got := *out.Instances[0].LaunchTemplateAndOverrides.Overrides.AvailabilityZone; got != "us-east-1c" {
		t.Errorf("launched in %s", got)
	}
	described := must[*ec2.DescribeInstancesOutput](t)(c.ec2.DescribeInstances(t.Context(), &ec2.DescribeInstancesInput{InstanceIds: out.Instances[0].InstanceIds}))
	if i := described.Reservations[0].Instances[0]; i.SpotInstanceRequestId == nil || i.InstanceLifecycle != ec2types.InstanceLifecycleTypeSpot {
		t.Errorf("the instance is not a spot instance: %+v", i)
	}
}

func TestFailedLaunchHasErrorCodeOfEC2(t *testing.T) {
	t.Parallel()
	s, c := withTemplate(t, Config{AllTypes: true}, gpuImage(t))
	must[*ec2.CreateLaunchTemplateOutput](t)(c.ec2.CreateLaunchTemplate(t.Context(), templateInput(s, "no image", "ami-0")))
	stranger := templateInput(s, "no profile", gpuImage(t)(s).ID)
	stranger.LaunchTemplateData.IamInstanceProfile.Name = new("nobody")
	must[*ec2.CreateLaunchTemplateOutput](t)(c.ec2.CreateLaunchTemplate(t.Context(), stranger))
	for _, test := range []struct {
		name, template, capacityType, want string
		offering                           offering
	}{
		{"an image that does not exist", "no image", onDemand, "InvalidAMIID.NotFound", offering{"g4dn.xlarge", "us-east-1a"}},
		{"an instance profile that does not exist", "no profile", onDemand, "InvalidParameterValue", offering{"g4dn.xlarge", "us-east-1a"}},
		{"an image of another architecture", "t", onDemand, "InvalidParameterValue", offering{"g5g.xlarge", "us-east-1a"}},
		{"a type that the zone lacks", "t", onDemand, "InvalidFleetConfiguration", offering{"g4dn.xlarge", "us-east-1e"}},
		{"a type without spot", "t", spot, "Unsupported", offering{"u-3tb1.56xlarge", ""}},
	} {
		if test.offering.zone == "" {
			test.offering.zone = s.zones(s.machines[test.offering.instanceType])[0]
		}
		out := must[*ec2.CreateFleetOutput](t)(c.ec2.CreateFleet(t.Context(), fleetInput(test.template, test.capacityType, test.offering)))
		if len(out.Instances) != 0 || len(out.Errors) != 1 || *out.Errors[0].ErrorCode != test.want {
			t.Errorf("%s: launched %d, %v", test.name, len(out.Instances), refusals(out))
		}
	}
	for want, in := range map[string]*ec2.CreateFleetInput{
		"InvalidLaunchTemplateName.NotFoundException": fleetInput("none", onDemand, offering{"g4dn.xlarge", "us-east-1a"}),
		"InvalidInstanceType":                         fleetInput("t", onDemand, offering{"g0.huge", "us-east-1a"}),
		"InvalidSubnetID.NotFound":                    fleetInput("t", onDemand, offering{"g4dn.xlarge", "us-east-1z"}),
	} {
		if _, err := c.ec2.CreateFleet(t.Context(), in); code(err) != want {
			t.Errorf("%v instead of %s", err, want)
		}
	}
}

// TestRefusalAffectsOnlyNamedOfferings draws refusals and checks that exactly the named offerings are refused.
func TestRefusalAffectsOnlyNamedOfferings(t *testing.T) {
	t.Parallel()
	s, c := withTemplate(t, Config{}, gpuImage(t))
	types, zones, capacityTypes := []string{"g4dn.xlarge", "g5.xlarge"}, []string{"us-east-1a", "us-east-1b"}, []string{onDemand, spot}
	rapid.Check(t, func(t *rapid.T) {
		r := Refusal{
			Type: rapid.SampledFrom(append(types, "")).Draw(t, "type"), Zone: rapid.SampledFrom(append(zones, "")).Draw(t, "zone"),
			CapacityType: rapid.SampledFrom(append(capacityTypes, "")).Draw(t, "capacity type"),
			Code:         rapid.SampledFrom([]string{"", "VcpuLimitExceeded", "MaxSpotInstanceCountExceeded"}).Draw(t, "code"),
		}
		o := offering{rapid.SampledFrom(types).Draw(t, "of type"), rapid.SampledFrom(zones).Draw(t, "in zone")}
		capacityType := rapid.SampledFrom(capacityTypes).Draw(t, "as")
		named := slices.Contains([]string{"", o.instanceType}, r.Type) && slices.Contains([]string{"", o.zone}, r.Zone) && slices.Contains([]string{"", capacityType}, r.CapacityType)

		s.Refuse(r)
		out, err := c.ec2.CreateFleet(t.Context(), fleetInput("t", capacityType, o))
		if err != nil {
			t.Fatal(err)
		}
		if refused := len(out.Errors) == 1; refused != named || refused == (len(out.Instances) == 1) {
			t.Fatalf("refused: %v, named: %v", refused, named)
		}
		if want := r.Code; named && *out.Errors[0].ErrorCode != want && (want != "" || *out.Errors[0].ErrorCode != insufficientCapacity) {
			t.Fatalf("refused with %s", *out.Errors[0].ErrorCode)
		}
		s.Allow(r)
		if out, err = c.ec2.CreateFleet(t.Context(), fleetInput("t", capacityType, o)); err != nil || len(out.Instances) != 1 {
			t.Fatalf("offerings are still refused after Allow: %v, %v", refusals(out), err)
		}
	})
}
