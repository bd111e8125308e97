// Package metrics exports Prometheus metrics of GPUs and of the pods that use them.
package metrics

import (
	"bytes"
	"cmp"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"karve.sh/karve/pkg/node/gpu"
)

// Replicas holds the number of replicas of a GPU.
type Replicas struct {
	// Total is the number of replicas of the GPU, and Allocated is the number that pods hold.
	Total, Allocated int
}

// total and allocated return false if the replicas are unknown.
func (r *Replicas) total() (float64, bool) {
	if r == nil {
		return 0, false
	}
	return float64(r.Total), true
}

func (r *Replicas) allocated() (float64, bool) {
	if r == nil {
		return 0, false
	}
	return float64(r.Allocated), true
}

// Held is how many replicas of a GPU a container holds.
type Held struct {
	Namespace, Pod, Container string
	// UUID is the UUID of the GPU or MIG instance. Other devices are left out.
	UUID     string
	Replicas int
}

// Config configures an Exporter.
type Config struct {
	Library gpu.Library
	// Replicas returns the replicas of the GPUs and MIG instances by UUID. It may be nil.
	Replicas func() map[string]Replicas
	// Held lists which containers hold replicas of which GPUs. If it is known, it replaces Replicas.Allocated. It may be nil.
	Held func() ([]Held, error)
	// Pods lists the pods. If it is nil, there are no metrics of pods.
	Pods PodSource
	// Proc is the proc file system of the machine. It defaults to "/proc".
	Proc string
	// DCGM adds the metrics of NVIDIA's DCGM exporter that dashboards use. Host is the name of the machine in them.
	DCGM bool
	Host string
	// More writes additional metrics. It may be nil.
	More func(*Text)
}

// Exporter serves metrics to Prometheus. It reads the GPUs for each scrape, and does not wait for a driver that hangs.
type Exporter struct {
	config Config

	mu      sync.Mutex
	xids    map[xidKey]uint64
	lastXID map[string]int
	// asked is what the driver asks for, by GPU.
	asked map[string]gpu.Recovery
	// under is the reading in progress, or nil if there is none. Concurrent scrapes share it.
	under *sample
}

// patience is how long a scrape waits for the GPUs. By default, Prometheus waits ten seconds for the whole scrape.
const patience = 5 * time.Second

// sample is the result of a reading. It must not be read until done is closed.
type sample struct {
	done   chan struct{}
	gpus   []reading
	held   []Held
	shares []share
	err    error
}

var errSlow = errors.New("the GPUs are not read in time")

type xidKey struct {
	uuid string
	xid  int
}

// New returns an exporter.
func New(c Config) *Exporter {
	c.Proc = cmp.Or(c.Proc, "/proc")
	return &Exporter{config: c, xids: map[xidKey]uint64{}, lastXID: map[string]int{}, asked: map[string]gpu.Recovery{}}
}

// Observe counts the XID of an event.
func (x *Exporter) Observe(e gpu.Event) {
	if e.XID == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.xids[xidKey{e.UUID, e.XID}]++
	x.lastXID[e.UUID] = e.XID
}

// Asked sets what the driver asks for so that a GPU works again.
func (x *Exporter) Asked(uuid string, r gpu.Recovery) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.asked[uuid] = r
}

// ServeHTTP implements http.Handler.
func (x *Exporter) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	var body bytes.Buffer
	t := NewText(&body)
	x.Write(t)
	_ = t.Flush() // Writing to memory does not fail.
	w.Header().Set("Content-Type", ContentType)
	_, _ = w.Write(body.Bytes()) // Prometheus notices an incomplete answer.
}

// reading holds what was read of a GPU.
type reading struct {
	gpu.Device
	usage    gpu.Usage
	up       bool
	replicas *Replicas
	lastXID  int
	// instances are the MIG instances of the GPU. Their replicas also count as those of the GPU.
	instances []instanceReading
}

// instanceReading holds what was read of a MIG instance.
type instanceReading struct {
	gpu.Instance
	usedMiB  int64 // It is -1 if unknown.
	replicas *Replicas
}

