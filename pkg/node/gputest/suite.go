package gputest

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/node/gpu"
)

// Control changes the machine of a library under test.
type Control interface {
	// SetDevices sets the GPUs that the next Init finds.
	SetDevices(devices ...gpu.Device)
	// SetLinks sets the connections of GPUs. Pairs that are not named have no NVLink and an unknown path.
	SetLinks(links ...gpu.Link)
	// SetUsage sets the usage of a GPU. Free and used memory must add up to the memory of the device.
	SetUsage(uuid string, u gpu.Usage)
	// SetRecovery sets what the driver asks for. It is RecoveryNone until then.
	SetRecovery(uuid string, r gpu.Recovery)
	// Report makes the GPU report an XID. If uuid is "", the GPU cannot be identified.
	Report(uuid string, xid int)
	// Lose removes a GPU from the bus.
	Lose(uuid string)
	// Return brings a lost GPU back, as after a reset.
	Return(uuid string)
	// Break makes Init fail, or repairs it.
	Break(how Breakage)
}

// Breakage is the reason why Init fails.
type Breakage string

// Breakages.
const (
	Works          Breakage = ""
	DriverMissing  Breakage = "DriverMissing"
	DriverReplaced Breakage = "DriverReplaced"
)

const (
	// soon is long enough for a reported event to arrive.
	soon = 5 * time.Second
	// aWhile is long enough to see that no event arrives.
	aWhile = 30 * time.Millisecond
)

// TestLibrary checks that a library keeps the contract of package gpu. Each call of open returns a library that has not been opened, and the control of its
// machine. The machine has no GPUs until SetDevices is called.
func TestLibrary(t *testing.T, open func(t *testing.T) (gpu.Library, Control)) {
	t.Helper()
	tests := []struct {
		name string
		test func(t *testing.T, l gpu.Library, c Control)
	}{
		{"it says which GPUs there are", testDevices},
		{"it says how GPUs are connected", testLinks},
		{"it says what a GPU does", testUsage},
		{"it says what the profiling counters say", testProfiling},
		{"it says what the driver asks for", testRecovery},
		{"it works on a machine without GPUs", testNone},
		{"it is closed until Init and after Shutdown", testClosed},
		{"Init says what is wrong and works when that is mended", testBroken},
		{"events come in order and once", testEvents},
		{"events from before Init are not told", testOldEvents},
		{"a lost GPU is told once, stays in the list, and hides no other", testLost},
		{"a GPU that a reset brought back works after the next Init", testReturned},
		{"Shutdown ends a Wait", testShutdownEndsWait},
		{"all of it can be used at once", testConcurrently},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l, c := open(t)
			test.test(t, l, c)
		})
	}
}

// TestReadOnly checks what can be checked with real GPUs, which the test does not control.
func TestReadOnly(t *testing.T, l gpu.Library) {
	t.Helper()
	if _, err := l.Devices(); !errors.Is(err, gpu.ErrClosed) {
		t.Errorf("Devices before Init: %v, want ErrClosed", err)
	}
	driver := initialize(t, l)
	if !strings.Contains(driver.Version, ".") || driver.CUDAMajor < 1 {
		t.Errorf("the driver is %+v", driver)
	}
	devices := list(t, l)
	for i, d := range devices {
		if i > 0 && devices[i-1].Index >= d.Index {
			t.Errorf("GPU %d comes after GPU %d", d.Index, devices[i-1].Index)
		}
		plausible(t, l, d)
	}
	if _, err := l.Usage("GPU-none"); !errors.Is(err, gpu.ErrUnknown) {
		t.Errorf("Usage of a GPU that is not there: %v, want ErrUnknown", err)
	}
	if _, err := l.Recovery("GPU-none"); !errors.Is(err, gpu.ErrUnknown) {
		t.Errorf("Recovery of a GPU that is not there: %v, want ErrUnknown", err)
	}
	quiet(t, l)
	if err := l.Shutdown(); err != nil {
		t.Error(err)
	}
}

