package instancetype

import (
	"context"
	"fmt"
	"maps"
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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"

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
