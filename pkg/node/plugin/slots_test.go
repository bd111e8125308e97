package plugin

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/node/alloc"
	"karve.sh/karve/pkg/nodecontract"
)

const small, middle, large = int64(2048), int64(4096), int64(8192)

// ofSizes returns a GPU with as many slots of each size.
func ofSizes(uuid string, capacityMiB int64, two, four, eight int) target {
	return target{uuid: uuid, slots: &slotted{capacityMiB: capacityMiB, wanted: map[int64]int{small: two, middle: four, large: eight}}}
}

// slotSet returns slots by their sizes and numbers.
func slotSet(uuid string, bySize map[int64][]int) idSet {
	s := idSet{}
	for mib, numbers := range bySize {
		for _, n := range numbers {
			s.add(nodecontract.SlotResource(mib), alloc.SlotID(uuid, mib, n))
		}
	}
	return s
}

func TestSlotLayout(t *testing.T) {
	t.Parallel()
	type by = map[int64][]int
	for name, c := range map[string]struct {
		target        target
		listed, inUse by
		keep          bool
		want          by
		settling      bool
	}{
		"at first":                               {ofSizes("a", 14848, 3, 1, 0), nil, nil, false, by{small: {0, 1, 2}, middle: {0}}, false},
		"nothing is wanted":                      {ofSizes("a", 14848, 0, 0, 0), nil, nil, false, by{}, false},
		"more than the memory":                   {ofSizes("a", 14848, 4, 0, 1), nil, nil, false, by{small: {0, 1, 2}, large: {0}}, true},
		"a reload changes nothing":               {ofSizes("a", 14848, 2, 0, 0), by{small: {1, 5}}, by{small: {5}}, false, by{small: {1, 5}}, false},
		"another size in the place of free ones": {ofSizes("a", 14848, 1, 0, 1), by{small: {0, 1, 2, 3}}, by{small: {2}}, false, by{small: {2}, large: {0}}, false},
		"not while the scheduler may take them":  {ofSizes("a", 14848, 1, 0, 1), by{small: {0, 1, 2, 3}}, by{small: {2}}, true, by{small: {0, 1, 2, 3}}, true},
		"a size is added at any time":            {ofSizes("a", 14848, 2, 0, 1), by{small: {0, 1}}, by{small: {1}}, true, by{small: {0, 1}, large: {0}}, false},
		"held slots stay":                        {ofSizes("a", 14848, 0, 0, 1), by{small: {0, 1, 2, 3}}, by{small: {0, 1, 2, 3}}, false, by{small: {0, 1, 2, 3}}, true},
		"held slots of more than the memory":     {ofSizes("a", 4096, 0, 0, 0), by{small: {0, 1, 2}}, by{small: {0, 1, 2}}, true, by{small: {0, 1, 2}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, settling := layout([]target{c.target}, slotSet("a", c.listed), slotSet("a", c.inUse), c.keep)
			want := map[string][]string{}
			for _, mib := range []int64{small, middle, large} {
				want[nodecontract.SlotResource(mib)] = slices.SortedFunc(maps.Keys(slotSet("a", c.want)[nodecontract.SlotResource(mib)]), alloc.CompareIDs)
			}
			if diff := cmp.Diff(want, got); diff != "" || settling != c.settling {
				t.Errorf("settling: %t\n%s", settling, diff)
			}
		})
	}
}

func TestGPUOfAnotherStrategyHasNoFreeSlots(t *testing.T) {
	t.Parallel()
	for _, held := range []string{"a", alloc.ID("a", 3)} {
		got, settling := layout([]target{ofSizes("a", 14848, 1, 0, 0)}, set("nvidia.com/gpu", held), set("nvidia.com/gpu", held), false)
		if diff := cmp.Diff([]string{held}, got["nvidia.com/gpu"]); diff != "" || len(got["nvidia.com/gpu-2gb"]) > 0 || !settling {
			t.Errorf("%s is held: %v, settling %t", held, got, settling)
		}
	}
	slot := alloc.SlotID("a", small, 0)
	got, settling := layout([]target{{uuid: "a", resource: "nvidia.com/gpu", replicas: 4}}, set("nvidia.com/gpu-2gb", slot), set("nvidia.com/gpu-2gb", slot), false)
	if diff := cmp.Diff(map[string][]string{"nvidia.com/gpu": nil, "nvidia.com/gpu-2gb": {slot}}, got); diff != "" || !settling {
		t.Errorf("a slot is held: %s, settling %t", diff, settling)
	}
}

