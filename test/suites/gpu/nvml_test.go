//go:build cgo && gpu

package gpu_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"karve.sh/karve/pkg/node/gputest"
	"karve.sh/karve/pkg/node/labels"
	"karve.sh/karve/pkg/node/mig"
	"karve.sh/karve/pkg/node/nvml"
	"karve.sh/karve/pkg/nodecontract"
	profiles "karve.sh/karve/pkg/nodecontract/mig"
	"karve.sh/karve/test/suites/gpu/report"
	"karve.sh/karve/test/suites/gpu/smi"
)

// attr adds a value to the report.
func attr(t *testing.T, name string, value any) {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	t.Attr(name, string(text))
}

// TestMachine describes the machine for the report.
func TestMachine(t *testing.T) {
	l := nvml.New(nvml.Options{})
	driver, err := l.Init()
	if err != nil {
		t.Skip(err)
	}
	defer func() { _ = l.Shutdown() }()
	devices, err := l.Devices()
	if err != nil || len(devices) == 0 {
		t.Skipf("there are no GPUs: %v", err)
	}
	d := devices[0]
	attr(t, report.MachineAttribute, report.Machine{
		Product: d.Product, GPUs: len(devices), MemoryMiB: d.MemoryMiB, ComputeCapability: fmt.Sprintf("%d.%d", d.ComputeMajor, d.ComputeMinor),
		Driver: driver.Version, CUDA: fmt.Sprintf("%d.%d", driver.CUDAMajor, driver.CUDAMinor),
	})
}

// TestNVML checks the driver's library by the contract that the fakes keep, as far as a test can that does not control the GPUs.
func TestNVML(t *testing.T) {
	l := nvml.New(nvml.Options{})
	if _, err := l.Init(); err != nil {
		t.Skip(err)
	}
	if err := l.Shutdown(); err != nil {
		t.Fatal(err)
	}
	gputest.TestReadOnly(t, l)
}

// TestNVIDIASMI compares what the agent reads with what nvidia-smi prints, while a program uses the GPU.
func TestNVIDIASMI(t *testing.T) {
	w := newWorld(t)
	program, err := exec.LookPath("nvidia-smi")
	if err != nil {
		t.Skip(err)
	}
	if p := w.use(w.devices[0].UUID, "512"); p.problem != "" {
		t.Logf("no program uses the GPU: %s", p.problem)
	}
	w.library(func(l *nvml.Library) {
		driver, err := l.Init()
		w.must(err)
		text, err := exec.CommandContext(t.Context(), program, "-q", "-x").Output()
		w.must(err)
		log, err := smi.Parse(text)
		w.must(err)
		for _, d := range w.devices {
			usage, err := l.Usage(d.UUID)
			w.must(err)
			recovery, err := l.Recovery(d.UUID)
			w.must(err)
			for _, v := range smi.Compare(smi.Reading{
				Driver: driver, Device: d, Usage: usage, Recovery: recovery, RootOf: root, Labels: labels.For(w.devices, driver, labels.Sharing{}, labels.Machine{}),
			}, log) {
				attr(t, "value", v)
				if !v.Agree {
					t.Errorf("GPU %d, %s: Karve reads %q, and nvidia-smi prints %q", d.Index, v.Name, v.Karve, v.SMI)
				}
			}
		}
	})
}

// root returns the root complex of a PCI address, or "" if the kernel has none.
func root(address string) string {
	path, err := filepath.EvalSymlinks(filepath.Join("/sys/bus/pci/devices", address))
	if err != nil {
		return ""
	}
	for part := range strings.SplitSeq(path, "/") {
		if strings.HasPrefix(part, "pci") {
			return part
		}
	}
	return ""
}

// divisible skips the test unless the first GPU can be divided, and returns how.
func divisible(t *testing.T, l *nvml.Library) (uuid string, g profiles.Geometry) {
	t.Helper()
	if _, err := l.Init(); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = l.Shutdown() })
	devices, err := l.Devices()
	if err != nil || len(devices) == 0 || !devices[0].MIGCapable {
		t.Skipf("there is no GPU that can be divided: %v", err)
	}
	g, err = l.Geometry(devices[0].UUID)
	if err != nil {
		t.Fatal(err)
	}
	if len(g.Kinds) == 0 {
		t.Skip("NVML tells the places of instances only to root")
	}
	return devices[0].UUID, g
}

// TestMIGProfiles compares the profiles of the card with those that plans count on before a machine is launched.
func TestMIGProfiles(t *testing.T) {
	_, g := divisible(t, nvml.New(nvml.Options{}))
	attr(t, "profiles", profiles.Names(g.Kinds))
	known := false
	for _, name := range profiles.ModelNames() {
		for _, model := range profiles.Models(name, 0) {
			if g.Slices != model.Slices || g.Kind(model.Kinds[len(model.Kinds)-1].Profile) == nil {
				continue
			}
			known = true
			for _, want := range model.Kinds {
				if g.Kind(want.Profile) == nil || g.Fit(want.Profile) != model.Fit(want.Profile) {
					t.Errorf("of %s, %d instances fit, and the plan for %s counts %d", want.Profile, g.Fit(want.Profile), name, model.Fit(want.Profile))
				}
			}
		}
	}
	if !known {
		t.Errorf("plans know no card with these profiles: %s", profiles.Names(g.Kinds))
	}
}

// TestDivide divides the GPUs of the machine as KARVE_DIVIDE says, for instance 1g.10gb.
func TestDivide(t *testing.T) {
	profile := os.Getenv("KARVE_DIVIDE")
	if profile == "" {
		t.Skip("KARVE_DIVIDE names no profile, and without it the MIG mode of the card is left alone")
	}
	l := nvml.New(nvml.Options{})
	_, g := divisible(t, l)
	count := g.Fit(profile)
	if count == 0 {
		t.Skipf("the card has no profile %s: %s", profile, profiles.Names(g.Kinds))
	}
	wanted := nodecontract.MIG{Profile: profile, Count: count, Naming: nodecontract.MIGMixed}
	if err := mig.NewMachine(l, mig.Options{StateDir: t.TempDir(), Proc: "/proc", Pods: func(context.Context) (map[string]string, error) { return nil, nil }}).Divide(t.Context(), wanted); err != nil {
		t.Fatal(err)
	}
	divided, err := l.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range divided {
		if err := mig.Check(d, wanted); err != nil {
			t.Error(err)
		}
	}
}