// share is what a container uses of a GPU.
type share struct {
	owner
	uuid string
	// mib and percent are -1 if they are unknown for all of its processes.
	mib     int64
	percent int
}

// Write writes all metrics.
func (x *Exporter) Write(t *Text) {
	read := x.sample()
	gpus, shares, err := read.gpus, read.shares, read.err
	t.Family("karve_gpu_library_up", Gauge, "Whether the GPUs of this machine can be read (1) or not (0).")
	t.Sample(oneIf(err == nil))
	writeGPUs(t, gpus)
	writeInstances(t, gpus)
	x.writeXIDs(t, gpus)
	x.writeAsked(t, gpus)
	writeHeld(t, gpus, read.held)
	writeShares(t, shares)
	if x.config.DCGM {
		writeDCGM(t, x.config.Host, gpus, shares, read.held)
	}
	if x.config.More != nil {
		x.config.More(t)
	}
}

// sample waits for a reading, and returns one with an error if it takes too long.
func (x *Exporter) sample() *sample {
	x.mu.Lock()
	s := x.under
	if s == nil {
		s = &sample{done: make(chan struct{})}
		x.under = s
		go func() {
			s.gpus, s.err = x.read()
			x.hold(s)
			s.shares = x.shares(s.gpus)
			x.mu.Lock()
			x.under = nil
			x.mu.Unlock()
			close(s.done)
		}()
	}
	x.mu.Unlock()
	timer := time.NewTimer(patience) //nolint:forbidigo // It bounds a call of a library, and no test waits for it.
	defer timer.Stop()
	select {
	case <-s.done:
		return s
	case <-timer.C:
		return &sample{err: errSlow}
	}
}

func (x *Exporter) read() ([]reading, error) {
	devices, err := x.config.Library.Devices()
	if err != nil {
		return nil, err
	}
	var replicas map[string]Replicas
	if x.config.Replicas != nil {
		replicas = x.config.Replicas()
	}
	out := make([]reading, len(devices))
	for i, d := range devices {
		usage, err := x.config.Library.Usage(d.UUID)
		out[i] = reading{Device: d, usage: usage, up: err == nil}
		if r, ok := replicas[d.UUID]; ok {
			out[i].replicas = &r
		}
		for _, p := range d.Instances {
			out[i].instances = append(out[i].instances, x.readInstance(p, replicas))
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range out {
		out[i].lastXID = x.lastXID[out[i].UUID]
	}
	return out, nil
}

func (x *Exporter) readInstance(p gpu.Instance, replicas map[string]Replicas) instanceReading {
	read := instanceReading{Instance: p, usedMiB: -1}
	if usage, err := x.config.Library.Usage(p.UUID); err == nil {
		read.usedMiB = usage.MemoryUsedMiB
	}
	if r, ok := replicas[p.UUID]; ok {
		read.replicas = &r
	}
	return read
}

// sum sets the replicas of a divided GPU to the sum over those instances whose replicas are known.
func (g *reading) sum() {
	var total *Replicas
	for _, p := range g.instances {
		if p.replicas == nil {
			continue
		}
		if total == nil {
			total = &Replicas{}
		}
		total.Total += p.replicas.Total
		total.Allocated += p.replicas.Allocated
	}
	if total != nil {
		g.replicas = total
	}
}

// hold adds what containers hold, if that is known now. A container that has ended may be listed together with its successor that has the same replica.
func (x *Exporter) hold(s *sample) {
	known := x.config.Held != nil
	if known {
		held, err := x.config.Held()
		if known = err == nil; known {
			s.held = held
		}
	}
	count := func(uuid string, r *Replicas) {
		if r == nil || !known {
			return
		}
		n := 0
		for _, h := range s.held {
			if h.UUID == uuid {
				n += h.Replicas
			}
		}
		r.Allocated = min(n, r.Total)
	}
	for i := range s.gpus {
		count(s.gpus[i].UUID, s.gpus[i].replicas)
		for _, p := range s.gpus[i].instances {
			count(p.UUID, p.replicas)
		}
		s.gpus[i].sum()
	}
}

// shares returns the sums over the processes of each container on each GPU.
func (x *Exporter) shares(gpus []reading) []share {
	if x.config.Pods == nil {
		return nil
	}
	var pids []int
	for _, g := range gpus {
		for _, p := range g.usage.Processes {
			if p.PID > 0 && !slices.Contains(pids, p.PID) {
				pids = append(pids, p.PID)
			}
		}
	}
	if len(pids) == 0 {
		return nil
	}
	pods, err := x.config.Pods.Pods()
	if err != nil {
		return nil
	}
	whose := ownersOfProcesses(x.config.Proc, pods, pids)
	var out []share
	for _, g := range gpus {
		begin := len(out)
		for _, p := range g.usage.Processes {
			o, ok := whose[p.PID]
			if !ok {
				continue
			}
			i := slices.IndexFunc(out[begin:], func(s share) bool { return s.owner == o })
			if i < 0 {
				out = append(out, share{owner: o, uuid: g.UUID, mib: -1, percent: -1})
				i = len(out) - 1 - begin
			}
			s := &out[begin+i]
			if p.MemoryMiB >= 0 {
				s.mib = max(s.mib, 0) + p.MemoryMiB
			}
			if p.SMPercent >= 0 {
				s.percent = max(s.percent, 0) + p.SMPercent
			}
		}
		slices.SortFunc(out[begin:], func(a, b share) int {
			return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.pod, b.pod), cmp.Compare(a.container, b.container))
		})
	}
	return out
}

