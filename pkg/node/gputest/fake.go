// Package gputest provides GPUs in memory for tests, and the test suite that both they and the real library pass.
package gputest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/node/gpu"
)

// Fake is a machine with GPUs in memory. It implements gpu.Library and Control. The zero value is a machine with a driver and without GPUs. It is safe for
// concurrent use, and can be used in a bubble of testing/synctest.
type Fake struct {
	// Clock defaults to the system clock.
	Clock clock.Clock
	// Driver defaults to Installed.
	Driver gpu.Driver

	mu      sync.Mutex
	open    bool
	inits   int
	broken  error
	failing map[string]error
	devices []gpu.Device
	usage   map[string]gpu.Usage
	read    map[string]bool // GPUs whose usage was read since Init
	needs   map[string]gpu.Recovery
	away    map[string]bool // lost GPUs
	told    map[string]bool // GPUs that were lost at any time since Init
	events  []gpu.Event
	changed chan struct{}
	// hung is closed when the driver no longer hangs. It is nil while the driver does not hang.
	hung     chan struct{}
	unusable []gpu.Unusable
	links    []gpu.Link
}

var (
	_ gpu.Library = (*Fake)(nil)
	_ Control     = (*Fake)(nil)
)

// Installed is the default driver of a Fake.
var Installed = gpu.Driver{Version: "580.159.03", CUDAMajor: 13, CUDAMinor: 0}

// New returns a machine with these GPUs.
func New(devices ...gpu.Device) *Fake {
	f := &Fake{}
	f.SetDevices(devices...)
	return f
}

// Init implements gpu.Library.
func (f *Fake) Init() (gpu.Driver, error) {
	f.lock()
	defer f.mu.Unlock()
	if f.broken != nil {
		return gpu.Driver{}, f.broken
	}
	if !f.open {
		f.open, f.events, f.told, f.read = true, nil, map[string]bool{}, map[string]bool{}
		f.inits++
		for _, d := range f.devices {
			f.told[d.UUID] = f.away[d.UUID]
		}
	}
	return cmp.Or(f.Driver, Installed), nil
}

// Shutdown implements gpu.Library.
func (f *Fake) Shutdown() error {
	f.lock()
	defer f.mu.Unlock()
	f.open = false
	f.wake()
	return nil
}

// Inits returns how often the library was opened.
func (f *Fake) Inits() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.inits
}

// Devices implements gpu.Library.
func (f *Fake) Devices() ([]gpu.Device, error) {
	f.lock()
	defer f.mu.Unlock()
	if err := f.check("Devices"); err != nil {
		return nil, err
	}
	return slices.Clone(f.devices), nil
}

// Links implements gpu.Library.
func (f *Fake) Links() ([]gpu.Link, error) {
	f.lock()
	defer f.mu.Unlock()
	if err := f.check("Links"); err != nil {
		return nil, err
	}
	var links []gpu.Link
	for i, a := range f.devices {
		for _, b := range f.devices[i+1:] {
			link := gpu.Link{A: a.UUID, B: b.UUID, Path: gpu.PathUnknown}
			for _, l := range f.links {
				if l.A == link.A && l.B == link.B || l.A == link.B && l.B == link.A {
					link.NVLinks, link.Path = l.NVLinks, l.Path
				}
			}
			links = append(links, link)
		}
	}
	return links, nil
}

// Usage implements gpu.Library.
func (f *Fake) Usage(uuid string) (gpu.Usage, error) {
	f.lock()
	defer f.mu.Unlock()
	if err := f.check("Usage"); err != nil {
		return gpu.Usage{}, err
	}
	d, instance := gpu.Find(f.devices, uuid)
	if d == nil {
		return gpu.Usage{}, fmt.Errorf("reading %s: %w", uuid, gpu.ErrUnknown)
	}
	if f.away[d.UUID] {
		f.lose(d.UUID)
		return gpu.Usage{}, fmt.Errorf("reading %s: %w: reboot the machine", uuid, gpu.ErrLost)
	}
	u, ok := f.usage[uuid]
	if !ok {
		u.MemoryFreeMiB = d.MemoryMiB
		if instance != nil {
			u = gpu.Usage{MemoryFreeMiB: instance.MemoryMiB, GPUPercent: -1, MemoryPercent: -1, TemperatureCelsius: -1, PowerMilliwatts: -1, EnergyMillijoules: -1, SMClockMHz: -1, MemClockMHz: -1}
		}
	}
	u.Processes = slices.Clone(u.Processes)
	if !f.read[uuid] {
		f.read[uuid], u.Profiling = true, nil
	}
	return u, nil
}

