package aws

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	awspricing "github.com/aws/karpenter-provider-aws/pkg/providers/pricing"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestEveryNVIDIAFamilyIsDescribed checks the number, the memory and the share of GPUs for one type of each family.
func TestEveryNVIDIAFamilyIsDescribed(t *testing.T) {
	t.Parallel()
	_, c := started(t, Config{})
	type gpu struct {
		Name              string
		Count, MemoryMiB  int32
		Share             float64
		Architecture      string
		EFA, NVMeGigabyte int64
	}
	got, families := map[string]gpu{}, map[string]int{}
	pages := ec2.NewDescribeInstanceTypesPaginator(c.ec2, &ec2.DescribeInstanceTypesInput{})
	for pages.HasMorePages() {
		for _, info := range must[*ec2.DescribeInstanceTypesOutput](t)(pages.NextPage(t.Context())).InstanceTypes {
			if info.GpuInfo == nil || *info.GpuInfo.Gpus[0].Manufacturer != "NVIDIA" {
				continue
			}
			family, _, _ := strings.Cut(string(info.InstanceType), ".")
			families[family]++
			device, g := info.GpuInfo.Gpus[0], gpu{Architecture: string(info.ProcessorInfo.SupportedArchitectures[0])}
			g.Name, g.Count, g.MemoryMiB, g.Share = *device.Name, *device.Count, *device.MemoryInfo.SizeInMiB, *device.GpuPartitionSize
			if info.NetworkInfo.EfaInfo != nil {
				g.EFA = int64(*info.NetworkInfo.EfaInfo.MaximumEfaInterfaces)
			}
			if info.InstanceStorageInfo != nil {
				g.NVMeGigabyte = *info.InstanceStorageInfo.TotalSizeInGB
			}
			got[string(info.InstanceType)] = g
		}
	}
	wantFamilies := map[string]int{
		"g4dn": 7, "g5": 8, "g5g": 6, "g6": 8, "g6e": 8, "g6f": 4, "g7": 6, "g7e": 6, "gr6": 2, "gr6f": 1, "p3dn": 1, "p4d": 1, "p4de": 1, "p5": 2, "p5e": 1,
		"p5en": 1, "p6-b200": 1, "p6-b300": 1,
	}
	if diff := cmp.Diff(wantFamilies, families); diff != "" {
		t.Errorf("types of families (-want +got):\n%s", diff)
	}
	for name, want := range map[string]gpu{
		"g4dn.xlarge":      {"T4", 1, 16384, 1, "x86_64", 0, 125},
		"g4dn.metal":       {"T4", 8, 16384, 1, "x86_64", 1, 1800},
		"g5.48xlarge":      {"A10G", 8, 22888, 1, "x86_64", 1, 7600},
		"g5g.xlarge":       {"T4g", 1, 16384, 1, "arm64", 0, 0},
		"g6f.large":        {"L4", 0, 2861, 0.125, "x86_64", 0, 100},
		"gr6f.4xlarge":     {"L4", 0, 11444, 0.5, "x86_64", 0, 450},
		"p5.48xlarge":      {"H100", 8, 81920, 1, "x86_64", 32, 30400},
		"p6-b200.48xlarge": {"B200", 8, 183359, 1, "x86_64", 8, 30400},
	} {
		if diff := cmp.Diff(want, got[name], cmpopts.EquateApprox(0, 0.001)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestKarpenterReadsPricesOfServer reads the prices with Karpenter's own provider.
func TestKarpenterReadsPricesOfServer(t *testing.T) {
	t.Parallel()
	s, c := started(t, Config{})
	s.SetPrice("g5.xlarge", 7.5)
	s.SetSpotPrice("g5.xlarge", "us-east-1b", 0.25)
	prices := awspricing.NewDefaultProvider(c.pricing, c.ec2, "us-east-1", false)
	if err := prices.UpdateOnDemandPricing(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := prices.UpdateSpotPricing(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[ec2types.InstanceType]float64{"g5.xlarge": 7.5, "g4dn.xlarge": 0.526, "g4dn.metal": 7.824} {
		if got, _ := prices.OnDemandPrice(name); got != want {
			t.Errorf("%s is %v on demand instead of %v", name, got, want)
		}
	}
	if got, _ := prices.SpotPrice("g5.xlarge", "us-east-1b"); got != 0.25 {
		t.Errorf("g5.xlarge is %v as spot", got)
	}
	for name, m := range s.machines {
		for _, zone := range s.zones(m) {
			got, ok := prices.SpotPrice(m.Info.InstanceType, zone)
			if want := s.spotPrice(m, zone); ok != (want > 0 && m.offered(ec2types.UsageClassTypeSpot)) || ok && (got < want-1e-5 || got > want+1e-5) {
				t.Errorf("%s in %s is %v (%v) as spot instead of %v", name, zone, got, ok, want)
			}
		}
	}
}

func TestZoneID(t *testing.T) {
	t.Parallel()
	for zone, want := range map[string]string{
		"us-east-1a": "use1-az1", "us-east-1f": "use1-az6", "eu-west-3b": "euw3-az2", "ap-southeast-2c": "apse2-az3", "us-gov-west-1a": "usgw1-az1", "ca-central-1a": "cac1-az1",
	} {
		if got := zoneID(zone); got != want {
			t.Errorf("%s is %s instead of %s", zone, got, want)
		}
	}
}

func TestFilterMatchesWildcards(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pattern, text string
		want          bool
	}{
		{"*", "anything/at all", true},
		{"bottlerocket-aws-k8s-1.37-nvidia-*", "bottlerocket-aws-k8s-1.37-nvidia-x86_64-v1.51.0-0a1b2c3d", true},
		{"bottlerocket-aws-k8s-1.37-nvidia-*", "bottlerocket-aws-k8s-1.37-x86_64-v1.51.0-0a1b2c3d", false},
		{"v1.5?.0", "v1.51.0", true},
		{"v1.5?.0", "v1.5.0", false},
		{"[a]", "[a]", true},
		{"[a]", "a", false},
		{"a", "A", false},
	} {
		if got := like(test.pattern, test.text); got != test.want {
			t.Errorf("%q like %q: %v", test.text, test.pattern, got)
		}
	}
}

func TestNewImageIsRecommendedAndDeprecatedOneStays(t *testing.T) {
	t.Parallel()
	s, c := started(t, Config{KubernetesVersion: "1.35"})
	parameter := func(name string) string {
		return *must[*ssm.GetParameterOutput](t)(c.ssm.GetParameter(t.Context(), &ssm.GetParameterInput{Name: &name})).Parameter.Value
	}
	const al2023 = "/aws/service/eks/optimized-ami/1.35/amazon-linux-2023/x86_64/nvidia/"
	const rocket = "/aws/service/bottlerocket/aws-k8s-1.35-nvidia/x86_64/"
	for _, test := range []struct {
		family                       Family
		version, newest, exact       string
		before, beforeExact, nowName string
	}{
		{
			AL2023, "v20260901", al2023 + "recommended/image_id", al2023 + "amazon-eks-node-al2023-x86_64-nvidia-1.35-v20260901/image_id", "v20260815",
			al2023 + "amazon-eks-node-al2023-x86_64-nvidia-1.35-v20260815/image_id", "amazon-eks-node-al2023-x86_64-nvidia-1.35-v20260901",
		},
		{
			Bottlerocket, "1.52.0", rocket + "latest/image_id", rocket + "1.52.0/image_id", "1.51.0", rocket + "1.51.0/image_id",
			"bottlerocket-aws-k8s-1.35-nvidia-x86_64-v1.52.0-0a1b2c3d",
		},
	} {
		old := s.gpuImage(t, test.family, "x86_64")
		if parameter(test.newest) != old.ID || parameter(test.beforeExact) != old.ID || old.Version != test.before {
			t.Errorf("%s: at first %s is recommended, not %+v", test.family, parameter(test.newest), old)
		}
		s.PublishRelease(test.family, test.version)
		fresh := s.gpuImage(t, test.family, "x86_64")
		if parameter(test.newest) != fresh.ID || parameter(test.exact) != fresh.ID || parameter(test.beforeExact) != old.ID || fresh.ID == old.ID {
			t.Errorf("%s: the new image is not recommended", test.family)
		}
		s.DeprecateImage(fresh.ID)
		described := must[*ec2.DescribeImagesOutput](t)(c.ec2.DescribeImages(t.Context(), &ec2.DescribeImagesInput{Filters: []ec2types.Filter{filter("image-id", fresh.ID)}}))
		if len(described.Images) != 0 {
			t.Errorf("%s: DescribeImages without IncludeDeprecated returned %v", test.family, described.Images)
		}
		described = must[*ec2.DescribeImagesOutput](t)(c.ec2.DescribeImages(t.Context(), &ec2.DescribeImagesInput{ImageIds: []string{old.ID, fresh.ID}, IncludeDeprecated: new(true)}))
		times := map[string]bool{}
		for _, i := range described.Images {
			times[*i.Name] = *i.DeprecationTime <= fresh.Created.UTC().Format("2006-01-02T15:04:05.000Z")
		}
		if diff := cmp.Diff(map[string]bool{old.Name(): false, test.nowName: true}, times); diff != "" {
			t.Errorf("%s: deprecated (-want +got):\n%s", test.family, diff)
		}
	}
	s.SetKubernetesVersion("1.37")
	if got := parameter("/aws/service/eks/optimized-ami/1.37/amazon-linux-2023/arm64/nvidia/recommended/image_id"); got != s.gpuImage(t, AL2023, "arm64").ID {
		t.Errorf("after an upgrade %s is recommended", got)
	}
	s.SetParameter("/mine", "ami-1")
	if parameter("/mine") != "ami-1" {
		t.Error("the user's own parameter has another value")
	}
}

func TestFaultAffectsOnlyNamedActionsUntilHealed(t *testing.T) {
	t.Parallel()
	s, c := started(t, Config{})
	subnets := func(ctx context.Context) error {
		_, err := c.ec2.DescribeSubnets(ctx, &ec2.DescribeSubnetsInput{})
		return err
	}
	types := func(ctx context.Context) error {
		_, err := c.ec2.DescribeInstanceTypes(ctx, &ec2.DescribeInstanceTypesInput{})
		return err
	}
	parameter := func(ctx context.Context) error {
		_, err := c.ssm.GetParameter(ctx, &ssm.GetParameterInput{Name: new("/aws/service/bottlerocket/aws-k8s-1.37/arm64/latest/image_id")})
		return err
	}
	role := func(ctx context.Context) error {
		_, err := c.iam.GetRole(ctx, &iam.GetRoleInput{RoleName: new(s.NodeRole())})
		return err
	}
	caller := func(ctx context.Context) error {
		_, err := c.sts.GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
		return err
	}
	const fine = "<nil>"
	for name, test := range map[string]struct {
		fault func(...string)
		of    []string
		want  []string // results of the calls above, in their order
	}{
		"an action throttled":   {s.Throttle, []string{"DescribeSubnets"}, []string{"RequestLimitExceeded", fine, fine, fine, fine}},
		"services throttled":    {s.Throttle, []string{"SSM", "IAM"}, []string{fine, fine, "ThrottlingException", "Throttling", fine}},
		"all throttled":         {s.Throttle, nil, []string{"RequestLimitExceeded", "RequestLimitExceeded", "ThrottlingException", "Throttling", "Throttling"}},
		"an action denied":      {s.Deny, []string{"GetParameter"}, []string{fine, fine, "AccessDeniedException", fine, fine}},
		"a service denied":      {s.Deny, []string{"EC2"}, []string{"UnauthorizedOperation", "UnauthorizedOperation", fine, fine, fine}},
		"older services denied": {s.Deny, []string{"IAM", "STS"}, []string{fine, fine, fine, "AccessDenied", "AccessDenied"}},
		"a service cut off":     {s.Cut, []string{"STS"}, []string{fine, fine, fine, fine, "no answer"}},
	} {
		test.fault(test.of...)
		var got []string
		for _, call := range []func(context.Context) error{subnets, types, parameter, role, caller} {
			err := call(t.Context())
			what := code(err)
			if err != nil && strings.Contains(what, "EOF") {
				what = "no answer"
			}
			got = append(got, what)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		before := s.Calls("DescribeSubnets")
		s.Heal(test.of...)
		if err := subnets(t.Context()); err != nil {
			t.Errorf("%s, healed: %v", name, err)
		}
		if s.Calls("DescribeSubnets") != before+1 {
			t.Errorf("%s: DescribeSubnets was counted %d times", name, s.Calls("DescribeSubnets"))
		}
	}
}

func TestHungCallWaitsUntilHealedOrCancelled(t *testing.T) {
	s, c := started(t, Config{})
	s.Hang("STS")
	given, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := c.sts.GetCallerIdentity(given, &sts.GetCallerIdentityInput{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the call that timed out returned %v", err)
	}
	done := make(chan error)
	go func() {
		_, err := c.sts.GetCallerIdentity(t.Context(), &sts.GetCallerIdentityInput{})
		done <- err
	}()
	for s.Calls("GetCallerIdentity") < 2 {
		time.Sleep(time.Millisecond)
	}
	s.Heal("STS")
	if err := <-done; err == nil {
		t.Error("the call that hung was answered")
	}
	if _, err := c.sts.GetCallerIdentity(t.Context(), &sts.GetCallerIdentityInput{}); err != nil {
		t.Errorf("healed: %v", err)
	}
}
