package plugin

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/sharing"
)

func TestAnswer(t *testing.T) {
	t.Parallel()
	one, two := gpu.Device{UUID: "GPU-a", Index: 0, Minor: 3}, gpu.Device{UUID: "GPU-b", Index: 1, Minor: 1}
	exists := func(path string) bool { return path == "/dev/nvidiactl" || path == "/dev/nvidia-uvm" }
	for name, c := range map[string]struct {
		settings sharing.Settings
		want     *pluginapi.ContainerAllocateResponse
	}{
		"by UUID": {
			sharing.Settings{DeviceLists: []string{"envvar"}, DeviceIDStrategy: "uuid"},
			&pluginapi.ContainerAllocateResponse{Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b"}},
		},
		"by index, with all that there is": {
			sharing.Settings{DeviceLists: []string{"envvar"}, DeviceIDStrategy: "index", GDRCopy: true, GDS: true, MOFED: true},
			&pluginapi.ContainerAllocateResponse{Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": "0,1", "NVIDIA_GDRCOPY": "enabled", "NVIDIA_GDS": "enabled", "NVIDIA_MOFED": "enabled"}},
		},
		"as mounts": {
			sharing.Settings{DeviceLists: []string{"volume-mounts"}, DeviceIDStrategy: "uuid"},
			&pluginapi.ContainerAllocateResponse{
				Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"},
				Mounts: []*pluginapi.Mount{
					{HostPath: "/dev/null", ContainerPath: "/var/run/nvidia-container-devices/GPU-a"},
					{HostPath: "/dev/null", ContainerPath: "/var/run/nvidia-container-devices/GPU-b"},
				},
			},
		},
		"with device files": {
			sharing.Settings{DeviceLists: []string{"envvar"}, DeviceIDStrategy: "uuid", PassDeviceSpecs: true, DevRoot: "/run/nvidia/driver"},
			&pluginapi.ContainerAllocateResponse{
				Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b"},
				Devices: []*pluginapi.DeviceSpec{
					{ContainerPath: "/dev/nvidiactl", HostPath: "/run/nvidia/driver/dev/nvidiactl", Permissions: "rw"},
					{ContainerPath: "/dev/nvidia-uvm", HostPath: "/run/nvidia/driver/dev/nvidia-uvm", Permissions: "rw"},
					{ContainerPath: "/dev/nvidia3", HostPath: "/run/nvidia/driver/dev/nvidia3", Permissions: "rw"},
					{ContainerPath: "/dev/nvidia1", HostPath: "/run/nvidia/driver/dev/nvidia1", Permissions: "rw"},
				},
			},
		},
		"by CDI alone": {
			sharing.Settings{DeviceLists: []string{"cdi-cri"}, DeviceIDStrategy: "uuid", PassDeviceSpecs: true},
			&pluginapi.ContainerAllocateResponse{CdiDevices: []*pluginapi.CDIDevice{{Name: "k8s.device-plugin.nvidia.com/gpu=GPU-a"}, {Name: "k8s.device-plugin.nvidia.com/gpu=GPU-b"}}},
		},
		"by CDI in annotations, and the environment": {
			sharing.Settings{DeviceLists: []string{"cdi-annotations", "envvar"}, DeviceIDStrategy: "uuid", CDIAnnotationPrefix: "cdi.k8s.io/"},
			&pluginapi.ContainerAllocateResponse{
				Envs:        map[string]string{"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b"},
				Annotations: map[string]string{"cdi.k8s.io/nvidia-device-plugin_6509f5d076bb3f89171b14db09fb9c7c": "k8s.device-plugin.nvidia.com/gpu=GPU-a,k8s.device-plugin.nvidia.com/gpu=GPU-b"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := answer(c.settings, defaultCDIKind, []gpu.Device{one, two}, exists)
			if diff := cmp.Diff(c.want, got, protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
		})
	}
}
