package launching

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	awserrors "github.com/aws/karpenter-provider-aws/pkg/errors"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud"
)

// CreateFleet errors in EC2's wording.
const (
	noCapacity = "InsufficientInstanceCapacity: We currently do not have sufficient g4dn.xlarge capacity in the Availability Zone you requested (us-east-1a). " +
		"Our system will be working on provisioning additional capacity. You can currently get g4dn.xlarge capacity by not specifying an Availability Zone in your request or choosing us-east-1b."
	overLimit = "VcpuLimitExceeded: You have requested more vCPU capacity than your current vCPU limit of 32 allows for the instance bucket that the specified instance type belongs to. " +
		"Please visit http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit."
	lowPrice    = "SpotMaxPriceTooLow: Your Spot request price of 0.1 is lower than the minimum required Spot request fulfillment price of 0.2."
	overSpot    = "MaxSpotInstanceCountExceeded: Max spot instance count exceeded"
	unsupported = "Unsupported: Your requested instance type (g4dn.2xlarge) is not supported in your requested Availability Zone (us-east-1b). Please retry your request by not specifying an Availability Zone or choosing us-east-1a."
	unfulfilled = "UnfulfillableCapacity: Unable to fulfill capacity due to your request configuration. Please adjust your request and try again."
	noAddresses = "InsufficientFreeAddressesInSubnet: There are not enough free addresses in subnet 'subnet-0b' to satisfy the requested number of instances."
	tooMany     = "MaxFleetCountExceeded: The request exceeds your fleet quota."
	noRole      = "AuthFailure.ServiceLinkedRoleCreationNotPermitted: The provided credentials do not have permission to create the service-linked role for EC2 Spot Instances."
)

// fleet returns the AWS provider's error for these CreateFleet errors, truncated as Karpenter truncated it before 1.15.
func fleet(errs ...string) string {
	if message := whole(errs...); len(message) >= 300 {
		return message[:300] + "..."
	}
	return whole(errs...)
}

// whole returns the error as Karpenter 1.15 shows it, if it has at most 1,024 bytes.
func whole(errs ...string) string {
	return "creating instance, insufficient capacity, with fleet error(s), " + strings.Join(errs, "; ") +
		" (aws-error-code=UnfulfillableCapacity, aws-operation-name=CreateFleet, aws-request-id=, aws-service-name=EC2, aws-status-code=200)"
}

var (
	flexible = Shape{
		Class: "shared", Pool: "gpu", InstanceTypes: []string{"g4dn.xlarge", "g4dn.2xlarge"}, Zones: []string{"us-east-1a", "us-east-1b"}, CapacityType: "spot",
	}
	aCloud = Cloud{Generation: 7, Subnets: map[string]string{"subnet-0a": "us-east-1a", "subnet-0b": "us-east-1b"}}
)

