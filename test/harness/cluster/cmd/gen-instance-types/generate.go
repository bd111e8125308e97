package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/karpenter-provider-aws/pkg/providers/instancetype"
	"github.com/aws/karpenter-provider-aws/pkg/providers/pricing"
)

// Karpenter's kwok provider reserves these on each machine. They are added here, so that what remains is what Karpenter's AWS provider reports for the
// real machine.
const (
	kwokReservedMemoryMiB = 10
	ephemeralStorage      = "100Gi"
)

// gpuFamily is the family of EC2 types with GPUs in the file with spot prices. It has one kind of GPU, one to eight of them, and sizes that trade CPU
// and memory against price. Packing needs no more.
const gpuFamily = "g4dn"

// zones holds each zone and its spot price, in permille of the on-demand price. The values are made up.
var zones = []struct {
	name         string
	spotPermille int
}{
	{"us-east-1a", 300},
	{"us-east-1b", 350},
	{"us-east-1c", 400},
}

// cpuTypes are instance types for stock NodePools. The prices are EC2's in us-east-1. The memory is what remains after Karpenter's default overhead.
var cpuTypes = []ec2Type{
	cpuType("c5.large", 2, 4096, 29, 0.085),
	cpuType("c5.xlarge", 4, 8192, 58, 0.17),
	cpuType("c5.2xlarge", 8, 16384, 58, 0.34),
	cpuType("m5.large", 2, 8192, 29, 0.096),
	cpuType("m5.xlarge", 4, 16384, 58, 0.192),
	cpuType("m5.2xlarge", 8, 32768, 58, 0.384),
	cpuType("m5.4xlarge", 16, 65536, 234, 0.768),
}

// ec2Type is the part of the source that is used here.
type ec2Type struct {
	Name        string `json:"name"`
	Family      string `json:"family"`
	Size        string `json:"size"`
	Arch        string `json:"arch"`
	BareMetal   bool   `json:"bare_metal"`
	VCPU        int    `json:"vcpu"`
	MemoryMiB   int    `json:"memory_mib"`
	MaxPods     int    `json:"max_pods_eni"`
	NetworkMbps int64  `json:"-"` // as in Karpenter's AWS provider
	EFA         int    `json:"efa"`
	LocalNVMeGB int    `json:"local_nvme_gb"`
	Allocatable struct {
		MilliCPU  int `json:"cpu_milli"`
		MemoryMiB int `json:"memory_mib"`
	} `json:"karpenter_allocatable"`
	// Price is in USD per hour, as in Karpenter's AWS provider.
	Price *float64 `json:"-"`
	Zones []string `json:"zones_us_east_1"`
	GPU   *struct {
		Manufacturer string `json:"manufacturer"`
		Name         string `json:"name"`
		Count        int    `json:"count"`
		MemoryMiB    int    `json:"memory_mib_per_gpu"`
	} `json:"gpu"`
}

func cpuType(name string, vcpu, memoryMiB, pods int, price float64) ec2Type {
	family, size, _ := strings.Cut(name, ".")
	t := ec2Type{Name: name, Family: family, Size: size, Arch: "amd64", VCPU: vcpu, MemoryMiB: memoryMiB, MaxPods: pods, Price: &price}
	// As in Karpenter: 7.5% for the hypervisor, 255 MiB and 11 MiB per pod for the kubelet, and 100 MiB for the eviction threshold.
	t.Allocatable.MemoryMiB = memoryMiB - int(math.Ceil(float64(memoryMiB)*0.075)) - 255 - 11*pods - 100
	return t
}

type instanceType struct {
	Name             string            `json:"name"`
	Architecture     string            `json:"architecture"`
	OperatingSystems []string          `json:"operatingSystems"`
	Resources        map[string]string `json:"resources"`
	Offerings        []offering        `json:"offerings"`
}

type offering struct {
	Price        float64       `json:"Price"`
	Available    bool          `json:"Available"`
	Requirements []requirement `json:"Requirements"`
}

type requirement struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values"`
}

