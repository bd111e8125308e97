package nvml

import (
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/nodecontract/mig"
)

// mocked returns a library that reads the first GPU of go-nvml's mock of a DGX A100. The mock has no handles of MIG devices, so the GPU is not read as usual.
func mocked() (*Library, *dgxa100.Device, string) {
	device := dgxa100.New().Devices[0].(*dgxa100.Device)
	l := New(Options{})
	l.ready = true
	l.known = map[string]known{device.UUID: {device: gpu.Device{UUID: device.UUID}, handle: device}}
	return l, device, device.UUID
}

// TestMockOfA100HasTheModelOfThePlan compares what NVML tells with what the controller plans with.
func TestMockOfA100HasTheModelOfThePlan(t *testing.T) {
	l, _, uuid := mocked()
	got, err := l.Geometry(uuid)
	if err != nil {
		t.Fatal(err)
	}
	model := mig.Models("a100", 40960)[0]
	if got.Slices != model.Slices {
		t.Errorf("%d slices", got.Slices)
	}
	for _, want := range model.Kinds {
		k := got.Kind(want.Profile)
		if k == nil {
			if !strings.HasPrefix(want.Profile, "1g.10gb") { // The mock says nothing of their places.
				t.Errorf("%s is missing", want.Profile)
			}
			continue
		}
		if k.Slices != want.Slices || k.Size != want.Size || k.Most != want.Most || !slices.Equal(k.Starts, want.Starts) {
			t.Errorf("%+v, want %+v", *k, want)
		}
	}
}

// multisets calls f with each multiset of profiles that have together at most slices compute slices.
func multisets(kinds []mig.Kind, slicesLeft int, have []string, f func([]string)) {
	for i := range kinds {
		if kinds[i].Slices <= slicesLeft {
			more := append(slices.Clone(have), kinds[i].Profile)
			f(more)
			multisets(kinds[i:], slicesLeft-kinds[i].Slices, more, f)
		}
	}
}

func TestMockOfA100IsDividedAsPlanned(t *testing.T) {
	l, device, uuid := mocked()
	geometry, err := l.Geometry(uuid)
	if err != nil {
		t.Fatal(err)
	}
	if now, _, err := l.MIGMode(uuid); now || err != nil {
		t.Fatalf("%t, %v", now, err)
	}
	if err := l.EnableMIG(uuid); err != nil {
		t.Fatal(err)
	}
	if now, pending, err := l.MIGMode(uuid); !now || !pending || err != nil {
		t.Fatalf("%t, %t, %v", now, pending, err)
	}
	made := 0
	multisets(geometry.Kinds, geometry.Slices, nil, func(names []string) {
		places, err := geometry.Place(names)
		if err != nil {
			return
		}
		for _, at := range places {
			if err := l.Create(uuid, at); err != nil {
				t.Fatalf("%v: %v", names, err)
			}
		}
		parts, err := l.GPUInstances(uuid)
		if err != nil || len(parts) != len(names) {
			t.Fatalf("%v: %v, %v", names, parts, err)
		}
		for _, p := range parts {
			if !p.Whole || !slices.Contains(places, mig.Placement{Profile: p.Profile, Start: p.Start, Size: p.Size}) {
				t.Errorf("%v: %+v is not one of %v", names, p, places)
			}
			if err := l.Destroy(uuid, p.ID); err != nil {
				t.Fatal(err)
			}
		}
		if len(device.GpuInstances) > 0 {
			t.Fatalf("%d instances stay", len(device.GpuInstances))
		}
		made++
	})
	t.Logf("%d layouts", made)
	if made < 50 {
		t.Error("the mock has few layouts")
	}
}