func plausible(t *testing.T, l gpu.Library, d gpu.Device) {
	t.Helper()
	if !strings.HasPrefix(d.UUID, "GPU-") || d.Product == "" || d.MemoryMiB <= 0 || d.ComputeMajor < 3 || d.NUMANode < -1 {
		t.Errorf("GPU %d is %+v", d.Index, d)
	}
	u, err := l.Usage(d.UUID)
	if err != nil {
		t.Error(err)
	}
	if r, err := l.Recovery(d.UUID); err != nil || r < gpu.RecoveryUnknown || r > gpu.RecoveryRebootSystem {
		t.Errorf("for GPU %s the driver asks for %v, %v", d.UUID, r, err)
	}
	if u.MemoryUsedMiB < 0 || u.MemoryFreeMiB <= 0 || u.MemoryUsedMiB+u.MemoryFreeMiB > d.MemoryMiB || u.GPUPercent > 100 {
		t.Errorf("GPU %s uses %+v of %+v", d.UUID, u, d)
	}
	if u.Profiling != nil {
		t.Errorf("the first reading of GPU %s has %+v", d.UUID, u.Profiling)
	}
}

func testDevices(t *testing.T, l gpu.Library, c Control) {
	t.Helper()
	want := H100s(4)
	want[2].MIG = true
	c.SetDevices(want[3], want[1], want[0], want[2])
	driver := initialize(t, l)
	if driver != Installed {
		t.Errorf("the driver is %+v, want %+v", driver, Installed)
	}
	if diff := cmp.Diff(want, list(t, l)); diff != "" {
		t.Error(diff)
	}
	if again := initialize(t, l); again != driver {
		t.Errorf("Init when open: %+v, want %+v", again, driver)
	}
}

func testLinks(t *testing.T, l gpu.Library, c Control) {
	t.Helper()
	devices := H100s(3)
	c.SetDevices(devices...)
	if _, err := l.Links(); !errors.Is(err, gpu.ErrClosed) {
		t.Errorf("Links before Init: %v, want ErrClosed", err)
	}
	a, b, d := devices[0].UUID, devices[1].UUID, devices[2].UUID
	c.SetLinks(gpu.Link{A: b, B: a, NVLinks: 2, Path: gpu.PathSingleSwitch}, gpu.Link{A: b, B: d, NVLinks: 1, Path: gpu.PathCrossCPU})
	initialize(t, l)
	want := []gpu.Link{
		{A: a, B: b, NVLinks: 2, Path: gpu.PathSingleSwitch}, {A: a, B: d, Path: gpu.PathUnknown}, {A: b, B: d, NVLinks: 1, Path: gpu.PathCrossCPU},
	}
	got, err := l.Links()
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if score := got[0].Score() - got[1].Score() - got[2].Score(); score != 250-0-110 {
		t.Errorf("the scores are %d, %d and %d", got[0].Score(), got[1].Score(), got[2].Score())
	}
}

func testUsage(t *testing.T, l gpu.Library, c Control) {
	t.Helper()
	devices := T4s(2)
	c.SetDevices(devices...)
	want := gpu.Usage{
		MemoryUsedMiB: 5000, MemoryFreeMiB: 10360, GPUPercent: 73, MemoryPercent: 21, TemperatureCelsius: 61, PowerMilliwatts: 68500, EnergyMillijoules: 86_400_000_000,
		SMClockMHz: 1590, MemClockMHz: 5000,
		Processes: []gpu.Process{{PID: 4711, MemoryMiB: 3000, SMPercent: 50}, {PID: 4712, MemoryMiB: -1, SMPercent: 0}, {PID: 9000, MemoryMiB: 2000, SMPercent: 23}},
	}
	c.SetUsage(devices[1].UUID, want)
	initialize(t, l)
	for range 2 { // Reading must not change the result.
		u, err := l.Usage(devices[1].UUID)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, u); diff != "" {
			t.Error(diff)
		}
	}
	u, err := l.Usage(devices[0].UUID)
	if err != nil || u.MemoryUsedMiB != 0 || u.MemoryFreeMiB != devices[0].MemoryMiB || len(u.Processes) != 0 {
		t.Errorf("the other GPU uses %+v, %v", u, err)
	}
	if _, err := l.Usage("GPU-none"); !errors.Is(err, gpu.ErrUnknown) {
		t.Errorf("Usage of a GPU that is not there: %v, want ErrUnknown", err)
	}
}

