package nvml

import (
	"cmp"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"karve.sh/karve/pkg/node/gpu"
)

// instances reads the MIG instances of a GPU. Those to which the process has no access are not listed.
func (l *Library) instances(i int, handle nvml.Device) ([]gpu.Instance, map[string]nvml.Device, error) {
	maxInstances, code := handle.GetMaxMigDeviceCount()
	if err := callError(code, "counting the MIG instances of GPU %d", i); err != nil {
		return nil, nil, err
	}
	var all []gpu.Instance
	handles := map[string]nvml.Device{}
	for at := range maxInstances {
		instance, code := handle.GetMigDeviceHandleByIndex(at)
		if code == nvml.ERROR_NOT_FOUND || code == nvml.ERROR_NO_PERMISSION {
			continue
		}
		if err := callError(code, "finding MIG instance %d of GPU %d", at, i); err != nil {
			return nil, nil, err
		}
		read, err := readInstance(i, at, instance)
		if err != nil {
			return nil, nil, err
		}
		all, handles[read.UUID] = append(all, read), instance
	}
	slices.SortFunc(all, func(a, b gpu.Instance) int { return cmp.Compare(a.Index, b.Index) })
	return all, handles, nil
}

func readInstance(i, at int, handle nvml.Device) (gpu.Instance, error) {
	p := gpu.Instance{Index: at}
	var name string
	var has nvml.DeviceAttributes
	for _, step := range []struct {
		what string
		read func() nvml.Return
	}{
		{"UUID", func() (code nvml.Return) { p.UUID, code = handle.GetUUID(); return code }},
		{"name", func() (code nvml.Return) { name, code = handle.GetName(); return code }},
		{"number", func() (code nvml.Return) { p.GPUInstance, code = handle.GetGpuInstanceId(); return code }},
		{"compute number", func() (code nvml.Return) { p.ComputeInstance, code = handle.GetComputeInstanceId(); return code }},
		{"attributes", func() (code nvml.Return) { has, code = handle.GetAttributes(); return code }},
	} {
		if err := callError(step.read(), "reading the %s of MIG instance %d of GPU %d", step.what, at, i); err != nil {
			return gpu.Instance{}, err
		}
	}
	// The name is that of the GPU, " MIG " and the profile. The functions that return the profile itself are for administrators.
	_, p.Profile, _ = strings.Cut(name, " MIG ")
	p.MemoryMiB, p.Multiprocessors = int64(has.MemorySizeMB), int(has.MultiprocessorCount)
	p.GPUSlices, p.ComputeSlices = int(has.GpuInstanceSliceCount), int(has.ComputeInstanceSliceCount)
	p.CopyEngines, p.Decoders, p.Encoders = int(has.SharedCopyEngineCount), int(has.SharedDecoderCount), int(has.SharedEncoderCount)
	p.JPEGEngines, p.OFAEngines = int(has.SharedJpegCount), int(has.SharedOfaCount)
	return p, nil
}

// instanceUsage returns the usage of a MIG instance. NVML reports only its memory and its processes.
func (l *Library) instanceUsage(uuid string, handle nvml.Device) (gpu.Usage, error) {
	u := gpu.Usage{GPUPercent: -1, MemoryPercent: -1, TemperatureCelsius: -1, PowerMilliwatts: -1, EnergyMillijoules: -1, SMClockMHz: -1, MemClockMHz: -1}
	if err := callError(l.memory(handle, &u), "reading the memory of %s", uuid); err != nil {
		return gpu.Usage{}, err
	}
	memory, code := l.running(handle)
	if err := callError(code, "reading the processes of %s", uuid); err != nil {
		return gpu.Usage{}, err
	}
	u.Processes = processes(memory, nil)
	return u, nil
}
