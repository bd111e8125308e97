package instancetype_test

import (
	"slices"
	"testing"

	ec2v1 "github.com/aws/karpenter-provider-aws/pkg/apis/v1"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/catalog/builtin"
	"karve.sh/karve/pkg/cloud/aws"
	fakeaws "karve.sh/karve/test/harness/aws"
)

// cpuKept is how much less CPU, in milli-CPU, the built-in catalog may promise: its file has one figure for both capacity and allocatable.
const cpuKept = 20

// A plan made without a cluster must equal one made with it: the built-in catalog is what AWS returns in us-east-1 for AL2023 with its defaults.
func TestBuiltinCatalogMatchesAWS(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fakeaws.Config{})
	listing := w.until(object(t, nodeClass("gpu", allZones)), "fresh", fresh)
	types, err := builtin.InstanceTypes()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, ours := range types {
		known[ours.Name] = true
		aws := named(t, listing, ours.Name)
		left := ours.Allocatable
		if cpu := aws.Allocatable.MilliCPU - left.MilliCPU; cpu < 0 || cpu > cpuKept {
			t.Errorf("%s has %d mCPU allocatable, on AWS %d", ours.Name, left.MilliCPU, aws.Allocatable.MilliCPU)
		}
		if left.MilliCPU = aws.Allocatable.MilliCPU; left != aws.Allocatable {
			t.Errorf("%s has %+v allocatable, on AWS %+v", ours.Name, left, aws.Allocatable)
		}
		if ours.GPU != aws.GPU {
			t.Errorf("%s has %+v, and on AWS %+v", ours.Name, ours.GPU, aws.GPU)
		}
		for key, value := range ours.Labels {
			if aws.Labels[key] != value {
				t.Errorf("%s has the label %s=%q, and on AWS %q", ours.Name, key, value, aws.Labels[key])
			}
		}
		zones := 0
		for _, o := range aws.Offerings {
			if o.CapacityType != "on-demand" {
				continue
			}
			if zones++; priceOf(ours, o.Zone, o.CapacityType) != o.MicroUSDPerHour {
				t.Errorf("%s costs %d in %s, and on AWS %d", ours.Name, priceOf(ours, o.Zone, o.CapacityType), o.Zone, o.MicroUSDPerHour)
			}
		}
		if zones != len(ours.Offerings) {
			t.Errorf("%s has %d zones, and on AWS %d", ours.Name, len(ours.Offerings), zones)
		}
	}
	for _, aws := range listing.InstanceTypes {
		if whole := aws.GPU.Count > 0 && hasOnDemand(aws); whole != known[aws.Name] {
			t.Errorf("%s is available on AWS: %v, in the built-in catalog: %v", aws.Name, whole, known[aws.Name])
		}
	}
}

