package nvmltest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"karve.sh/karve/pkg/node/gpu"
)

// What NVML answers when it does not succeed.
const (
	Uninitialized          = 1
	OperatingSystem        = 17
	DriverNotLoaded        = 9
	LibraryVersionMismatch = 18
)

// State is what the library tells. Its file has a line for each fact:
//
//	driver 580.159.03
//	cuda 13000
//	init 9                        nvmlInit answers this code
//	fail 9                        every call answers this code, but the one that waits for events: there are none
//	hang 1                        no call returns, until the file says otherwise
//	excluded 00000000:00:1C.0     a GPU that the driver was told to leave alone
//	gpu 0 uuid GPU-...            also name, pci, minor, memory TOTAL RESERVED USED (MiB), compute MAJOR MINOR,
//	                              utilization GPU MEMORY (percent), temperature, power (mW), clocks SM MEMORY (MHz)
//	gpu 0 mig on                  or off; without the line the GPU cannot do MIG
//	gpu 0 process 4711 compute 512 20     pid, compute|graphics|mps, MiB or -1, percent of SM time or -1
//	gpu 0 lost                    every call about it answers "GPU is lost"
//	gpu 0 without power           not supported: utilization, temperature, power, clocks, processes, process-utilization, events, memory
//	xid 0 79                      an event, told once to each event set that was made before the line; GPU -1 cannot be named
type State struct {
	Driver string
	// CUDA is the version as NVML gives it: 1000 times the major one plus 10 times the minor one.
	CUDA int
	// Init is the code that nvmlInit answers.
	Init int
	// Fail is the code that every call answers, but the one that waits for events.
	Fail int
	// Hang says that no call returns.
	Hang    bool
	Devices []Device
	// Excluded are the bus addresses of GPUs that the driver was told to leave alone.
	Excluded []string
	// XIDs are the events so far, in order; only ever append.
	XIDs []XID
}

// Device is one GPU.
type Device struct {
	gpu.Device
	// PCI is the bus address, for instance "00000000:00:1E.0".
	PCI string
	// ReservedMiB is the memory that the driver keeps for itself.
	ReservedMiB int64
	Usage       gpu.Usage
	// Kinds says for a PID whether it is a "compute" (the default), "graphics" or "mps" process, or one that has "ended" and of which the GPU still knows its time.
	Kinds map[int]string
	Lost  bool
	// Without lists what the GPU does not support.
	Without []string
}

// XID is an event of the GPU with that index.
type XID struct{ Device, XID int }

// String is the content of the state file.
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
	for _, x := range s.XIDs {
		fmt.Fprintf(&b, "xid %d %d\n", x.Device, x.XID)
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
	line("power %d", u.PowerMilliwatts)
	line("clocks %d %d", u.SMClockMHz, u.MemClockMHz)
	switch {
	case d.MIG:
		line("mig on")
	case d.MIGCapable:
		line("mig off")
	}
	for _, p := range u.Processes {
		kind := d.Kinds[p.PID]
		if kind == "" {
			kind = "compute"
		}
		line("process %d %s %d %d", p.PID, kind, p.MemoryMiB, p.SMPercent)
	}
	if d.Lost {
		line("lost")
	}
	if len(d.Without) > 0 {
		line("without %s", strings.Join(d.Without, " "))
	}
}

// Machine is a state file.
type Machine struct {
	Path string

	mu    sync.Mutex
	State State
}

// Change changes the machine.
func (m *Machine) Change(t testing.TB, change func(s *State)) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.State)
	m.write(t)
}

// Write writes the file.
func (m *Machine) Write(t testing.TB) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.write(t)
}

// write replaces the file at once: the library may be reading it.
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

// WriteSysfs writes what the agent reads of /sys: which GPUs there are, and the NUMA node of each.
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
