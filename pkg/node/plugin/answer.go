package plugin

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"karve.sh/karve/pkg/node/mig"
	"karve.sh/karve/pkg/node/mps"
	"karve.sh/karve/pkg/node/sharing"
)

// Environment variables and values that NVIDIA's container runtime reads.
const (
	visibleDevices  = "NVIDIA_VISIBLE_DEVICES"
	imexChannels    = "NVIDIA_IMEX_CHANNELS"
	volumeMounts    = "/var/run/nvidia-container-devices"
	nothing         = "/dev/null"
	cdiVendor       = "nvidia.com/"
	cdiPlugin       = "nvidia-device-plugin"
	enabled         = "enabled"
	deviceReadWrite = "rw"
)

// controlDevices are the device files that all GPUs share. Some machines do not have all of them.
var controlDevices = []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"}

// Answer returns the Allocate response for a container with GPUs and MIG instances, each of which is listed once. capabilities has the device files of
// instances. missing returns an error if the container runtime does not know all of the CDI devices.
func Answer(s sharing.Settings, gpus []sharing.GPU, capabilities mig.Capabilities, missing func(cdiDevices []string) error) (*pluginapi.ContainerAllocateResponse, error) {
	devices := make([]device, 0, len(gpus))
	for _, g := range gpus {
		d, err := deviceOf(g, s.PassDeviceSpecs, capabilities)
		if err != nil {
			return nil, err
		}
		devices = append(devices, d)
	}
	slices.SortFunc(devices, device.compare)
	channels, err := channels(s, exists)
	if err != nil {
		return nil, err
	}
	if err := checkResolvable(s, channels, devices, missing); err != nil {
		return nil, err
	}
	return answer(s, channels, devices, exists), nil
}

// answer returns the Allocate response for a container with GPUs and MIG instances, each of which is listed once. channels are the IMEX channels of the
// machine.
func answer(s sharing.Settings, channels []int, gpus []device, exists func(string) bool) *pluginapi.ContainerAllocateResponse {
	r := &pluginapi.ContainerAllocateResponse{Envs: map[string]string{}}
	for _, f := range features(s) {
		r.Envs["NVIDIA_"+strings.ToUpper(f)] = enabled
	}
	cdi := cdiDevices(s, channels, gpus)
	if s.Has(sharing.ListCDIAnnotations) && len(cdi) > 0 {
		all := strings.Join(cdi, ",")
		sum := sha256.Sum256([]byte(all))
		r.Annotations = map[string]string{s.CDIAnnotationPrefix + cdiPlugin + "_" + hex.EncodeToString(sum[:16]): all}
	}
	if s.Has(sharing.ListCDICRI) {
		for _, name := range cdi {
			r.CdiDevices = append(r.CdiDevices, &pluginapi.CDIDevice{Name: name})
		}
	}
	if !s.Has(sharing.ListEnvVar) && !s.Has(sharing.ListVolumeMounts) {
		return r // CDI adds the device files, and the environment variable would make the runtime add them again.
	}
	names := deviceNames(s, gpus)
	if s.Has(sharing.ListEnvVar) {
		r.Envs[visibleDevices] = strings.Join(names, ",")
		if len(channels) > 0 {
			r.Envs[imexChannels] = strings.Join(channelNumbers(channels), ",")
		}
	}
	if s.Has(sharing.ListVolumeMounts) {
		r.Envs[visibleDevices] = volumeMounts
		for _, name := range names {
			r.Mounts = append(r.Mounts, &pluginapi.Mount{HostPath: nothing, ContainerPath: path.Join(volumeMounts, name)})
		}
		for _, channel := range channelNumbers(channels) {
			r.Mounts = append(r.Mounts, &pluginapi.Mount{HostPath: nothing, ContainerPath: path.Join(volumeMounts, "imex", channel)})
		}
	}
	if s.PassDeviceSpecs {
		r.Devices = deviceFiles(s.DevRoot, channels, gpus, exists)
	}
	return r
}

// Names in a container that is a client of an MPS daemon.
const (
	mpsPipes     = "CUDA_MPS_PIPE_DIRECTORY"
	mpsMemory    = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
	mpsThreads   = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	mpsContainer = "/run/karve/mps/pipe"
	sharedMemory = "/dev/shm"
)

// withMPS adds what a container needs to be a client of its GPU's MPS daemon. A process may have lower limits than the daemon's, but not higher ones.
// Connecting to a socket and writing to a pipe do not write to their directory, so the container has it read-only: it cannot remove or replace them.
func withMPS(r *pluginapi.ContainerAllocateResponse, c Config, limits mps.Limits, stated Stated) {
	r.Envs[mpsPipes] = mpsContainer
	if n := stated.MemoryMiB; n > 0 && (n < limits.MemoryMiB || limits.MemoryMiB == 0) {
		r.Envs[mpsMemory] = "0=" + strconv.FormatInt(n, 10) + "M"
	}
	if n := stated.ThreadPercent; n > 0 && n < limits.ThreadPercent {
		r.Envs[mpsThreads] = strconv.FormatInt(n, 10)
	}
	r.Mounts = append(r.Mounts,
		&pluginapi.Mount{HostPath: mps.PipeDir(c.MPSDir, limits.UUID), ContainerPath: mpsContainer, ReadOnly: !c.MPSWritablePipes},
		&pluginapi.Mount{HostPath: mps.ClientShm(c.MPSDir, limits.UUID), ContainerPath: sharedMemory},
	)
}