const (
	mib = 1 << 20
	mhz = 1e6
)

// values is a metric of GPUs. of returns the value for a GPU. It returns false if the GPU has none.
type values struct {
	name string
	help string
	of   func(reading) (float64, bool)
}

// kind returns Counter for a value that only rises.
func (v values) kind() Kind {
	if strings.HasSuffix(v.name, "_total") || strings.Contains(v.name, "_TOTAL_") {
		return Counter
	}
	return Gauge
}

// known returns the value times the factor. It returns false if the value is negative, which means that the GPU does not report it.
func known[N int | int64](value N, factor float64) (float64, bool) {
	return float64(value) * factor, value >= 0
}

// ratio divides instead of multiplying by 0.01, so that 29 becomes 0.29 and not 0.29000000000000004.
func ratio(percent int) (float64, bool) { return float64(percent) / 100, percent >= 0 }

var gpuMetrics = []values{
	{"karve_gpu_up", "Whether the GPU could be read (1) or not (0).", func(g reading) (float64, bool) { return oneIf(g.up), true }},
	{"karve_gpu_utilization_ratio", "Share of time in which a kernel ran on the GPU.", whenUp(func(g reading) (float64, bool) { return ratio(g.usage.GPUPercent) })},
	{"karve_gpu_memory_used_bytes", "Device memory in use.", whenUp(func(g reading) (float64, bool) { return known(g.usage.MemoryUsedMiB, mib) })},
	{"karve_gpu_memory_total_bytes", "Device memory of the GPU.", func(g reading) (float64, bool) { return float64(g.MemoryMiB) * mib, g.MemoryMiB > 0 }},
	{"karve_gpu_temperature_celsius", "Temperature of the GPU.", whenUp(func(g reading) (float64, bool) { return known(g.usage.TemperatureCelsius, 1) })},
	{"karve_gpu_power_watts", "Power that the GPU draws.", whenUp(func(g reading) (float64, bool) {
		return float64(g.usage.PowerMilliwatts) / 1000, g.usage.PowerMilliwatts >= 0
	})},
	{"karve_gpu_energy_joules_total", "Energy that the GPU has used since its driver was loaded.", whenUp(func(g reading) (float64, bool) {
		return float64(g.usage.EnergyMillijoules) / 1000, g.usage.EnergyMillijoules >= 0
	})},
	{"karve_gpu_sm_clock_hertz", "Clock of the GPU's multiprocessors.", whenUp(func(g reading) (float64, bool) { return known(g.usage.SMClockMHz, mhz) })},
	{"karve_gpu_memory_clock_hertz", "Clock of the GPU's memory.", whenUp(func(g reading) (float64, bool) { return known(g.usage.MemClockMHz, mhz) })},
	{"karve_gpu_sm_active_ratio", "Share of time in which a multiprocessor had work, averaged over the multiprocessors.", profiled(func(p *gpu.Profiling) float64 { return p.SMActive })},
	{"karve_gpu_sm_occupancy_ratio", "Share of the multiprocessors' warps that were resident.", profiled(func(p *gpu.Profiling) float64 { return p.SMOccupancy })},
	{"karve_gpu_tensor_active_ratio", "Share of time in which the tensor pipe was active.", profiled(func(p *gpu.Profiling) float64 { return p.TensorActive })},
	{"karve_gpu_fp64_active_ratio", "Share of time in which the FP64 pipe was active.", profiled(func(p *gpu.Profiling) float64 { return p.FP64Active })},
	{"karve_gpu_fp32_active_ratio", "Share of time in which the FP32 pipe was active.", profiled(func(p *gpu.Profiling) float64 { return p.FP32Active })},
	{"karve_gpu_fp16_active_ratio", "Share of time in which the FP16 pipe was active.", profiled(func(p *gpu.Profiling) float64 { return p.FP16Active })},
	{"karve_gpu_dram_active_ratio", "Share of the bandwidth of the device memory that was used.", profiled(func(p *gpu.Profiling) float64 { return p.DRAMActive })},
	{"karve_gpu_pcie_transmit_bytes_per_second", "Data that the GPU sent over PCIe.", profiled(func(p *gpu.Profiling) float64 { return p.PCIeTransmit })},
	{"karve_gpu_pcie_receive_bytes_per_second", "Data that the GPU received over PCIe.", profiled(func(p *gpu.Profiling) float64 { return p.PCIeReceive })},
	{"karve_gpu_nvlink_transmit_bytes_per_second", "Data that the GPU sent over all of its NVLinks.", profiled(func(p *gpu.Profiling) float64 { return p.NVLinkTransmit })},
	{"karve_gpu_nvlink_receive_bytes_per_second", "Data that the GPU received over all of its NVLinks.", profiled(func(p *gpu.Profiling) float64 { return p.NVLinkReceive })},
	{"karve_gpu_replicas", "Replicas that the GPU is shared into.", func(g reading) (float64, bool) { return g.replicas.total() }},
	{"karve_gpu_replicas_allocated", "Replicas of the GPU that pods hold.", func(g reading) (float64, bool) { return g.replicas.allocated() }},
}