func testProfiling(t *testing.T, l gpu.Library, c Control) {
	t.Helper()
	devices := H100s(2)
	c.SetDevices(devices...)
	set := func(p gpu.Profiling) {
		c.SetUsage(devices[0].UUID, gpu.Usage{MemoryFreeMiB: devices[0].MemoryMiB, Profiling: &p})
	}
	first := gpu.Profiling{
		GraphicsActive: 0.99, SMActive: 0.75, SMOccupancy: 0.5, TensorActive: 0.25, FP64Active: 0.125, FP32Active: 0.375, FP16Active: 0, DRAMActive: 0.0625,
		PCIeTransmit: 3 << 20, PCIeReceive: 12_000 << 20, NVLinkTransmit: -1, NVLinkReceive: -1,
	}
	none := func(which int) {
		t.Helper()
		if u, err := l.Usage(devices[which].UUID); err != nil || u.Profiling != nil {
			t.Errorf("reading GPU %d: %+v, %v, want no counters", which, u.Profiling, err)
		}
	}
	set(first)
	initialize(t, l)
	none(0) // There is no reading before.
	none(1)
	expectProfiling(t, l, devices[0].UUID, first)
	second := first
	second.SMActive, second.NVLinkTransmit, second.NVLinkReceive = 1, 7<<20, 9<<20
	set(second)
	expectProfiling(t, l, devices[0].UUID, second)
	none(1)
	if err := l.Shutdown(); err != nil {
		t.Fatal(err)
	}
	initialize(t, l)
	none(0)
	c.Lose(devices[0].UUID)
	if u, err := l.Usage(devices[0].UUID); !errors.Is(err, gpu.ErrLost) || u.Profiling != nil {
		t.Errorf("Usage of a lost GPU: %+v %v, want ErrLost", u.Profiling, err)
	}
}

// expectProfiling reads the GPU until the counters say what is wanted. Readings in quick succession have the same values.
func expectProfiling(t *testing.T, l gpu.Library, uuid string, want gpu.Profiling) {
	t.Helper()
	var got *gpu.Profiling
	for waited := time.Duration(0); waited < soon; waited += aWhile {
		u, err := l.Usage(uuid)
		if err != nil {
			t.Fatal(err)
		}
		if got = u.Profiling; got != nil && *got == want {
			return
		}
		<-time.After(aWhile) //nolint:forbidigo // The driver updates the counters by its own clock.
	}
	t.Fatalf("the counters say %+v, want %+v", got, want)
}

func testRecovery(t *testing.T, l gpu.Library, c Control) {
	t.Helper()
	devices := T4s(2)
	c.SetDevices(devices...)
	if _, err := l.Recovery(devices[0].UUID); !errors.Is(err, gpu.ErrClosed) {
		t.Errorf("Recovery before Init: %v, want ErrClosed", err)
	}
	initialize(t, l)
	expect := func(uuid string, want gpu.Recovery) {
		t.Helper()
		if got, err := l.Recovery(uuid); got != want || err != nil {
			t.Errorf("the driver asks for %v, %v; want %v", got, err, want)
		}
	}
	for _, want := range []gpu.Recovery{gpu.RecoveryDrainAndReset, gpu.RecoveryReset, gpu.RecoveryRebootSystem, 99, gpu.RecoveryUnknown, gpu.RecoveryNone} {
		c.SetRecovery(devices[1].UUID, want)
		expect(devices[1].UUID, want)
		expect(devices[0].UUID, gpu.RecoveryNone)
	}
	if _, err := l.Recovery("GPU-none"); !errors.Is(err, gpu.ErrUnknown) {
		t.Errorf("Recovery of a GPU that is not there: %v, want ErrUnknown", err)
	}
	c.Lose(devices[1].UUID)
	if r, err := l.Recovery(devices[1].UUID); !errors.Is(err, gpu.ErrLost) || r != gpu.RecoveryUnknown {
		t.Errorf("Recovery of a lost GPU: %v %v, want ErrLost", r, err)
	}
	expect(devices[0].UUID, gpu.RecoveryNone)
}

