package nodecontract_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/nodecontract"
)

func slots(gpus ...[]int64) nodecontract.Slots {
	return nodecontract.Slots{SizesMiB: []int64{2048, 4096, 8192}, ReserveMiB: 512, Enforcement: nodecontract.EnforceWatch, GPUs: gpus}
}

func TestSlotsThatAreWrittenAreRead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]nodecontract.Slots{
		"": {},
		`{"sizesMiB":[2048,4096,8192],"reserveMiB":512,"enforcement":"Watch"}`:                          slots(),
		`{"sizesMiB":[2048,4096,8192],"reserveMiB":512,"enforcement":"Watch","gpus":[[3,1,0],[0,0,1]]}`: slots([]int64{3, 1, 0}, []int64{0, 0, 1}),
	} {
		got, err := nodecontract.ParseSlots(text)
		if diff := cmp.Diff(want, got); diff != "" || err != nil || got.String() != text || !got.Equal(want) {
			t.Errorf("%s: %s %v, written %s", text, diff, err, got)
		}
	}
	for _, bad := range []string{
		"x", "[]", "{}", `{"sizesMiB":[0],"enforcement":"None"}`, `{"sizesMiB":[4096,2048],"enforcement":"None"}`, `{"sizesMiB":[2048,2048],"enforcement":"None"}`,
		`{"sizesMiB":[2048],"reserveMiB":-1,"enforcement":"None"}`, `{"sizesMiB":[2048],"enforcement":"Some"}`, `{"sizesMiB":[2048],"enforcement":"None","gpus":[[1,1]]}`,
		`{"sizesMiB":[2048],"enforcement":"None","gpus":[[-1]]}`, `{"sizesMiB":[2048],"enforcement":"None","gpus":[[5000]]}`, `{"sizesMiB":[2048],"enforcement":"None","more":1}`,
	} {
		if got, err := nodecontract.ParseSlots(bad); err == nil || !got.IsZero() {
			t.Errorf("%s was read as %v", bad, got)
		}
	}
}

func TestSlotsHaveMemory(t *testing.T) {
	t.Parallel()
	s := slots([]int64{3, 1, 0}, []int64{0, 0, 1})
	if s.Count() != 5 || !slices.Equal(s.Wanted(), []int64{3, 1, 1}) || s.UsedMiB(s.GPUs[0]) != 10240 || s.CapacityMiB(15360) != 14848 || s.Most(15360) != 7 || s.Index(4096) != 1 {
		t.Errorf("%d slots %v, %d MiB of %d, at most %d", s.Count(), s.Wanted(), s.UsedMiB(s.GPUs[0]), s.CapacityMiB(15360), s.Most(15360))
	}
	if s.Most(2048) != 0 || (nodecontract.Slots{}).Most(15360) != 0 || s.CapacityMiB(100) != 0 {
		t.Error("a GPU that is too small has slots")
	}
	small := nodecontract.Slots{SizesMiB: []int64{256}, Enforcement: nodecontract.EnforceMPS}
	if n := small.Most(15360); n != nodecontract.MaxMPSReplicas {
		t.Errorf("a GPU with MPS has %d slots", n)
	}
	if other := slots(); !s.SameKind(other) || s.Equal(other) {
		t.Error("the numbers of slots are their kind")
	}
}

func TestSlotNames(t *testing.T) {
	t.Parallel()
	for mib, name := range map[int64]string{2048: "2gb", 1536: "1536mb", 512: "512mb", 81920: "80gb"} {
		if got := nodecontract.SlotName(mib); got != name {
			t.Errorf("%d MiB are %s", mib, got)
		}
		if got, ok := nodecontract.ParseSlotResource("nvidia.com/gpu-" + name); !ok || got != mib {
			t.Errorf("%s is %d, %t", name, got, ok)
		}
	}
	// Each size has one name, so that no two resources are the same slots.
	for _, name := range []string{"", "gb", "0gb", "02gb", "2048mb", "+2gb", "2GB", "2gb-3", "-2gb", "99999999999999999999gb", "2.shared"} {
		if mib, ok := nodecontract.ParseSlotName(name); ok {
			t.Errorf("%q is %d MiB", name, mib)
		}
	}
	for name, want := range map[string]bool{"nvidia.com/gpu-2gb": true, "nvidia.com/gpu-": false, "nvidia.com/gpu-memory": false, "example.com/gpu-2gb": false, "nvidia.com/gpumem": false} {
		if got := nodecontract.IsGPUResource(name); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestSlotsInUseThatAreWrittenAreRead(t *testing.T) {
	t.Parallel()
	sizes := []int64{2048, 4096}
	want := nodecontract.SlotsInUse{SizesMiB: sizes, GPUs: []nodecontract.GPUSlotsInUse{{MemoryMiB: 15360, Held: []int64{2, 0}}, {Held: []int64{0, 1}}}}
	const text = `{"sizesMiB":[2048,4096],"gpus":[{"mib":15360,"held":[2,0]},{"mib":0,"held":[0,1]}]}`
	if diff := cmp.Diff(text, want.String()); diff != "" {
		t.Error(diff)
	}
	got, ok := nodecontract.ParseSlotsInUse(text, sizes)
	if diff := cmp.Diff(want, got); diff != "" || !ok {
		t.Error(ok, diff)
	}
	for _, bad := range []string{"", "x", "{}", strings.ReplaceAll(text, "[2,0]", "[2]"), strings.ReplaceAll(text, "[2,0]", "[-2,0]"), strings.ReplaceAll(text, "15360", "-1"), strings.ReplaceAll(text, "4096", "8192")} {
		if got, ok := nodecontract.ParseSlotsInUse(bad, sizes); ok || got.GPUs != nil {
			t.Errorf("%s was read as %v", bad, got)
		}
	}
}

func FuzzParseSlots(f *testing.F) {
	f.Add(`{"sizesMiB":[2048,4096,8192],"reserveMiB":512,"enforcement":"Watch","gpus":[[3,1,0],[0,0,1]]}`)
	f.Add(`{"sizesMiB":[2048,4096],"gpus":[{"mib":15360,"held":[2,0]}]}`)
	f.Add("")
	f.Fuzz(func(t *testing.T, annotation string) {
		if s, err := nodecontract.ParseSlots(annotation); err == nil {
			again, err := nodecontract.ParseSlots(s.String())
			if err != nil || !again.Equal(s) || s.Count() < 0 || s.Most(1<<24) < 0 {
				t.Errorf("%q became %s and %s, %v", annotation, s, again, err)
			}
		}
		sizes := []int64{2048, 4096}
		if s, ok := nodecontract.ParseSlotsInUse(annotation, sizes); ok {
			if _, ok := nodecontract.ParseSlotsInUse(s.String(), sizes); !ok {
				t.Errorf("%q became %s, which is not read", annotation, s)
			}
		}
		if mib, ok := nodecontract.ParseSlotName(annotation); ok && nodecontract.SlotName(mib) != annotation {
			t.Errorf("%q is the name of %d MiB, whose name is %q", annotation, mib, nodecontract.SlotName(mib))
		}
	})
}
