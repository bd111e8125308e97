package nvmltest

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"karve.sh/karve/pkg/node/gpu"
)

// NVML return codes for failures.
const (
	Uninitialized          = 1
	OperatingSystem        = 17
	DriverNotLoaded        = 9
	LibraryVersionMismatch = 18
)

// State is what the library reports. Its file has one line for each fact:
//
//	driver 580.159.03
//	cuda 13000
//	init 9                        nvmlInit returns this code
//	fail 9                        every call returns this code, except the wait for events, which finds none
//	hang 1                        no call returns until the line is removed
//	excluded 00000000:00:1C.0     a GPU that the driver is told to exclude
//	gpu 0 uuid GPU-...            also name, pci, minor, memory TOTAL RESERVED USED (MiB), compute MAJOR MINOR,
//	                              utilization GPU MEMORY (percent), temperature, power (mW, and mJ since the driver was loaded), clocks SM MEMORY (MHz)
//	gpu 0 mig on                  or off; without the line the GPU does not support MIG
//	gpu 0 mig-reset               the MIG mode changes with a reset of the GPU
//	gpu 0 mig-profile 0 19 ...    a profile of instances: see [MIGProfile]
//	gpu 0 process 4711 compute 512 20 7 0     pid, compute|graphics|mps, MiB or -1, percent of SM time or -1, and of a MIG instance its two numbers
//	gpu 0 gpm 99 75 50 25 12 37 0 6 3 12 -1 -1   what the profiling counters say; without the line there are none. In percent: graphics, SM, occupancy, tensor,
//	                              FP64, FP32, FP16, DRAM; in MiB/s: PCIe from and to the GPU, NVLink from and to it. A value of -1 is not supported
//	gpu 0 recovery 1              what the driver asks for, as NVML's number; without the line nothing
//	gpu 0 lost                    every call about it returns "GPU is lost"
//	gpu 0 without power           not supported: utilization, temperature, power, clocks, processes, process-utilization, events, memory,
//	                              recovery, set-compute-mode, set-mig-mode, create-instance, create-compute (not permitted), idle (the MIG mode cannot change)
//	gpu 0 nvswitch 12             this many NVLinks to a switch
//	link 0 1 2 30                 GPUs 0 and 1 have 2 NVLinks between them, and NVML's topology level 30 on PCIe (-1: not supported, as for GPUs without a line)
//	xid 0 79 7 0                  an event, delivered once to each event set that was created before the line; GPU -1 is unknown. Those of a MIG
//	                              instance have its two numbers
//
// The compute mode of a GPU, as NVML's number, and its MIG instances are in files beside it, because programs change them: see [ModeFile] and [MIGFile].
// The library writes the number of allocated samples of profiling counters to the file of [SamplesFile].
// Programs of the fake libcuda.so.1 add lines "0 4711 512" to the file with the suffix .processes: the GPU, their PID, and their memory in MiB while they run.
type State struct {
	Driver string
	// CUDA is the version in NVML's encoding: 1000 times the major version plus 10 times the minor version.
	CUDA int
	// Init is the code that nvmlInit returns.
	Init int
	// Fail is the code that every call returns, except the wait for events.
	Fail int
	// Hang makes every call block.
	Hang    bool
	Devices []Device
	// Links are the connections of GPUs.
	Links []Link
	// Excluded has the bus addresses of GPUs that the driver is told to exclude.
	Excluded []string
	// XIDs are the events so far, in order. Only append to it.
	XIDs []XID
}

// Device is one GPU.
type Device struct {
	gpu.Device
	// PCI is the bus address, for example "00000000:00:1E.0".
	PCI string
	// ReservedMiB is the memory that the driver reserves for itself.
	ReservedMiB int64
	Usage       gpu.Usage
	// Recovery is what the driver asks for. RecoveryUnknown makes the driver not know the field.
	Recovery gpu.Recovery
	// Kinds has the kind of each process by PID: "compute" (the default), "graphics", "mps", or "ended" for a process that has ended but whose GPU time is
	// still known.
	Kinds map[int]string
	// SwitchLinks is the number of NVLinks to a switch.
	SwitchLinks int
	// On maps the PIDs of processes that run on a MIG instance to that instance.
	On          map[int]OnInstance
	MIGProfiles []MIGProfile
	// MIGReset reports whether the MIG mode changes only with a reset of the GPU.
	MIGReset bool
	Lost     bool
	// Without lists the features that the GPU does not support.
	Without []string
}

// Link is the connection of the GPUs with the indices A and B.
type Link struct {
	A, B, NVLinks int
	Path          gpu.Path
}

// XID is an event of the GPU with the index Device, and of one of its MIG instances if On is set.
type XID struct {
	Device, XID int
	On          *OnInstance
}

// OnInstance is a MIG instance, by the driver's numbers.
type OnInstance struct{ GPU, Compute int }

