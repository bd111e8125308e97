package instancetype

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/karpenter-provider-aws/pkg/providers/pricing"
	"k8s.io/apimachinery/pkg/util/sets"

	"karve.sh/karve/pkg/cloud/aws/api"
)

// known holds the answers of AWS. The values of its fields are never modified, only replaced.
type known struct {
	region string
	// infos are the instance types with an NVIDIA GPU, including those with a fraction of one.
	infos map[ec2types.InstanceType]ec2types.InstanceTypeInfo
	// zones are the names of the zones that offer each instance type.
	zones    map[ec2types.InstanceType][]string
	allZones sets.Set[string]
	// onDemand and spot are the latest price lists, or nil until they have been read. released is the price list with which the provider was released.
	onDemand, spot, released *pricing.DefaultProvider
}

// Page sizes, which are the maximums that EC2 allows.
const (
	typesPerPage = int32(100)
	zonesPerPage = int32(1000)
)

// describeTypes makes the same request as Karpenter, and returns the instance types with an NVIDIA GPU.
func describeTypes(ctx context.Context, clients *api.Clients) (map[ec2types.InstanceType]ec2types.InstanceTypeInfo, error) {
	infos := map[ec2types.InstanceType]ec2types.InstanceTypeInfo{}
	pages := ec2.NewDescribeInstanceTypesPaginator(clients.EC2, &ec2.DescribeInstanceTypesInput{
		Filters: []ec2types.Filter{
			{Name: new("supported-virtualization-type"), Values: []string{"hvm"}},
			{Name: new("processor-info.supported-architecture"), Values: []string{"x86_64", "arm64"}},
		},
		MaxResults: new(typesPerPage),
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, fmt.Errorf("describing instance types: %w", err)
		}
		for _, info := range page.InstanceTypes {
			if hasNVIDIA(info) {
				infos[info.InstanceType] = info
			}
		}
	}
	return infos, nil
}

func hasNVIDIA(info ec2types.InstanceTypeInfo) bool {
	return info.GpuInfo != nil && slices.ContainsFunc(info.GpuInfo.Gpus, func(gpu ec2types.GpuDeviceInfo) bool {
		return gpu.Manufacturer != nil && *gpu.Manufacturer == "NVIDIA"
	})
}

func describeZones(ctx context.Context, clients *api.Clients) (zones map[ec2types.InstanceType][]string, all sets.Set[string], err error) {
	zones, all = map[ec2types.InstanceType][]string{}, sets.New[string]()
	pages := ec2.NewDescribeInstanceTypeOfferingsPaginator(clients.EC2, &ec2.DescribeInstanceTypeOfferingsInput{
		LocationType: ec2types.LocationTypeAvailabilityZone, MaxResults: new(zonesPerPage),
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, nil, fmt.Errorf("describing where instance types are offered: %w", err)
		}
		for _, o := range page.InstanceTypeOfferings {
			if o.Location != nil {
				zones[o.InstanceType] = append(zones[o.InstanceType], *o.Location)
				all.Insert(*o.Location)
			}
		}
	}
	return zones, all, nil
}

// prices returns the latest price lists. A list that has not been read yet is replaced by the one that the provider was released with.
func (k *known) prices() pricing.Provider {
	p := bothPrices{Provider: k.released, spot: k.released}
	if k.onDemand != nil {
		p.Provider = k.onDemand
	}
	if k.spot != nil {
		p.spot = k.spot
	}
	return p
}

// listPrice returns the price of an instance type on demand in micro-dollars per hour, or 0 if it is unknown.
func (k *known) listPrice(t ec2types.InstanceType) int64 {
	price, _ := k.prices().OnDemandPrice(t)
	return int64(math.Round(price * 1e6))
}

// bothPrices uses the on-demand prices of one list and the spot prices of another.
type bothPrices struct {
	pricing.Provider
	spot pricing.Provider
}

func (p bothPrices) SpotPrice(t ec2types.InstanceType, zone string) (float64, bool) {
	return p.spot.SpotPrice(t, zone)
}
