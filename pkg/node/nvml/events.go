package nvml

import (
	"errors"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"karve.sh/karve/pkg/node/gpu"
)

// slice is how long a single wait in NVML takes. Shutdown may have to wait for it.
const slice = 200 * time.Millisecond

// fallenOffTheBus is the XID of a GPU that is lost until it is reset.
const fallenOffTheBus = 79

// noInstance is NVML's instance number of an event that is about the whole GPU.
const noInstance = 0xFFFFFFFF

// register creates an event set with all GPUs that are not lost.
func (l *Library) register() error {
	l.unregister()
	events, code := l.api.EventSetCreate()
	if err := callError(code, "asking for GPU events"); err != nil {
		return err
	}
	l.events, l.registered = events, nil
	for uuid, k := range l.alive() {
		types, code := k.handle.GetSupportedEventTypes()
		if code == nvml.SUCCESS && types&nvml.EventTypeXidCriticalError == 0 {
			code = nvml.ERROR_NOT_SUPPORTED
		}
		if code == nvml.SUCCESS {
			code = k.handle.RegisterEvents(nvml.EventTypeXidCriticalError, events)
		}
		if code == nvml.ERROR_GPU_IS_LOST {
			l.markLost(uuid)
			continue
		}
		if err := callError(code, "asking for events of %s, whose faults will go unseen", uuid); err != nil {
			l.options.Skipped(err)
			continue
		}
		l.registered = append(l.registered, uuid)
	}
	return nil
}

// unregister frees the event set. NVML may already have freed it, so errors are ignored.
func (l *Library) unregister() {
	if l.events != nil {
		_ = l.events.Free()
		l.events = nil
	}
}

// Wait implements gpu.Library.
func (l *Library) Wait(timeout time.Duration) (gpu.Event, bool, error) {
	l.wait.Lock()
	defer l.wait.Unlock()
	generation := 0
	for {
		step := min(max(timeout, 0), slice)
		timeout -= step
		e, ok, err := l.waitStep(step, timeout <= 0, &generation)
		if ok || err != nil || timeout <= 0 {
			return e, ok, err
		}
	}
}

// waitStep waits while holding a read lock, so the timeout must be short. generation is the number of the Init in which the wait began.
func (l *Library) waitStep(timeout time.Duration, last bool, generation *int) (gpu.Event, bool, error) {
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
		// NVML does not say which GPU is lost, and would immediately return the error again. Find the GPU, and wait for the others.
		if err := l.probe(); err != nil {
			return gpu.Event{}, false, err
		}
		if !l.waitsForLost() {
			return gpu.Event{}, false, callError(code, "waiting for GPU events")
		}
		if err := l.register(); err != nil {
			return gpu.Event{}, false, err
		}
	default:
		return gpu.Event{}, false, callError(code, "waiting for GPU events")
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

// waitsForLost reports whether the event set contains a GPU that is lost.
func (l *Library) waitsForLost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.registered, func(uuid string) bool { return l.lost[uuid] })
}

// probe reads a value from each GPU that only the GPU itself knows, and marks those that are lost. It returns an error if the driver does not answer for
// any GPU.
func (l *Library) probe() error {
	alive := l.alive()
	var errs []error
	for uuid, k := range alive {
		_, code := k.handle.GetTemperature(nvml.TEMPERATURE_GPU)
		switch code {
		case nvml.SUCCESS, nvml.ERROR_NOT_SUPPORTED:
		case nvml.ERROR_GPU_IS_LOST:
			l.markLost(uuid)
		default:
			errs = append(errs, callError(code, "asking %s", uuid))
		}
	}
	if len(errs) == 0 || len(errs) < len(alive) && !slices.ContainsFunc(errs, ofDriver) {
		return nil
	}
	return errs[0]
}

// ofDriver reports whether an error concerns the driver and not a single GPU.
func ofDriver(err error) bool {
	switch codeOf(err) {
	case nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return true
	default:
		return false
	}
}

// event converts an event of NVML. If the GPU cannot be identified, the event is about all GPUs. If the MIG instance cannot, it is about the whole GPU.
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
	for _, p := range l.known[e.UUID].device.Instances {
		if uint32(p.GPUInstance) == data.GpuInstanceId && (data.ComputeInstanceId == noInstance || uint32(p.ComputeInstance) == data.ComputeInstanceId) {
			e.Instance = p.UUID
		}
	}
	if e.Lost {
		e.Instance = "" // The whole GPU is gone.
	}
	if e.UUID != "" && e.Lost {
		l.lost[e.UUID] = true // The loss is reported with this XID, and not a second time.
	}
	return e
}