func testNone(t *testing.T, l gpu.Library, _ Control) {
	t.Helper()
	initialize(t, l)
	if devices := list(t, l); len(devices) != 0 {
		t.Errorf("there are %+v", devices)
	}
	quiet(t, l)
}

func testClosed(t *testing.T, l gpu.Library, c Control) {
	t.Helper()
	devices := T4s(1)
	c.SetDevices(devices...)
	closed := func(when string) {
		t.Helper()
		_, err := l.Devices()
		_, err2 := l.Usage(devices[0].UUID)
		_, ok, err3 := l.Wait(0)
		if !errors.Is(err, gpu.ErrClosed) || !errors.Is(err2, gpu.ErrClosed) || !errors.Is(err3, gpu.ErrClosed) || ok {
			t.Errorf("%s: %v, %v, %v; want ErrClosed from each", when, err, err2, err3)
		}
		if err := l.Shutdown(); err != nil {
			t.Errorf("%s: Shutdown: %v", when, err)
		}
	}
	closed("before Init")
	initialize(t, l)
	initialize(t, l)
	if err := l.Shutdown(); err != nil {
		t.Fatal(err)
	}
	closed("after Shutdown")
	initialize(t, l)
	if diff := cmp.Diff(devices, list(t, l)); diff != "" {
		t.Error(diff)
	}
}

func testBroken(t *testing.T, l gpu.Library, c Control) {
	t.Helper()
	c.SetDevices(T4s(1)...)
	for _, how := range []Breakage{DriverMissing, DriverReplaced} {
		c.Break(how)
		_, err := l.Init()
		if err == nil || len(err.Error()) < 20 || errors.Is(err, gpu.ErrRestart) != (how == DriverReplaced) {
			t.Errorf("Init with %s: %v", how, err)
		}
		if _, err := l.Devices(); !errors.Is(err, gpu.ErrClosed) {
			t.Errorf("Devices with %s: %v, want ErrClosed", how, err)
		}
	}
	c.Break(Works)
	initialize(t, l)
	if len(list(t, l)) != 1 {
		t.Error("no GPU after the driver came")
	}
}

func testEvents(t *testing.T, l gpu.Library, c Control) {
	t.Helper()
	devices := T4s(2)
	c.SetDevices(devices...)
	initialize(t, l)
	quiet(t, l)
	want := []gpu.Event{{UUID: devices[1].UUID, XID: 13}, {UUID: devices[0].UUID, XID: 48}, {UUID: devices[0].UUID, XID: 48}, {XID: 62}}
	for _, e := range want {
		c.Report(e.UUID, e.XID)
	}
	for _, e := range want {
		expect(t, l, e)
	}
	quiet(t, l)

	go c.Report(devices[0].UUID, 95)
	expect(t, l, gpu.Event{UUID: devices[0].UUID, XID: 95})
}

func testOldEvents(t *testing.T, l gpu.Library, c Control) {
	t.Helper()
	devices := T4s(1)
	c.SetDevices(devices...)
	c.Report(devices[0].UUID, 48)
	initialize(t, l)
	quiet(t, l)
	c.Report(devices[0].UUID, 63)
	if err := l.Shutdown(); err != nil {
		t.Fatal(err)
	}
	initialize(t, l)
	quiet(t, l)
}

