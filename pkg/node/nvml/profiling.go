package nvml

import (
	"math"
	"sync"
	"time"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"karve.sh/karve/pkg/node/gpu"
)

// profilingInterval is the shortest time between two samples of a GPU's counters. The driver needs more than the 100 ms after which it refreshes them. With
// several readers, such as the exporter and the check for unused GPUs, a mean over a moment would say little.
const profilingInterval = time.Second

// profilingFunctions are NVML's GPU performance monitoring (GPM). nvmlGpmQueryDeviceSupport is not among them, because go-nvml 0.13.0-1 calls it with a
// version that the driver refuses. The driver gives no samples of a GPU without counters.
var profilingFunctions = []string{"nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmSampleFree", "nvmlGpmMetricsGet"}

const hopper = 9 // the compute capability of the first GPUs with GPM

// profilingMetrics are the metrics to read. NVML's value divided by unit is the value of the field.
var profilingMetrics = []struct {
	id    nvml.GpmMetricId
	unit  float64
	field func(*gpu.Profiling) *float64
}{
	{nvml.GPM_METRIC_GRAPHICS_UTIL, percent, func(p *gpu.Profiling) *float64 { return &p.GraphicsActive }},
	{nvml.GPM_METRIC_SM_UTIL, percent, func(p *gpu.Profiling) *float64 { return &p.SMActive }},
	{nvml.GPM_METRIC_SM_OCCUPANCY, percent, func(p *gpu.Profiling) *float64 { return &p.SMOccupancy }},
	{nvml.GPM_METRIC_ANY_TENSOR_UTIL, percent, func(p *gpu.Profiling) *float64 { return &p.TensorActive }},
	{nvml.GPM_METRIC_FP64_UTIL, percent, func(p *gpu.Profiling) *float64 { return &p.FP64Active }},
	{nvml.GPM_METRIC_FP32_UTIL, percent, func(p *gpu.Profiling) *float64 { return &p.FP32Active }},
	{nvml.GPM_METRIC_FP16_UTIL, percent, func(p *gpu.Profiling) *float64 { return &p.FP16Active }},
	{nvml.GPM_METRIC_DRAM_BW_UTIL, percent, func(p *gpu.Profiling) *float64 { return &p.DRAMActive }},
	{nvml.GPM_METRIC_PCIE_TX_PER_SEC, mibPerSecond, func(p *gpu.Profiling) *float64 { return &p.PCIeTransmit }},
	{nvml.GPM_METRIC_PCIE_RX_PER_SEC, mibPerSecond, func(p *gpu.Profiling) *float64 { return &p.PCIeReceive }},
	{nvml.GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, mibPerSecond, func(p *gpu.Profiling) *float64 { return &p.NVLinkTransmit }},
	{nvml.GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, mibPerSecond, func(p *gpu.Profiling) *float64 { return &p.NVLinkReceive }},
}

const (
	percent      = 100
	mibPerSecond = 1.0 / (1 << 20)
)

// counters are the profiling counters of a GPU. mu is held during NVML's calls about them.
type counters struct {
	mu     sync.Mutex
	at     time.Time
	sample nvml.GpmSample // It is nil until the first sample.
	last   *gpu.Profiling
}

// profiling returns what the counters of a GPU counted since the sample before. If that is younger than profilingInterval, it returns the last values again.
// The code is an error only if the GPU is lost, so that a GPU whose counters cannot be read has its other readings.
func (l *Library) profiling(uuid string, handle nvml.Device) (*gpu.Profiling, nvml.Return) {
	for _, name := range profilingFunctions {
		if !l.has[name] {
			return nil, nvml.SUCCESS
		}
	}
	l.mu.Lock()
	if l.known[uuid].device.ComputeMajor < hopper {
		l.mu.Unlock()
		return nil, nvml.SUCCESS
	}
	c := l.counters[uuid]
	if c == nil {
		c = &counters{}
		l.counters[uuid] = c
	}
	l.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	now := l.options.Clock.Now()
	if age := now.Sub(c.at); c.sample != nil && age >= 0 && age < profilingInterval {
		return c.last, nvml.SUCCESS
	}
	next, code := l.sampleCounters(handle)
	if code != nvml.SUCCESS {
		c.free()
		if code != nvml.ERROR_GPU_IS_LOST {
			code = nvml.SUCCESS
		}
		return nil, code
	}
	last := l.compareSamples(c.sample, next)
	c.free()
	c.at, c.sample, c.last = now, next, last
	return last, nvml.SUCCESS
}

// sampleCounters returns a new sample, which the caller must free.
func (l *Library) sampleCounters(handle nvml.Device) (nvml.GpmSample, nvml.Return) {
	sample, code := l.api.GpmSampleAlloc()
	if code != nvml.SUCCESS {
		return nil, code
	}
	if code := sample.Get(handle); code != nvml.SUCCESS {
		_ = sample.Free()
		return nil, code
	}
	return sample, nvml.SUCCESS
}

// metric is NVML's nvmlGpmMetric_t. That of go-nvml 0.13.0-1 has another size, because cgo numbers the structs without a name.
type metric struct {
	id    uint32
	code  nvml.Return
	value float64
	info  [3]uintptr // name, description and unit
}

// compareSamples returns nil without an older sample, or if the driver cannot compare them.
func (l *Library) compareSamples(older, newer nvml.GpmSample) *gpu.Profiling {
	if older == nil {
		return nil
	}
	request := &nvml.GpmMetricsGetType{NumMetrics: uint32(len(profilingMetrics)), Sample1: older, Sample2: newer}
	metrics := unsafe.Slice((*metric)(unsafe.Pointer(&request.Metrics)), len(profilingMetrics)) //nolint:gosec // The array is larger.
	for i, m := range profilingMetrics {
		metrics[i].id = uint32(m.id)
	}
	if l.api.GpmMetricsGet(request) != nvml.SUCCESS {
		return nil
	}
	p, found := &gpu.Profiling{}, false
	for i, m := range profilingMetrics {
		*m.field(p) = -1
		// The comparison is false for a value that is not a number, which an idle unit can have.
		if a := metrics[i]; a.code == nvml.SUCCESS && a.value >= 0 && !math.IsInf(a.value, 0) {
			*m.field(p), found = a.value/m.unit, true
		}
	}
	if !found {
		return nil
	}
	return p
}

// free frees the sample. mu must be held.
func (c *counters) free() {
	if c.sample != nil {
		_ = c.sample.Free() // It fails only for what is no sample.
	}
	c.sample, c.last = nil, nil
}

// forgetCounters frees the samples of all GPUs but those to keep. NVML must be open. keep is called while mu is held.
func (l *Library) forgetCounters(keep func(uuid string) bool) {
	l.mu.Lock()
	var gone []*counters
	for uuid, c := range l.counters {
		if !keep(uuid) {
			gone = append(gone, c)
		}
	}
	l.mu.Unlock()
	for _, c := range gone {
		c.mu.Lock()
		c.free()
		c.mu.Unlock()
	}
}
