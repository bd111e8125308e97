package nvml_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/gputest"
	"karve.sh/karve/pkg/node/nvml"
	fake "karve.sh/karve/pkg/node/nvml/nvmltest"
)

// control lets the suite control a machine of the fake NVML.
type control struct {
	t       *testing.T
	sysfs   string
	machine *fake.Machine
}

func (c *control) SetDevices(devices ...gpu.Device) {
	c.machine.Change(c.t, func(s *fake.State) {
		s.Devices = make([]fake.Device, len(devices))
		for _, d := range devices {
			s.Devices[d.Index] = fake.Device{Device: d, PCI: "00000000:00:" + string("ABCDEF"[d.Index]) + "0.0"}
		}
		s.WriteSysfs(c.t, c.sysfs)
	})
}

func (c *control) SetLinks(links ...gpu.Link) {
	c.machine.Change(c.t, func(s *fake.State) {
		index := func(uuid string) int {
			return slices.IndexFunc(s.Devices, func(d fake.Device) bool { return d.UUID == uuid })
		}
		s.Links = nil
		for _, l := range links {
			s.Links = append(s.Links, fake.Link{A: index(l.A), B: index(l.B), NVLinks: l.NVLinks, Path: l.Path})
		}
	})
}

func (c *control) SetUsage(uuid string, u gpu.Usage) {
	c.change(uuid, func(d *fake.Device) {
		d.Usage, d.ReservedMiB = u, d.MemoryMiB-u.MemoryUsedMiB-u.MemoryFreeMiB
	})
}

func (c *control) SetRecovery(uuid string, r gpu.Recovery) {
	c.change(uuid, func(d *fake.Device) { d.Recovery = r })
}

func (c *control) Report(uuid string, xid int) {
	c.machine.Change(c.t, func(s *fake.State) {
		index := -1
		for i, d := range s.Devices {
			if d.UUID == uuid {
				index = i
			}
		}
		s.XIDs = append(s.XIDs, fake.XID{Device: index, XID: xid})
	})
}

func (c *control) Lose(uuid string)   { c.change(uuid, func(d *fake.Device) { d.Lost = true }) }
func (c *control) Return(uuid string) { c.change(uuid, func(d *fake.Device) { d.Lost = false }) }

func (c *control) Break(how gputest.Breakage) {
	codes := map[gputest.Breakage]int{gputest.DriverMissing: fake.DriverNotLoaded, gputest.DriverReplaced: fake.LibraryVersionMismatch}
	c.machine.Change(c.t, func(s *fake.State) { s.Init = codes[how] })
}

func (c *control) change(uuid string, change func(*fake.Device)) {
	c.machine.Change(c.t, func(s *fake.State) {
		for i := range s.Devices {
			if s.Devices[i].UUID == uuid {
				change(&s.Devices[i])
			}
		}
	})
}

// open returns a library on a machine with these GPUs. The tests of this package do not run in parallel, because a process has only one machine.
func open(t *testing.T, profile fake.State) (*nvml.Library, *control) {
	t.Helper()
	path, machine := fake.Use(t, profile)
	c := &control{t: t, sysfs: t.TempDir(), machine: machine}
	profile.WriteSysfs(t, c.sysfs)
	return nvml.New(nvml.Options{Library: path, Sysfs: c.sysfs, Skipped: func(err error) { t.Log(err) }}), c
}

func TestNVMLPassesLibrarySuite(t *testing.T) {
	gputest.TestLibrary(t, func(t *testing.T) (gpu.Library, gputest.Control) {
		t.Helper()
		l, c := open(t, fake.None())
		return l, c
	})
}

func TestNVMLReadsEachProfile(t *testing.T) {
	for name, profile := range map[string]fake.State{
		"T4x1": fake.T4(1), "T4x4": fake.T4(4), "T4x8": fake.T4(8), "A10Gx1": fake.A10G(1), "V100x8": fake.V100(8), "A100x8": fake.A100(8), "H100x8": fake.H100(8),
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := open(t, profile)
			gputest.TestReadOnly(t, l)
			if _, err := l.Init(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Shutdown() }()
			var want []gpu.Device
			for _, d := range profile.Devices {
				want = append(want, d.Device)
			}
			devices, err := l.Devices()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, devices); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func start(t *testing.T, l gpu.Library) []gpu.Device {
	t.Helper()
	if _, err := l.Init(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Shutdown() })
	devices, err := l.Devices()
	if err != nil {
		t.Fatal(err)
	}
	return devices
}

func TestUnsupportedReadingsAreUnknown(t *testing.T) {
	profile := fake.T4(1)
	profile.Devices[0].Without = []string{"utilization", "temperature", "power", "clocks", "process-utilization", "events"}
	profile.Devices[0].Usage.Processes = []gpu.Process{{PID: 12, MemoryMiB: 5}}
	l, _ := open(t, profile)
	devices := start(t, l)
	u, err := l.Usage(devices[0].UUID)
	if err != nil {
		t.Fatal(err)
	}
	want := gpu.Usage{
		MemoryFreeMiB: 15360 - 448, GPUPercent: -1, MemoryPercent: -1, TemperatureCelsius: -1, PowerMilliwatts: -1, EnergyMillijoules: -1, SMClockMHz: -1, MemClockMHz: -1,
		Processes: []gpu.Process{{PID: 12, MemoryMiB: 5, SMPercent: -1}},
	}
	if diff := cmp.Diff(want, u); diff != "" {
		t.Error(diff)
	}
	if _, ok, err := l.Wait(0); ok || err != nil {
		t.Errorf("Wait: %v %v", ok, err)
	}
}

