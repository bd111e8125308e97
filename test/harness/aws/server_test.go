package aws

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	sdkconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/eks"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	iamtypes "github.com/aws/aws-sdk-go-v2/service/iam/types"
	"github.com/aws/aws-sdk-go-v2/service/pricing"
	"github.com/aws/aws-sdk-go-v2/service/servicequotas"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// clients holds the clients of all services.
type clients struct {
	ec2     *ec2.Client
	ssm     *ssm.Client
	pricing *pricing.Client
	eks     *eks.Client
	iam     *iam.Client
	sqs     *sqs.Client
	sts     *sts.Client
	quotas  *servicequotas.Client
}

func clientsOf(c awssdk.Config) clients {
	return clients{
		ec2.NewFromConfig(c), ssm.NewFromConfig(c), pricing.NewFromConfig(c), eks.NewFromConfig(c), iam.NewFromConfig(c), sqs.NewFromConfig(c),
		sts.NewFromConfig(c), servicequotas.NewFromConfig(c),
	}
}

func started(t *testing.T, c Config) (*Server, clients) {
	t.Helper()
	s, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s, clientsOf(ClientConfig(s.URL))
}

func must[T any](t *testing.T) func(T, error) T {
	t.Helper()
	return func(out T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
}

// code returns the AWS error code of an error.
func code(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return fmt.Sprint(err)
}

func filter(name string, values ...string) ec2types.Filter {
	return ec2types.Filter{Name: &name, Values: values}
}

// templateInput returns a launch template as Karpenter creates it.
func templateInput(s *Server, name, image string) *ec2.CreateLaunchTemplateInput {
	return &ec2.CreateLaunchTemplateInput{
		LaunchTemplateName: &name,
		LaunchTemplateData: &ec2types.RequestLaunchTemplateData{
			ImageId: &image, UserData: new("aGVsbG8="), IamInstanceProfile: &ec2types.LaunchTemplateIamInstanceProfileSpecificationRequest{Name: new(s.NodeRole())},
			NetworkInterfaces: []ec2types.LaunchTemplateInstanceNetworkInterfaceSpecificationRequest{{DeviceIndex: new(int32(0)), Groups: []string{group}}},
			TagSpecifications: []ec2types.LaunchTemplateTagSpecificationRequest{
				{ResourceType: ec2types.ResourceTypeNetworkInterface, Tags: tagList(map[string]string{"of": "interface"})},
			},
		},
		TagSpecifications: []ec2types.TagSpecification{
			{ResourceType: ec2types.ResourceTypeLaunchTemplate, Tags: tagList(map[string]string{"eks:eks-cluster-name": "karve"})},
		},
	}
}

// offering is a type in a zone.
type offering struct{ instanceType, zone string }

// fleetInput requests one instance of the offerings, from a template.
func fleetInput(template, capacityType string, offerings ...offering) *ec2.CreateFleetInput {
	var overrides []ec2types.FleetLaunchTemplateOverridesRequest
	for _, o := range offerings {
		overrides = append(overrides, ec2types.FleetLaunchTemplateOverridesRequest{
			InstanceType: ec2types.InstanceType(o.instanceType), AvailabilityZone: &o.zone, SubnetId: new("subnet-0123456789abcdef" + o.zone[len(o.zone)-1:]),
		})
	}
	return &ec2.CreateFleetInput{
		Type: ec2types.FleetTypeInstant,
		LaunchTemplateConfigs: []ec2types.FleetLaunchTemplateConfigRequest{{
			LaunchTemplateSpecification: &ec2types.FleetLaunchTemplateSpecificationRequest{LaunchTemplateName: &template, Version: new("$Latest")},
			Overrides:                   overrides,
		}},
		TargetCapacitySpecification: &ec2types.TargetCapacitySpecificationRequest{
			DefaultTargetCapacityType: ec2types.DefaultTargetCapacityType(capacityType), TotalTargetCapacity: new(int32(1)),
		},
		TagSpecifications: []ec2types.TagSpecification{
			{ResourceType: ec2types.ResourceTypeInstance, Tags: tagList(map[string]string{"karpenter.sh/nodepool": "gpu", "eks:eks-cluster-name": "karve"})},
			{ResourceType: ec2types.ResourceTypeVolume, Tags: tagList(map[string]string{"of": "volume"})},
		},
	}
}

// gpuImage returns the newest image of a family for machines with NVIDIA GPUs.
func (s *Server) gpuImage(t *testing.T, family Family, arch string) Image {
	t.Helper()
	for _, i := range slices.Backward(s.Images()) {
		if i.Family == family && i.Variant == NVIDIA && i.Arch == arch {
			return i
		}
	}
	t.Fatalf("no image of %s for %s", family, arch)
	return Image{}
}

// TestSDKReadsResponseOfEveryAction calls every action and compares what the client reads with what the server returned.
func TestSDKReadsResponseOfEveryAction(t *testing.T) {
	t.Parallel()
	s, _ := started(t, Config{AllTypes: true})
	var mu sync.Mutex
	var meant any
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := s.serve(w, r)
		mu.Lock()
		defer mu.Unlock()
		meant = out
	}))
	defer front.Close()

	c := clientsOf(ClientConfig(front.URL))
	g4dn := offering{"g4dn.xlarge", "us-east-1a"}
	nvidia := s.gpuImage(t, AL2023, "x86_64")
	cluster, zones, all := new("karve"), ec2types.LocationTypeAvailabilityZone, new(int32(1000))
	queue := new(s.URL + "/000000000000/karve")
	slots := s.Reserve(Reservation{Kind: Block, Type: "p5.4xlarge", Zone: "us-east-1a", Total: 2, Tags: map[string]string{"team": "a"}, End: time.Now().Add(48 * time.Hour)})
	refused := Refusal{Type: "g5.xlarge"}
	s.Refuse(refused)

	called := map[string]bool{}
	said := func(name string, read any, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		called[name] = true
		mu.Lock()
		defer mu.Unlock()
		if _, ok := meant.(*clusterOutput); ok {
			return // not of the SDK's type; compared below
		}
		if same(meant, read) {
			return
		}
		if diff := cmp.Diff(meant, read, unsaid, cmpopts.EquateEmpty(), cmpopts.EquateApproxTime(time.Second)); diff != "" {
			t.Errorf("%s: the SDK's output differs from the server's (-server +SDK):\n%s", name, diff)
		}
	}
	call := func(client any, name string, in any) any {
		t.Helper()
		results := reflect.ValueOf(client).MethodByName(name).Call([]reflect.Value{reflect.ValueOf(t.Context()), reflect.ValueOf(in)})
		err, _ := results[1].Interface().(error)
		said(name, results[0].Interface(), err)
		return results[0].Interface()
	}

	var token *string
	for pages := 0; pages == 0 || token != nil; pages++ {
		out := must[*ec2.DescribeInstanceTypesOutput](t)(c.ec2.DescribeInstanceTypes(t.Context(), &ec2.DescribeInstanceTypesInput{
			NextToken: token, MaxResults: new(int32(100)), Filters: []ec2types.Filter{
				filter("supported-virtualization-type", "hvm"), filter("processor-info.supported-architecture", "x86_64", "arm64"),
			},
		}))
		said("DescribeInstanceTypes", out, nil)
		token = out.NextToken
	}
	call(c.ec2, "DescribeInstanceTypeOfferings", &ec2.DescribeInstanceTypeOfferingsInput{LocationType: zones, MaxResults: all})
	call(c.ec2, "DescribeSpotPriceHistory", &ec2.DescribeSpotPriceHistoryInput{ProductDescriptions: []string{"Linux/UNIX"}, StartTime: new(time.Now()), MaxResults: all})
	call(c.ec2, "DescribeSubnets", &ec2.DescribeSubnetsInput{Filters: []ec2types.Filter{filter("tag:karpenter.sh/discovery", "karve")}})
	call(c.ec2, "DescribeSecurityGroups", &ec2.DescribeSecurityGroupsInput{Filters: []ec2types.Filter{filter("tag-key", "karpenter.sh/discovery")}})
	call(c.ec2, "DescribeImages", &ec2.DescribeImagesInput{Filters: []ec2types.Filter{filter("image-id", nvidia.ID)}, IncludeDeprecated: new(true), MaxResults: all})
	call(c.ec2, "DescribeCapacityReservations", &ec2.DescribeCapacityReservationsInput{Filters: []ec2types.Filter{filter("state", "active")}})
	must[*ec2.CreateLaunchTemplateOutput](t)(c.ec2.CreateLaunchTemplate(t.Context(), reservedTemplate(s, "reserved", nvidia.ID, slots)))
	taken, _ := call(c.ec2, "CreateFleet", fleetInput("reserved", "capacity-block", offering{slots.Type, slots.Zone})).(*ec2.CreateFleetOutput)
	call(c.ec2, "DescribeInstances", &ec2.DescribeInstancesInput{InstanceIds: taken.Instances[0].InstanceIds})
	call(c.ec2, "DescribePlacementGroups", &ec2.DescribePlacementGroupsInput{})
	call(c.ec2, "CreateLaunchTemplate", templateInput(s, "karpenter.k8s.aws/1", nvidia.ID))
	call(c.ec2, "DescribeLaunchTemplates", &ec2.DescribeLaunchTemplatesInput{LaunchTemplateNames: []string{"karpenter.k8s.aws/1"}})
	call(c.ec2, "CreateFleet", fleetInput("karpenter.k8s.aws/1", onDemand, offering{"g5.xlarge", "us-east-1a"}))
	fleet, _ := call(c.ec2, "CreateFleet", fleetInput("karpenter.k8s.aws/1", spot, g4dn)).(*ec2.CreateFleetOutput)
	id := fleet.Instances[0].InstanceIds[0]
	if err := s.Interrupt(id, ScheduledChange); err != nil {
		t.Error(err)
	}
	call(c.ec2, "CreateTags", &ec2.CreateTagsInput{Resources: []string{id}, Tags: tagList(map[string]string{"Name": "node & <machine>"})})
	call(c.ec2, "DescribeInstances", &ec2.DescribeInstancesInput{InstanceIds: []string{id}})
	call(c.ec2, "DescribeInstanceStatus", &ec2.DescribeInstanceStatusInput{Filters: []ec2types.Filter{filter("event.code", "instance-retirement")}})
	call(c.ec2, "TerminateInstances", &ec2.TerminateInstancesInput{InstanceIds: []string{id}})
	call(c.ec2, "DeleteLaunchTemplate", &ec2.DeleteLaunchTemplateInput{LaunchTemplateName: new("karpenter.k8s.aws/1")})
	if _, err := c.ec2.RunInstances(t.Context(), &ec2.RunInstancesInput{DryRun: new(true), MinCount: new(int32(1)), MaxCount: new(int32(1))}); code(err) != "DryRunOperation" {
		t.Errorf("a dry run of RunInstances returned %v", err)
	}
	called["RunInstances"] = true

	call(c.ssm, "GetParameter", &ssm.GetParameterInput{Name: new("/aws/service/bottlerocket/aws-k8s-1.37-nvidia/arm64/latest/image_id")})
	call(c.pricing, "GetProducts", &pricing.GetProductsInput{ServiceCode: new("AmazonEC2")})
	described, _ := call(c.eks, "DescribeCluster", &eks.DescribeClusterInput{Name: cluster}).(*eks.DescribeClusterOutput)
	if got := described.Cluster; value(got.Version) != "1.37" || value(got.KubernetesNetworkConfig.ServiceIpv4Cidr) != serviceCIDR || value(got.Name) != "karve" || value(got.Endpoint) == "" {
		t.Errorf("DescribeCluster: %+v", got)
	}
	call(c.iam, "GetRole", &iam.GetRoleInput{RoleName: new(s.NodeRole())})
	call(c.iam, "CreateInstanceProfile", &iam.CreateInstanceProfileInput{InstanceProfileName: new("p"), Path: new("/karpenter/us-east-1/karve/1/")})
	call(c.iam, "TagInstanceProfile", &iam.TagInstanceProfileInput{InstanceProfileName: new("p"), Tags: iamTags("a", "b")})
	call(c.iam, "AddRoleToInstanceProfile", &iam.AddRoleToInstanceProfileInput{InstanceProfileName: new("p"), RoleName: new(s.NodeRole())})
	call(c.iam, "GetInstanceProfile", &iam.GetInstanceProfileInput{InstanceProfileName: new("p")})
	call(c.iam, "ListInstanceProfiles", &iam.ListInstanceProfilesInput{PathPrefix: new("/karpenter/us-east-1/karve/")})
	call(c.iam, "RemoveRoleFromInstanceProfile", &iam.RemoveRoleFromInstanceProfileInput{InstanceProfileName: new("p"), RoleName: new(s.NodeRole())})
	call(c.iam, "DeleteInstanceProfile", &iam.DeleteInstanceProfileInput{InstanceProfileName: new("p")})
	call(c.sqs, "GetQueueUrl", &sqs.GetQueueUrlInput{QueueName: cluster})
	call(c.sqs, "SendMessage", &sqs.SendMessageInput{QueueUrl: queue, MessageBody: new("{}")})
	received, _ := call(c.sqs, "ReceiveMessage", &sqs.ReceiveMessageInput{QueueUrl: queue, MaxNumberOfMessages: 10, WaitTimeSeconds: 20}).(*sqs.ReceiveMessageOutput)
	call(c.sqs, "DeleteMessage", &sqs.DeleteMessageInput{QueueUrl: queue, ReceiptHandle: received.Messages[0].ReceiptHandle})
	call(c.sts, "GetCallerIdentity", &sts.GetCallerIdentityInput{})
	call(c.quotas, "GetServiceQuota", &servicequotas.GetServiceQuotaInput{ServiceCode: new("ec2"), QuotaCode: new("L-DB2E81BA")})

	for _, api := range services {
		for name := range api.actions {
			if !called[name] {
				t.Errorf("the test does not call %s", name)
			}
		}
	}
}

