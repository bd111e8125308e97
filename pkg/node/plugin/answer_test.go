package plugin

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/mps"
	"karve.sh/karve/pkg/node/sharing"
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
		"by index, with all features": {
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
		"with an IMEX channel": {
			sharing.Settings{DeviceLists: []string{"envvar"}, DeviceIDStrategy: "uuid", PassDeviceSpecs: true, DevRoot: "/", IMEXChannels: []int{0}},
			&pluginapi.ContainerAllocateResponse{
				Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b", "NVIDIA_IMEX_CHANNELS": "0"},
				Devices: []*pluginapi.DeviceSpec{
					{ContainerPath: "/dev/nvidiactl", HostPath: "/dev/nvidiactl", Permissions: "rw"},
					{ContainerPath: "/dev/nvidia-uvm", HostPath: "/dev/nvidia-uvm", Permissions: "rw"},
					{ContainerPath: "/dev/nvidia3", HostPath: "/dev/nvidia3", Permissions: "rw"},
					{ContainerPath: "/dev/nvidia1", HostPath: "/dev/nvidia1", Permissions: "rw"},
					{ContainerPath: "/dev/nvidia-caps-imex-channels/channel0", HostPath: "/dev/nvidia-caps-imex-channels/channel0", Permissions: "rw"},
				},
			},
		},
		"with an IMEX channel as a mount": {
			sharing.Settings{DeviceLists: []string{"volume-mounts"}, DeviceIDStrategy: "index", IMEXChannels: []int{0}},
			&pluginapi.ContainerAllocateResponse{
				Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"},
				Mounts: []*pluginapi.Mount{
					{HostPath: "/dev/null", ContainerPath: "/var/run/nvidia-container-devices/0"},
					{HostPath: "/dev/null", ContainerPath: "/var/run/nvidia-container-devices/1"},
					{HostPath: "/dev/null", ContainerPath: "/var/run/nvidia-container-devices/imex/0"},
				},
			},
		},
		"by CDI, with all features": {
			sharing.Settings{DeviceLists: []string{"cdi-cri"}, DeviceIDStrategy: "index", GDRCopy: true, GDS: true, MOFED: true, IMEXChannels: []int{0}},
			&pluginapi.ContainerAllocateResponse{
				Envs: map[string]string{"NVIDIA_GDRCOPY": "enabled", "NVIDIA_GDS": "enabled", "NVIDIA_MOFED": "enabled"},
				CdiDevices: []*pluginapi.CDIDevice{
					{Name: "nvidia.com/gpu=0"},
					{Name: "nvidia.com/gpu=1"},
					{Name: "nvidia.com/imex-channel=0"},
					{Name: "nvidia.com/gdrcopy=all"},
					{Name: "nvidia.com/gds=all"},
					{Name: "nvidia.com/mofed=all"},
				},
			},
		},
		"by CDI alone": {
			sharing.Settings{DeviceLists: []string{"cdi-cri"}, DeviceIDStrategy: "uuid", PassDeviceSpecs: true},
			&pluginapi.ContainerAllocateResponse{CdiDevices: []*pluginapi.CDIDevice{{Name: "nvidia.com/gpu=GPU-a"}, {Name: "nvidia.com/gpu=GPU-b"}}},
		},
		"by CDI in annotations, and the environment": {
			sharing.Settings{DeviceLists: []string{"cdi-annotations", "envvar"}, DeviceIDStrategy: "uuid", CDIAnnotationPrefix: "cdi.k8s.io/"},
			&pluginapi.ContainerAllocateResponse{
				Envs:        map[string]string{"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b"},
				Annotations: map[string]string{"cdi.k8s.io/nvidia-device-plugin_2c54105b3028c6c24ea43062630f4777": "nvidia.com/gpu=GPU-a,nvidia.com/gpu=GPU-b"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := answer(c.settings, c.settings.IMEXChannels, []device{{GPU: sharing.GPU{Device: one}}, {GPU: sharing.GPU{Device: two}}}, exists)
			if diff := cmp.Diff(c.want, got, protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAnswerForInstances(t *testing.T) {
	t.Parallel()
	devices := []device{
		{GPU: sharing.GPU{Device: gpu.Device{UUID: "GPU-a", Index: 0, Minor: 3}, Instance: &gpu.Instance{UUID: "MIG-a", Index: 2}}, files: []string{"/dev/nvidia-caps/nvidia-cap66", "/dev/nvidia-caps/nvidia-cap67"}},
		{GPU: sharing.GPU{Device: gpu.Device{UUID: "GPU-a", Index: 0, Minor: 3}, Instance: &gpu.Instance{UUID: "MIG-b", Index: 3}}, files: []string{"/dev/nvidia-caps/nvidia-cap75", "/dev/nvidia-caps/nvidia-cap76"}},
	}
	file := func(path string) *pluginapi.DeviceSpec {
		return &pluginapi.DeviceSpec{ContainerPath: path, HostPath: path, Permissions: "rw"}
	}
	for name, c := range map[string]struct {
		settings sharing.Settings
		want     *pluginapi.ContainerAllocateResponse
	}{
		"by UUID": {
			sharing.Settings{DeviceLists: []string{"envvar"}, DeviceIDStrategy: "uuid"},
			&pluginapi.ContainerAllocateResponse{Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": "MIG-a,MIG-b"}},
		},
		"by index": {
			sharing.Settings{DeviceLists: []string{"envvar"}, DeviceIDStrategy: "index"},
			&pluginapi.ContainerAllocateResponse{Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": "0:2,0:3"}},
		},
		"as mounts": {
			sharing.Settings{DeviceLists: []string{"volume-mounts"}, DeviceIDStrategy: "uuid"},
			&pluginapi.ContainerAllocateResponse{
				Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"},
				Mounts: []*pluginapi.Mount{
					{HostPath: "/dev/null", ContainerPath: "/var/run/nvidia-container-devices/MIG-a"},
					{HostPath: "/dev/null", ContainerPath: "/var/run/nvidia-container-devices/MIG-b"},
				},
			},
		},
		"by CDI": {
			sharing.Settings{DeviceLists: []string{"cdi-cri"}, DeviceIDStrategy: "uuid"},
			&pluginapi.ContainerAllocateResponse{CdiDevices: []*pluginapi.CDIDevice{{Name: "nvidia.com/gpu=MIG-a"}, {Name: "nvidia.com/gpu=MIG-b"}}},
		},
		"with device files, once for the GPU": {
			sharing.Settings{DeviceLists: []string{"envvar"}, DeviceIDStrategy: "uuid", PassDeviceSpecs: true, DevRoot: "/"},
			&pluginapi.ContainerAllocateResponse{
				Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": "MIG-a,MIG-b"},
				Devices: []*pluginapi.DeviceSpec{
					file("/dev/nvidiactl"), file("/dev/nvidia3"), file("/dev/nvidia-caps/nvidia-cap66"), file("/dev/nvidia-caps/nvidia-cap67"),
					file("/dev/nvidia-caps/nvidia-cap75"), file("/dev/nvidia-caps/nvidia-cap76"),
				},
			},
		},
	} {
		got := answer(c.settings, nil, devices, func(path string) bool { return path == "/dev/nvidiactl" })
		if diff := cmp.Diff(c.want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestIMEXChannelsExistOnMachine(t *testing.T) {
	t.Parallel()
	const file = "/dev/nvidia-caps-imex-channels/channel0"
	for name, c := range map[string]struct {
		settings sharing.Settings
		there    string
		want     []int
		err      string
	}{
		"none configured":               {sharing.Settings{}, file, nil, ""},
		"there":                         {sharing.Settings{IMEXChannels: []int{0}}, file, []int{0}, ""},
		"below the driver root":         {sharing.Settings{IMEXChannels: []int{0}, ContainerDriverRoot: "/driver-root"}, "/driver-root" + file, []int{0}, ""},
		"missing":                       {sharing.Settings{IMEXChannels: []int{0}}, "", nil, ""},
		"missing and required":          {sharing.Settings{IMEXChannels: []int{0}, IMEXRequired: true}, "", nil, "imex.required: the machine has no " + file},
		"required, and none configured": {sharing.Settings{IMEXRequired: true}, "", nil, ""},
	} {
		got, err := channels(c.settings, func(path string) bool { return path == c.there })
		if diff := cmp.Diff(c.want, got); diff != "" || (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func TestOnlyCDIRequiresSpecs(t *testing.T) {
	t.Parallel()
	one := []device{{GPU: sharing.GPU{Device: gpu.Device{UUID: "GPU-a", Index: 3}}}}
	for name, c := range map[string]struct {
		settings sharing.Settings
		channels []int
		asked    []string
		err      string
	}{
		"the environment":         {sharing.Settings{DeviceLists: []string{"envvar", "volume-mounts"}, GDS: true}, nil, nil, ""},
		"annotations":             {sharing.Settings{DeviceLists: []string{"envvar", "cdi-annotations"}, DeviceIDStrategy: "uuid"}, nil, []string{"nvidia.com/gpu=GPU-a"}, "envvar,cdi-annotations, and no spec"},
		"the runtime, by index":   {sharing.Settings{DeviceLists: []string{"cdi-cri"}, DeviceIDStrategy: "index"}, nil, []string{"nvidia.com/gpu=3"}, "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml --device-name-strategy=index"},
		"with additional devices": {sharing.Settings{DeviceLists: []string{"cdi-cri"}, GDS: true, MOFED: true}, []int{0}, []string{"nvidia.com/gpu=GPU-a", "nvidia.com/imex-channel=0", "nvidia.com/gds=all", "nvidia.com/mofed=all"}, "with --mode=imex"},
	} {
		var asked []string
		known := checkResolvable(c.settings, c.channels, one, func(d []string) error { asked = d; return nil })
		if diff := cmp.Diff(c.asked, asked); diff != "" || known != nil {
			t.Errorf("%s: %v %s", name, known, diff)
		}
		err := checkResolvable(c.settings, c.channels, one, func([]string) error { return errors.New("no spec") })
		if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestContainerIsClientOfMPSDaemonOfItsGPU(t *testing.T) {
	t.Parallel()
	limits := mps.Limits{UUID: "GPU-a", MemoryMiB: 1536, ThreadPercent: 10}
	for stated, want := range map[Stated][2]string{
		{}: {}, {MemoryMiB: 1536}: {}, {MemoryMiB: 4096}: {}, {MemoryMiB: 1535}: {"0=1535M"}, {MemoryMiB: 1}: {"0=1M"},
		{ThreadPercent: 10}: {}, {ThreadPercent: 50}: {}, {ThreadPercent: 9}: {"", "9"}, {MemoryMiB: 1024, ThreadPercent: 1}: {"0=1024M", "1"},
	} {
		r := &pluginapi.ContainerAllocateResponse{Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": "GPU-a"}}
		withMPS(r, Config{MPSDir: "/run/karve/mps"}, limits, stated)
		envs := map[string]string{"NVIDIA_VISIBLE_DEVICES": "GPU-a", "CUDA_MPS_PIPE_DIRECTORY": "/run/karve/mps/pipe"}
		for i, name := range []string{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"} {
			if want[i] != "" {
				envs[name] = want[i]
			}
		}
		if diff := cmp.Diff(envs, r.GetEnvs()); diff != "" {
			t.Errorf("a pod that states %+v: (-want +got)\n%s", stated, diff)
		}
	}
}

// A daemon that an earlier version started keeps running with the directory that it has at /dev/shm, and so do its clients.
func TestContainerHasSharedMemoryOfItsDaemonAndCannotWriteToPipes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status   *mps.Status
		writable bool
		shm      string
	}{
		"a daemon of an earlier version": {&mps.Status{Daemons: []mps.Daemon{{Limits: mps.Limits{UUID: "GPU-a"}}, {Limits: mps.Limits{UUID: "GPU-b"}, OwnShm: true}}}, false, "shm"},
		"a daemon of this version":       {&mps.Status{Daemons: []mps.Daemon{{Limits: mps.Limits{UUID: "GPU-a"}, OwnShm: true}}}, true, "GPU-a/shm"},
		"no daemon":                      {nil, false, "shm"},
	} {
		dir := t.TempDir()
		if c.status != nil {
			if err := c.status.Write(dir); err != nil {
				t.Fatal(err)
			}
		}
		r := &pluginapi.ContainerAllocateResponse{Envs: map[string]string{}}
		withMPS(r, Config{MPSDir: dir, MPSWritablePipes: c.writable}, mps.Limits{UUID: "GPU-a"}, Stated{})
		want := []*pluginapi.Mount{
			{HostPath: dir + "/GPU-a/pipe", ContainerPath: "/run/karve/mps/pipe", ReadOnly: !c.writable},
			{HostPath: dir + "/" + c.shm, ContainerPath: "/dev/shm"},
		}
		if diff := cmp.Diff(want, r.GetMounts(), protocmp.Transform()); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
}

func TestVariablesOfSlotHaveUnitOfGPUShare(t *testing.T) {
	t.Parallel()
	for inMiB, want := range map[bool]map[string]string{
		false: {"CUDA_DEVICE_MEMORY_LIMIT": "1536m", "ALIYUN_COM_GPU_MEM_CONTAINER": "1", "ALIYUN_COM_GPU_MEM_POD": "1", "ALIYUN_COM_GPU_MEM_DEV": "15", "ALIYUN_COM_GPU_MEM_IDX": "2"},
		true:  {"CUDA_DEVICE_MEMORY_LIMIT": "1536m", "ALIYUN_COM_GPU_MEM_CONTAINER": "1536", "ALIYUN_COM_GPU_MEM_POD": "1536", "ALIYUN_COM_GPU_MEM_DEV": "15360", "ALIYUN_COM_GPU_MEM_IDX": "2"},
	} {
		var g device
		g.MemoryMiB, g.Index = 15360, 2
		r := &pluginapi.ContainerAllocateResponse{Envs: map[string]string{}}
		withSlot(r, g, 1536, inMiB)
		if diff := cmp.Diff(want, r.GetEnvs()); diff != "" {
			t.Errorf("MiB: %t (-want +got):\n%s", inMiB, diff)
		}
	}
}
