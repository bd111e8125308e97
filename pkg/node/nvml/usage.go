package nvml

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"karve.sh/karve/pkg/node/gpu"
)

// sharesFor is how long shares are reused. NVML returns each sample only once, so two callers within a short time would each get a part of the samples.
// NVML takes samples about once a second.
const sharesFor = time.Second

// Usage implements gpu.Library.
func (l *Library) Usage(uuid string) (gpu.Usage, error) {
	l.open.RLock()
	defer l.open.RUnlock()
	whole := uuid
	l.mu.Lock()
	for _, k := range l.known {
		if k.migDevices[uuid] != nil {
			whole = k.device.UUID
		}
	}
	l.mu.Unlock()
	k, err := l.lookup("reading", whole)
	if err != nil {
		return gpu.Usage{}, err
	}
	var u gpu.Usage
	if handle := k.migDevices[uuid]; handle != nil {
		u, err = l.instanceUsage(uuid, handle)
	} else {
		u, err = l.usage(uuid, k.handle)
	}
	if errors.Is(err, gpu.ErrLost) {
		l.markLost(whole)
	}
	return u, err
}

func (l *Library) usage(uuid string, handle nvml.Device) (gpu.Usage, error) {
	u := gpu.Usage{GPUPercent: -1, MemoryPercent: -1, TemperatureCelsius: -1, PowerMilliwatts: -1, EnergyMillijoules: -1, SMClockMHz: -1, MemClockMHz: -1}
	for _, step := range []struct {
		what string
		read func() nvml.Return
	}{
		{"memory", func() nvml.Return { return l.memory(handle, &u) }},
		{"utilization", func() nvml.Return {
			rates, code := handle.GetUtilizationRates()
			if code == nvml.SUCCESS {
				u.GPUPercent, u.MemoryPercent = int(rates.Gpu), int(rates.Memory)
			}
			return code
		}},
		{"temperature", func() nvml.Return {
			celsius, code := handle.GetTemperature(nvml.TEMPERATURE_GPU)
			if code == nvml.SUCCESS {
				u.TemperatureCelsius = int(celsius)
			}
			return code
		}},
		{"power", func() nvml.Return {
			milliwatts, code := handle.GetPowerUsage()
			if code == nvml.SUCCESS {
				u.PowerMilliwatts = int64(milliwatts)
			}
			return code
		}},
		{"energy", func() nvml.Return {
			if !l.has["nvmlDeviceGetTotalEnergyConsumption"] {
				return nvml.ERROR_NOT_SUPPORTED
			}
			millijoules, code := handle.GetTotalEnergyConsumption()
			if code == nvml.SUCCESS {
				u.EnergyMillijoules = int64(millijoules)
			}
			return code
		}},
		{"SM clock", func() nvml.Return { return clockOf(handle, nvml.CLOCK_SM, &u.SMClockMHz) }},
		{"memory clock", func() nvml.Return { return clockOf(handle, nvml.CLOCK_MEM, &u.MemClockMHz) }},
		{"processes", func() (code nvml.Return) { u.Processes, code = l.processes(uuid, handle); return code }},
		{"profiling counters", func() (code nvml.Return) { u.Profiling, code = l.profiling(uuid, handle); return code }},
	} {
		// Some GPUs do not support every reading. The others are still useful.
		if code := step.read(); code != nvml.ERROR_NOT_SUPPORTED {
			if err := callError(code, "reading the %s of %s", step.what, uuid); err != nil {
				return gpu.Usage{}, err
			}
		}
	}
	return u, nil
}

// memory prefers the newer function, because the older one counts memory that the driver reserves as used.
func (l *Library) memory(handle nvml.Device, u *gpu.Usage) nvml.Return {
	if l.has["nvmlDeviceGetMemoryInfo_v2"] {
		if m, code := handle.GetMemoryInfo_v2(); code == nvml.SUCCESS {
			u.MemoryUsedMiB, u.MemoryFreeMiB = mib(m.Used), mib(m.Free)
			return nvml.SUCCESS
		}
	}
	m, code := handle.GetMemoryInfo()
	u.MemoryUsedMiB, u.MemoryFreeMiB = mib(m.Used), mib(m.Free)
	return code
}

