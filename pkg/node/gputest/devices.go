package gputest

import (
	"fmt"

	"karve.sh/karve/pkg/node/gpu"
)

// T4s returns n GPUs as in a g4dn machine.
func T4s(n int) []gpu.Device {
	return devices(n, gpu.Device{Product: "Tesla T4", MemoryMiB: 15360, ComputeMajor: 7, ComputeMinor: 5})
}

// H100s returns n GPUs as in a p5 machine.
func H100s(n int) []gpu.Device {
	return devices(n, gpu.Device{Product: "NVIDIA H100 80GB HBM3", MemoryMiB: 81559, ComputeMajor: 9, MIGCapable: true})
}

// Divided returns n GPUs as in a p4d machine, each with count instances of a profile with the given memory in MiB.
func Divided(n, count int, profile string, memoryMiB int64) []gpu.Device {
	return DividedInto(n, Instances{count, profile, memoryMiB})
}

// Instances is a number of instances of a profile with the given memory in MiB.
type Instances struct {
	Count     int
	Profile   string
	MemoryMiB int64
}

// DividedInto returns n GPUs as in a p4d machine, each with instances of several profiles.
func DividedInto(n int, each ...Instances) []gpu.Device {
	out := devices(n, gpu.Device{Product: "NVIDIA A100-SXM4-40GB", MemoryMiB: 40960, ComputeMajor: 8, MIGCapable: true, MIG: true})
	for i := range out {
		for _, of := range each {
			for range of.Count {
				j := len(out[i].Instances)
				out[i].Instances = append(out[i].Instances, gpu.Instance{
					UUID: fmt.Sprintf("MIG-%08x-51ba-5c7e-9f2d-%012x", 0x71000000+i, 0xbeef+j), Index: j, Profile: of.Profile, MemoryMiB: of.MemoryMiB, GPUInstance: 7 + j,
					Multiprocessors: 14, GPUSlices: 1, ComputeSlices: 1, CopyEngines: 1,
				})
			}
		}
	}
	return out
}

func devices(n int, model gpu.Device) []gpu.Device {
	out := make([]gpu.Device, n)
	for i := range out {
		out[i] = model
		out[i].UUID = fmt.Sprintf("GPU-%08x-7c11-4f0e-8a3b-%012x", 0x5e000000+i, 0xf00d+i)
		out[i].Index, out[i].Minor, out[i].NUMANode = i, i, -1
		if n > 1 {
			out[i].NUMANode = i * 2 / n
		}
	}
	return out
}
