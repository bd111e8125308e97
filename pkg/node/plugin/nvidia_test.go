package plugin

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/plugintest"
	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/nodecontract"
)

// The test vectors of NVIDIA's device plugin v0.20.0, internal/plugin/server_test.go and internal/rm/rm_test.go. docs/node.md lists the differences that users notice.

// managed returns a manager with these GPUs and this configuration.
func managed(t *testing.T, yaml string, uuids ...string) *Manager {
	t.Helper()
	m := New(Config{KubeletSocket: "/plugins/kubelet.sock", Network: &plugintest.Memory{}, CDIMissing: func([]string) error { return nil }})
	var devices []gpu.Device
	for i, uuid := range uuids {
		devices = append(devices, gpu.Device{UUID: uuid, Index: i, NUMANode: -1})
	}
	c, _, err := sharing.Read([]byte(yaml), true)
	if err == nil {
		err = m.Apply(t.Context(), c, devices)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestAllocateMatchesNVIDIA(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ids  []string
		want *pluginapi.ContainerAllocateResponse
	}{
		"single device":        {[]string{"foo"}, &pluginapi.ContainerAllocateResponse{Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": "foo"}}},
		"duplicate device IDs": {[]string{"foo", "bar", "foo"}, &pluginapi.ContainerAllocateResponse{Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": "foo,bar"}}},
	} {
		got, err := managed(t, "version: v1", "foo", "bar").allocate(t.Context(), nodecontract.ResourceGPU, c.ids)
		if diff := cmp.Diff(c.want, got, protocmp.Transform()); diff != "" || err != nil {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
}

func TestRefusalsMatchNVIDIA(t *testing.T) {
	t.Parallel()
	sliced := func(more string) string {
		return "sharing: {timeSlicing: {" + more + "resources: [{name: nvidia.com/gpu, replicas: 2}]}}"
	}
	for name, c := range map[string]struct {
		yaml string
		ids  []string
		err  string
	}{
		"valid device IDs -- no sharing":                           {"version: v1", []string{"device1"}, ""},
		"invalid device IDs -- no sharing":                         {"version: v1", []string{"device1", "device2"}, "unknown device: device2"},
		"timeslicing with single device":                           {sliced(""), []string{"device0::1"}, ""},
		"timeslicing with two devices":                             {sliced(""), []string{"device0::1", "device1::0"}, ""},
		"timeslicing with two devices, failRequestsGreaterThanOne": {sliced("failRequestsGreaterThanOne: true, "), []string{"device0::1", "device1::0"}, "maximum request size for shared resources is 1; found 2"},
	} {
		_, err := managed(t, c.yaml, "device0", "device1").allocate(t.Context(), nodecontract.ResourceGPU, c.ids)
		if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCDIAnnotationsMatchNVIDIA(t *testing.T) {
	t.Parallel()
	const standard, custom = "cdi.k8s.io/", "custom.cdi.k8s.io/"
	for name, c := range map[string]struct {
		prefix     string
		gpus       []string
		gds, mofed bool
		imex       []int
		want       string // "" for no annotation
	}{
		"empty device list has empty response":                            {prefix: standard},
		"single device is added to annotations":                           {prefix: standard, gpus: []string{"gpu0"}, want: "nvidia.com/gpu=gpu0"},
		"single device is added to annotations with custom prefix":        {prefix: custom, gpus: []string{"gpu0"}, want: "nvidia.com/gpu=gpu0"},
		"multiple devices are added to annotations":                       {prefix: standard, gpus: []string{"gpu0", "gpu1"}, want: "nvidia.com/gpu=gpu0,nvidia.com/gpu=gpu1"},
		"multiple devices are added to annotations with custom prefix":    {prefix: custom, gpus: []string{"gpu0", "gpu1"}, want: "nvidia.com/gpu=gpu0,nvidia.com/gpu=gpu1"},
		"mofed devices are selected if configured":                        {prefix: standard, mofed: true, want: "nvidia.com/mofed=all"},
		"gds devices are selected if configured":                          {prefix: standard, gds: true, want: "nvidia.com/gds=all"},
		"gds and mofed devices are included with device ids":              {prefix: standard, gpus: []string{"gpu0"}, gds: true, mofed: true, want: "nvidia.com/gpu=gpu0,nvidia.com/gds=all,nvidia.com/mofed=all"},
		"imex channel is included with devices":                           {prefix: standard, imex: []int{0}, want: "nvidia.com/imex-channel=0"},
		"imex channel, gds and mofed are behind the GPUs, in this order ": {prefix: standard, gpus: []string{"gpu0"}, imex: []int{0}, gds: true, mofed: true, want: "nvidia.com/gpu=gpu0,nvidia.com/imex-channel=0,nvidia.com/gds=all,nvidia.com/mofed=all"},
	} {
		var gpus []device
		for i, uuid := range c.gpus {
			gpus = append(gpus, device{GPU: sharing.GPU{Device: gpu.Device{UUID: uuid, Index: i}}})
		}
		s := sharing.Settings{DeviceLists: []string{"cdi-annotations"}, DeviceIDStrategy: "uuid", CDIAnnotationPrefix: c.prefix, GDS: c.gds, MOFED: c.mofed}
		got := answer(s, c.imex, gpus, func(string) bool { return false }).GetAnnotations()
		if c.want == "" && len(got) == 0 {
			continue
		}
		for key, value := range got {
			// The part after the last "_" is a random UUID in NVIDIA's plugin, and a digest of the devices here.
			if !strings.HasPrefix(key, c.prefix+"nvidia-device-plugin_") || value != c.want || len(got) != 1 {
				t.Errorf("%s: %v", name, got)
			}
		}
		if len(got) == 0 {
			t.Errorf("%s: no annotation", name)
		}
	}
}
