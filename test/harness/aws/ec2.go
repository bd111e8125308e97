package aws

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// account owns all resources except images, which amazon owns.
const (
	account = "000000000000"
	amazon  = "602401143452"
	vpc     = "vpc-0123456789abcdef0"
	group   = "sg-0123456789abcdef0"
)

var ec2Actions = map[string]action{
	"CreateFleet":                   call((*Server).createFleet),
	"CreateLaunchTemplate":          call((*Server).createLaunchTemplate),
	"CreateTags":                    call((*Server).createTags),
	"DeleteLaunchTemplate":          call((*Server).deleteLaunchTemplate),
	"DescribeCapacityReservations":  call((*Server).describeCapacityReservations),
	"DescribeImages":                call((*Server).describeImages),
	"DescribeInstanceStatus":        call((*Server).describeInstanceStatus),
	"DescribeInstanceTypeOfferings": call((*Server).describeInstanceTypeOfferings),
	"DescribeInstanceTypes":         call((*Server).describeInstanceTypes),
	"DescribeInstances":             call((*Server).describeInstances),
	"DescribeLaunchTemplates":       call((*Server).describeLaunchTemplates),
	"DescribePlacementGroups":       call((*Server).describePlacementGroups),
	"DescribeSecurityGroups":        call((*Server).describeSecurityGroups),
	"DescribeSpotPriceHistory":      call((*Server).describeSpotPriceHistory),
	"DescribeSubnets":               call((*Server).describeSubnets),
	"RunInstances":                  call((*Server).runInstances),
	"TerminateInstances":            call((*Server).terminateInstances),
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func (s *Server) describeInstanceTypes(in *ec2.DescribeInstanceTypesInput) (*ec2.DescribeInstanceTypesOutput, error) {
	var all []ec2types.InstanceTypeInfo
	for _, name := range sortedKeys(s.machines) {
		if len(in.InstanceTypes) == 0 || slices.Contains(in.InstanceTypes, ec2types.InstanceType(name)) {
			all = append(all, s.machines[name].Info)
		}
	}
	for _, name := range in.InstanceTypes {
		if _, ok := s.machines[string(name)]; !ok {
			return nil, badRequest("InvalidInstanceType", "The following supplied instance types do not exist: ["+string(name)+"]")
		}
	}
	found, err := selected(all, in.Filters, func(info ec2types.InstanceTypeInfo) property {
		return fields(map[string][]string{
			"bare-metal":                            {strconv.FormatBool(value(info.BareMetal))},
			"current-generation":                    {strconv.FormatBool(value(info.CurrentGeneration))},
			"hypervisor":                            {string(info.Hypervisor)},
			"instance-type":                         {string(info.InstanceType)},
			"processor-info.supported-architecture": texts(info.ProcessorInfo.SupportedArchitectures),
			"supported-usage-class":                 texts(info.SupportedUsageClasses),
			"supported-virtualization-type":         texts(info.SupportedVirtualizationTypes),
		})
	})
	if err != nil {
		return nil, err
	}
	found, next, err := page(found, in.MaxResults, 50, in.NextToken)
	return &ec2.DescribeInstanceTypesOutput{InstanceTypes: found, NextToken: next}, err
}

func texts[S ~string](values []S) []string {
	out := make([]string, 0, len(values))
	for _, v := range values {
		out = append(out, string(v))
	}
	return out
}

func (s *Server) describeInstanceTypeOfferings(in *ec2.DescribeInstanceTypeOfferingsInput) (*ec2.DescribeInstanceTypeOfferingsOutput, error) {
	var all []ec2types.InstanceTypeOffering
	for _, name := range sortedKeys(s.machines) {
		m := s.machines[name]
		locations := []string{s.config.Region}
		switch in.LocationType {
		case ec2types.LocationTypeAvailabilityZone:
			locations = s.zones(m)
		case ec2types.LocationTypeAvailabilityZoneId:
			locations = locations[:0]
			for _, zone := range s.zones(m) {
				locations = append(locations, zoneID(zone))
			}
		default:
		}
		for _, location := range locations {
			all = append(all, ec2types.InstanceTypeOffering{InstanceType: m.Info.InstanceType, Location: &location, LocationType: in.LocationType})
		}
	}
	found, err := selected(all, in.Filters, func(o ec2types.InstanceTypeOffering) property {
		return fields(map[string][]string{"instance-type": {string(o.InstanceType)}, "location": {*o.Location}})
	})
	if err != nil {
		return nil, err
	}
	found, next, err := page(found, in.MaxResults, 200, in.NextToken)
	return &ec2.DescribeInstanceTypeOfferingsOutput{InstanceTypeOfferings: found, NextToken: next}, err
}

// subnets returns one subnet per zone, tagged as in Karpenter's guide.
func (s *Server) subnets() []ec2types.Subnet {
	var all []ec2types.Subnet
	if s.config.ClusterName == "" {
		return nil // regions other than the server's own have no subnets
	}
	for i, letter := range strings.Split(zoneLetters, "") {
		zone := s.config.Region + letter
		all = append(all, ec2types.Subnet{
			SubnetId:                new("subnet-0123456789abcdef" + letter),
			VpcId:                   new(vpc),
			AvailabilityZone:        &zone,
			AvailabilityZoneId:      new(zoneID(zone)),
			AvailableIpAddressCount: new(int32(8187)),
			CidrBlock:               new("10." + strconv.Itoa(i) + ".0.0/19"),
			State:                   ec2types.SubnetStateAvailable,
			OwnerId:                 new(account),
			MapPublicIpOnLaunch:     new(false),
			Tags:                    tagList(map[string]string{"Name": s.config.ClusterName + "-" + letter, "karpenter.sh/discovery": s.config.ClusterName}),
		})
	}
	return all
}

func (s *Server) describeSubnets(in *ec2.DescribeSubnetsInput) (*ec2.DescribeSubnetsOutput, error) {
	found, err := selected(s.subnets(), in.Filters, func(subnet ec2types.Subnet) property {
		return tagged(tagsOf(subnet.Tags), fields(map[string][]string{
			"subnet-id":         {*subnet.SubnetId},
			"vpc-id":            {*subnet.VpcId},
			"availability-zone": {*subnet.AvailabilityZone},
		}))
	})
	found = slices.DeleteFunc(found, func(subnet ec2types.Subnet) bool {
		return len(in.SubnetIds) > 0 && !slices.Contains(in.SubnetIds, *subnet.SubnetId)
	})
	return &ec2.DescribeSubnetsOutput{Subnets: found}, err
}

func (s *Server) describeSecurityGroups(in *ec2.DescribeSecurityGroupsInput) (*ec2.DescribeSecurityGroupsOutput, error) {
	nodes := ec2types.SecurityGroup{
		GroupId: new(group), GroupName: new(s.config.ClusterName + "-node"), Description: new("the cluster's nodes"), OwnerId: new(account), VpcId: new(vpc),
		Tags: tagList(map[string]string{"karpenter.sh/discovery": s.config.ClusterName, "kubernetes.io/cluster/" + s.config.ClusterName: "owned"}),
	}
	all := []ec2types.SecurityGroup{nodes}
	if s.config.ClusterName == "" {
		all = nil // regions other than the server's own have no security groups
	}
	found, err := selected(all, in.Filters, func(g ec2types.SecurityGroup) property {
		return tagged(tagsOf(g.Tags), fields(map[string][]string{"group-id": {*g.GroupId}, "group-name": {*g.GroupName}, "vpc-id": {*g.VpcId}}))
	})
	return &ec2.DescribeSecurityGroupsOutput{SecurityGroups: found}, err
}

// The account has no placement groups.

func (*Server) describePlacementGroups(*ec2.DescribePlacementGroupsInput) (*ec2.DescribePlacementGroupsOutput, error) {
	return &ec2.DescribePlacementGroupsOutput{PlacementGroups: []ec2types.PlacementGroup{}}, nil
}

func (s *Server) createTags(in *ec2.CreateTagsInput) (*ec2.CreateTagsOutput, error) {
	for _, id := range in.Resources {
		i, ok := s.instances[id]
		if !ok {
			return nil, badRequest("InvalidInstanceID.NotFound", "The instance ID '"+id+"' does not exist")
		}
		maps.Copy(i.Tags, tagsOf(in.Tags))
		s.notifyWatchers(i)
	}
	return &ec2.CreateTagsOutput{}, nil
}

func (s *Server) describeLaunchTemplates(in *ec2.DescribeLaunchTemplatesInput) (*ec2.DescribeLaunchTemplatesOutput, error) {
	var all []ec2types.LaunchTemplate
	for _, name := range in.LaunchTemplateNames {
		if _, ok := s.templates[name]; !ok {
			return nil, noTemplate(name)
		}
	}
	for _, name := range sortedKeys(s.templates) {
		if t := s.templates[name]; (len(in.LaunchTemplateNames) == 0 || slices.Contains(in.LaunchTemplateNames, name)) &&
			(len(in.LaunchTemplateIds) == 0 || slices.Contains(in.LaunchTemplateIds, *t.LaunchTemplateId)) {
			all = append(all, t.LaunchTemplate)
		}
	}
	found, err := selected(all, in.Filters, func(t ec2types.LaunchTemplate) property {
		return tagged(tagsOf(t.Tags), fields(map[string][]string{"launch-template-name": {*t.LaunchTemplateName}}))
	})
	if err != nil {
		return nil, err
	}
	found, next, err := page(found, in.MaxResults, 50, in.NextToken)
	return &ec2.DescribeLaunchTemplatesOutput{LaunchTemplates: found, NextToken: next}, err
}

// template is a launch template with a single version.
type template struct {
	ec2types.LaunchTemplate
	data ec2types.RequestLaunchTemplateData
}

func noTemplate(name string) failure {
	return badRequest("InvalidLaunchTemplateName.NotFoundException", "At least one of the launch templates specified in the request does not exist: "+name)
}

func (s *Server) createLaunchTemplate(in *ec2.CreateLaunchTemplateInput) (*ec2.CreateLaunchTemplateOutput, error) {
	name := value(in.LaunchTemplateName)
	if _, ok := s.templates[name]; ok {
		return nil, badRequest("InvalidLaunchTemplateName.AlreadyExistsException", "Launch template name already in use.")
	}
	var tags []ec2types.Tag
	for _, spec := range in.TagSpecifications {
		if spec.ResourceType == ec2types.ResourceTypeLaunchTemplate {
			tags = append(tags, spec.Tags...)
		}
	}
	t := template{LaunchTemplate: ec2types.LaunchTemplate{
		LaunchTemplateId:     new(s.nextID("lt")),
		LaunchTemplateName:   &name,
		CreateTime:           new(s.now()),
		CreatedBy:            new(caller),
		DefaultVersionNumber: new(int64(1)),
		LatestVersionNumber:  new(int64(1)),
		Tags:                 tags,
	}, data: *in.LaunchTemplateData}
	s.templates[name] = t
	return &ec2.CreateLaunchTemplateOutput{LaunchTemplate: &t.LaunchTemplate}, nil
}

func (s *Server) deleteLaunchTemplate(in *ec2.DeleteLaunchTemplateInput) (*ec2.DeleteLaunchTemplateOutput, error) {
	for name, t := range s.templates {
		if name == value(in.LaunchTemplateName) || *t.LaunchTemplateId == value(in.LaunchTemplateId) {
			delete(s.templates, name)
			return &ec2.DeleteLaunchTemplateOutput{LaunchTemplate: &t.LaunchTemplate}, nil
		}
	}
	if in.LaunchTemplateId != nil {
		return nil, badRequest("InvalidLaunchTemplateId.NotFound", "The specified launch template, with template ID "+*in.LaunchTemplateId+", does not exist.")
	}
	return nil, noTemplate(value(in.LaunchTemplateName))
}

func (s *Server) describeImages(in *ec2.DescribeImagesInput) (*ec2.DescribeImagesOutput, error) {
	var all []ec2types.Image
	for _, i := range s.images {
		named := slices.Contains(in.ImageIds, i.ID)
		mine := len(in.Owners) == 0 || slices.Contains(in.Owners, "amazon") || slices.Contains(in.Owners, amazon)
		if (named || len(in.ImageIds) == 0) && mine && (named || !i.Deprecated || value(in.IncludeDeprecated)) {
			all = append(all, i.described())
		}
	}
	found, err := selected(all, in.Filters, func(i ec2types.Image) property {
		return tagged(nil, fields(map[string][]string{
			"image-id":     {*i.ImageId},
			"name":         {*i.Name},
			"architecture": {string(i.Architecture)},
			"state":        {string(i.State)},
		}))
	})
	for _, id := range in.ImageIds {
		if !slices.ContainsFunc(all, func(i ec2types.Image) bool { return *i.ImageId == id }) {
			return nil, badRequest("InvalidAMIID.NotFound", "The image id '["+id+"]' does not exist")
		}
	}
	slices.SortStableFunc(found, func(a, b ec2types.Image) int { return cmp.Compare(*a.ImageId, *b.ImageId) })
	return &ec2.DescribeImagesOutput{Images: found}, err
}
