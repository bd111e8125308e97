// Package alloc says which devices of a machine a container should get. It is a function of values: the same request has the same answer.
package alloc

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Separator is between the UUID of a GPU and the number of its replica. Other tools split at it, NVIDIA's DCGM exporter for one.
const Separator = "::"

// ID is the device id of replica n of a GPU. A GPU that is not shared has its UUID for an id.
func ID(uuid string, n int) string { return uuid + Separator + strconv.Itoa(n) }

// Parse splits a device id. replica is false for a GPU that is not shared, and for what ID cannot have made.
func Parse(id string) (uuid string, n int, replica bool) {
	at := strings.LastIndex(id, Separator)
	if at < 0 {
		return id, 0, false
	}
	digits := id[at+len(Separator):]
	n, err := strconv.Atoi(digits)
	if err != nil || digits[0] < '0' || digits[0] > '9' || digits[0] == '0' && len(digits) > 1 {
		return id, 0, false
	}
	return id[:at], n, true
}

// UUID is the GPU that a device id is of.
func UUID(id string) string {
	uuid, _, _ := Parse(id)
	return uuid
}

// Load is what decides between GPUs that have as many replicas free.
type Load struct {
	FreeMemoryMiB int64
	// Percent is how busy the GPU was of late, 0 to 100.
	Percent int
}

// Request is one container's.
type Request struct {
	// Available are the devices to choose from; MustInclude are those of them that are settled.
	Available, MustInclude []string
	// Size is how many devices are to be chosen, the settled ones included.
	Size int
	// Packed fills one GPU before it takes the next. Without it replicas are spread.
	Packed bool
	// Loads are by UUID.
	Loads map[string]Load
}

type choice struct {
	uuid  string
	ids   []string // free, the next one first
	taken int      // of this request
	load  Load
}

// Preferred chooses. What must be included comes first, whatever Size is; there are less than Size when not enough are available.
//
// Replicas are spread by how many are free on a GPU, then by free memory, then by how busy it was: two notebooks on one of four idle GPUs
// is what users of time-slicing complain about most.
func Preferred(r Request) []string {
	out := make([]string, 0, len(r.MustInclude))
	seen := make(map[string]bool, len(r.Available)+len(r.MustInclude))
	taken := map[string]int{}
	for _, id := range r.MustInclude {
		if !seen[id] {
			seen[id] = true
			out = append(out, id)
			taken[UUID(id)]++
		}
	}
	byUUID := map[string]*choice{}
	var choices []*choice
	for _, id := range r.Available {
		if seen[id] {
			continue
		}
		seen[id] = true
		uuid := UUID(id)
		c := byUUID[uuid]
		if c == nil {
			c = &choice{uuid: uuid, taken: taken[uuid], load: r.Loads[uuid]}
			byUUID[uuid] = c
			choices = append(choices, c)
		}
		c.ids = append(c.ids, id)
	}
	for _, c := range choices {
		slices.SortFunc(c.ids, compareIDs)
	}
	for len(out) < r.Size && len(choices) > 0 {
		best := slices.MinFunc(choices, func(a, b *choice) int { return compare(a, b, r.Packed) })
		out = append(out, best.ids[0])
		best.ids = best.ids[1:]
		best.taken++
		if len(best.ids) == 0 {
			choices = slices.DeleteFunc(choices, func(c *choice) bool { return c == best })
		}
	}
	return out
}

// compare puts the GPU to take from first.
func compare(a, b *choice, packed bool) int {
	free, taken := cmp.Compare(len(b.ids), len(a.ids)), cmp.Compare(a.taken, b.taken)
	if packed {
		free, taken = -free, -taken
	}
	return cmp.Or(free, taken, cmp.Compare(b.load.FreeMemoryMiB, a.load.FreeMemoryMiB), cmp.Compare(a.load.Percent, b.load.Percent), cmp.Compare(a.uuid, b.uuid))
}

// compareIDs takes the lowest replica first, so that a later shrink finds the high ones free.
func compareIDs(a, b string) int {
	_, n, _ := Parse(a)
	_, m, _ := Parse(b)
	return cmp.Or(cmp.Compare(n, m), cmp.Compare(a, b))
}