// same is a fast check that finds most responses equal.
func same(meant, read any) bool {
	metadata := reflect.ValueOf(read).Elem().FieldByName("ResultMetadata")
	kept := metadata.Interface()
	defer metadata.Set(reflect.ValueOf(kept))
	metadata.SetZero()
	return reflect.DeepEqual(meant, read)
}

func iamTags(key, text string) []iamtypes.Tag { return []iamtypes.Tag{{Key: &key, Value: &text}} }

// TestUnknownObjectsReturnErrorCodeOfAWS checks that requests for unknown objects return AWS's error and not an empty response.
func TestUnknownObjectsReturnErrorCodeOfAWS(t *testing.T) {
	t.Parallel()
	s, c := started(t, Config{})
	none, ctx := new("none"), t.Context()
	for name, got := range map[string]func() error{
		"InvalidInstanceID.NotFound": func() error {
			_, err := c.ec2.DescribeInstances(ctx, &ec2.DescribeInstancesInput{InstanceIds: []string{"i-1"}})
			return err
		},
		"InvalidLaunchTemplateName.NotFoundException": func() error {
			_, err := c.ec2.DescribeLaunchTemplates(ctx, &ec2.DescribeLaunchTemplatesInput{LaunchTemplateNames: []string{"none"}})
			return err
		},
		"InvalidLaunchTemplateId.NotFound": func() error {
			_, err := c.ec2.DeleteLaunchTemplate(ctx, &ec2.DeleteLaunchTemplateInput{LaunchTemplateId: none})
			return err
		},
		"InvalidParameterValue": func() error {
			_, err := c.ec2.DescribeSubnets(ctx, &ec2.DescribeSubnetsInput{Filters: []ec2types.Filter{filter("color", "red")}})
			return err
		},
		"InvalidAMIID.NotFound": func() error {
			_, err := c.ec2.DescribeImages(ctx, &ec2.DescribeImagesInput{ImageIds: []string{"ami-1"}})
			return err
		},
		"InvalidCapacityReservationId.NotFound": func() error {
			_, err := c.ec2.DescribeCapacityReservations(ctx, &ec2.DescribeCapacityReservationsInput{CapacityReservationIds: []string{"cr-1"}})
			return err
		},
		"InvalidParameterCombination": func() error {
			_, err := c.ec2.DescribeCapacityReservations(ctx, &ec2.DescribeCapacityReservationsInput{CapacityReservationIds: []string{"cr-1"}, MaxResults: new(int32(5))})
			return err
		},
		"InvalidInstanceType": func() error {
			_, err := c.ec2.DescribeInstanceTypes(ctx, &ec2.DescribeInstanceTypesInput{InstanceTypes: []ec2types.InstanceType{"g0.huge"}})
			return err
		},
		"DryRunOperation": func() error {
			_, err := c.ec2.DescribeInstanceTypes(ctx, &ec2.DescribeInstanceTypesInput{DryRun: new(true)})
			return err
		},
		"InvalidAction": func() error {
			_, err := c.ec2.DescribeVpcs(ctx, &ec2.DescribeVpcsInput{})
			return err
		},
		"ParameterNotFound": func() error {
			_, err := c.ssm.GetParameter(ctx, &ssm.GetParameterInput{Name: none})
			return err
		},
		"ResourceNotFoundException": func() error {
			_, err := c.eks.DescribeCluster(ctx, &eks.DescribeClusterInput{Name: none})
			return err
		},
		"NoSuchEntity": func() error {
			_, err := c.iam.AddRoleToInstanceProfile(ctx, &iam.AddRoleToInstanceProfileInput{InstanceProfileName: new(s.NodeRole()), RoleName: none})
			return err
		},
		"EntityAlreadyExists": func() error {
			_, err := c.iam.CreateInstanceProfile(ctx, &iam.CreateInstanceProfileInput{InstanceProfileName: new(s.NodeRole())})
			return err
		},
		"QueueDoesNotExist": func() error {
			_, err := c.sqs.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: none})
			return err
		},
	} {
		if err := got(); code(err) != name {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOtherRegionHasTypesAndImagesButNoCluster(t *testing.T) {
	t.Parallel()
	s, home := started(t, Config{})
	elsewhere := ClientConfig(s.URL)
	elsewhere.Region = "eu-west-1"
	away := clientsOf(elsewhere)
	if got := must[*ec2.DescribeSubnetsOutput](t)(away.ec2.DescribeSubnets(t.Context(), &ec2.DescribeSubnetsInput{})); len(got.Subnets) != 0 {
		t.Errorf("the subnets %v", got.Subnets)
	}
	if got := must[*ec2.DescribeSecurityGroupsOutput](t)(away.ec2.DescribeSecurityGroups(t.Context(), &ec2.DescribeSecurityGroupsInput{})); len(got.SecurityGroups) != 0 {
		t.Errorf("the security groups %v", got.SecurityGroups)
	}
	if _, err := away.eks.DescribeCluster(t.Context(), &eks.DescribeClusterInput{Name: new("karve")}); code(err) != "ResourceNotFoundException" {
		t.Errorf("the cluster: %v", err)
	}
	offered := must[*ec2.DescribeInstanceTypeOfferingsOutput](t)(away.ec2.DescribeInstanceTypeOfferings(t.Context(), &ec2.DescribeInstanceTypeOfferingsInput{
		LocationType: ec2types.LocationTypeAvailabilityZone, Filters: []ec2types.Filter{filter("instance-type", "g5.xlarge")},
	}))
	if len(offered.InstanceTypeOfferings) == 0 || !strings.HasPrefix(*offered.InstanceTypeOfferings[0].Location, "eu-west-1") {
		t.Errorf("g5.xlarge is offered in %v", offered.InstanceTypeOfferings)
	}
	in := &ssm.GetParameterInput{Name: new("/aws/service/bottlerocket/aws-k8s-1.37-nvidia/arm64/latest/image_id")}
	if a, b := must[*ssm.GetParameterOutput](t)(home.ssm.GetParameter(t.Context(), in)), must[*ssm.GetParameterOutput](t)(away.ssm.GetParameter(t.Context(), in)); *a.Parameter.Value == *b.Parameter.Value {
		t.Errorf("both regions have the image %s", *a.Parameter.Value)
	}
	if got := must[*iam.GetRoleOutput](t)(away.iam.GetRole(t.Context(), &iam.GetRoleInput{RoleName: new(s.NodeRole())})); got.Role == nil {
		t.Error("IAM is not the same in all regions")
	}
}

func TestPolicyDecidesWhichCallsAreAllowed(t *testing.T) {
	t.Parallel()
	s, _ := started(t, Config{})
	env := must[[]string](t)(s.EnvAs("reader", []byte(`{"Version": "2012-10-17", "Statement": [
		{"Effect": "Allow", "Action": ["ec2:Describe*", "iam:GetRole"], "Resource": "*"},
		{"Effect": "Deny", "Action": "ec2:DescribeImages", "Resource": "*"},
		{"Effect": "Allow", "Action": "ssm:GetParameter", "Resource": ["arn:aws:ssm:*::parameter/aws/service/bottlerocket/*"]}
	]}`)))
	key := ""
	for _, variable := range env {
		if text, ok := strings.CutPrefix(variable, "AWS_ACCESS_KEY_ID="); ok {
			key = text
		}
	}
	reader := ClientConfig(s.URL)
	reader.Credentials = credentials.NewStaticCredentialsProvider(key, "local", "")
	c, ctx := clientsOf(reader), t.Context()
	parameter := func(name string) error {
		_, err := c.ssm.GetParameter(ctx, &ssm.GetParameterInput{Name: &name})
		return err
	}
	_, subnets := c.ec2.DescribeSubnets(ctx, &ec2.DescribeSubnetsInput{})
	_, images := c.ec2.DescribeImages(ctx, &ec2.DescribeImagesInput{})
	_, tags := c.ec2.CreateTags(ctx, &ec2.CreateTagsInput{Resources: []string{"i-1"}, Tags: []ec2types.Tag{}})
	_, role := c.iam.GetRole(ctx, &iam.GetRoleInput{RoleName: new(s.NodeRole())})
	_, caller := c.sts.GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
	got := []string{
		code(subnets), code(images), code(tags), code(role), code(caller), code(parameter("/aws/service/bottlerocket/aws-k8s-1.37/arm64/latest/image_id")), code(parameter("/mine")),
	}
	want := []string{"<nil>", "UnauthorizedOperation", "UnauthorizedOperation", "<nil>", "AccessDenied", "<nil>", "AccessDeniedException"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := s.EnvAs("reader", []byte("ec2:*")); err == nil {
		t.Error("an invalid policy was accepted")
	}
}

func TestClientsReconnectToRestartedServer(t *testing.T) {
	t.Parallel()
	s, c := started(t, Config{})
	s.Stop()
	if _, err := c.ec2.DescribeSubnets(t.Context(), &ec2.DescribeSubnetsInput{}); err == nil {
		t.Error("a stopped server answered")
	}
	started(t, Config{Address: strings.TrimPrefix(s.URL, "http://")})
	must[*ec2.DescribeSubnetsOutput](t)(c.ec2.DescribeSubnets(t.Context(), &ec2.DescribeSubnetsInput{}))
}

func TestEnvironmentPointsSDKToServer(t *testing.T) {
	s, _ := started(t, Config{ClusterName: "blue", Region: "eu-west-1"})
	for _, variable := range s.KarpenterEnv() {
		name, text, _ := strings.Cut(variable, "=")
		t.Setenv(name, text)
	}
	loaded := must[awssdk.Config](t)(sdkconfig.LoadDefaultConfig(t.Context()))
	c := clientsOf(loaded)
	subnets := must[*ec2.DescribeSubnetsOutput](t)(c.ec2.DescribeSubnets(t.Context(), &ec2.DescribeSubnetsInput{}))
	if got := value(subnets.Subnets[0].AvailabilityZone); got != "eu-west-1a" {
		t.Errorf("the first subnet is in %s", got)
	}
	must[*pricing.GetProductsOutput](t)(c.pricing.GetProducts(t.Context(), &pricing.GetProductsInput{ServiceCode: new("AmazonEC2")}))
	must[*eks.DescribeClusterOutput](t)(c.eks.DescribeCluster(t.Context(), &eks.DescribeClusterInput{Name: new("blue")}))
}