func TestProfilesAreNamedAsNVIDIADoes(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for _, c := range []struct {
		want           string
		number, slices int
		mib            uint64
		memory         uint64
	}{
		{"1g.5gb", nvml.GPU_INSTANCE_PROFILE_1_SLICE, 1, 4864, 40960 * mib},
		{"7g.40gb", nvml.GPU_INSTANCE_PROFILE_7_SLICE, 7, 40192, 40960 * mib},
		{"1g.5gb+me", nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1, 1, 4864, 40960 * mib},
		{"1g.10gb", nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV2, 1, 9856, 40960 * mib},
		{"1g.10gb", nvml.GPU_INSTANCE_PROFILE_1_SLICE, 1, 9984, 81559 * mib},
		{"3g.40gb", nvml.GPU_INSTANCE_PROFILE_3_SLICE, 3, 40448, 81559 * mib},
		{"1g.18gb", nvml.GPU_INSTANCE_PROFILE_1_SLICE, 1, 16384, 143771 * mib},
		{"3g.71gb", nvml.GPU_INSTANCE_PROFILE_3_SLICE, 3, 71424, 143771 * mib},
		{"1g.23gb", nvml.GPU_INSTANCE_PROFILE_1_SLICE, 1, 22272, 183359 * mib},
		{"2g.45gb", nvml.GPU_INSTANCE_PROFILE_2_SLICE, 2, 45056, 183359 * mib},
		{"1g.24gb-me", nvml.GPU_INSTANCE_PROFILE_1_SLICE_NO_ME, 1, 24192, 97887 * mib},
		{"1g.24gb+me.all", nvml.GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME, 1, 24192, 97887 * mib},
		{"2g.48gb+gfx", nvml.GPU_INSTANCE_PROFILE_2_SLICE_GFX, 2, 48512, 97887 * mib},
	} {
		info := nvml.GpuInstanceProfileInfo{SliceCount: uint32(c.slices), MemorySizeMB: c.mib}
		if got := profileName(c.number, info, c.memory); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
		if err := mig.CheckProfile(c.want); err != nil {
			t.Error(err)
		}
	}
}

// TestProfilesHaveTheNamesOfThePlan has GPUs with their memory and that of their instances in MiB, as nvidia-smi shows them.
func TestProfilesHaveTheNamesOfThePlan(t *testing.T) {
	for _, c := range []struct {
		model           mig.Model
		gpu, instance   uint64
		number, compute int
		want            string
	}{
		{mig.Models("h100", 81920)[0], 81559, 9984, nvml.GPU_INSTANCE_PROFILE_1_SLICE, 1, "1g.10gb"},
		{mig.Models("h100", 81920)[0], 81559, 20090, nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV2, 1, "1g.20gb"},
		{mig.Models("rtx-pro-server-6000", 0)[0], 97887, 24187, nvml.GPU_INSTANCE_PROFILE_1_SLICE, 1, "1g.24gb"},
		{mig.Models("rtx-pro-server-6000", 0)[0], 97887, 24187, nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1, 1, "1g.24gb+me"},
		{mig.Models("rtx-pro-server-6000", 0)[0], 97887, 24187, nvml.GPU_INSTANCE_PROFILE_1_SLICE_GFX, 1, "1g.24gb+gfx"},
		{mig.Models("rtx-pro-server-6000", 0)[0], 97887, 24187, nvml.GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME, 1, "1g.24gb+me.all"},
		{mig.Models("rtx-pro-server-6000", 0)[0], 97887, 24187, nvml.GPU_INSTANCE_PROFILE_1_SLICE_NO_ME, 1, "1g.24gb-me"},
		{mig.Models("rtx-pro-server-6000", 0)[0], 97887, 48517, nvml.GPU_INSTANCE_PROFILE_2_SLICE_NO_ME, 2, "2g.48gb-me"},
		{mig.Models("rtx-pro-server-6000", 0)[0], 97887, 48517, nvml.GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME, 2, "2g.48gb+me.all"},
		{mig.Models("rtx-pro-server-6000", 0)[0], 97887, 97280, nvml.GPU_INSTANCE_PROFILE_4_SLICE_GFX, 4, "4g.96gb+gfx"},
	} {
		got := profileName(c.number, nvml.GpuInstanceProfileInfo{SliceCount: uint32(c.compute), MemorySizeMB: c.instance}, c.gpu<<20)
		if got != c.want || c.model.Kind(got) == nil {
			t.Errorf("%s, want %s, which the plan has too", got, c.want)
		}
	}
}
