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