func whenUp(of func(reading) (float64, bool)) func(reading) (float64, bool) {
	return func(g reading) (float64, bool) {
		value, ok := of(g)
		return value, ok && g.up
	}
}

// profiled returns false for a GPU without profiling counters.
func profiled(of func(*gpu.Profiling) float64) func(reading) (float64, bool) {
	return whenUp(func(g reading) (float64, bool) {
		if g.usage.Profiling == nil {
			return 0, false
		}
		value := of(g.usage.Profiling)
		return value, value >= 0
	})
}

func (g reading) labels(more ...string) []string {
	return append([]string{"gpu", g.UUID, "index", strconv.Itoa(g.Index), "product", g.Product}, more...)
}

func writeGPUs(t *Text, gpus []reading) {
	for _, m := range gpuMetrics {
		t.Family(m.name, m.kind(), m.help)
		for _, g := range gpus {
			if value, ok := m.of(g); ok {
				t.Sample(value, g.labels()...)
			}
		}
	}
}

var instanceMetrics = []struct {
	name, help string
	of         func(instanceReading) (float64, bool)
}{
	{"karve_gpu_instance_memory_used_bytes", "Device memory in use of the MIG instance.", func(p instanceReading) (float64, bool) { return known(p.usedMiB, mib) }},
	{"karve_gpu_instance_memory_total_bytes", "Device memory of the MIG instance.", func(p instanceReading) (float64, bool) { return known(p.MemoryMiB, mib) }},
	{"karve_gpu_instance_replicas", "Replicas that the MIG instance is shared into.", func(p instanceReading) (float64, bool) { return p.replicas.total() }},
	{"karve_gpu_instance_replicas_allocated", "Replicas of the MIG instance that pods hold.", func(p instanceReading) (float64, bool) { return p.replicas.allocated() }},
}

