package nvml_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/nvml"
	fake "karve.sh/karve/pkg/node/nvml/nvmltest"
)

func TestGPUWithUnknownMemoryIsUsed(t *testing.T) {
	profile := fake.T4(2)
	profile.Devices[1].Without = []string{"memory"}
	l, _ := open(t, profile)
	devices := start(t, l)
	want := []gpu.Device{profile.Devices[0].Device, profile.Devices[1].Device}
	want[1].MemoryMiB = 0
	if diff := cmp.Diff(want, devices); diff != "" {
		t.Error(diff)
	}
	if u, err := l.Usage(devices[1].UUID); err != nil || u.TemperatureCelsius < 0 {
		t.Errorf("it uses %+v, %v", u, err)
	}
}

func TestUnresponsiveDriverEndsWait(t *testing.T) {
	for _, code := range []int{fake.DriverNotLoaded, fake.Uninitialized, fake.OperatingSystem, 999} {
		l, c := open(t, fake.T4(2))
		start(t, l)
		c.machine.Change(t, func(s *fake.State) { s.Fail = code })
		if _, ok, err := l.Wait(0); ok || err == nil {
			t.Errorf("Wait with code %d: %t %v, want an error", code, ok, err)
		}
		_ = l.Shutdown() // The agent calls Shutdown too.
		if _, err := l.Init(); err == nil {
			t.Errorf("Init with code %d: none", code)
		}
		c.machine.Change(t, func(s *fake.State) { s.Fail = 0 })
		if devices := start(t, l); len(devices) != 2 {
			t.Errorf("after code %d: %+v", code, devices)
		}
		quiet(t, l)
	}
}

func quiet(t *testing.T, l gpu.Library) {
	t.Helper()
	if e, ok, err := l.Wait(20 * time.Millisecond); ok || err != nil {
		t.Errorf("Wait: %+v %v, want no event", e, err)
	}
}

func TestRemovedDeviceFilesEndWait(t *testing.T) {
	for _, gone := range []string{"nvidiactl", "nvidia1"} {
		path, _ := fake.Use(t, fake.T4(2))
		dev := t.TempDir()
		write := func(name string) {
			if err := os.WriteFile(filepath.Join(dev, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"nvidiactl", "nvidia0", "nvidia1"} {
			write(name)
		}
		l := nvml.New(nvml.Options{Library: path, Dev: dev})
		start(t, l)
		quiet(t, l)
		if err := os.Remove(filepath.Join(dev, gone)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := l.Wait(0); err == nil || !strings.Contains(err.Error(), gone) || !strings.Contains(err.Error(), "restart the pod") {
			t.Errorf("Wait without %s: %v", gone, err)
		}
		_ = l.Shutdown()
		if _, err := l.Init(); err == nil {
			t.Errorf("Init without %s: none", gone)
		}
		write(gone)
		start(t, l)
		quiet(t, l)
	}
}

func TestUnusableReportsGPUsThatDriverDoesNotOffer(t *testing.T) {
	third := func(s *fake.State) string { return "at PCI " + strings.ToLower(s.Devices[2].PCI[4:]) }
	for name, c := range map[string]struct {
		change func(t *testing.T, s *fake.State, sysfs string)
		want   string // in Why; "" for none
		fails  bool
	}{
		"all GPUs":               {func(*testing.T, *fake.State, string) {}, "", false},
		"NVML skips one":         {func(_ *testing.T, s *fake.State, _ string) { s.Devices = s.Devices[:2] }, "does not list it", false},
		"a GPU cannot be opened": {func(_ *testing.T, s *fake.State, _ string) { s.Devices[2].Lost = true }, "does not answer any more", false},
		"an excluded GPU": {func(_ *testing.T, s *fake.State, _ string) {
			s.Excluded, s.Devices = []string{s.Devices[2].PCI}, s.Devices[:2]
		}, "", false},
		"a GPU with the vfio driver": {func(t *testing.T, s *fake.State, sysfs string) {
			drive(t, sysfs, s.Devices[2].PCI, "vfio-pci")
			s.Devices = s.Devices[:2]
		}, "", false},
		"a GPU with the NVIDIA driver": {func(t *testing.T, s *fake.State, sysfs string) {
			drive(t, sysfs, s.Devices[2].PCI, "nvidia")
			s.Devices = s.Devices[:2]
		}, "does not list it", false},
		"a GPU of another vendor": {func(t *testing.T, s *fake.State, sysfs string) {
			put(t, sysfs, s.Devices[2].PCI, "vendor", "0x1002")
			s.Devices = s.Devices[:2]
		}, "", false},
		"a sound card": {func(t *testing.T, s *fake.State, sysfs string) {
			put(t, sysfs, s.Devices[2].PCI, "class", "0x040300")
			s.Devices = s.Devices[:2]
		}, "", false},
		"no sysfs": {func(t *testing.T, s *fake.State, sysfs string) {
			_ = os.RemoveAll(filepath.Join(sysfs, "bus"))
			s.Devices[2].Lost = true
		}, "does not answer any more", false},
	} {
		t.Run(name, func(t *testing.T) {
			path, machine := fake.Use(t, fake.T4(3))
			sysfs := t.TempDir()
			machine.State.WriteSysfs(t, sysfs)
			where := third(&machine.State)
			machine.Change(t, func(s *fake.State) { c.change(t, s, sysfs) })
			l := nvml.New(nvml.Options{Library: path, Sysfs: sysfs})
			start(t, l)
			got := l.Unusable()
			if c.want == "" && len(got) != 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0].Why, c.want)) {
				t.Errorf("%+v, want %q", got, c.want)
			}
			if len(got) == 1 && got[0].Where != where && !strings.Contains(got[0].Where, "number 1") {
				t.Errorf("it is %q, want %q", got[0].Where, where)
			}
		})
	}
}

// TestDisplayGPUIsNotListed reads a DGX Station: four GPUs for programs, and one for the screen.
func TestDisplayGPUIsNotListed(t *testing.T) {
	for _, product := range []string{"DGX Display", "NVIDIA DGX Display"} {
		path, machine := fake.Use(t, fake.A100(5))
		sysfs := t.TempDir()
		machine.State.WriteSysfs(t, sysfs)
		machine.Change(t, func(s *fake.State) { s.Devices[1].Product = product })
		l := nvml.New(nvml.Options{Library: path, Sysfs: sysfs})
		start(t, l)
		devices, err := l.Devices()
		if err != nil || len(devices) != 4 || devices[1].Index != 2 {
			t.Errorf("beside a %s: %v, %v", product, devices, err)
		}
		if got := l.Unusable(); len(got) != 0 {
			t.Errorf("the %s is reported as unusable: %v", product, got)
		}
	}
}

func TestUnusableReportsOnlyGPUThatCannotBeOpened(t *testing.T) {
	profile := fake.T4(1)
	profile.Devices[0].Lost = true
	l, _ := open(t, profile)
	if _, err := l.Init(); !errors.Is(err, gpu.ErrLost) {
		t.Fatal(err)
	}
	if got := l.Unusable(); len(got) != 1 || got[0].Where != "at PCI 0000:00:1e.0" {
		t.Errorf("%+v", got)
	}
}

func drive(t *testing.T, sysfs, pci, driver string) {
	t.Helper()
	if err := os.Symlink("../../drivers/"+driver, filepath.Join(folder(sysfs, pci), "driver")); err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, sysfs, pci, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(folder(sysfs, pci), name), fmt.Appendln(nil, content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func folder(sysfs, pci string) string {
	return filepath.Join(sysfs, "bus", "pci", "devices", strings.ToLower(strings.TrimPrefix(pci, "0000")))
}
