package nvmltest

import (
	"fmt"

	"karve.sh/karve/pkg/node/gpu"
)

// model has the properties that all GPUs of a product share. The numbers are those that the drivers report on AWS instances.
type model struct {
	product                string
	memoryMiB, reservedMiB int64
	major, minor           int
	profiles               []MIGProfile
	// migReset reports whether the MIG mode takes effect only with a reset of the GPU, as before Hopper.
	migReset                 bool
	idleMilliwatts           int64
	idleSMMHz, idleMemoryMHz int
}

var (
	t4   = model{product: "Tesla T4", memoryMiB: 15360, reservedMiB: 448, major: 7, minor: 5, idleMilliwatts: 13500, idleSMMHz: 300, idleMemoryMHz: 405}
	v100 = model{product: "Tesla V100-SXM2-16GB", memoryMiB: 16384, reservedMiB: 226, major: 7, idleMilliwatts: 43000, idleSMMHz: 135, idleMemoryMHz: 877}
	a10g = model{product: "NVIDIA A10G", memoryMiB: 23028, reservedMiB: 512, major: 8, minor: 6, idleMilliwatts: 22000, idleSMMHz: 210, idleMemoryMHz: 405}
	a100 = model{
		product: "NVIDIA A100-SXM4-40GB", memoryMiB: 40960, reservedMiB: 615, major: 8, migReset: true,
		profiles:       profilesOfSevenths("1g.5gb 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb", [4]int64{4864, 9856, 19968, 40192}, [5]int{14, 28, 42, 56, 98}, false),
		idleMilliwatts: 52000, idleSMMHz: 210, idleMemoryMHz: 1215,
	}
	h100 = model{
		product: "NVIDIA H100 80GB HBM3", memoryMiB: 81559, reservedMiB: 551, major: 9,
		profiles:       profilesOfSevenths("1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb", [4]int64{9984, 20096, 40448, 81152}, [5]int{16, 32, 60, 64, 132}, true),
		idleMilliwatts: 69000, idleSMMHz: 345, idleMemoryMHz: 2619,
	}
	h200 = model{
		product: "NVIDIA H200", memoryMiB: 143771, reservedMiB: 608, major: 9,
		profiles:       profilesOfSevenths("1g.18gb 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb", [4]int64{16384, 33280, 71424, 143360}, [5]int{16, 32, 60, 64, 132}, true),
		idleMilliwatts: 76000, idleSMMHz: 345, idleMemoryMHz: 3201,
	}
)

// T4 returns a machine with n T4s: 1 as g4dn.xlarge, 4 as g4dn.12xlarge, 8 as g4dn.metal.
func T4(n int) State { return t4.machine(n) }

// A10G returns a machine with n A10Gs. One is a g5.xlarge.
func A10G(n int) State { return a10g.machine(n) }

// V100 returns a machine with n V100s. Eight are a p3.16xlarge, whose NVLinks form a cube mesh: each GPU has two NVLinks to each of two others, and one
// to each of two more.
func V100(n int) State {
	mesh := map[[2]int]int{
		{0, 1}: 1, {0, 2}: 1, {0, 3}: 2, {0, 4}: 2, {1, 2}: 2, {1, 3}: 1, {1, 5}: 2, {2, 3}: 2, {2, 6}: 1, {3, 7}: 1,
		{4, 5}: 1, {4, 6}: 1, {4, 7}: 2, {5, 6}: 2, {5, 7}: 1, {6, 7}: 2,
	}
	s := v100.machine(n)
	for i := range s.Links {
		s.Links[i].NVLinks = mesh[[2]int{s.Links[i].A, s.Links[i].B}]
	}
	return s
}

// A100 returns a machine with n undivided A100s. Eight are a p4d.24xlarge.
func A100(n int) State { return a100.switched(n, 12) }

// H100 returns a machine with n undivided H100s. Eight are a p5.48xlarge.
func H100(n int) State { return h100.switched(n, 18) }

// switched returns a machine with n GPUs that have NVLinks to a switch. Each pair shares a PCIe switch.
func (m model) switched(n, links int) State {
	s := m.machine(n)
	for i := range s.Devices {
		s.Devices[i].SwitchLinks = links
	}
	for i := range s.Links {
		if l := &s.Links[i]; l.A/2 == l.B/2 {
			l.Path = gpu.PathMultiSwitch
		}
	}
	return s
}

// H200 returns a machine with n undivided H200s. Eight are a p5e.48xlarge.
func H200(n int) State { return h200.switched(n, 18) }

// None returns a machine with a driver and without GPUs.
func None() State { return t4.machine(0) }

// Without returns a machine on which nvmlInit returns code.
func Without(code int) State {
	s := None()
	s.Init = code
	return s
}

func (m model) machine(n int) State {
	s := State{Driver: "580.159.03", CUDA: 13000}
	for i := range n {
		numa := -1
		if n > 1 {
			numa = i * 2 / n
		}
		for b := i + 1; b < n; b++ {
			path := gpu.PathCrossCPU
			if b*2/n == numa {
				path = gpu.PathSameCPU
			}
			s.Links = append(s.Links, Link{A: i, B: b, Path: path})
		}
		s.Devices = append(s.Devices, Device{
			Device: gpu.Device{
				UUID:  fmt.Sprintf("GPU-%08x-51ba-4c7e-9f2d-%012x", 0x2d1f0000+i, 0xa5+i),
				Index: i, Minor: i, NUMANode: numa,
				Product: m.product, MemoryMiB: m.memoryMiB, ComputeMajor: m.major, ComputeMinor: m.minor, MIGCapable: m.profiles != nil,
			},
			PCI:         fmt.Sprintf("00000000:00:%02X.0", 0x1e-i),
			ReservedMiB: m.reservedMiB,
			MIGProfiles: m.profiles, MIGReset: m.migReset,
			Usage: gpu.Usage{
				TemperatureCelsius: 30 + i, PowerMilliwatts: m.idleMilliwatts, SMClockMHz: m.idleSMMHz, MemClockMHz: m.idleMemoryMHz,
			},
		})
	}
	return s
}
