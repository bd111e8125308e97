package main

import (
	"fmt"
	"strconv"
)

// kwokReservedMilliCPU is what Karpenter's kwok provider takes off each machine.
const kwokReservedMilliCPU = 100

// rootVolume is what is left to pods of the volume that Karpenter gives a machine by default: 20 GiB, less 1 GiB and 10 % for the kubelet.
const rootVolume = "17Gi"

// cpuManufacturer is by family. It is from the instance types page of Karpenter's documentation, which the source leaves out.
var cpuManufacturer = map[string]string{
	"g4dn": "intel", "g5": "amd", "g5g": "aws", "g6": "amd", "g6e": "amd", "g7e": "intel", "gr6": "amd",
	"p3dn": "intel", "p4d": "intel", "p4de": "intel", "p5": "amd", "p5en": "intel", "p6-b200": "intel", "p6-b300": "intel",
}

// generateBuiltin is the content of the catalogue that is built into Karve: every type that has whole GPUs, a price and a zone.
func generateBuiltin(source []byte) ([]byte, error) {
	in, err := read(source)
	if err != nil {
		return nil, err
	}
	var out []instanceType
	for _, t := range in {
		// A part of a GPU counts as none for Karpenter: its machines have no nvidia.com/gpu.
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
	// Limits count what the machine has, pods get what is left of it. One figure stands for both in this schema: it never leaves pods more than
	// there is.
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

// more is what Karpenter's AWS provider says of the type beside what both files have.
func (t ec2Type) more() []requirement {
	const aws = "karpenter.k8s.aws/instance-"
	all := []requirement{
		in(aws+"generation", generation(t.Family)),
		in(aws+"cpu-manufacturer", cpuManufacturer[t.Family]),
		in(aws+"network-bandwidth", strconv.Itoa(t.NetworkMbps)),
		// What all machines with GPUs have in common.
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

// generation is the number after the letters of a family, as Karpenter reads it.
func generation(family string) string {
	for _, c := range family {
		if c >= '0' && c <= '9' {
			return string(c)
		}
	}
	return ""
}
