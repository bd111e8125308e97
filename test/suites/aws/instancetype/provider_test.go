package instancetype_test

import (
	"context"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	ec2v1 "github.com/aws/karpenter-provider-aws/pkg/apis/v1"
	awscache "github.com/aws/karpenter-provider-aws/pkg/cache"
	kubeletcel "github.com/aws/karpenter-provider-aws/pkg/cel"
	awsoptions "github.com/aws/karpenter-provider-aws/pkg/operator/options"
	"github.com/aws/karpenter-provider-aws/pkg/providers/arczonalshift"
	"github.com/aws/karpenter-provider-aws/pkg/providers/capacityreservation"
	provider "github.com/aws/karpenter-provider-aws/pkg/providers/instancetype"
	"github.com/aws/karpenter-provider-aws/pkg/providers/placementgroup"
	awspricing "github.com/aws/karpenter-provider-aws/pkg/providers/pricing"
	"github.com/aws/karpenter-provider-aws/pkg/providers/subnet"
	"github.com/google/go-cmp/cmp"
	"github.com/patrickmn/go-cache"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/clock"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud/aws/api"
	"karve.sh/karve/pkg/cloud/aws/instancetype"
	fakeaws "karve.sh/karve/test/harness/aws"
)

// karpenter is Karpenter's provider, built as in Karpenter's main function, with everything read.
type karpenter struct {
	*provider.DefaultProvider
	ctx context.Context
}