func clockOf(handle nvml.Device, kind nvml.ClockType, mhz *int) nvml.Return {
	value, code := handle.GetClockInfo(kind)
	if code == nvml.SUCCESS {
		*mhz = int(value)
	}
	return code
}

// notAvailable is NVML's value for unknown memory.
const notAvailable = ^uint64(0)

// processes returns the processes of all kinds of a GPU, sorted by PID. Each process is listed once.
func (l *Library) processes(uuid string, handle nvml.Device) ([]gpu.Process, nvml.Return) {
	memory, code := l.running(handle)
	if code != nvml.SUCCESS {
		return nil, code
	}
	percent, code := l.sharesOf(uuid, handle)
	if code != nvml.SUCCESS {
		return nil, code
	}
	return processes(memory, percent), nvml.SUCCESS
}

// running returns the memory of the processes of all kinds by PID, in MiB, or -1 if unknown.
func (l *Library) running(handle nvml.Device) (map[int]int64, nvml.Return) {
	lists := []func() ([]nvml.ProcessInfo, nvml.Return){handle.GetComputeRunningProcesses, handle.GetGraphicsRunningProcesses}
	if l.has["nvmlDeviceGetMPSComputeRunningProcesses"] {
		lists = append(lists, handle.GetMPSComputeRunningProcesses)
	}
	memory := map[int]int64{}
	for _, list := range lists {
		infos, code := list()
		if code == nvml.ERROR_NOT_SUPPORTED {
			continue
		}
		if code != nvml.SUCCESS {
			return nil, code
		}
		for _, info := range infos {
			pid, used := int(info.Pid), int64(-1)
			if info.UsedGpuMemory != notAvailable {
				used = mib(info.UsedGpuMemory)
			}
			// A process that computes and draws is in both lists with the same memory.
			if before, ok := memory[pid]; !ok || used > before {
				memory[pid] = used
			}
		}
	}
	return memory, nvml.SUCCESS
}

// processes returns the processes with their memory and their shares of SM time. percent is nil if the shares are unknown. It changes memory.
func processes(memory map[int]int64, percent map[int]int) []gpu.Process {
	for pid, share := range percent {
		if _, runs := memory[pid]; !runs && share > 0 {
			memory[pid] = -1 // The process has ended.
		}
	}
	out := make([]gpu.Process, 0, len(memory))
	for _, pid := range slices.Sorted(maps.Keys(memory)) {
		p := gpu.Process{PID: pid, MemoryMiB: memory[pid], SMPercent: -1}
		if percent != nil {
			p.SMPercent = percent[pid] // It is 0 if the process did nothing.
		}
		out = append(out, p)
	}
	return out
}

// sharesOf returns the shares of SM time by PID, or nil if the GPU does not report them.
func (l *Library) sharesOf(uuid string, handle nvml.Device) (map[int]int, nvml.Return) {
	if !l.has["nvmlDeviceGetProcessUtilization"] {
		return nil, nvml.SUCCESS
	}
	now := l.options.Clock.Now()
	l.mu.Lock()
	last := l.shares[uuid]
	l.mu.Unlock()
	if age := now.Sub(last.at); last.percent != nil && age >= 0 && age < sharesFor {
		return last.percent, nvml.SUCCESS
	}
	samples, code := handle.GetProcessUtilization(last.until)
	switch code {
	case nvml.SUCCESS, nvml.ERROR_NOT_FOUND, nvml.ERROR_INSUFFICIENT_SIZE: // Insufficient size means that samples were added between its two calls.
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NO_PERMISSION, nvml.ERROR_INVALID_ARGUMENT:
		return nil, nvml.SUCCESS
	default:
		return nil, code
	}
	next := shares{at: now, until: last.until, percent: map[int]int{}}
	sum, n := map[int]int{}, map[int]int{}
	for _, s := range samples {
		if s.Pid == 0 || s.TimeStamp <= last.until || s.SmUtil > 100 {
			continue
		}
		next.until = max(next.until, s.TimeStamp)
		sum[int(s.Pid)] += int(s.SmUtil)
		n[int(s.Pid)]++
	}
	for pid := range sum {
		next.percent[pid] = (sum[pid] + n[pid] - 1) / n[pid] // Round up, so that little use is not 0.
	}
	l.mu.Lock()
	l.shares[uuid] = next
	l.mu.Unlock()
	return next.percent, nvml.SUCCESS
}
