package instancetype

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	ec2v1 "github.com/aws/karpenter-provider-aws/pkg/apis/v1"
	awscache "github.com/aws/karpenter-provider-aws/pkg/cache"
	awsoptions "github.com/aws/karpenter-provider-aws/pkg/operator/options"
	"github.com/aws/karpenter-provider-aws/pkg/providers/amifamily"
	"github.com/aws/karpenter-provider-aws/pkg/providers/arczonalshift"
	"github.com/aws/karpenter-provider-aws/pkg/providers/instancetype"
	"github.com/aws/karpenter-provider-aws/pkg/providers/instancetype/offering"
	"github.com/patrickmn/go-cache"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/catalog"
)

// nothingUnavailable keeps the provider from leaving out offerings that it could not launch. The planner handles the offerings that were refused to Karve.
var nothingUnavailable = awscache.NewUnavailableOfferings()

// resolveTimeout is how long a plan may wait for the placement group of a node class.
const resolveTimeout = 5 * time.Second

// resolve returns the instance types of a node class and its reservations, which are not counted yet. It returns a failure if there is nothing that it can launch.
func (c *Catalog) resolve(ctx context.Context, object *unstructured.Unstructured) (list []catalog.InstanceType, reserved []catalog.Reservation, f *failure) {
	class := &ec2v1.EC2NodeClass{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, class); err != nil {
		return nil, nil, &failure{"NodeClassUnreadable", fmt.Sprintf("it is not as this release of Karve knows EC2NodeClasses: %v", err)}
	}
	// The provider does not validate the quantities in the kubelet's configuration, and panics if they are invalid.
	defer func() {
		if r := recover(); r != nil {
			list, reserved, f = nil, nil, &failure{"NodeClassInvalid", fmt.Sprintf("its spec cannot be worked with: %v; see that the quantities in spec.kubelet and the block devices are ones", r)}
		}
	}()
	// Only reading the placement group of a node class that names one may call AWS here.
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	ctx = awsoptions.ToContext(ctx, &awsoptions.Options{
		VMMemoryOverheadPercent: c.config.VMMemoryOverheadPercent, ReservedENIs: c.config.ReservedENIs, IsolatedVPC: c.config.IsolatedVPC,
		// Karpenter makes a class with expressions Ready only with this gate on.
		FeatureGates: awsoptions.FeatureGates{NodeClassCEL: true},
	})
	// The other gates of Karpenter's core are off, so there are no prices of NodeOverlays. The status of a class has reservations only with this gate on.
	ctx = coreoptions.ToContext(ctx, &coreoptions.Options{FeatureGates: coreoptions.FeatureGates{ReservedCapacity: true}})

	kubelet, err := ec2v1.ParseKubeletConfig(class.KubeletConfiguration())
	if err != nil {
		return nil, nil, &failure{"NodeClassInvalid", fmt.Sprintf("its spec.kubelet cannot be read: %v", err)}
	}
	resolver := instancetype.NewDefaultResolver(c.known.region, c.expressions)
	var resolved []*cloudprovider.InstanceType
	for _, name := range slices.Sorted(maps.Keys(c.known.infos)) {
		// An error is about the expressions in spec.kubelet. Karpenter launches nothing for the class then.
		it, err := resolver.Resolve(ctx, c.known.infos[name], c.known.zones[name], class, kubelet)
		if err != nil {
			return nil, nil, &failure{"NodeClassInvalid", fmt.Sprintf("instance type %s: %v", name, err)}
		}
		if it != nil {
			resolved = append(resolved, it)
		}
	}
	resolved = offering.NewDefaultProvider(
		c.known.prices(), uncounted{}, c.placementGroups, nothingUnavailable, cache.New(cache.NoExpiration, 0), arczonalshift.NewNoopProvider(), nil,
	).InjectOfferings(ctx, resolved, c.known.infos, class, c.known.allZones)

	if list = c.launchable(resolved, class); !slices.ContainsFunc(list, func(t catalog.InstanceType) bool { return len(t.Offerings) > 0 }) {
		f = c.nothingOffered(class)
	}
	return list, c.reservationsOf(class), f
}

// launchable returns instance types without the offerings of those for which a node class has no image. A NodeClaim for such a type is never launched, and
// Karpenter waits minutes for it.
func (c *Catalog) launchable(resolved []*cloudprovider.InstanceType, class *ec2v1.EC2NodeClass) []catalog.InstanceType {
	bootable := map[string]bool{}
	for _, some := range amifamily.MapToInstanceTypes(resolved, class.AMIs()) {
		for _, it := range some {
			bootable[it.Name] = true
		}
	}
	var list []catalog.InstanceType
	for _, it := range resolved {
		name := ec2types.InstanceType(it.Name)
		t := instanceType(it, c.known.infos[name], class, c.known.listPrice(name))
		if !bootable[it.Name] {
			t.Offerings = nil
		}
		list = append(list, t)
	}
	return list
}

