package metrics

import (
	"slices"
	"strconv"

	"karve.sh/karve/pkg/node/gpu"
)

var dcgmMetrics = []values{
	{"DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", whenUp(func(g reading) (float64, bool) { return known(g.usage.SMClockMHz, 1) })},
	{"DCGM_FI_DEV_MEM_CLOCK", "Memory clock frequency (in MHz).", whenUp(func(g reading) (float64, bool) { return known(g.usage.MemClockMHz, 1) })},
	{"DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", whenUp(func(g reading) (float64, bool) { return known(g.usage.TemperatureCelsius, 1) })},
	{"DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", whenUp(func(g reading) (float64, bool) {
		return float64(g.usage.PowerMilliwatts) / 1000, g.usage.PowerMilliwatts >= 0
	})},
	{"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Total energy consumption since boot (in mJ).", whenUp(func(g reading) (float64, bool) { return known(g.usage.EnergyMillijoules, 1) })},
	{"DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", whenUp(func(g reading) (float64, bool) { return known(g.usage.GPUPercent, 1) })},
	{"DCGM_FI_DEV_XID_ERRORS", "Value of the last XID error encountered.", func(g reading) (float64, bool) { return float64(g.lastXID), true }},
	{"DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", whenUp(func(g reading) (float64, bool) { return known(g.usage.MemoryFreeMiB, 1) })},
	{"DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", whenUp(func(g reading) (float64, bool) { return known(g.usage.MemoryUsedMiB, 1) })},
	{"DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active.", profiled(func(p *gpu.Profiling) float64 { return p.GraphicsActive })},
	{"DCGM_FI_PROF_SM_ACTIVE", "The ratio of cycles an SM has at least 1 warp assigned.", profiled(func(p *gpu.Profiling) float64 { return p.SMActive })},
	{"DCGM_FI_PROF_SM_OCCUPANCY", "The ratio of number of warps resident on an SM.", profiled(func(p *gpu.Profiling) float64 { return p.SMOccupancy })},
	{"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Ratio of cycles the tensor pipe is active.", profiled(func(p *gpu.Profiling) float64 { return p.TensorActive })},
	{"DCGM_FI_PROF_DRAM_ACTIVE", "Ratio of cycles the device memory interface is active sending or receiving data.", profiled(func(p *gpu.Profiling) float64 { return p.DRAMActive })},
	{"DCGM_FI_PROF_PCIE_TX_BYTES", "The rate of data transmitted over the PCIe bus in bytes per second.", profiled(func(p *gpu.Profiling) float64 { return p.PCIeTransmit })},
	{"DCGM_FI_PROF_PCIE_RX_BYTES", "The rate of data received over the PCIe bus in bytes per second.", profiled(func(p *gpu.Profiling) float64 { return p.PCIeReceive })},
	{"DCGM_FI_PROF_NVLINK_TX_BYTES", "The rate of data transmitted over NVLink in bytes per second.", profiled(func(p *gpu.Profiling) float64 { return p.NVLinkTransmit })},
	{"DCGM_FI_PROF_NVLINK_RX_BYTES", "The rate of data received over NVLink in bytes per second.", profiled(func(p *gpu.Profiling) float64 { return p.NVLinkReceive })},
}

// instanceDCGM are the metrics that NVIDIA's exporter has of MIG instances and not of the divided GPU, among those of dcgmMetrics.
var instanceDCGM = map[string]func(instanceReading) (float64, bool){
	"DCGM_FI_DEV_FB_FREE": func(p instanceReading) (float64, bool) { return float64(p.MemoryMiB - p.usedMiB), p.usedMiB >= 0 },
	"DCGM_FI_DEV_FB_USED": func(p instanceReading) (float64, bool) { return known(p.usedMiB, 1) },
}

// writeDCGM writes the metrics and labels that dashboards for NVIDIA's DCGM exporter need. If a single container uses a GPU, or holds an instance, its metrics
// have the labels of that container. If several do, they do not, because a series for each of them would count the power of the GPU several times. The
// metrics of pods show what each of them uses.
func writeDCGM(t *Text, host string, gpus []reading, shares []share, held []Held) {
	users := map[string][]owner{}
	for _, s := range shares {
		users[s.uuid] = append(users[s.uuid], s.owner)
	}
	for _, h := range held {
		if !slices.ContainsFunc(gpus, func(g reading) bool { return g.UUID == h.UUID }) {
			users[h.UUID] = append(users[h.UUID], owner{h.Namespace, h.Pod, h.Container})
		}
	}
	write := func(value float64, g reading, uuid string, more ...string) {
		var o owner
		if all := users[uuid]; len(all) == 1 {
			o = all[0]
		}
		t.Sample(value, append([]string{
			"gpu", strconv.Itoa(g.Index), "UUID", g.UUID, "device", "nvidia" + strconv.Itoa(g.Minor), "modelName", g.Product,
			"Hostname", host, "container", o.container, "namespace", o.namespace, "pod", o.pod,
		}, more...)...)
	}
	for _, m := range dcgmMetrics {
		t.Family(m.name, m.kind(), m.help)
		for _, g := range gpus {
			if of, ok := instanceDCGM[m.name]; ok && g.MIG {
				for _, p := range g.instances {
					if value, known := of(p); known {
						write(value, g, p.UUID, "GPU_I_PROFILE", p.Profile, "GPU_I_ID", strconv.Itoa(p.GPUInstance))
					}
				}
				continue
			}
			if value, known := m.of(g); known {
				write(value, g, g.UUID)
			}
		}
	}
}
