package main

import (
	"fmt"
	"strconv"
)

// kwokReservedMilliCPU is what Karpenter's kwok provider reserves on each machine.
const kwokReservedMilliCPU = 100

// rootVolume is the part of the root volume that pods can use. Karpenter's default volume has 20 GiB, and the kubelet takes 1 GiB and 10 % of it.
const rootVolume = "17Gi"

// cpuManufacturer maps a family to the manufacturer of its CPUs. It comes from the instance types page of Karpenter's documentation. The source does not
// have it.
var cpuManufacturer = map[string]string{
	"g4dn": "intel", "g5": "amd", "g5g": "aws", "g6": "amd", "g6e": "amd", "g7": "intel", "g7e": "intel", "gr6": "amd",
	"p3dn": "intel", "p4d": "intel", "p4de": "intel", "p5": "amd", "p5en": "intel", "p6-b200": "intel", "p6-b300": "intel",
}

// generateBuiltin returns the catalog that is built into Karve: every type with whole GPUs, a price and a zone.
func generateBuiltin(source []byte) ([]byte, error) {
	in, err := read(source)
	if err != nil {
		return nil, err
	}
	var out []instanceType
	for _, t := range in {
		// Karpenter counts a fraction of a GPU as none: such machines have no nvidia.com/gpu.
		if t.GPU == nil || t.GPU.Count == 0 || t.Price == nil || len(t.Zones) == 0 {
			continue
		}
		if cpuManufacturer[t.Family] == "" {
			return nil, fmt.Errorf("the manufacturer of the CPUs of %s is not known", t.Family)
		}
		out = append(out, t.builtin())
	}
	return format(out)
}

func (t ec2Type) builtin() instanceType {
	k := t.kwok()
	k.Resources["ephemeral-storage"] = rootVolume
	// Limits count the machine's capacity, while pods get its allocatable resources. This schema has one figure for both. It never promises pods more
	// than there is.
	if left := t.Allocatable.MilliCPU + kwokReservedMilliCPU; left < 1000*t.VCPU {
		k.Resources["cpu"] = strconv.Itoa(left) + "m"
	}
	if t.EFA > 0 {
		k.Resources["vpc.amazonaws.com/efa"] = strconv.Itoa(t.EFA)
	}
	k.Offerings = nil
	for _, zone := range t.Zones {
		k.Offerings = append(k.Offerings, offering{Price: *t.Price, Available: true, Requirements: append(t.requirements(zone, "on-demand"), t.more()...)})
	}
	return k
}

// more returns the labels of Karpenter's AWS provider that only the built-in catalog has.
func (t ec2Type) more() []requirement {
	const aws = "karpenter.k8s.aws/instance-"
	all := []requirement{
		in(aws+"generation", generation(t.Family)),
		in(aws+"cpu-manufacturer", cpuManufacturer[t.Family]),
		in(aws+"network-bandwidth", strconv.FormatInt(t.NetworkMbps, 10)),
		// These values are the same for all machines with GPUs.
		in(aws+"capability-flex", "false"),
		in(aws+"tenancy", "default"),
		in("topology.kubernetes.io/region", "us-east-1"),
	}
	if !t.BareMetal {
		all = append(all, in(aws+"hypervisor", "nitro"))
	}
	if t.LocalNVMeGB > 0 {
		all = append(all, in(aws+"local-nvme", strconv.Itoa(t.LocalNVMeGB)))
	}
	return all
}

// generation returns the number after the letters of a family, as Karpenter reads it.
func generation(family string) string {
	for _, c := range family {
		if c >= '0' && c <= '9' {
			return string(c)
		}
	}
	return ""
}
