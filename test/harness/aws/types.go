package aws

import (
	"bufio"
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

//go:embed data/instance-types.json.gz
var packedTypes []byte

// machine is an instance type and the zones in which it is offered.
type machine struct {
	Zones string // letters of the zones: "abd"
	Info  ec2types.InstanceTypeInfo
}

func (m machine) name() string { return string(m.Info.InstanceType) }

func (m machine) offered(class ec2types.UsageClassType) bool {
	return slices.Contains(m.Info.SupportedUsageClasses, class)
}

func (m machine) nvidia() bool {
	return m.Info.GpuInfo != nil && slices.ContainsFunc(m.Info.GpuInfo.Gpus, func(gpu ec2types.GpuDeviceInfo) bool {
		return gpu.Manufacturer != nil && *gpu.Manufacturer == "NVIDIA"
	})
}

// others are the types without an NVIDIA GPU that are served by default. They are for stock NodePools, for Karpenter's dry runs (m5.large and
// m6g.large), and one each for what a GPU catalog must tell apart.
var others = []string{
	"t3.medium", "t3.large", "c5.large", "c5.xlarge", "c5.2xlarge", "c5.4xlarge", "m5.large", "m5.xlarge", "m5.2xlarge", "m5.4xlarge", "m5.metal",
	"r5.large", "r5.xlarge", "m6g.large", "m6g.xlarge", "m7i.large", "c7g.large", "g4ad.xlarge", "inf2.xlarge", "trn1.2xlarge", "dl1.24xlarge",
}

// allMachines returns all types of the file, in its order.
var allMachines = sync.OnceValue(func() []machine {
	unpacked, err := gzip.NewReader(bytes.NewReader(packedTypes))
	if err != nil {
		panic(fmt.Sprintf("unpacking the instance types: %v", err))
	}
	var machines []machine
	lines := bufio.NewScanner(unpacked)
	for lines.Scan() {
		var m machine
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			panic(fmt.Sprintf("reading the instance types: %v", err))
		}
		machines = append(machines, m)
	}
	if err := lines.Err(); err != nil {
		panic(fmt.Sprintf("reading the instance types: %v", err))
	}
	return machines
})

// machines returns the types of a region, by name.
func machines(all bool) map[string]machine {
	served := map[string]machine{}
	for _, m := range allMachines() {
		if all || m.nvidia() || slices.Contains(others, m.name()) {
			served[m.name()] = m
		}
	}
	return served
}

// zones returns the names of the zones in which a type is offered.
func (s *Server) zones(m machine) []string {
	var names []string
	for letter := range strings.SplitSeq(m.Zones, "") {
		names = append(names, s.config.Region+letter)
	}
	return names
}

// zoneID returns the ID that a zone has in every account: "use1-az1" for "us-east-1a".
func zoneID(zone string) string {
	parts := strings.Split(zone, "-")
	last := parts[len(parts)-1] // "1a"
	var code strings.Builder
	code.WriteString(parts[0])
	for _, part := range parts[1 : len(parts)-1] {
		for _, direction := range []string{"north", "south", "east", "west", "central", "gov"} {
			if strings.HasPrefix(part, direction) {
				code.WriteString(direction[:1])
				part = strings.TrimPrefix(part, direction)
			}
		}
		if part != "" {
			code.WriteString(part[:1])
		}
	}
	return fmt.Sprintf("%s%s-az%d", code.String(), last[:len(last)-1], last[len(last)-1]-'a'+1)
}
