package plugin

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"strconv"
	"strings"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/sharing"
)

// What NVIDIA's container runtime reads.
const (
	visibleDevices  = "NVIDIA_VISIBLE_DEVICES"
	volumeMounts    = "/var/run/nvidia-container-devices"
	nothing         = "/dev/null"
	defaultCDIKind  = "k8s.device-plugin.nvidia.com/gpu"
	cdiPlugin       = "nvidia-device-plugin"
	enabled         = "enabled"
	deviceReadWrite = "rw"
)

// controlDevices are the device files that no single GPU owns. Not every machine has all of them.
var controlDevices = []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"}

// answer is what a container gets for its GPUs, each of which is there once.
func answer(s sharing.Settings, cdiKind string, gpus []gpu.Device, exists func(string) bool) *pluginapi.ContainerAllocateResponse {
	r := &pluginapi.ContainerAllocateResponse{Envs: map[string]string{}}
	names := make([]string, 0, len(gpus))
	for _, g := range gpus {
		if s.DeviceIDStrategy == sharing.IDByIndex {
			names = append(names, strconv.Itoa(g.Index))
		} else {
			names = append(names, g.UUID)
		}
	}
	for name, on := range map[string]bool{"NVIDIA_GDRCOPY": s.GDRCopy, "NVIDIA_GDS": s.GDS, "NVIDIA_MOFED": s.MOFED} {
		if on {
			r.Envs[name] = enabled
		}
	}
	cdi := make([]string, 0, len(names))
	for _, name := range names {
		cdi = append(cdi, cdiKind+"="+name)
	}
	if s.Has(sharing.ListCDIAnnotations) {
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
		return r // CDI brings the device files, and the environment variable would have the runtime bring them again.
	}
	r.Envs[visibleDevices] = strings.Join(names, ",")
	if s.Has(sharing.ListVolumeMounts) {
		r.Envs[visibleDevices] = volumeMounts
		for _, name := range names {
			r.Mounts = append(r.Mounts, &pluginapi.Mount{HostPath: nothing, ContainerPath: path.Join(volumeMounts, name)})
		}
	}
	if s.PassDeviceSpecs {
		r.Devices = deviceFiles(s.DevRoot, gpus, exists)
	}
	return r
}

func deviceFiles(root string, gpus []gpu.Device, exists func(string) bool) []*pluginapi.DeviceSpec {
	var out []*pluginapi.DeviceSpec
	add := func(file string) {
		out = append(out, &pluginapi.DeviceSpec{ContainerPath: file, HostPath: path.Join(root, file), Permissions: deviceReadWrite})
	}
	for _, file := range controlDevices {
		if exists(file) {
			add(file)
		}
	}
	for _, g := range gpus {
		add("/dev/nvidia" + strconv.Itoa(g.Minor))
	}
	return out
}