// writeInstances writes the metrics of MIG instances. Those of GPUs stay as they are, so that sums over GPUs do not count memory twice.
func writeInstances(t *Text, gpus []reading) {
	for _, m := range instanceMetrics {
		t.Family(m.name, Gauge, m.help)
		for _, g := range gpus {
			for _, p := range g.instances {
				if value, ok := m.of(p); ok {
					t.Sample(value, g.labels("mig", p.UUID, "profile", p.Profile)...)
				}
			}
		}
	}
}

// writeXIDs writes the counts of XIDs, including those of GPUs that are gone, because a counter must not disappear.
func (x *Exporter) writeXIDs(t *Text, gpus []reading) {
	x.mu.Lock()
	defer x.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(x.xids), func(a, b xidKey) int { return cmp.Or(cmp.Compare(a.uuid, b.uuid), cmp.Compare(a.xid, b.xid)) })
	t.Family("karve_gpu_xid_errors_total", Counter, "Errors that the GPU reported, by NVIDIA's XID.")
	for _, key := range keys {
		labels := []string{"gpu", key.uuid, "index", "", "product", ""}
		if i := slices.IndexFunc(gpus, func(g reading) bool { return g.UUID == key.uuid }); i >= 0 {
			labels = gpus[i].labels()
		}
		t.Sample(float64(x.xids[key]), append(labels, "xid", strconv.Itoa(key.xid))...)
	}
}

// writeAsked leaves out GPUs for which the driver does not say what they need.
func (x *Exporter) writeAsked(t *Text, gpus []reading) {
	x.mu.Lock()
	defer x.mu.Unlock()
	t.Family("karve_gpu_recovery_action", Gauge, "1 for the action with which the driver asks to recover the GPU, or for None.")
	for _, g := range gpus {
		if r, ok := x.asked[g.UUID]; ok && r != gpu.RecoveryUnknown && g.up {
			t.Sample(1, g.labels("action", r.String())...)
		}
	}
}

func writeHeld(t *Text, gpus []reading, held []Held) {
	t.Family("karve_pod_gpu_replicas", Gauge, "Replicas of the GPU that the container holds.")
	devices := make([]gpu.Device, len(gpus))
	for i := range gpus {
		devices[i] = gpus[i].Device
	}
	for _, h := range held {
		d, instance := gpu.Find(devices, h.UUID)
		if d == nil {
			continue
		}
		labels := []string{"namespace", h.Namespace, "pod", h.Pod, "container", h.Container, "gpu", d.UUID}
		if instance != nil {
			labels = append(labels, "mig", instance.UUID)
		}
		t.Sample(float64(h.Replicas), labels...)
	}
}

func writeShares(t *Text, shares []share) {
	labels := func(s share) []string {
		return []string{"namespace", s.namespace, "pod", s.pod, "container", s.container, "gpu", s.uuid}
	}
	t.Family("karve_pod_gpu_memory_used_bytes", Gauge, "Device memory that the container's processes hold on the GPU.")
	for _, s := range shares {
		if value, ok := known(s.mib, mib); ok {
			t.Sample(value, labels(s)...)
		}
	}
	t.Family("karve_pod_gpu_sm_ratio", Gauge, "Share of the GPU's multiprocessor time that the container's processes had.")
	for _, s := range shares {
		if value, ok := ratio(s.percent); ok {
			t.Sample(value, labels(s)...)
		}
	}
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
