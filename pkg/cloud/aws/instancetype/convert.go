package instancetype

import (
	"cmp"
	"math"
	"slices"
	"strings"

	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	ec2v1 "github.com/aws/karpenter-provider-aws/pkg/apis/v1"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/catalog"
)

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