// Recovery implements gpu.Library.
func (f *Fake) Recovery(uuid string) (gpu.Recovery, error) {
	f.lock()
	defer f.mu.Unlock()
	if err := f.check("Recovery"); err != nil {
		return gpu.RecoveryUnknown, err
	}
	if !slices.ContainsFunc(f.devices, func(d gpu.Device) bool { return d.UUID == uuid }) {
		return gpu.RecoveryUnknown, fmt.Errorf("asking what %s needs: %w", uuid, gpu.ErrUnknown)
	}
	if f.away[uuid] {
		f.lose(uuid)
		return gpu.RecoveryUnknown, fmt.Errorf("asking what %s needs: %w", uuid, gpu.ErrLost)
	}
	return f.needs[uuid], nil
}

// Wait implements gpu.Library.
func (f *Fake) Wait(timeout time.Duration) (gpu.Event, bool, error) {
	f.mu.Lock()
	if f.Clock == nil {
		f.Clock = clock.RealClock{}
	}
	timer := f.Clock.NewTimer(timeout)
	inits := f.inits
	f.mu.Unlock()
	defer timer.Stop()
	for {
		f.lock()
		err := f.check("Wait")
		if err == nil && f.inits != inits {
			err = gpu.ErrClosed
		}
		if err == nil && len(f.events) > 0 {
			e := f.events[0]
			f.events = f.events[1:]
			f.mu.Unlock()
			return e, true, nil
		}
		if f.changed == nil {
			f.changed = make(chan struct{})
		}
		changed := f.changed
		f.mu.Unlock()
		if err != nil {
			return gpu.Event{}, false, err
		}
		select {
		case <-changed:
		case <-timer.C():
			return gpu.Event{}, false, nil
		}
	}
}

// Unusable implements gpu.Library.
func (f *Fake) Unusable() []gpu.Unusable {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.unusable)
}

// lock locks mu for calls that the driver must answer. It waits while the driver hangs.
func (f *Fake) lock() {
	f.mu.Lock()
	for f.hung != nil {
		hung := f.hung
		f.mu.Unlock()
		<-hung
		f.mu.Lock()
	}
}

// check returns the error with which a method fails, or nil.
func (f *Fake) check(method string) error {
	if !f.open {
		return gpu.ErrClosed
	}
	return f.failing[method]
}

func (f *Fake) wake() {
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// SetDevices implements Control.
func (f *Fake) SetDevices(devices ...gpu.Device) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.devices = slices.SortedFunc(slices.Values(devices), func(a, b gpu.Device) int { return cmp.Compare(a.Index, b.Index) })
}

// SetLinks implements Control.
func (f *Fake) SetLinks(links ...gpu.Link) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.links = links
}

// SetUsage implements Control.
func (f *Fake) SetUsage(uuid string, u gpu.Usage) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.usage == nil {
		f.usage = map[string]gpu.Usage{}
	}
	f.usage[uuid] = u
}

// SetRecovery implements Control.
func (f *Fake) SetRecovery(uuid string, r gpu.Recovery) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.needs == nil {
		f.needs = map[string]gpu.Recovery{}
	}
	f.needs[uuid] = r
}

// Report implements Control.
func (f *Fake) Report(uuid string, xid int) { f.ReportOn(uuid, "", xid) }

// ReportOn makes a MIG instance of the GPU report an XID.
func (f *Fake) ReportOn(uuid, instance string, xid int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open {
		f.events = append(f.events, gpu.Event{UUID: uuid, Instance: instance, XID: xid, Lost: xid == 79})
		if xid == 79 {
			f.told[uuid] = true
		}
		f.wake()
	}
}

// Lose implements Control.
func (f *Fake) Lose(uuid string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away == nil {
		f.away = map[string]bool{}
	}
	f.away[uuid] = true
	if f.open {
		f.lose(uuid)
	}
}

func (f *Fake) lose(uuid string) {
	if !f.told[uuid] {
		f.told[uuid] = true
		f.events = append(f.events, gpu.Event{UUID: uuid, Lost: true})
		f.wake()
	}
}

// Return implements Control.
func (f *Fake) Return(uuid string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.away, uuid)
}

// Break implements Control.
func (f *Fake) Break(how Breakage) {
	var err error
	switch how {
	case Works:
	case DriverMissing:
		err = errors.New("the NVIDIA kernel driver is not loaded")
	case DriverReplaced:
		err = fmt.Errorf("the library and the driver are of different versions: %w", gpu.ErrRestart)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.broken = err
}

// SetUnusable sets the GPUs that the driver does not offer.
func (f *Fake) SetUnusable(unusable ...gpu.Unusable) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unusable = unusable
}

// Hang makes calls block until Hang is called with false.
func (f *Fake) Hang(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if on && f.hung == nil {
		f.hung = make(chan struct{})
	}
	if !on && f.hung != nil {
		close(f.hung)
		f.hung = nil
	}
	f.wake()
}

// Fail makes a method ("Devices", "Links", "Usage", "Recovery" or "Wait") return the error. A nil error ends that.
func (f *Fake) Fail(method string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failing == nil {
		f.failing = map[string]error{}
	}
	f.failing[method] = err
	f.wake()
}