// A manifest of a node class changes the built-in catalog as the node class does on AWS.
func TestBuiltinCatalogIsConfiguredAsOnAWS(t *testing.T) {
	t.Parallel()
	volume := func(device string, root bool, size string) func(*ec2v1.EC2NodeClass) {
		return func(c *ec2v1.EC2NodeClass) {
			c.Spec.BlockDeviceMappings = append(c.Spec.BlockDeviceMappings,
				&ec2v1.BlockDeviceMapping{DeviceName: &device, RootVolume: root, EBS: &ec2v1.BlockDevice{VolumeSize: new(resource.MustParse(size))}})
		}
	}
	with := func(k ec2v1.ParsedKubeletConfig) func(*ec2v1.EC2NodeClass) {
		return func(c *ec2v1.EC2NodeClass) { configureKubelet(c, k) }
	}
	custom := func(c *ec2v1.EC2NodeClass) {
		c.Spec.AMISelectorTerms, c.Spec.AMIFamily = []ec2v1.AMISelectorTerm{{ID: "ami-1"}}, new(ec2v1.AMIFamilyCustom)
	}
	for name, edits := range map[string][]func(*ec2v1.EC2NodeClass){
		"nothing":                           nil,
		"a limit of pods":                   {with(ec2v1.ParsedKubeletConfig{MaxPods: new(intstr.FromInt32(8))})},
		"more pods":                         {with(ec2v1.ParsedKubeletConfig{MaxPods: new(intstr.FromInt32(250))})},
		"pods for each CPU":                 {with(ec2v1.ParsedKubeletConfig{PodsPerCore: new(int32(3))})},
		"reservations":                      {with(ec2v1.ParsedKubeletConfig{KubeReserved: map[string]string{"cpu": "1"}, SystemReserved: map[string]string{"memory": "2Gi", "ephemeral-storage": "1G"}})},
		"evictions":                         {with(ec2v1.ParsedKubeletConfig{EvictionHard: map[string]string{"memory.available": "750Mi", "nodefs.available": "100%"}})},
		"a kubelet and its disks":           {kubelet},
		"a volume":                          {volume("/dev/xvda", false, "100Gi")},
		"a volume for something else":       {volume("/dev/xvdz", false, "100Gi")},
		"a root volume":                     {volume("/dev/xvdz", false, "50Gi"), volume("/dev/sda1", true, "1T")},
		"Bottlerocket":                      {bottlerocket, func(c *ec2v1.EC2NodeClass) { c.Spec.BlockDeviceMappings = nil }},
		"Bottlerocket with a data volume":   {bottlerocket},
		"Bottlerocket with few pods":        {bottlerocket, with(ec2v1.ParsedKubeletConfig{MaxPods: new(intstr.FromInt32(20)), PodsPerCore: new(int32(1))})},
		"images of one's own with a volume": {custom, volume("/dev/xvdz", false, "80Gi")},
		"images of one's own":               {custom},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			class := object(t, nodeClass("gpu", append(edits, allZones)...))
			listing := newWorld(t, fakeaws.Config{}).until(class, "fresh", fresh)
			types, err := builtin.InstanceTypes()
			if err != nil {
				t.Fatal(err)
			}
			configured, unused, err := aws.Provider.Configure(class, types)
			if err != nil || len(unused) > 0 {
				t.Fatal(unused, err)
			}
			for _, ours := range configured {
				left, theirs := ours.Allocatable, named(t, listing, ours.Name).Allocatable
				if cpu := theirs.MilliCPU - left.MilliCPU; cpu < 0 || cpu > cpuKept {
					t.Errorf("%s has %d mCPU allocatable, on AWS %d", ours.Name, left.MilliCPU, theirs.MilliCPU)
				}
				if left.MilliCPU = theirs.MilliCPU; left != theirs {
					t.Errorf("%s has %+v allocatable, on AWS %+v", ours.Name, left, theirs)
				}
			}
		})
	}
}

func hasOnDemand(it catalog.InstanceType) bool {
	for _, o := range it.Offerings {
		if o.CapacityType == "on-demand" {
			return true
		}
	}
	return false
}

// Karpenter evaluates expressions, with its gate NodeClassCEL.
func TestExpressionsOfKubeletAreNotUsedOffline(t *testing.T) {
	t.Parallel()
	types, err := builtin.InstanceTypes()
	if err != nil {
		t.Fatal(err)
	}
	plain, _, err := aws.Provider.Configure(object(t, nodeClass("gpu")), types)
	if err != nil {
		t.Fatal(err)
	}
	configured, unused, err := aws.Provider.Configure(object(t, nodeClass("gpu", withExpressions)), types)
	if err != nil || !slices.Equal(unused, []string{"spec.kubelet.kubeReserved.cpu", "spec.kubelet.kubeReserved.memory", "spec.kubelet.maxPods"}) {
		t.Errorf("%v are not used: %v", unused, err)
	}
	if diff := cmp.Diff(plain, configured); diff != "" {
		t.Errorf("(-without them +with them)\n%s", diff)
	}
}
