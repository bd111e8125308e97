package nvml

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/node/gpu"
)

const libraryName = "libnvidia-ml.so.1"

// folders are the directories below the driver root in which distributions install the library.
var folders = []string{
	"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu",
	"usr/local/nvidia/lib64",
}

// Options configure a Library.
type Options struct {
	// Library is the path of libnvidia-ml.so.1. If it is empty, the library is searched for below DriverRoot, and if that is empty, where the dynamic
	// loader searches, including LD_LIBRARY_PATH.
	Library string
	// DriverRoot is the directory with the root file system of the host that has the driver, for example "/driver-root".
	DriverRoot string
	// Sysfs is the path of sysfs. It defaults to "/sys".
	Sysfs string
	// Dev is the directory of the device files. It defaults to "/dev".
	Dev string
	// Clock defaults to the system clock.
	Clock clock.PassiveClock
	// Skipped is called with the errors of GPUs that cannot be used. It may be nil.
	Skipped func(error)
}

// Library implements gpu.Library.
type Library struct {
	options Options

	// open is held for reading while NVML is in use, and for writing to open or close it. Closing NVML during a call would crash.
	open sync.RWMutex
	api  nvml.Interface
	has  map[string]bool
	// ready is true between Init and Shutdown. generation is the number of Inits.
	ready      bool
	generation int

	// wait is held by the goroutine that waits for events.
	wait       sync.Mutex
	events     nvml.EventSet
	registered []string // The GPUs in events.

	// mu guards the fields below. NVML is not called while it is held.
	mu       sync.Mutex
	known    map[string]known
	lost     map[string]bool
	pending  []gpu.Event
	shares   map[string]shares
	counters map[string]*counters
	unusable []gpu.Unusable
	// files reports whether there were device files.
	files bool
}

// known is a GPU that was read.
type known struct {
	device     gpu.Device
	handle     nvml.Device
	migDevices map[string]nvml.Device // The handles of its MIG instances.
	// address is the PCI address, or "" if NVML does not report it.
	address string
}

var _ gpu.Library = (*Library)(nil)