func newKarpenter(t *testing.T, server *fakeaws.Server, options awsoptions.Options) karpenter {
	t.Helper()
	ctx := coreoptions.ToContext(awsoptions.ToContext(t.Context(), &options), &coreoptions.Options{FeatureGates: coreoptions.FeatureGates{ReservedCapacity: true}})
	c := api.New(fakeaws.ClientConfig(server.URL))
	fresh := func() *cache.Cache { return cache.New(cache.NoExpiration, 0) }
	prices := awspricing.NewDefaultProvider(c.Pricing, c.EC2, c.Region, false)
	expressions, err := kubeletcel.NewEnvironment()
	if err != nil {
		t.Fatal(err)
	}
	k := karpenter{provider.NewDefaultProvider(
		fresh(), fresh(), fresh(), c.EC2, subnet.NewDefaultProvider(c.EC2, fresh(), fresh()), prices,
		capacityreservation.NewProvider(c.EC2, clock.RealClock{}, fresh(), fresh()), placementgroup.NewProvider(c.EC2, fresh(), fresh()),
		awscache.NewUnavailableOfferings(), provider.NewDefaultResolver(c.Region, expressions), arczonalshift.NewNoopProvider(), nil, expressions,
	), ctx}
	for _, update := range []func(context.Context) error{prices.UpdateOnDemandPricing, prices.UpdateSpotPricing, k.UpdateInstanceTypes, k.UpdateInstanceTypeOfferings} {
		if err := update(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return k
}

// machines returns the instance types with an NVIDIA GPU.
func (k karpenter) machines(t *testing.T, class *ec2v1.EC2NodeClass) []*cloudprovider.InstanceType {
	t.Helper()
	all, err := k.List(k.ctx, class)
	if err != nil {
		t.Fatal(err)
	}
	all = slices.DeleteFunc(all, func(it *cloudprovider.InstanceType) bool {
		return !it.Requirements.Get(ec2v1.LabelInstanceGPUManufacturer).Has("nvidia") || it.Requirements.Get(ec2v1.LabelInstanceGPUManufacturer).Operator() != corev1.NodeSelectorOpIn
	})
	slices.SortFunc(all, func(a, b *cloudprovider.InstanceType) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// For every type with an NVIDIA GPU and each node class, Karve expects the same allocatable resources as Karpenter.
func TestAllocatableMatchesKarpenter(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		class   *ec2v1.EC2NodeClass
		options awsoptions.Options
	}{
		"AL2023 with defaults":                      {nodeClass("gpu"), awsoptions.Options{VMMemoryOverheadPercent: 0.075}},
		"AL2023 with another kubelet and its disks": {nodeClass("gpu", kubelet), awsoptions.Options{VMMemoryOverheadPercent: 0.075}},
		"Bottlerocket with a data volume":           {nodeClass("gpu", bottlerocket), awsoptions.Options{VMMemoryOverheadPercent: 0.075}},
		"AL2023 with expressions":                   {nodeClass("gpu", withExpressions), awsoptions.Options{FeatureGates: awsoptions.FeatureGates{NodeClassCEL: true}}},
		"less memory overhead and a reserved ENI":   {nodeClass("gpu"), awsoptions.Options{VMMemoryOverheadPercent: 0.031, ReservedENIs: 1}},
		"subnets in one zone":                       {nodeClass("gpu", func(c *ec2v1.EC2NodeClass) { c.Status.Subnets = c.Status.Subnets[1:2] }), awsoptions.Options{}},
		"network interfaces with EFA":               {nodeClass("gpu", withEFA), awsoptions.Options{VMMemoryOverheadPercent: 0.075}},
		"a capacity reservation":                    {nodeClass("gpu", reserved), awsoptions.Options{VMMemoryOverheadPercent: 0.075}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, fakeaws.Config{}, func(c *instancetype.Config) {
				c.Options = instancetype.Options{VMMemoryOverheadPercent: tc.options.VMMemoryOverheadPercent, ReservedENIs: tc.options.ReservedENIs}
			})
			theirs := newKarpenter(t, w.server, tc.options).machines(t, tc.class)
			ours := w.until(object(t, tc.class), "fresh", fresh).InstanceTypes
			if len(theirs) < 60 || len(ours) != len(theirs) {
				t.Fatalf("%d types, of Karpenter's %d", len(ours), len(theirs))
			}
			for i, it := range theirs {
				compare(t, it, &ours[i], tc.class)
			}
		})
	}
}

func withExpressions(class *ec2v1.EC2NodeClass) {
	configureKubelet(class, ec2v1.ParsedKubeletConfig{
		MaxPods: new(intstr.FromString("min(vcpus * 10, default_enis * ips_per_eni)")), KubeReserved: map[string]string{"cpu": "60 + vcpus * 3", "memory": "max_pods * 11 + 255"},
	})
}

func withEFA(class *ec2v1.EC2NodeClass) {
	class.Spec.NetworkInterfaces = []*ec2v1.NetworkInterface{
		{NetworkCardIndex: 0, DeviceIndex: 0, InterfaceType: ec2v1.InterfaceTypeInterface},
		{NetworkCardIndex: 0, DeviceIndex: 1, InterfaceType: ec2v1.InterfaceTypeEFAOnly},
	}
}

func reserved(class *ec2v1.EC2NodeClass) {
	class.Status.CapacityReservations = []ec2v1.CapacityReservation{{
		ID: "cr-0123456789abcdef0", InstanceType: "g4dn.xlarge", AvailabilityZone: "us-east-1a", InstanceMatchCriteria: "targeted", OwnerID: "000000000000",
		ReservationType: ec2v1.CapacityReservationTypeDefault, State: ec2v1.CapacityReservationStateActive,
	}}
}

func compare(t *testing.T, theirs *cloudprovider.InstanceType, ours *catalog.InstanceType, class *ec2v1.EC2NodeClass) {
	t.Helper()
	if theirs.Name != ours.Name {
		t.Fatalf("got %s, want %s", ours.Name, theirs.Name)
	}
	for what, pair := range map[string]struct {
		theirs corev1.ResourceList
		ours   catalog.Resources
	}{"capacity": {theirs.Capacity, ours.Capacity}, "allocatable": {theirs.Allocatable(), ours.Allocatable}} {
		want := catalog.Resources{
			MilliCPU: pair.theirs.Cpu().MilliValue(), MemoryBytes: pair.theirs.Memory().Value(), EphemeralBytes: pair.theirs.StorageEphemeral().Value(), Pods: pair.theirs.Pods().Value(),
		}
		if want != pair.ours || want.MilliCPU <= 0 || want.MemoryBytes <= 0 || want.Pods <= 0 {
			t.Errorf("%s: %s %+v, for Karpenter %+v", ours.Name, what, pair.ours, want)
		}
	}
	gpus := theirs.Capacity[ec2v1.ResourceNVIDIAGPU]
	if gpus.Value() != ours.GPU.Count || !theirs.Requirements.Get(ec2v1.LabelInstanceGPUName).Has(ours.GPU.Name) || ours.GPU.MemoryMiB <= 0 {
		t.Errorf("%s: GPUs %+v, for Karpenter %v", ours.Name, ours.GPU, &gpus)
	}
	// A node has every label with one value, of its type and of its offering.
	for key, requirement := range theirs.Requirements {
		value, ok := ours.Labels[key]
		switch {
		case key == corev1.LabelTopologyZone || key == ec2v1.LabelTopologyZoneID || key == karpv1.CapacityTypeLabelKey || strings.HasPrefix(key, "karpenter.k8s.aws/capacity-reservation"):
			if ok {
				t.Errorf("%s has the label %s=%s, which is its offering's", ours.Name, key, value)
			}
		case key == ec2v1.LabelInstanceTenancy:
			if value != "default" {
				t.Errorf("%s has the tenancy %q", ours.Name, value)
			}
		case requirement.Operator() == corev1.NodeSelectorOpDoesNotExist && ok, requirement.Len() == 1 && !requirement.Has(value), requirement.Len() == 1 && !ok:
			t.Errorf("%s: label %s=%q, for Karpenter %s", ours.Name, key, value, requirement)
		}
	}
	if diff := cmp.Diff(offered(theirs, class), offeredByUs(ours)); diff != "" {
		t.Errorf("%s: offerings (-Karpenter's +ours)\n%s", ours.Name, diff)
	}
}

// offered returns the prices by zone and capacity type of the offerings that an image of the class supports.
func offered(it *cloudprovider.InstanceType, class *ec2v1.EC2NodeClass) map[string]int64 {
	prices := map[string]int64{}
	if !slices.ContainsFunc(class.Status.AMIs, func(image ec2v1.AMI) bool {
		return it.Requirements.Compatible(scheduling.NewNodeSelectorRequirements(image.Requirements...)) == nil
	}) {
		return prices
	}
	for _, o := range it.Offerings.Available() {
		price := int64(math.Round(o.Price * 1e6))
		if o.CapacityType() == karpv1.CapacityTypeReserved {
			price = catalog.Free(int64(math.Round(o.Price * 1e13))) // Karpenter divides the list price by ten million.
		}
		prices[o.Zone()+" "+o.CapacityType()] = price
	}
	return prices
}

func offeredByUs(it *catalog.InstanceType) map[string]int64 {
	prices := map[string]int64{}
	for _, o := range it.Offerings {
		prices[o.Zone+" "+o.CapacityType] = o.MicroUSDPerHour
	}
	return prices
}

func TestCatalogHasAllNVIDIAFamilies(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fakeaws.Config{})
	families := map[string]int{}
	for _, it := range w.until(object(t, nodeClass("gpu")), "fresh", fresh).InstanceTypes {
		families[it.Labels[ec2v1.LabelInstanceFamily]]++
	}
	want := []string{"g4dn", "g5", "g5g", "g6", "g6e", "g6f", "g7", "g7e", "gr6", "gr6f", "p3dn", "p4d", "p4de", "p5", "p5e", "p5en", "p6-b200", "p6-b300"}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(families))); diff != "" {
		t.Errorf("families (-want +got):\n%s", diff)
	}
}

