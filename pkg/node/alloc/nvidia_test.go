package alloc_test

import (
	"maps"
	"slices"
	"testing"

	"karve.sh/karve/pkg/node/alloc"
)

// The test vectors of NVIDIA's device plugin v0.20.0, internal/rm/allocate_test.go. docs/node.md lists the differences that users notice.

// replicasOf returns device IDs, as many of each GPU as counts says.
func replicasOf(counts map[string]int) []string {
	var out []string
	for _, uuid := range slices.Sorted(maps.Keys(counts)) {
		for n := range counts[uuid] {
			out = append(out, alloc.ID(uuid, n))
		}
	}
	return out
}

func TestReplicaChoiceMatchesNVIDIA(t *testing.T) {
	t.Parallel()
	each := func(n int, uuids ...string) []string {
		counts := map[string]int{}
		for _, uuid := range uuids {
			counts[uuid] = n
		}
		return replicasOf(counts)
	}
	for name, c := range map[string]struct {
		available []string
		size      int
		packed    bool
		want      []int // how many of each GPU, largest first
	}{
		"partially allocated, over distinct GPUs":                   {[]string{"GPU-0::0", "GPU-0::1", "GPU-1::1"}, 2, false, []int{1, 1}},
		"distributed: 2 GPUs, 4 replicas each, allocate 2":          {each(4, "gpu0", "gpu1"), 2, false, []int{1, 1}},
		"distributed: 3 GPUs, 2 replicas each, allocate 3":          {each(2, "gpu0", "gpu1", "gpu2"), 3, false, []int{1, 1, 1}},
		"distributed: 2 GPUs, 4 replicas each, allocate 4":          {each(4, "gpu0", "gpu1"), 4, false, []int{2, 2}},
		"distributed: allocate 1 from single GPU":                   {each(4, "gpu0"), 1, false, []int{1}},
		"distributed: partial availability":                         {each(4, "gpu1"), 2, false, []int{2}},
		"distributed: 3 GPUs, 4 replicas each, allocate 3":          {each(4, "gpu0", "gpu1", "gpu2"), 3, false, []int{1, 1, 1}},
		"packed: 2 GPUs, 4 replicas each, allocate 2":               {each(4, "gpu0", "gpu1"), 2, true, []int{2}},
		"packed: 3 GPUs, 2 replicas each, allocate 3":               {each(2, "gpu0", "gpu1", "gpu2"), 3, true, []int{2, 1}},
		"packed: 2 GPUs, 4 replicas each, allocate 4":               {each(4, "gpu0", "gpu1"), 4, true, []int{4}},
		"packed: 2 GPUs, 4 replicas each, allocate 5":               {each(4, "gpu0", "gpu1"), 5, true, []int{4, 1}},
		"packed: allocate 1 from single GPU":                        {each(4, "gpu0"), 1, true, []int{1}},
		"distributed prefers the GPU with fewer allocated replicas": {replicasOf(map[string]int{"more-allocated": 1, "less-allocated": 3}), 1, false, []int{1}},
		"not enough devices: a short list, which is an error there": {each(2, "gpu0"), 5, false, []int{2}},
		"not enough devices, packed: the same":                      {each(2, "gpu0"), 5, true, []int{2}},
		"whole GPUs: the policy has no effect on how many of each":  {[]string{"GPU-aaa", "GPU-bbb", "GPU-ccc", "GPU-ddd"}, 2, true, []int{1, 1}},
		"whole GPUs, distributed":                                   {[]string{"GPU-aaa", "GPU-bbb", "GPU-ccc", "GPU-ddd"}, 2, false, []int{1, 1}},
	} {
		chosen := alloc.Preferred(alloc.Request{Available: c.available, Size: c.size, Packed: c.packed})
		counts := map[string]int{}
		for _, id := range chosen {
			counts[alloc.UUID(id)]++
		}
		got := slices.Sorted(maps.Values(counts))
		slices.Reverse(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %v", name, chosen, c.want)
		}
	}
	for packed, want := range map[bool]string{false: "less-allocated", true: "more-allocated"} {
		available := replicasOf(map[string]int{"more-allocated": 1, "less-allocated": 3})
		if got := alloc.UUID(alloc.Preferred(alloc.Request{Available: available, Size: 1, Packed: packed})[0]); got != want {
			t.Errorf("packed %t: %s", packed, got)
		}
	}
}
