package nvml_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/node/gpu"
	fake "karve.sh/karve/pkg/node/nvml/nvmltest"
)

// divided is the file of a GPU with an instance 3g.20gb (1) and two 1g.5gb (11 and 13).
const divided = "mode 1 1\ninstance 1 4 0 4\ncompute 1 0 3\ninstance 11 0 4 1\ncompute 11 0 1\ninstance 13 0 6 1\ncompute 13 0 1\n"

func divide(t *testing.T, machine *fake.Machine, text string) {
	t.Helper()
	if err := os.WriteFile(fake.MIGFile(machine.Path, 0), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestInstancesAreListedWithTheirGPU(t *testing.T) {
	l, c := open(t, fake.A100(2))
	divide(t, c.machine, divided)
	devices := start(t, l)
	d := devices[0]
	if !d.MIG || devices[1].MIG || devices[1].Instances != nil || len(d.Instances) != 3 {
		t.Fatalf("%+v", devices)
	}
	want := gpu.Instance{
		UUID: d.Instances[0].UUID, Profile: "3g.20gb", MemoryMiB: 19968, GPUInstance: 1, Multiprocessors: 42, GPUSlices: 3, ComputeSlices: 3, CopyEngines: 3, Decoders: 2,
	}
	if diff := cmp.Diff(want, d.Instances[0]); diff != "" {
		t.Error(diff)
	}
	if p := d.Instances[2]; p.Index != 2 || p.Profile != "1g.5gb" || p.GPUInstance != 13 || p.UUID == d.Instances[1].UUID {
		t.Errorf("%+v", p)
	}
	if found, p := gpu.Find(devices, d.Instances[2].UUID); found == nil || found.UUID != d.UUID || p.GPUInstance != 13 {
		t.Errorf("%+v %+v", found, p)
	}
	if found, p := gpu.Find(devices, "MIG-none"); found != nil || p != nil {
		t.Errorf("%+v %+v", found, p)
	}
}

func TestUsageOfAnInstance(t *testing.T) {
	profile := fake.A100(1)
	profile.Devices[0].Usage.Processes = []gpu.Process{{PID: 7, MemoryMiB: 100}, {PID: 8, MemoryMiB: 50}}
	profile.Devices[0].On = map[int]fake.OnInstance{7: {GPU: 1}, 8: {GPU: 11}}
	l, c := open(t, profile)
	divide(t, c.machine, divided)
	devices := start(t, l)
	u, err := l.Usage(devices[0].Instances[0].UUID)
	if err != nil {
		t.Fatal(err)
	}
	want := gpu.Usage{
		MemoryUsedMiB: 100, MemoryFreeMiB: 19968 - 100, GPUPercent: -1, MemoryPercent: -1, TemperatureCelsius: -1, PowerMilliwatts: -1, EnergyMillijoules: -1, SMClockMHz: -1, MemClockMHz: -1,
		Processes: []gpu.Process{{PID: 7, MemoryMiB: 100, SMPercent: -1}},
	}
	if diff := cmp.Diff(want, u); diff != "" {
		t.Error(diff)
	}
	whole, err := l.Usage(devices[0].UUID)
	if err != nil || len(whole.Processes) != 2 || whole.GPUPercent != -1 || whole.TemperatureCelsius != 30 {
		t.Errorf("%+v, %v", whole, err)
	}
	c.Lose(devices[0].UUID)
	if _, err := l.Usage(devices[0].Instances[1].UUID); !errors.Is(err, gpu.ErrLost) {
		t.Errorf("an instance of a lost GPU: %v", err)
	}
}

func TestEventsNameTheirInstance(t *testing.T) {
	l, c := open(t, fake.A100(1))
	divide(t, c.machine, divided)
	d := start(t, l)[0]
	for _, one := range []struct {
		xid  fake.XID
		want gpu.Event
	}{
		{fake.XID{XID: 31, On: &fake.OnInstance{GPU: 11}}, gpu.Event{UUID: d.UUID, Instance: d.Instances[1].UUID, XID: 31}},
		{fake.XID{XID: 94, On: &fake.OnInstance{GPU: 1, Compute: -1}}, gpu.Event{UUID: d.UUID, Instance: d.Instances[0].UUID, XID: 94}},
		{fake.XID{XID: 63}, gpu.Event{UUID: d.UUID, XID: 63}},
		{fake.XID{XID: 45, On: &fake.OnInstance{GPU: 5}}, gpu.Event{UUID: d.UUID, XID: 45}}, // There is no such instance.
		{fake.XID{XID: 79, On: &fake.OnInstance{GPU: 11}}, gpu.Event{UUID: d.UUID, XID: 79, Lost: true}},
	} {
		c.machine.Change(t, func(s *fake.State) { s.XIDs = append(s.XIDs, one.xid) })
		e, ok, err := l.Wait(5 * time.Second)
		if err != nil || !ok || e != one.want {
			t.Errorf("%+v %t %v, want %+v", e, ok, err, one.want)
		}
	}
}
