package labels_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/labels"
	"karve.sh/karve/pkg/nodecontract"
)

// The test vectors of NVIDIA's GPU feature discovery v0.20.0: internal/lm/{nvml,resource,mig-strategy}_test.go and tests/expected-output*.txt. docs/node.md
// lists the differences that users notice.

func full() gpu.Device {
	return gpu.Device{Product: "MOCKMODEL", MemoryMiB: 300, ComputeMajor: 8}
}

// partitioned returns a GPU with MIG enabled. It has no compute capability in NVIDIA's vectors.
func partitioned() gpu.Device {
	return gpu.Device{Product: "MOCKMODEL", MemoryMiB: 300, MIG: true, MIGCapable: true}
}

var sliced = labels.Sharing{Strategy: labels.TimeSlicing, Replicas: 2}

func TestGPULabelsMatchNVIDIA(t *testing.T) {
	t.Parallel()
	ampere := map[string]string{"gpu.family": "ampere", "gpu.compute.major": "8", "gpu.compute.minor": "0", "gpu.memory": "300"}
	for name, c := range map[string]struct {
		devices []gpu.Device
		sharing labels.Sharing
		// count, replicas, strategy and product are the base labels. family says whether the labels of the architecture exist.
		count, replicas, strategy, product string
		family                             bool
		migStrategy                        string
	}{
		"no sharing": {[]gpu.Device{full()}, labels.Sharing{}, "1", "1", "none", "MOCKMODEL", true, ""},
		"time-slicing ignores non-matching resource":                    {[]gpu.Device{full()}, labels.Sharing{Strategy: labels.TimeSlicing, Replicas: 1}, "1", "1", "none", "MOCKMODEL", true, ""},
		"time-slicing appends suffix and doubles count":                 {[]gpu.Device{full()}, sliced, "1", "2", "time-slicing", "MOCKMODEL-SHARED", true, ""},
		"time-slicing renamed does not append suffix and doubles count": {[]gpu.Device{full()}, labels.Sharing{Strategy: labels.TimeSlicing, Replicas: 2, Renamed: true}, "1", "2", "time-slicing", "MOCKMODEL", true, ""},
		"mps appends suffix and doubles count":                          {[]gpu.Device{full()}, labels.Sharing{Strategy: labels.MPS, Replicas: 2}, "1", "2", "mps", "MOCKMODEL-SHARED", true, ""},
		"mps renamed does not append suffix and doubles count":          {[]gpu.Device{full()}, labels.Sharing{Strategy: labels.MPS, Replicas: 2, Renamed: true}, "1", "2", "mps", "MOCKMODEL", true, ""},
		"mig none: sharing is applied to multiple devices":              {[]gpu.Device{full(), full()}, sliced, "2", "2", "time-slicing", "MOCKMODEL-SHARED", true, ""},
		"mig none: sharing is not applied to single MIG device":         {[]gpu.Device{partitioned()}, sliced, "1", "0", "none", "MOCKMODEL", false, ""},
		"mig none: sharing is not applied to multiple MIG device":       {[]gpu.Device{partitioned(), partitioned()}, sliced, "2", "0", "none", "MOCKMODEL", false, ""},
		"mig none: sharing is applied to MIG device and non-MIG device": {[]gpu.Device{partitioned(), full()}, sliced, "2", "2", "time-slicing", "MOCKMODEL-SHARED", true, ""},
		"mig none: a MIG device without sharing":                        {[]gpu.Device{partitioned()}, labels.Sharing{}, "1", "0", "none", "MOCKMODEL", false, ""},
		"mig single: single non-mig device returns non-mig labels":      {[]gpu.Device{full()}, labels.Sharing{MIGStrategy: "single"}, "1", "1", "none", "MOCKMODEL", true, "single"},
		"mig single: multiple non-mig device returns non-mig labels":    {[]gpu.Device{full(), full()}, labels.Sharing{MIGStrategy: "single"}, "2", "1", "none", "MOCKMODEL", true, "single"},
		"mig mixed: single non-mig device returns non-mig labels":       {[]gpu.Device{full()}, labels.Sharing{MIGStrategy: "mixed"}, "1", "1", "none", "MOCKMODEL", true, "mixed"},
		"explicit mig none": {[]gpu.Device{full()}, labels.Sharing{MIGStrategy: "none"}, "1", "1", "none", "MOCKMODEL", true, ""},
	} {
		want := map[string]string{"gpu.count": c.count, "gpu.replicas": c.replicas, "gpu.sharing-strategy": c.strategy, "gpu.product": c.product, "gpu.memory": "300"}
		if c.family {
			maps.Copy(want, ampere)
		}
		if c.migStrategy != "" {
			want["mig.strategy"] = c.migStrategy
		}
		got := map[string]string{}
		for key, value := range labels.For(c.devices, gpu.Driver{}, c.sharing, labels.Machine{}) {
			key = strings.TrimPrefix(key, nodecontract.NVIDIAPrefix)
			if !slices.Contains([]string{"gpu.present", "gpu.machine", "gpu.mode", "mig.capable", "mps.capable"}, key) {
				got[key] = value
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestNoDevicesReturnsEmptyLabels(t *testing.T) {
	t.Parallel()
	if got := labels.For(nil, gpu.Driver{Version: "580.1"}, sliced, labels.Machine{Type: "x"}); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

func TestCapabilitiesMatchNVIDIA(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		devices  []gpu.Device
		sharing  labels.Sharing
		mig, mps string
	}{
		"single non-mig capable device":             {[]gpu.Device{full()}, labels.Sharing{}, "false", "false"},
		"multiple non-mig capable devices":          {[]gpu.Device{full(), full()}, labels.Sharing{}, "false", "false"},
		"single mig capable device":                 {[]gpu.Device{partitioned()}, labels.Sharing{}, "true", "false"},
		"one mig capable device among multiple":     {[]gpu.Device{full(), partitioned()}, labels.Sharing{}, "true", "false"},
		"config with timeslicing replicas":          {[]gpu.Device{full()}, sliced, "false", "false"},
		"config with no mps replicas":               {[]gpu.Device{full()}, labels.Sharing{Strategy: labels.MPS, Replicas: 1}, "false", "false"},
		"config with mps replicas, no mig devices":  {[]gpu.Device{full()}, labels.Sharing{Strategy: labels.MPS, Replicas: 2}, "false", "true"},
		"config with mps replicas, and mig devices": {[]gpu.Device{partitioned()}, labels.Sharing{Strategy: labels.MPS, Replicas: 2}, "true", "false"}, // NVIDIA's fails.
	} {
		got := labels.For(c.devices, gpu.Driver{}, c.sharing, labels.Machine{})
		if got["nvidia.com/mig.capable"] != c.mig || got["nvidia.com/mps.capable"] != c.mps {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestGPUModesMatchNVIDIA(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		classes []uint32
		want    string
	}{
		"single device with VGA class":                    {[]uint32{0x030000}, "graphics"},
		"single device with 3D class":                     {[]uint32{0x030200}, "compute"},
		"single device with switch class":                 {[]uint32{0x068000}, "unknown"},
		"multiple devices with the same 3D class":         {[]uint32{0x030200, 0x030200, 0x030200}, "compute"},
		"multiple devices with the same VGA class":        {[]uint32{0x030000, 0x030000, 0x030000}, "graphics"},
		"multiple devices with VGA and 3D classes":        {[]uint32{0x030000, 0x030200, 0x030000}, "unknown"},
		"no class (getModeForClasses of no class at all)": {nil, "unknown"},
	} {
		if got := labels.For([]gpu.Device{full()}, gpu.Driver{}, labels.Sharing{}, labels.Machine{PCIClasses: c.classes})["nvidia.com/gpu.mode"]; got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestNamesAreSanitizedLikeNVIDIA(t *testing.T) {
	t.Parallel()
	for input, want := range map[string]string{
		"a space separated string":          "a-space-separated-string",
		"some(thing)else":                   "somethingelse",
		"some ( thing )else":                "some-thing-else",
		"NVIDIA-TITAN-X-(Pascal)":           "NVIDIA-TITAN-X-Pascal",
		" input  with multiple   spaces   ": "input-with-multiple-spaces",
		"some [ / thing / ]else":            "some-thing-else",
		"some / thing /else":                "some-thing-else",
		"some-thing.else_new":               "some-thing.else_new",
	} {
		device := full()
		device.Product = input
		got := labels.For([]gpu.Device{device}, gpu.Driver{}, labels.Sharing{}, labels.Machine{Type: input})
		if got["nvidia.com/gpu.product"] != want || got["nvidia.com/gpu.machine"] != want {
			t.Errorf("%q: product %q, machine %q", input, got["nvidia.com/gpu.product"], got["nvidia.com/gpu.machine"])
		}
	}
}

// TestLabelKeysMatchNVIDIA checks for the keys of tests/expected-output.txt, without the timestamp, which depends on the clock, and with two more.
func TestLabelKeysMatchNVIDIA(t *testing.T) {
	t.Parallel()
	want := strings.Fields(`cuda.driver.major cuda.driver.minor cuda.driver.rev cuda.runtime.major cuda.runtime.minor
		cuda.driver-version.major cuda.driver-version.minor cuda.driver-version.revision cuda.driver-version.full
		cuda.runtime-version.major cuda.runtime-version.minor cuda.runtime-version.full
		gpu.machine gpu.count gpu.replicas gpu.sharing-strategy gpu.product gpu.memory gpu.family gpu.mode gpu.compute.major gpu.compute.minor
		mig.capable mps.capable gpu.present`)
	slices.Sort(want)
	var got []string
	for key := range labels.For([]gpu.Device{full()}, gpu.Driver{Version: "400.300", CUDAMajor: 1, CUDAMinor: 1}, labels.Sharing{}, labels.Machine{}) {
		got = append(got, strings.TrimPrefix(key, nodecontract.NVIDIAPrefix))
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