// EC2 reports a fraction of a GPU for g6f and gr6f. As in Karpenter, these types have no GPU, so no plan uses them.
func TestFractionalGPUsCountAsNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fakeaws.Config{})
	listing := w.until(object(t, nodeClass("gpu")), "fresh", fresh)
	for name, memoryMiB := range map[string]int64{"g6f.large": 2861, "g6f.4xlarge": 11444, "gr6f.4xlarge": 11444} {
		if it := named(t, listing, name); it.GPU != (catalog.GPU{Name: "l4", MemoryMiB: memoryMiB}) || it.Labels[ec2v1.LabelInstanceGPUCount] != "0" {
			t.Errorf("%s: %+v, label %q", name, it.GPU, it.Labels[ec2v1.LabelInstanceGPUCount])
		}
	}
}

// A claim for a machine without a matching image would never launch, and would block Karpenter's other launches meanwhile.
func TestTypesWithoutImageAreNotOffered(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fakeaws.Config{})
	only := func(images ...ec2v1.AMI) func(*ec2v1.EC2NodeClass) {
		return func(class *ec2v1.EC2NodeClass) { class.Status.AMIs = images }
	}
	arm := w.until(object(t, nodeClass("arm", only(image("arm64", corev1.NodeSelectorOpExists)))), "fresh", fresh)
	for _, it := range arm.InstanceTypes {
		if offered := len(it.Offerings) > 0; offered != (it.Labels[ec2v1.LabelInstanceFamily] == "g5g") {
			t.Errorf("%s is offered: %v", it.Name, offered)
		}
	}
	for name, tc := range map[string]struct {
		class  *ec2v1.EC2NodeClass
		reason string
	}{
		"only images without a driver": {nodeClass("standard", only(image("amd64", corev1.NodeSelectorOpDoesNotExist))), "NothingOffered"},
		"no image":                     {nodeClass("none", only()), "NoImages"},
		"no subnet":                    {nodeClass("nowhere", func(class *ec2v1.EC2NodeClass) { class.Status.Subnets = nil }), "NoSubnets"},
	} {
		listing := w.InstanceTypes(t.Context(), object(t, tc.class))
		if listing.Reason != tc.reason || len(listing.InstanceTypes) != len(arm.InstanceTypes) {
			t.Errorf("%s: %d types, %s: %s", name, len(listing.InstanceTypes), listing.Reason, listing.Message)
		}
	}
}