// TestSlotsNeverExceedMemory changes the wanted slots at random while pods come and go, and while the agent forgets what it has listed, as after a restart. After every step,
// held slots are listed, the slots of a GPU have at most its memory, unless pods alone hold more, and no free slot is gone while the scheduler may give it to a pod.
func TestSlotsNeverExceedMemory(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		listed, inUse := idSet{}, idSet{}
		capacity := map[string]int64{"a": 14848, "b": 23000}
		draw := func() []target {
			var out []target
			for _, uuid := range []string{"a", "b"} {
				n := func(what string) int { return rapid.IntRange(0, 8).Draw(t, what) }
				out = append(out, ofSizes(uuid, capacity[uuid], n("2gb"), n("4gb"), n("8gb")))
			}
			return out
		}
		targets := draw()
		step := func(keep bool) {
			offered, settling := layout(targets, listed, inUse, keep)
			next, used := idSet{}, map[string]int64{}
			for r, ids := range offered {
				for _, id := range ids {
					mib, _, ok := alloc.Slot(id)
					if !ok || next.has(r, id) || r != nodecontract.SlotResource(mib) {
						t.Fatalf("%s of %s is listed twice, or no slot", id, r)
					}
					next.add(r, id)
					used[alloc.UUID(id)] += mib
				}
			}
			for uuid, mib := range used {
				if mib > capacity[uuid] {
					t.Fatalf("the slots of GPU %s have %d MiB, and it has %d", uuid, mib, capacity[uuid])
				}
			}
			for r, ids := range inUse {
				for id := range ids {
					if !next.has(r, id) {
						t.Fatalf("%s is held and not listed: %v", id, offered)
					}
				}
			}
			for r, ids := range listed {
				for id := range ids {
					if keep && !next.has(r, id) {
						t.Fatalf("%s was withdrawn while the scheduler may give it to a pod", id)
					}
				}
			}
			for _, g := range targets {
				for size, n := range g.slots.wanted {
					has := 0
					for id := range next[nodecontract.SlotResource(size)] {
						if alloc.UUID(id) == g.uuid {
							has++
						}
					}
					if has < n && !settling {
						t.Fatalf("GPU %s has %d slots of %d MiB, wants %d, and is settled", g.uuid, has, size, n)
					}
				}
			}
			if again, _ := layout(targets, next, inUse, keep); !cmp.Equal(again, offered) {
				t.Fatalf("a second look changes\n%s", cmp.Diff(offered, again))
			}
			listed = next
		}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			step(rapid.Bool().Draw(t, "keep"))
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				targets = draw()
			case 1: // A pod starts.
				for _, r := range slices.Sorted(maps.Keys(listed)) {
					free := slices.DeleteFunc(slices.Sorted(maps.Keys(listed[r])), func(id string) bool { return inUse.has(r, id) })
					if len(free) > 0 {
						inUse.add(r, rapid.SampledFrom(free).Draw(t, "free"))
					}
				}
			case 2: // A pod ends.
				for _, r := range slices.Sorted(maps.Keys(inUse)) {
					if ids := slices.Sorted(maps.Keys(inUse[r])); len(ids) > 0 {
						delete(inUse[r], rapid.SampledFrom(ids).Draw(t, "held"))
					}
				}
			case 3: // The agent restarts.
				listed = idSet{}
			}
		}
	})
}

func FuzzSlotIDs(f *testing.F) {
	f.Add("GPU-a::4gb-3")
	f.Add("GPU-a::3")
	f.Add("a::04gb-3")
	f.Fuzz(func(t *testing.T, id string) {
		mib, n, ok := alloc.Slot(id)
		uuid, number, replica := alloc.Parse(id)
		if ok && (alloc.SlotID(uuid, mib, n) != id || number != n || !replica) {
			t.Errorf("%q is slot %d of %d MiB of %q", id, n, mib, uuid)
		}
		if !ok && replica && alloc.ID(uuid, number) != id {
			t.Errorf("%q is replica %d of %q", id, number, uuid)
		}
		if !replica && uuid != id {
			t.Errorf("%q is the GPU %q", id, uuid)
		}
	})
}

func TestSlotIDs(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{
		"GPU-a::4gb-3": "GPU-a 4096 3", "GPU-a::1536mb-0": "GPU-a 1536 0", "GPU-a::4gb-03": "", "GPU-a::4gb": "", "GPU-a::3": "", "GPU-a": "", "GPU-a::-3": "", "GPU-a::4gb--3": "",
	} {
		got := ""
		if mib, n, ok := alloc.Slot(id); ok {
			got = fmt.Sprint(alloc.UUID(id), " ", mib, " ", n)
		}
		if got != want {
			t.Errorf("%s: %q, want %q", id, got, want)
		}
	}
}