// String returns the content of the state file.
func (s State) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "driver %s\ncuda %d\n", s.Driver, s.CUDA)
	if s.Init != 0 {
		fmt.Fprintf(&b, "init %d\n", s.Init)
	}
	if s.Fail != 0 {
		fmt.Fprintf(&b, "fail %d\n", s.Fail)
	}
	if s.Hang {
		b.WriteString("hang 1\n")
	}
	for _, address := range s.Excluded {
		fmt.Fprintf(&b, "excluded %s\n", address)
	}
	for i, d := range s.Devices {
		d.write(&b, i)
	}
	for _, l := range s.Links {
		fmt.Fprintf(&b, "link %d %d %d %d\n", l.A, l.B, l.NVLinks, l.Path)
	}
	for _, x := range s.XIDs {
		fmt.Fprintf(&b, "xid %d %d%s\n", x.Device, x.XID, x.On)
	}
	return b.String()
}

func (d Device) write(b *strings.Builder, i int) {
	line := func(format string, args ...any) { fmt.Fprintf(b, "gpu "+strconv.Itoa(i)+" "+format+"\n", args...) }
	u := d.Usage
	line("uuid %s", d.UUID)
	line("name %s", d.Product)
	line("pci %s", d.PCI)
	line("minor %d", d.Minor)
	line("memory %d %d %d", d.MemoryMiB, d.ReservedMiB, u.MemoryUsedMiB)
	line("compute %d %d", d.ComputeMajor, d.ComputeMinor)
	line("utilization %d %d", u.GPUPercent, u.MemoryPercent)
	line("temperature %d", u.TemperatureCelsius)
	line("power %d %d", u.PowerMilliwatts, u.EnergyMillijoules)
	line("clocks %d %d", u.SMClockMHz, u.MemClockMHz)
	switch {
	case d.MIG:
		line("mig on")
	case d.MIGCapable:
		line("mig off")
	}
	if d.MIGReset {
		line("mig-reset")
	}
	for _, p := range d.MIGProfiles {
		line("mig-profile %s", p)
	}
	d.writeUse(line)
	if d.SwitchLinks > 0 {
		line("nvswitch %d", d.SwitchLinks)
	}
	without := d.Without
	if d.Recovery == gpu.RecoveryUnknown {
		without = append(slices.Clone(without), "recovery")
	} else if d.Recovery != gpu.RecoveryNone {
		line("recovery %d", d.Recovery)
	}
	if d.Lost {
		line("lost")
	}
	if len(without) > 0 {
		line("without %s", strings.Join(without, " "))
	}
}

// writeUse writes the processes of the device, and what they use of it.
func (d Device) writeUse(line func(format string, args ...any)) {
	u := d.Usage
	for _, p := range u.Processes {
		kind := cmp.Or(d.Kinds[p.PID], "compute")
		var on *OnInstance
		if number, ok := d.On[p.PID]; ok {
			on = &number
		}
		line("process %d %s %d %d%s", p.PID, kind, p.MemoryMiB, p.SMPercent, on)
	}
	if p := u.Profiling; p != nil {
		words := make([]string, 0, 12)
		for _, share := range []float64{p.GraphicsActive, p.SMActive, p.SMOccupancy, p.TensorActive, p.FP64Active, p.FP32Active, p.FP16Active, p.DRAMActive} {
			words = append(words, fmt.Sprint(share*100))
		}
		for _, bytes := range []float64{p.PCIeTransmit, p.PCIeReceive, p.NVLinkTransmit, p.NVLinkReceive} {
			words = append(words, fmt.Sprint(bytes/(1<<20)))
		}
		line("gpm %s", strings.Join(words, " "))
	}
}

// String returns the numbers, each with a leading space, or "" for nil.
func (on *OnInstance) String() string {
	if on == nil {
		return ""
	}
	return fmt.Sprintf(" %d %d", on.GPU, on.Compute)
}

// ModeFile returns the path of the file with the compute mode of a GPU. Without the file, the mode is the default.
func ModeFile(state string, index int) string { return fmt.Sprintf("%s.compute-mode.%d", state, index) }

// SamplesFile returns the path of the file in which the library counts the allocated samples of profiling counters of this process.
func SamplesFile(state string) string { return fmt.Sprintf("%s.gpm-samples.%d", state, os.Getpid()) }

// Machine is a machine that a state file describes.
type Machine struct {
	Path string

	mu    sync.Mutex
	State State
}

// Environment returns the environment in which a program finds the GPUs of the machine. library is the path that [New] returned.
func (m *Machine) Environment(library string) []string {
	return append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(library), Env+"="+m.Path)
}

// Change changes the state and writes the file.
func (m *Machine) Change(t testing.TB, change func(s *State)) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.State)
	m.write(t)
}

// Write writes the state file.
func (m *Machine) Write(t testing.TB) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.write(t)
}

// write replaces the file atomically, because the library may be reading it.
func (m *Machine) write(t testing.TB) {
	t.Helper()
	next := m.Path + ".next"
	if err := os.WriteFile(next, []byte(m.State.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, m.Path); err != nil {
		t.Fatal(err)
	}
}

// WriteSysfs writes the part of /sys that the agent reads: the GPUs and the NUMA node of each.
func (s State) WriteSysfs(t testing.TB, root string) {
	t.Helper()
	for _, d := range s.Devices {
		address := strings.ToLower(strings.TrimPrefix(d.PCI, "0000"))
		dir := filepath.Join(root, "bus", "pci", "devices", address)
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
		for name, content := range map[string]string{"numa_node": strconv.Itoa(d.NUMANode), "vendor": "0x10de", "class": "0x030200"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}