func TestAttribute(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		message string
		want    []string
	}{
		"no capacity, with one error":                    {fleet(noCapacity), []string{"[g4dn.xlarge g4dn.2xlarge] [us-east-1a us-east-1b] spot InsufficientCapacity"}},
		"no capacity, as cached by Karpenter":            {"creating instance, insufficient capacity, all requested instance types were unavailable during launch", []string{"[g4dn.xlarge g4dn.2xlarge] [us-east-1a us-east-1b] spot InsufficientCapacity"}},
		"capacity that cannot be fulfilled as requested": {fleet(unfulfilled), []string{"[g4dn.xlarge g4dn.2xlarge] [us-east-1a us-east-1b] spot InsufficientCapacity"}},
		"an unknown message":                             {"creating instance, insufficient capacity, for a reason of next year", []string{"[g4dn.xlarge g4dn.2xlarge] [us-east-1a us-east-1b] spot InsufficientCapacity"}},
		"a spot price that is too low":                   {fleet(lowPrice, overLimit), []string{"[g4dn.xlarge g4dn.2xlarge] [*] spot VCPULimitExceeded"}},
		"an error that Karpenter 1.15 shows":             {whole(noCapacity, unsupported), []string{"[g4dn.2xlarge] [us-east-1b] spot Unsupported", "[g4dn.xlarge] [us-east-1a us-east-1b] spot InsufficientCapacity", "[g4dn.2xlarge] [us-east-1a] spot InsufficientCapacity"}},
		"a vCPU limit is about every zone":               {fleet(overLimit), []string{"[g4dn.xlarge g4dn.2xlarge] [*] spot VCPULimitExceeded"}},
		"a spot limit is about every zone":               {fleet(overSpot), []string{"[g4dn.xlarge g4dn.2xlarge] [*] spot SpotQuotaExceeded"}},
		"a type not offered in a zone":                   {fleet(unsupported), []string{"[g4dn.2xlarge] [us-east-1b] spot Unsupported", "[g4dn.xlarge] [us-east-1a us-east-1b] spot InsufficientCapacity", "[g4dn.2xlarge] [us-east-1a] spot InsufficientCapacity"}},
		"a zone without free addresses":                  {fleet(noAddresses), []string{"[*] [us-east-1b] * InsufficientFreeAddressesInSubnet", "[g4dn.xlarge g4dn.2xlarge] [us-east-1a] spot InsufficientCapacity"}},
		"a request limit is about everything":            {fleet(tooMany), []string{"[*] [*] * FleetQuotaExceeded"}},
		"a missing service-linked role is about spot":    {fleet(noRole), []string{"[*] [*] spot SpotSLRCreationFailed"}},
		"several errors":                                 {fleet(overSpot, noAddresses), []string{"[g4dn.xlarge g4dn.2xlarge] [*] spot SpotQuotaExceeded", "[*] [us-east-1b] * InsufficientFreeAddressesInSubnet"}},
		"a missing node class":                           {"insufficient capacity, resolving nodeclass, ec2nodeclasses.karpenter.k8s.aws \"gpu\" not found", []string{"[*] [*] * NodeClassNotFound 7"}},
		"an error about another type":                    {fleet(strings.ReplaceAll(overSpot, "Max", "For g4dn.12xlarge max")), []string{"[g4dn.xlarge g4dn.2xlarge] [us-east-1a us-east-1b] spot InsufficientCapacity"}},
		"an empty message":                               {"", []string{"[g4dn.xlarge g4dn.2xlarge] [us-east-1a us-east-1b] spot InsufficientCapacity"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, r := range Attribute(flexible, c.message, aCloud) {
				text := fmt.Sprint(r.InstanceTypes, " ", r.Zones, " ", r.CapacityType, " ", r.Reason)
				if r.Generation != 0 {
					text += fmt.Sprint(" ", r.Generation)
				}
				if got = append(got, text); r.Message != c.message {
					t.Errorf("%s says %q", text, r.Message)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("refused (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMentions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"g4dn.2xlarge": true, "(g4dn.2xlarge)": true, "of g4dn.2xlarge.": true, "g4dn.2xlarge, g4dn.xlarge": true, "g4dn.12xlarge and g4dn.2xlarge": true,
		"": false, "g4dn.12xlarge": false, "g4dn.2xlarge-flex": false, "x.g4dn.2xlarge": false, "ag4dn.2xlarge": false, "g4dn.2xlarges": false,
	} {
		if got := mentions(text, "g4dn.2xlarge"); got != want {
			t.Errorf("mentions(%q) = %t", text, got)
		}
	}
	if mentions("anything", "") {
		t.Error("a text mentions the empty name")
	}
}

// TestEveryReasonOfProviderIsHandled checks that Karve handles every reason that the AWS provider's own function returns.
func TestEveryReasonOfProviderIsHandled(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		noRole, "UnauthorizedOperation", "AccessDenied: with an explicit deny in a permissions boundary", "AuthFailure: Not authorized for images",
		"InvalidParameter: belong to different networks", "iamInstanceProfile.name is invalid", "InvalidLaunchTemplateId.NotFound", "User data is limited to 16384 bytes",
		"InvalidAMIID.Malformed", "InvalidAMIID.NotFound", "RequestLimitExceeded", "InternalError", "not eligible for Free Tier", tooMany, "PendingVerification", overSpot,
		overLimit, noAddresses, "anything else",
	} {
		reason, message := awserrors.ToReasonMessage(fmt.Errorf("%s", text))
		if Known(reason) != reason {
			t.Errorf("reason %s (%s) is not handled", reason, message)
		}
	}
	for _, reason := range []string{"SubnetResolutionFailed", "NodeClassReadinessUnknown", "InstanceTypeResolutionFailed"} { // The provider writes these itself.
		if Known(reason) != reason {
			t.Errorf("reason %s is not handled", reason)
		}
	}
	for reason, c := range everyCause() {
		if c.First <= 0 || c.Most < c.First {
			t.Errorf("the backoff for %s starts at %s and is at most %s", reason, c.First, c.Most)
		}
		if r := RefusalFor(flexible, reason, "", aCloud); len(r.InstanceTypes) == 0 || len(r.Zones) == 0 || r.CapacityType == "" || (r.Generation == 7) != (c.Scope == cloud.AboutClass) {
			t.Errorf("%s refuses %+v", reason, r)
		}
	}
}

// leavesNothing checks that, whatever the message, no requested offering may be retried immediately, and that every refusal fits into the status.
func leavesNothing(t *rapid.T) {
	s := Shape{
		InstanceTypes: rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"g4dn.xlarge", "g4dn.2xlarge", "g4dn.12xlarge", "p3.8xlarge", "gr6f.4xlarge"}), 1, 4, rapid.ID[string]).Draw(t, "types"),
		Zones:         rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"us-east-1a", "us-east-1b", "us-gov-west-1a", "us-east-1-bos-1a"}), 1, 3, rapid.ID[string]).Draw(t, "zones"),
		CapacityType:  rapid.SampledFrom([]string{"spot", "on-demand"}).Draw(t, "capacity type"),
	}
	words := append(slices.Concat(s.InstanceTypes, s.Zones), noCapacity, overLimit, overSpot, unsupported, unfulfilled, noAddresses, tooMany, noRole, "subnet-0a", "(", ")", ": ")
	message := strings.Join(rapid.SliceOfN(rapid.OneOf(rapid.SampledFrom(words), rapid.String()), 0, 8).Draw(t, "message"), "")
	if n := rapid.IntRange(0, 400).Draw(t, "cut"); n < len(message) {
		message = message[:n]
	}
	all := Attribute(s, message, aCloud)
	for _, instanceType := range s.InstanceTypes {
		for _, zone := range s.Zones {
			if !slices.ContainsFunc(all, func(r Refusal) bool { return r.covers(instanceType, zone, s.CapacityType) }) {
				t.Fatalf("%s in %s may be tried again after %q: %+v", instanceType, zone, message, all)
			}
		}
	}
	for _, r := range all {
		if Known(r.Reason) != r.Reason || r.CapacityType == "" || len(r.InstanceTypes) == 0 || len(r.Zones) == 0 {
			t.Fatalf("%q is understood as %+v", message, r)
		}
		for _, instanceType := range r.InstanceTypes {
			if instanceType != v1alpha1.Any && !slices.Contains(s.InstanceTypes, instanceType) {
				t.Fatalf("%q is attributed to %s, which was not requested", message, instanceType)
			}
		}
		for _, zone := range r.Zones {
			if zone != v1alpha1.Any && !slices.Contains(s.Zones, zone) && zone != "us-east-1a" && zone != "us-east-1b" {
				t.Fatalf("%q is attributed to %s, which was not requested", message, zone)
			}
		}
	}
}

func TestAttributeCoversEveryRefusedOffering(t *testing.T) { rapid.Check(t, leavesNothing) }

// FuzzAttribute attributes arbitrary messages.
func FuzzAttribute(f *testing.F) {
	for _, seed := range []string{noCapacity, overLimit, overSpot, unsupported, unfulfilled, noAddresses, tooMany, noRole, fleet(noCapacity, overLimit, unsupported)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, message string) {
		all := Attribute(flexible, message, aCloud)
		for _, instanceType := range flexible.InstanceTypes {
			for _, zone := range flexible.Zones {
				if !slices.ContainsFunc(all, func(r Refusal) bool { return r.covers(instanceType, zone, flexible.CapacityType) }) {
					t.Errorf("%s in %s may be tried again after %q: %+v", instanceType, zone, message, all)
				}
			}
		}
	})
}
