//go:build cgo

package nvml

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"karve.sh/karve/pkg/node/gpu"
)

// slice is how long NVML is waited in at a time: Shutdown has to wait for it.
const slice = 200 * time.Millisecond

// fallenOffTheBus is the XID with which a GPU goes for good.
const fallenOffTheBus = 79

// register makes an event set of all GPUs that are not lost.
func (l *Library) register() error {
	l.unregister()
	events, code := l.api.EventSetCreate()
	if err := failed(code, "asking for GPU events"); err != nil {
		return err
	}
	l.events, l.registered = events, nil
	for _, uuid := range l.alive() {
		l.mu.Lock()
		handle := l.known[uuid].handle
		l.mu.Unlock()
		types, code := handle.GetSupportedEventTypes()
		if code == nvml.SUCCESS && types&nvml.EventTypeXidCriticalError == 0 {
			code = nvml.ERROR_NOT_SUPPORTED
		}
		if code == nvml.SUCCESS {
			code = handle.RegisterEvents(nvml.EventTypeXidCriticalError, events)
		}
		if code == nvml.ERROR_GPU_IS_LOST {
			l.markLost(uuid)
			continue
		}
		if err := failed(code, "asking for events of %s, whose faults will go unseen", uuid); err != nil {
			l.options.Skipped(err)
			continue
		}
		l.registered = append(l.registered, uuid)
	}
	return nil
}

// unregister gives the event set up. That NVML may not know it any more is no matter.
func (l *Library) unregister() {
	if l.events != nil {
		_ = l.events.Free()
		l.events = nil
	}
}

// alive lists the GPUs that are not lost.
func (l *Library) alive() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(l.known)), func(uuid string) bool { return l.lost[uuid] })
}

// Wait implements gpu.Library.
func (l *Library) Wait(timeout time.Duration) (gpu.Event, bool, error) {
	l.wait.Lock()
	defer l.wait.Unlock()
	generation := 0
	for {
		part := min(max(timeout, 0), slice)
		timeout -= part
		e, ok, err := l.waitPart(part, timeout <= 0, &generation)
		if ok || err != nil || timeout <= 0 {
			return e, ok, err
		}
	}
}

// waitPart waits without giving up the library, so it must not be long. generation is the Init that the wait began after.
func (l *Library) waitPart(timeout time.Duration, last bool, generation *int) (gpu.Event, bool, error) {
	l.open.RLock()
	defer l.open.RUnlock()
	if !l.ready || (*generation != 0 && *generation != l.generation) {
		return gpu.Event{}, false, gpu.ErrClosed
	}
	*generation = l.generation
	if e, ok := l.takePending(); ok {
		return e, true, nil
	}
	data, code := l.events.Wait(uint32(timeout.Milliseconds()))
	switch code {
	case nvml.SUCCESS:
		if data.EventType != nvml.EventTypeXidCriticalError {
			return gpu.Event{}, false, nil
		}
		return l.event(data), true, nil
	case nvml.ERROR_TIMEOUT:
		if last {
			if err := errors.Join(l.probe(), l.checkFiles()); err != nil {
				return gpu.Event{}, false, err
			}
		}
	case nvml.ERROR_GPU_IS_LOST:
		// It does not say which one, and would say it again at once: find it, and wait for the others.
		if err := l.probe(); err != nil {
			return gpu.Event{}, false, err
		}
		if !l.waitsForLost() {
			return gpu.Event{}, false, failed(code, "waiting for GPU events")
		}
		if err := l.register(); err != nil {
			return gpu.Event{}, false, err
		}
	default:
		return gpu.Event{}, false, failed(code, "waiting for GPU events")
	}
	e, ok := l.takePending()
	return e, ok, nil
}

func (l *Library) takePending() (gpu.Event, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) == 0 {
		return gpu.Event{}, false
	}
	e := l.pending[0]
	l.pending = l.pending[1:]
	return e, true
}

// waitsForLost says whether the event set has a GPU that is lost.
func (l *Library) waitsForLost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.registered, func(uuid string) bool { return l.lost[uuid] })
}

// probe asks each GPU something that only the GPU itself can answer, and notes those that are lost. It is an error when the driver does not answer for any.
func (l *Library) probe() error {
	alive := l.alive()
	var errs []error
	for _, uuid := range alive {
		l.mu.Lock()
		handle := l.known[uuid].handle
		l.mu.Unlock()
		_, code := handle.GetTemperature(nvml.TEMPERATURE_GPU)
		switch code {
		case nvml.SUCCESS, nvml.ERROR_NOT_SUPPORTED:
		case nvml.ERROR_GPU_IS_LOST:
			l.markLost(uuid)
		default:
			errs = append(errs, failed(code, "asking %s", uuid))
		}
	}
	if len(errs) == 0 || len(errs) < len(alive) && !slices.ContainsFunc(errs, ofDriver) {
		return nil
	}
	return errs[0]
}

// ofDriver says that an error is not one GPU's.
func ofDriver(err error) bool {
	switch codeOf(err) {
	case nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return true
	default:
		return false
	}
}

// event says what NVML's event is. When the GPU cannot be named, it is about all of them.
func (l *Library) event(data nvml.EventData) gpu.Event {
	e := gpu.Event{XID: int(data.EventData), Lost: data.EventData == fallenOffTheBus}
	if uuid, code := data.Device.GetUUID(); code == nvml.SUCCESS {
		e.UUID = uuid
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.UUID == "" {
		for uuid, k := range l.known {
			if k.handle == data.Device {
				e.UUID = uuid
			}
		}
	}
	if e.UUID != "" && e.Lost {
		l.lost[e.UUID] = true // It is told with its XID, and not again without.
	}
	return e
}