func read(source []byte) ([]ec2Type, error) {
	var in struct {
		Types []ec2Type `json:"instance_types"`
	}
	if err := json.Unmarshal(source, &in); err != nil {
		return nil, fmt.Errorf("reading the EC2 instance types: %w", err)
	}
	for i := range in.Types {
		in.Types[i].NetworkMbps = instancetype.InstanceTypeBandwidthMegabits[in.Types[i].Name]
		if price, ok := pricing.InitialOnDemandPricesAWS["us-east-1"][ec2types.InstanceType(in.Types[i].Name)]; ok {
			in.Types[i].Price = &price
		}
	}
	return in.Types, nil
}

// generate returns the file with spot prices. The same source gives the same bytes.
func generate(source []byte) ([]byte, error) {
	in, err := read(source)
	if err != nil {
		return nil, err
	}
	var out []instanceType
	for _, t := range append(in, cpuTypes...) {
		if t.GPU != nil && t.Family != gpuFamily {
			continue
		}
		if t.Price == nil || t.Arch != "amd64" {
			return nil, fmt.Errorf("%s has no price, or is not amd64", t.Name)
		}
		out = append(out, t.kwok())
	}
	return format(out)
}

// format puts each offering on a line of its own, so that a change of an offering changes one line.
func format(types []instanceType) ([]byte, error) {
	buf := bytes.NewBufferString("[")
	for i, t := range types {
		offerings := t.Offerings
		t.Offerings = nil
		head, err := json.Marshal(t)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			buf.WriteString(",")
		}
		buf.WriteString("\n" + strings.TrimSuffix(string(head), "null}") + "[")
		for j, o := range offerings {
			line, err := json.Marshal(o)
			if err != nil {
				return nil, err
			}
			if j > 0 {
				buf.WriteString(",")
			}
			buf.WriteString("\n  " + string(line))
		}
		buf.WriteString("\n]}")
	}
	buf.WriteString("\n]\n")
	return buf.Bytes(), nil
}

func (t ec2Type) kwok() instanceType {
	k := instanceType{
		Name: t.Name, Architecture: t.Arch, OperatingSystems: []string{"linux"},
		Resources: map[string]string{
			"cpu":               strconv.Itoa(t.VCPU),
			"memory":            strconv.Itoa(t.Allocatable.MemoryMiB+kwokReservedMemoryMiB) + "Mi",
			"pods":              strconv.Itoa(t.MaxPods),
			"ephemeral-storage": ephemeralStorage,
		},
	}
	if t.GPU != nil {
		k.Resources["nvidia.com/gpu"] = strconv.Itoa(t.GPU.Count)
	}
	for _, zone := range zones {
		spot := math.Round(*t.Price*float64(zone.spotPermille)*1000) / 1e6
		k.Offerings = append(k.Offerings,
			offering{Price: *t.Price, Available: true, Requirements: t.requirements(zone.name, "on-demand")},
			offering{Price: spot, Available: true, Requirements: t.requirements(zone.name, "spot")})
	}
	return k
}

// requirements returns the labels that Karpenter's AWS provider sets for the type. The kwok provider makes them labels of the node, and a NodePool can
// select by them.
func (t ec2Type) requirements(zone, capacityType string) []requirement {
	const aws = "karpenter.k8s.aws/instance-"
	all := []requirement{
		in("topology.kubernetes.io/zone", zone),
		in("karpenter.sh/capacity-type", capacityType),
		in(aws+"category", category(t.Family)),
		in(aws+"family", t.Family),
		in(aws+"size", t.Size),
		in(aws+"cpu", strconv.Itoa(t.VCPU)),
		in(aws+"memory", strconv.Itoa(t.MemoryMiB)),
	}
	if t.GPU != nil {
		all = append(all,
			in(aws+"gpu-name", t.GPU.Name),
			in(aws+"gpu-manufacturer", t.GPU.Manufacturer),
			in(aws+"gpu-count", strconv.Itoa(t.GPU.Count)),
			in(aws+"gpu-memory", strconv.Itoa(t.GPU.MemoryMiB)))
	}
	return all
}

// category returns the letters before the number of a family, as Karpenter reads it: "gr" of "gr6".
func category(family string) string {
	return family[:strings.IndexAny(family, "0123456789")]
}

func in(key, value string) requirement {
	return requirement{Key: key, Operator: "In", Values: []string{value}}
}
