package labels_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/gputest"
	"karve.sh/karve/pkg/node/labels"
	"karve.sh/karve/pkg/nodecontract"
)

func TestLabelsOfSharedT4(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"nvidia.com/gpu.present":                  "true",
		"nvidia.com/gpu.machine":                  "g4dn.12xlarge",
		"nvidia.com/gpu.mode":                     "compute",
		"nvidia.com/gpu.count":                    "4",
		"nvidia.com/gpu.replicas":                 "10",
		"nvidia.com/gpu.sharing-strategy":         "time-slicing",
		"nvidia.com/gpu.product":                  "Tesla-T4",
		"nvidia.com/gpu.memory":                   "15360",
		"nvidia.com/gpu.family":                   "turing",
		"nvidia.com/gpu.compute.major":            "7",
		"nvidia.com/gpu.compute.minor":            "5",
		"nvidia.com/mig.capable":                  "false",
		"nvidia.com/mps.capable":                  "false",
		"nvidia.com/cuda.driver-version.full":     "580.159.03",
		"nvidia.com/cuda.driver-version.major":    "580",
		"nvidia.com/cuda.driver-version.minor":    "159",
		"nvidia.com/cuda.driver-version.revision": "03",
		"nvidia.com/cuda.driver.major":            "580",
		"nvidia.com/cuda.driver.minor":            "159",
		"nvidia.com/cuda.driver.rev":              "03",
		"nvidia.com/cuda.runtime-version.full":    "13.0",
		"nvidia.com/cuda.runtime-version.major":   "13",
		"nvidia.com/cuda.runtime-version.minor":   "0",
		"nvidia.com/cuda.runtime.major":           "13",
		"nvidia.com/cuda.runtime.minor":           "0",
	}
	got := labels.For(gputest.T4s(4), gputest.Installed, labels.Sharing{Strategy: labels.TimeSlicing, Replicas: 10, Renamed: true}, labels.Machine{Type: "g4dn.12xlarge", PCIClasses: []uint32{0x030200, 0x030200, 0x030200, 0x030200}})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestSharingInLabels(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		sharing                         labels.Sharing
		product, replicas, strategy, mp string
	}{
		{labels.Sharing{}, "Tesla-T4", "1", "none", "false"},
		{labels.Sharing{Strategy: labels.None, Replicas: 10}, "Tesla-T4", "1", "none", "false"},
		{labels.Sharing{Strategy: labels.TimeSlicing, Replicas: 1}, "Tesla-T4", "1", "none", "false"},
		{labels.Sharing{Strategy: labels.TimeSlicing, Replicas: 10}, "Tesla-T4-SHARED", "10", "time-slicing", "false"},
		{labels.Sharing{Strategy: labels.TimeSlicing, Replicas: 10, Renamed: true}, "Tesla-T4", "10", "time-slicing", "false"},
		{labels.Sharing{Strategy: labels.MPS, Replicas: 4}, "Tesla-T4-SHARED", "4", "mps", "true"},
	} {
		got := labels.For(gputest.T4s(1), gputest.Installed, test.sharing, labels.Machine{})
		if got["nvidia.com/gpu.product"] != test.product || got["nvidia.com/gpu.replicas"] != test.replicas ||
			got["nvidia.com/gpu.sharing-strategy"] != test.strategy || got["nvidia.com/mps.capable"] != test.mp {
			t.Errorf("%+v: %v", test.sharing, got)
		}
	}
}

func TestLabelsOfMixedAndPartitionedGPUs(t *testing.T) {
	t.Parallel()
	if got := labels.For(nil, gputest.Installed, labels.Sharing{}, labels.Machine{}); len(got) != 0 {
		t.Errorf("without GPUs: %v", got)
	}
	mixed := append(gputest.T4s(1), gputest.H100s(2)...)
	got := labels.For(mixed, gpu.Driver{Version: "535.54", CUDAMajor: 12, CUDAMinor: 2}, labels.Sharing{}, labels.Machine{})
	for key, want := range map[string]string{
		"gpu.count": "3", "gpu.product": "NVIDIA-H100-80GB-HBM3", "gpu.family": "hopper", "gpu.memory": "81559", "mig.capable": "true",
		"cuda.driver-version.revision": "", "cuda.driver.rev": "", "cuda.driver-version.minor": "54", "cuda.runtime-version.full": "12.2",
	} {
		if value, ok := got[nodecontract.NVIDIAPrefix+key]; !ok || value != want {
			t.Errorf("%s is %q, want %q", key, value, want)
		}
	}
	partitioned := gputest.H100s(1)
	partitioned[0].MIG = true
	if got := labels.For(partitioned, gputest.Installed, labels.Sharing{Strategy: labels.MPS, Replicas: 2}, labels.Machine{}); got["nvidia.com/mps.capable"] != "false" {
		t.Errorf("MPS on a partitioned GPU: %v", got)
	}
}

// TestLabelsAreValid checks that each label is valid whatever the driver returns, and that a GPU that is shared under its own name has the suffix.
func TestLabelsAreValid(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		check(t, rapid.String().Draw(t, "product"), rapid.String().Draw(t, "version"), rapid.Int().Draw(t, "number"))
	})
}

func FuzzLabels(f *testing.F) {
	f.Add("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "580.159.03", 4)
	f.Add(strings.Repeat("very long ", 20), "1.2.3.4", -1)
	f.Add(" (tm) ", "..", 0)
	f.Fuzz(func(t *testing.T, product, version string, number int) { check(t, product, version, number) })
}

func check(t interface{ Errorf(string, ...any) }, product, version string, number int) {
	device := gpu.Device{Product: product, MemoryMiB: int64(number), ComputeMajor: number, ComputeMinor: number}
	driver := gpu.Driver{Version: version, CUDAMajor: number, CUDAMinor: number}
	plain := labels.For([]gpu.Device{device}, driver, labels.Sharing{}, labels.Machine{})
	shared := labels.For([]gpu.Device{device}, driver, labels.Sharing{Strategy: labels.TimeSlicing, Replicas: 2}, labels.Machine{})
	for _, all := range []map[string]string{plain, shared} {
		for key, value := range maps.All(all) {
			if problems := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(problems) > 0 {
				t.Errorf("%s: %q: %v", key, value, problems)
			}
		}
	}
	if product := shared["nvidia.com/gpu.product"]; product != "" && !strings.HasSuffix(product, "-SHARED") {
		t.Errorf("product %q", product)
	}
}