// Environment variables with the device memory of a container. The agent does not enforce them: they are for programs, and for libraries that do.
const (
	// slotMemory is read by HAMi-core, which limits the allocations of a process.
	slotMemory = "CUDA_DEVICE_MEMORY_LIMIT"
	// These are gpushare's variables, in the unit of its plugin. Programs that were written for it divide the first by the second.
	gpushareContainer, gpusharePod = "ALIYUN_COM_GPU_MEM_CONTAINER", "ALIYUN_COM_GPU_MEM_POD"
	gpushareDevice, gpushareIndex  = "ALIYUN_COM_GPU_MEM_DEV", "ALIYUN_COM_GPU_MEM_IDX"
)

// withSlot adds the variables that describe a container's slot. gpushare's are in GiB, rounded down, or in MiB.
func withSlot(r *pluginapi.ContainerAllocateResponse, g device, mib int64, inMiB bool) {
	unit := int64(1024)
	if inMiB {
		unit = 1
	}
	r.Envs[slotMemory] = strconv.FormatInt(mib, 10) + "m"
	slot := strconv.FormatInt(max(1, mib/unit), 10)
	r.Envs[gpushareContainer], r.Envs[gpusharePod] = slot, slot
	r.Envs[gpushareDevice], r.Envs[gpushareIndex] = strconv.FormatInt(max(1, g.MemoryMiB/unit), 10), strconv.Itoa(g.Index)
}

// features returns the requested features other than GPUs, by their names in NVIDIA's container toolkit.
func features(s sharing.Settings) []string {
	var out []string
	for _, f := range []struct {
		name string
		on   bool
	}{{"gdrcopy", s.GDRCopy}, {"gds", s.GDS}, {"mofed", s.MOFED}} {
		if f.on {
			out = append(out, f.name)
		}
	}
	return out
}

func deviceNames(s sharing.Settings, gpus []device) []string {
	names := make([]string, 0, len(gpus))
	for _, g := range gpus {
		if s.DeviceIDStrategy == sharing.IDByIndex {
			names = append(names, g.index())
		} else {
			names = append(names, g.ID())
		}
	}
	return names
}

// cdiDevices returns the CDI names of the devices, in the order of NVIDIA's plugin.
func cdiDevices(s sharing.Settings, channels []int, gpus []device) []string {
	var out []string
	for _, name := range deviceNames(s, gpus) {
		out = append(out, cdiVendor+"gpu="+name)
	}
	for _, channel := range channelNumbers(channels) {
		out = append(out, cdiVendor+"imex-channel="+channel)
	}
	for _, f := range features(s) {
		out = append(out, cdiVendor+f+"=all")
	}
	return out
}

func deviceFiles(root string, channels []int, gpus []device, exists func(string) bool) []*pluginapi.DeviceSpec {
	var out []*pluginapi.DeviceSpec
	seen := map[string]bool{}
	add := func(file string) {
		if seen[file] {
			return
		}
		seen[file] = true
		out = append(out, &pluginapi.DeviceSpec{ContainerPath: file, HostPath: path.Join(root, file), Permissions: deviceReadWrite})
	}
	for _, file := range controlDevices {
		if exists(file) {
			add(file)
		}
	}
	for _, g := range gpus {
		add("/dev/nvidia" + strconv.Itoa(g.Minor))
		for _, file := range g.files {
			add(file)
		}
	}
	for _, channel := range channels {
		add(channelFile(channel))
	}
	return out
}

func channelFile(channel int) string {
	return "/dev/nvidia-caps-imex-channels/channel" + strconv.Itoa(channel)
}

// channels returns the configured IMEX channels that the machine has. Either the root file system with the driver or only the device file may be
// mounted.
func channels(s sharing.Settings, exists func(string) bool) ([]int, error) {
	var out []int
	for _, channel := range s.IMEXChannels {
		file := channelFile(channel)
		switch there := exists(path.Join(s.ContainerDriverRoot, file)) || exists(file); {
		case there:
			out = append(out, channel)
		case s.IMEXRequired:
			return nil, fmt.Errorf("imex.required: the machine has no %s; load the driver with NVreg_CreateImexChannel0=1, or take imex.required back", file)
		}
	}
	return out, nil
}

// checkResolvable returns an error if the container runtime does not know a device because no CDI spec defines it.
func checkResolvable(s sharing.Settings, channels []int, gpus []device, missing func([]string) error) error {
	if !s.Has(sharing.ListCDIAnnotations) && !s.Has(sharing.ListCDICRI) {
		return nil
	}
	if err := missing(cdiDevices(s, channels, gpus)); err != nil {
		return fmt.Errorf("flags.plugin.deviceListStrategy: is %s, and %w; run nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml --device-name-strategy=%s on the machine "+
			"(with --mode=imex, gds, mofed or gdrcopy for those), or use envvar", strings.Join(s.DeviceLists, ","), err, s.DeviceIDStrategy)
	}
	return nil
}

func channelNumbers(channels []int) []string {
	out := make([]string, 0, len(channels))
	for _, channel := range channels {
		out = append(out, strconv.Itoa(channel))
	}
	return out
}