func testLost(t *testing.T, l gpu.Library, c Control) {
	t.Helper()
	devices := T4s(4)
	c.SetDevices(devices...)
	initialize(t, l)
	gone := devices[2].UUID
	c.Lose(gone)
	if _, err := l.Usage(gone); !errors.Is(err, gpu.ErrLost) {
		t.Errorf("Usage of a lost GPU: %v, want ErrLost", err)
	}
	if diff := cmp.Diff(devices, list(t, l)); diff != "" {
		t.Error(diff)
	}
	expect(t, l, gpu.Event{UUID: gone, Lost: true})
	c.Report(devices[0].UUID, 13)
	expect(t, l, gpu.Event{UUID: devices[0].UUID, XID: 13})
	quiet(t, l)
	if _, err := l.Usage(devices[3].UUID); err != nil {
		t.Error(err)
	}

	// The loss must also be found if no call reads the GPU.
	c.Lose(devices[3].UUID)
	expect(t, l, gpu.Event{UUID: devices[3].UUID, Lost: true})
	quiet(t, l)
	if diff := cmp.Diff(devices, list(t, l)); diff != "" {
		t.Error(diff)
	}
}

func testReturned(t *testing.T, l gpu.Library, c Control) {
	t.Helper()
	devices := T4s(2)
	c.SetDevices(devices...)
	initialize(t, l)
	for range 2 {
		c.Report(devices[1].UUID, 79)
		c.Lose(devices[1].UUID)
		expect(t, l, gpu.Event{UUID: devices[1].UUID, XID: 79, Lost: true})
		quiet(t, l)
		if err := l.Shutdown(); err != nil {
			t.Fatal(err)
		}
		c.Return(devices[1].UUID)
		initialize(t, l)
		if diff := cmp.Diff(devices, list(t, l)); diff != "" {
			t.Error(diff)
		}
		if _, err := l.Usage(devices[1].UUID); err != nil {
			t.Error(err)
		}
	}
}

func testShutdownEndsWait(t *testing.T, l gpu.Library, c Control) {
	t.Helper()
	c.SetDevices(T4s(1)...)
	initialize(t, l)
	ended := make(chan error)
	go func() {
		_, _, err := l.Wait(10 * time.Minute)
		ended <- err
	}()
	<-time.After(aWhile) //nolint:forbidigo // For the Wait to begin; when it has not, it ends all the same.
	if err := l.Shutdown(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, gpu.ErrClosed) {
		t.Errorf("Wait ended with %v, want ErrClosed", err)
	}
}

func testConcurrently(t *testing.T, l gpu.Library, c Control) {
	t.Helper()
	devices := T4s(2)
	c.SetDevices(devices...)
	initialize(t, l)
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() {
			for range 20 {
				if _, err := l.Devices(); err != nil {
					t.Error(err)
				}
				if _, err := l.Usage(devices[0].UUID); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Go(func() {
		for i := range 20 {
			c.Report(devices[i%2].UUID, 13+i)
			c.SetUsage(devices[0].UUID, gpu.Usage{MemoryUsedMiB: int64(i), MemoryFreeMiB: devices[0].MemoryMiB - int64(i)})
		}
	})
	for i := range 20 {
		expect(t, l, gpu.Event{UUID: devices[i%2].UUID, XID: 13 + i, Lost: 13+i == 79})
	}
	group.Wait()
}

func initialize(t *testing.T, l gpu.Library) gpu.Driver {
	t.Helper()
	driver, err := l.Init()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Shutdown() })
	return driver
}

func list(t *testing.T, l gpu.Library) []gpu.Device {
	t.Helper()
	devices, err := l.Devices()
	if err != nil {
		t.Fatal(err)
	}
	return devices
}

func expect(t *testing.T, l gpu.Library, want gpu.Event) {
	t.Helper()
	// Use short waits, because each of them looks for lost GPUs when it ends.
	for waited := time.Duration(0); waited < soon; waited += 50 * time.Millisecond {
		e, ok, err := l.Wait(50 * time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			if e != want {
				t.Fatalf("the event is %+v, want %+v", e, want)
			}
			return
		}
	}
	t.Fatalf("no event within %v, want %+v", soon, want)
}

func quiet(t *testing.T, l gpu.Library) {
	t.Helper()
	if e, ok, err := l.Wait(aWhile); ok || err != nil {
		t.Errorf("Wait: %+v %v, want no event", e, err)
	}
}