// New returns a library that is not open yet.
func New(o Options) *Library {
	if o.Sysfs == "" {
		o.Sysfs = "/sys"
	}
	if o.Dev == "" {
		o.Dev = "/dev"
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Skipped == nil {
		o.Skipped = func(error) {}
	}
	return &Library{options: o}
}

// Init implements gpu.Library.
func (l *Library) Init() (gpu.Driver, error) {
	l.open.Lock()
	defer l.open.Unlock()
	if !l.ready {
		if err := l.start(); err != nil {
			return gpu.Driver{}, err
		}
	}
	version, code := l.api.SystemGetDriverVersion()
	if err := callError(code, "reading the driver's version"); err != nil {
		return gpu.Driver{}, err
	}
	cuda, code := l.api.SystemGetCudaDriverVersion()
	if err := callError(code, "reading the driver's CUDA version"); err != nil {
		return gpu.Driver{}, err
	}
	return gpu.Driver{Version: version, CUDAMajor: cuda / 1000, CUDAMinor: cuda % 1000 / 10}, nil
}

// start loads and opens NVML, reads the GPUs and registers for their events.
func (l *Library) start() error {
	if l.api == nil {
		path, err := l.find()
		if err != nil {
			return err
		}
		l.api = nvml.New(nvml.WithLibraryPath(path))
	}
	l.mu.Lock()
	l.unusable = nil
	l.mu.Unlock()
	code := l.api.Init()
	if code == nvml.ERROR_LIBRARY_NOT_FOUND {
		l.api = nil // The library may be at another path later.
	}
	if err := callError(code, "opening NVML"); err != nil {
		return err
	}
	l.has = map[string]bool{}
	for _, name := range slices.Concat([]string{
		"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMigMode", "nvmlDeviceGetProcessUtilization", "nvmlDeviceGetMPSComputeRunningProcesses",
		"nvmlGetExcludedDeviceCount", "nvmlGetExcludedDeviceInfoByIndex", "nvmlDeviceGetFieldValues",
		"nvmlDeviceGetTotalEnergyConsumption",
	}, linkFunctions, profilingFunctions) {
		l.has[name] = l.api.Extensions().LookupSymbol(name) == nil
	}
	l.mu.Lock()
	l.known, l.lost, l.pending, l.shares = map[string]known{}, map[string]bool{}, nil, map[string]shares{}
	l.counters = map[string]*counters{}
	l.mu.Unlock()
	_, err := l.devices()
	if err == nil {
		err = l.register()
	}
	if err == nil {
		err = l.checkFiles()
	}
	if err != nil {
		return errors.Join(err, callError(l.api.Shutdown(), "closing NVML"))
	}
	l.ready = true
	l.generation++
	return nil
}

// find returns the path to load. A bare name lets the dynamic loader search.
func (l *Library) find() (string, error) {
	if l.options.Library != "" {
		return l.options.Library, nil
	}
	if l.options.DriverRoot == "" {
		return libraryName, nil
	}
	for _, folder := range folders {
		path := filepath.Join(l.options.DriverRoot, folder, libraryName)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	err := callError(nvml.ERROR_LIBRARY_NOT_FOUND, "opening NVML")
	return "", fmt.Errorf("looking below %s: %w", l.options.DriverRoot, err)
}

// Shutdown implements gpu.Library.
func (l *Library) Shutdown() error {
	l.open.Lock()
	defer l.open.Unlock()
	if !l.ready {
		return nil
	}
	l.ready = false
	l.unregister()
	l.forgetCounters(func(string) bool { return false })
	return callError(l.api.Shutdown(), "closing NVML")
}

// Devices implements gpu.Library.
func (l *Library) Devices() ([]gpu.Device, error) {
	l.open.RLock()
	defer l.open.RUnlock()
	if !l.ready {
		return nil, gpu.ErrClosed
	}
	return l.devices()
}

// SetComputeMode sets the compute mode of a GPU, which only an administrator may do. It lasts until the driver is unloaded.
func (l *Library) SetComputeMode(uuid string, mode gpu.ComputeMode) error {
	l.open.RLock()
	defer l.open.RUnlock()
	k, err := l.lookup("setting the compute mode of", uuid)
	if err != nil {
		return err
	}
	return callError(k.handle.SetComputeMode(nvml.ComputeMode(mode)), "setting the compute mode of %s", uuid)
}

// lookup returns a GPU that was read. l.open is held.
func (l *Library) lookup(doing, uuid string) (known, error) {
	if !l.ready {
		return known{}, gpu.ErrClosed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k, ok := l.known[uuid]
	if !ok {
		return known{}, fmt.Errorf("%s %s: %w", doing, uuid, gpu.ErrUnknown)
	}
	return k, nil
}

// displays are the products that only drive a screen. NVIDIA's go-nvlib, through which its plugin lists GPUs, leaves them out too.
var displays = []string{"DGX Display", "NVIDIA DGX Display"}

// devices returns the GPUs that are present, and those that were present at Init and are lost. A GPU that could never be read is skipped, so that the
// others can be used. If no GPU can be read, it returns an error.
func (l *Library) devices() ([]gpu.Device, error) {
	count, code := l.api.DeviceGetCount()
	if err := callError(code, "counting the GPUs"); err != nil {
		return nil, err
	}
	found := map[string]known{}
	var skipped []error
	for i := range count {
		k, err := l.read(i)
		switch {
		case err == nil:
			found[k.device.UUID] = k
		case l.markLostAt(i):
		default:
			skipped = append(skipped, err)
		}
	}
	l.mu.Lock()
	for uuid, k := range l.known {
		if _, there := found[uuid]; !there && l.lost[uuid] {
			found[uuid] = k
		}
	}
	l.known = found
	l.mu.Unlock()
	l.forgetCounters(func(uuid string) bool {
		_, there := l.known[uuid]
		return there && !l.lost[uuid]
	})
	unusable := l.unusableOf(found, skipped)
	l.mu.Lock()
	l.unusable = unusable
	out := make([]gpu.Device, 0, len(found))
	for _, k := range found {
		if !slices.Contains(displays, k.device.Product) {
			out = append(out, k.device)
		}
	}
	l.mu.Unlock()
	slices.SortFunc(out, func(a, b gpu.Device) int { return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID)) })
	if len(out) == 0 && len(skipped) > 0 {
		return nil, errors.Join(skipped...)
	}
	for _, err := range skipped {
		l.options.Skipped(err)
	}
	return out, nil
}

// read reads the properties of a GPU that do not change while it is in use.
func (l *Library) read(i int) (known, error) {
	handle, code := l.api.DeviceGetHandleByIndex(i)
	if err := callError(code, "finding GPU %d", i); err != nil {
		return known{}, err
	}
	d := gpu.Device{Index: i}
	for _, step := range []struct {
		what string
		read func() nvml.Return
	}{
		{"UUID", func() (code nvml.Return) { d.UUID, code = handle.GetUUID(); return code }},
		{"name", func() (code nvml.Return) { d.Product, code = handle.GetName(); return code }},
		{"device file", func() (code nvml.Return) { d.Minor, code = handle.GetMinorNumber(); return code }},
		{"compute capability", func() (code nvml.Return) {
			d.ComputeMajor, d.ComputeMinor, code = handle.GetCudaComputeCapability()
			return code
		}},
	} {
		if err := callError(step.read(), "reading the %s of GPU %d", step.what, i); err != nil {
			return known{}, err
		}
	}
	m, code := handle.GetMemoryInfo()
	switch code {
	case nvml.SUCCESS:
		d.MemoryMiB = mib(m.Total)
	case nvml.ERROR_GPU_IS_LOST:
		return known{}, callError(code, "reading the memory of GPU %d", i)
	default: // GPUs that use the memory of the machine do not report it, but can compute.
	}
	if l.has["nvmlDeviceGetMigMode"] {
		if current, _, code := handle.GetMigMode(); code == nvml.SUCCESS {
			d.MIGCapable, d.MIG = true, current == nvml.DEVICE_MIG_ENABLE
		}
	}
	k := known{handle: handle}
	if d.MIG {
		var err error
		if d.Instances, k.migDevices, err = l.instances(i, handle); err != nil {
			return known{}, err
		}
	}
	if mode, code := handle.GetComputeMode(); code == nvml.SUCCESS {
		d.ComputeMode = gpu.ComputeMode(mode)
	}
	k.device = d
	if pci, code := handle.GetPciInfo(); code == nvml.SUCCESS {
		k.address = busAddress(pci.Domain, pci.Bus, pci.Device)
	}
	k.device.NUMANode, k.device.PCIeRoot = l.numaNode(k.address), l.pcieRoot(k.address)
	return k, nil
}

// pcieRoot returns the root complex that the kernel reports, or "" if unknown.
func (l *Library) pcieRoot(address string) string {
	path, err := filepath.EvalSymlinks(filepath.Join(l.options.Sysfs, "bus", "pci", "devices", address))
	if err != nil {
		return ""
	}
	for part := range strings.SplitSeq(path, string(filepath.Separator)) {
		if domain, bus, ok := strings.Cut(strings.TrimPrefix(part, "pci"), ":"); ok && strings.HasPrefix(part, "pci") && len(domain) >= 4 && len(bus) == 2 {
			return part
		}
	}
	return ""
}

// numaNode returns the NUMA node that the kernel reports, or -1 if unknown. NVML's own function is about the memory of coherent machines and not about
// the location of the GPU.
func (l *Library) numaNode(address string) int {
	content, err := os.ReadFile(filepath.Join(l.options.Sysfs, "bus", "pci", "devices", address, "numa_node"))
	if err != nil {
		return -1
	}
	node, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil || node < 0 {
		return -1
	}
	return node
}

// markLostAt marks the GPU with the index as lost, and reports whether there is one.
func (l *Library) markLostAt(i int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for uuid, k := range l.known {
		if k.device.Index == i {
			l.markLostLocked(uuid)
			return true
		}
	}
	return false
}

func (l *Library) markLost(uuid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.markLostLocked(uuid)
}

// markLostLocked marks a GPU as lost. The next Wait reports it, once.
func (l *Library) markLostLocked(uuid string) {
	if !l.lost[uuid] {
		l.lost[uuid] = true
		l.pending = append(l.pending, gpu.Event{UUID: uuid, Lost: true})
	}
}

func mib(bytes uint64) int64 { return int64(bytes >> 20) }

// linkFunctions are the NVML functions for reading links.
var linkFunctions = []string{"nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemotePciInfo_v2"}

// shares are the processes' shares of a GPU's time in the last samples.
type shares struct {
	at      time.Time
	until   uint64 // the time of the latest sample, on NVML's clock
	percent map[int]int
}

// alive returns the GPUs that are not lost, by UUID.
func (l *Library) alive() map[string]known {
	l.mu.Lock()
	defer l.mu.Unlock()
	alive := maps.Clone(l.known)
	maps.DeleteFunc(alive, func(uuid string, _ known) bool { return l.lost[uuid] })
	return alive
}