// nothingOffered returns why a node class can launch nothing.
func (c *Catalog) nothingOffered(class *ec2v1.EC2NodeClass) *failure {
	var zones []string
	elsewhere := true
	for _, info := range class.ZoneInfo() {
		zones = append(zones, info.Zone)
		elsewhere = elsewhere && !c.known.allZones.Has(info.Zone)
	}
	slices.Sort(zones)
	switch {
	case len(zones) == 0:
		return &failure{"NoSubnets", "Karpenter has found no subnets for it: see its status"}
	case elsewhere:
		return &failure{"WrongRegion", fmt.Sprintf("its subnets are in %s, of which region %s has none: set AWS_REGION of Karve to the cluster's region",
			strings.Join(zones, ", "), c.known.region)}
	case len(class.AMIs()) == 0:
		return &failure{"NoImages", "Karpenter has found no images for it: see its status"}
	default:
		return &failure{"NothingOffered", fmt.Sprintf("no instance type with an NVIDIA GPU is offered in %s for which it has an image", strings.Join(zones, ", "))}
	}
}

// notOfTheType are the labels that a machine gets from its offering, or only if its capacity is reserved.
var notOfTheType = map[string]bool{
	corev1.LabelTopologyZone: true, ec2v1.LabelTopologyZoneID: true, karpv1.CapacityTypeLabelKey: true, ec2v1.LabelPlacementGroupPartition: true,
	ec2v1.LabelCapacityReservationID: true, ec2v1.LabelCapacityReservationType: true, ec2v1.LabelCapacityReservationInterruptible: true,
}

// instanceType converts an instance type of the provider to one of the catalog, given its price on demand in micro-dollars per hour, or 0 if it is unknown.
func instanceType(it *cloudprovider.InstanceType, info ec2types.InstanceTypeInfo, class *ec2v1.EC2NodeClass, list int64) catalog.InstanceType {
	t := catalog.InstanceType{
		Name: it.Name, Capacity: resources(it.Capacity), Allocatable: resources(it.Allocatable()), Extended: extended(it.Capacity, class),
		// A machine has the default tenancy unless its pool requires the other one, which costs more than the prices in the catalog.
		Labels: map[string]string{ec2v1.LabelInstanceTenancy: string(ec2types.TenancyDefault)},
		GPU:    catalog.GPU{Name: only(it, ec2v1.LabelInstanceGPUName), Count: amount.Value(*it.Capacity.Name(ec2v1.ResourceNVIDIAGPU, "")), MemoryMiB: memoryOf(info)},
	}
	for key, requirement := range it.Requirements {
		if values := requirement.Values(); len(values) == 1 && requirement.Operator() == corev1.NodeSelectorOpIn && !notOfTheType[key] {
			t.Labels[key] = values[0]
		}
	}
	for _, o := range it.Offerings {
		if !o.Available {
			continue
		}
		labels := map[string]string{}
		for key, requirement := range o.Requirements {
			if values := requirement.Values(); len(values) == 1 && requirement.Operator() == corev1.NodeSelectorOpIn {
				labels[key] = values[0]
			}
		}
		offering := catalog.Offering{Zone: o.Zone(), CapacityType: o.CapacityType(), MicroUSDPerHour: int64(math.Round(o.Price * 1e6)), Labels: labels}
		if offering.CapacityType == karpv1.CapacityTypeReserved {
			offering.Reserve(o.ReservationID(), list)
		}
		t.Offerings = append(t.Offerings, offering)
	}
	slices.SortFunc(t.Offerings, func(a, b catalog.Offering) int {
		return cmp.Or(strings.Compare(a.Zone, b.Zone), strings.Compare(a.CapacityType, b.CapacityType), strings.Compare(a.Reservation, b.Reservation),
			strings.Compare(a.Labels[ec2v1.LabelPlacementGroupPartition], b.Labels[ec2v1.LabelPlacementGroupPartition]))
	})
	return t
}

// only returns the value of a requirement, or "" if it has none or more than one.
func only(it *cloudprovider.InstanceType, key string) string {
	if values := it.Requirements.Get(key).Values(); len(values) == 1 {
		return values[0]
	}
	return ""
}

// memoryOf returns the memory of one GPU of the machine in MiB, or 0 if unknown.
func memoryOf(info ec2types.InstanceTypeInfo) int64 {
	for _, gpu := range info.GpuInfo.Gpus {
		if gpu.MemoryInfo != nil && gpu.MemoryInfo.SizeInMiB != nil {
			return int64(*gpu.MemoryInfo.SizeInMiB)
		}
	}
	return 0
}

func resources(list corev1.ResourceList) catalog.Resources {
	return catalog.Resources{
		MilliCPU: min(amount.Max, amount.Milli(*list.Cpu())), MemoryBytes: min(amount.Max, amount.Value(*list.Memory())),
		EphemeralBytes: min(amount.Max, amount.Value(*list.StorageEphemeral())), Pods: min(amount.Max, amount.Value(*list.Pods())),
	}
}

// extended returns the resources that have no field in catalog.Resources or catalog.GPU. Network interfaces for EFA exist only if the node class configures
// them or the NodeClaim requests them. Karve's NodeClaims do not request them.
func extended(capacity corev1.ResourceList, class *ec2v1.EC2NodeClass) map[string]int64 {
	var others map[string]int64
	for name, q := range capacity {
		switch name {
		case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods, ec2v1.ResourceNVIDIAGPU:
			continue
		case ec2v1.ResourceEFA:
			if class.NetworkInterfaces() == nil {
				continue
			}
		}
		if n := min(amount.Max, amount.Value(q)); n > 0 {
			if others == nil {
				others = map[string]int64{}
			}
			others[string(name)] = n
		}
	}
	return others
}