func TestInvalidClassIsReported(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fakeaws.Config{})
	for name, kubelet := range map[string]ec2v1.KubeletConfiguration{
		"spec.kubelet":     {"evictionHard": ec2v1.JSONValue(map[string]string{"memory.available": "lots"})},
		"undeclared":       {"maxPods": ec2v1.JSONValue("cores * 10")},
		"cannot unmarshal": {"podsPerCore": ec2v1.JSONValue("ten")},
	} {
		broken := nodeClass("broken", func(class *ec2v1.EC2NodeClass) { class.Spec.Kubelet, class.ResourceVersion = kubelet, name })
		listing := w.until(object(t, broken), "told", because("NodeClassInvalid"))
		if !strings.Contains(listing.Message, name) || len(listing.InstanceTypes) != 0 {
			t.Errorf("%v: %d types: %s", kubelet, len(listing.InstanceTypes), listing.Message)
		}
	}
	odd := object(t, nodeClass("odd"))
	odd.Object["spec"] = "not a spec"
	w.until(odd, "told", because("NodeClassUnreadable"))
	if l := w.InstanceTypes(t.Context(), object(t, nodeClass("gpu"))); !fresh(l) {
		t.Errorf("another class is affected: %s %s", l.Reason, l.Message)
	}
}

func TestPlacementGroupIsReadOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fakeaws.Config{})
	class := object(t, nodeClass("gpu", func(class *ec2v1.EC2NodeClass) {
		class.Spec.PlacementGroupSelector = &ec2v1.PlacementGroupSelector{Name: new("gpus")}
	}))
	for range 100 {
		if l := w.InstanceTypes(t.Context(), class); !fresh(l) {
			t.Fatalf("%s: %s", l.Reason, l.Message)
		}
	}
	if n := w.server.Calls("DescribePlacementGroups"); n != 1 {
		t.Errorf("%d calls", n)
	}
}