func TestProcessesAreListedOnce(t *testing.T) {
	profile := fake.T4(1)
	for pid := range 20 { // More than the first call allows for.
		profile.Devices[0].Usage.Processes = append(profile.Devices[0].Usage.Processes, gpu.Process{PID: 100 + pid, MemoryMiB: 7, SMPercent: 3})
	}
	profile.Devices[0].Usage.Processes = append(profile.Devices[0].Usage.Processes, gpu.Process{PID: 100, MemoryMiB: 9, SMPercent: -1})
	profile.Devices[0].Kinds = map[int]string{101: "graphics", 102: "mps"}
	l, _ := open(t, profile)
	u, err := l.Usage(start(t, l)[0].UUID)
	if err != nil {
		t.Fatal(err)
	}
	if len(u.Processes) != 20 || u.Processes[0] != (gpu.Process{PID: 100, MemoryMiB: 9, SMPercent: 3}) {
		t.Errorf("processes %+v", u.Processes)
	}
}

func TestProcessThatEndedBetweenReadingsIsReported(t *testing.T) {
	profile := fake.T4(1)
	profile.Devices[0].Usage.Processes = []gpu.Process{{PID: 7, MemoryMiB: 5, SMPercent: 0}, {PID: 8, SMPercent: 4}, {PID: 9, SMPercent: 0}}
	profile.Devices[0].Kinds = map[int]string{8: "ended", 9: "ended"}
	l, _ := open(t, profile)
	u, err := l.Usage(start(t, l)[0].UUID)
	if err != nil {
		t.Fatal(err)
	}
	want := []gpu.Process{{PID: 7, MemoryMiB: 5}, {PID: 8, MemoryMiB: -1, SMPercent: 4}}
	if diff := cmp.Diff(want, u.Processes); diff != "" {
		t.Error(diff)
	}
}

func TestGPULostAtStartIsSkipped(t *testing.T) {
	profile := fake.T4(4)
	profile.Devices[1].Lost = true
	path, _ := fake.Use(t, profile)
	var skipped []error
	l := nvml.New(nvml.Options{Library: path, Skipped: func(err error) { skipped = append(skipped, err) }})
	devices := start(t, l)
	if len(devices) != 3 || devices[1].Index != 2 {
		t.Errorf("devices %+v", devices)
	}
	if len(skipped) == 0 || !errors.Is(skipped[0], gpu.ErrLost) || !strings.Contains(skipped[0].Error(), "GPU 1") {
		t.Errorf("skipped %v", skipped)
	}
}

func TestInitFailsWithoutReadableGPU(t *testing.T) {
	profile := fake.T4(1)
	profile.Devices[0].Lost = true
	l, _ := open(t, profile)
	if _, err := l.Init(); !errors.Is(err, gpu.ErrLost) {
		t.Errorf("Init: %v, want ErrLost", err)
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	l, c := open(t, fake.T4(1))
	for code, want := range map[int]string{
		fake.DriverNotLoaded:        "the NVIDIA kernel driver is not loaded",
		fake.LibraryVersionMismatch: "restart this process",
		999:                         "Unknown Error",
	} {
		c.machine.Change(t, func(s *fake.State) { s.Init = code })
		if _, err := l.Init(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Init with code %d: %v, want it to say %q", code, err, want)
		}
	}
}

func TestLibraryIsFoundBelowDriverRootOnceItExists(t *testing.T) {
	path, _ := fake.Use(t, fake.T4(1))
	root := t.TempDir()
	l := nvml.New(nvml.Options{DriverRoot: root})
	if _, err := l.Init(); err == nil || !strings.Contains(err.Error(), root) || !strings.Contains(err.Error(), "cannot be loaded") {
		t.Fatalf("Init without a library: %v", err)
	}
	folder := filepath.Join(root, "usr", "lib64")
	if err := os.MkdirAll(folder, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path, filepath.Join(folder, fake.Name)); err != nil {
		t.Fatal(err)
	}
	if devices := start(t, l); len(devices) != 1 {
		t.Errorf("devices %+v", devices)
	}
}

func TestInitFailsWithoutLibrary(t *testing.T) {
	l := nvml.New(nvml.Options{Library: filepath.Join(t.TempDir(), "none.so")})
	if _, err := l.Init(); err == nil || !strings.Contains(err.Error(), "libnvidia-ml.so.1 cannot be loaded") {
		t.Errorf("Init: %v", err)
	}
	if err := l.Shutdown(); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

// TestLoaderFindsLibrary runs itself again in a process whose LD_LIBRARY_PATH has the library, because the loader reads that variable at startup.
func TestLoaderFindsLibrary(t *testing.T) {
	const inside = "KARVE_TEST_INSIDE"
	if os.Getenv(inside) == "" {
		path, _ := fake.Use(t, fake.A10G(1))
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), inside+"=1", "LD_LIBRARY_PATH="+filepath.Dir(path))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	if devices := start(t, nvml.New(nvml.Options{})); len(devices) != 1 || devices[0].Product != "NVIDIA A10G" {
		t.Errorf("devices %+v", devices)
	}
}
