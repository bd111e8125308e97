// Package alloc selects the devices for a container. It is deterministic: the same request always has the same result.
package alloc

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"karve.sh/karve/pkg/nodecontract"
)

// Separator separates the UUID of a GPU from the number of the replica. Other tools, such as NVIDIA's DCGM exporter, split device IDs at it.
const Separator = "::"

// ID returns the device ID of replica n of a GPU. The device ID of an unshared GPU is its UUID.
func ID(uuid string, n int) string { return uuid + Separator + strconv.Itoa(n) }

// SlotID returns the device ID of slot n of a size in MiB, for example "GPU-2d1f::4gb-0". Slots of each size are numbered separately.
func SlotID(uuid string, mib int64, n int) string {
	return uuid + Separator + nodecontract.SlotName(mib) + sizeSeparator + strconv.Itoa(n)
}

// sizeSeparator separates the size of a slot from its number.
const sizeSeparator = "-"

// Parse splits a device ID. replica is false for an unshared GPU, and for IDs that do not have the format of ID or SlotID. For a slot, n is its number
// among those of its size.
func Parse(id string) (uuid string, n int, replica bool) {
	uuid, last, ok := cutReplica(id)
	if !ok {
		return id, 0, false
	}
	if n, ok := parseNumber(last); ok {
		return uuid, n, true
	}
	if _, n, ok := parseSlot(last); ok {
		return uuid, n, true
	}
	return id, 0, false
}

// Slot returns the size in MiB and the number of a slot. It returns false if the device is not a slot.
func Slot(id string) (mib int64, n int, ok bool) {
	_, last, ok := cutReplica(id)
	if !ok {
		return 0, 0, false
	}
	return parseSlot(last)
}

func cutReplica(id string) (before, after string, ok bool) {
	at := strings.LastIndex(id, Separator)
	if at < 0 {
		return id, "", false
	}
	return id[:at], id[at+len(Separator):], true
}

func parseSlot(text string) (mib int64, n int, ok bool) {
	size, digits, ok := strings.Cut(text, sizeSeparator)
	if !ok {
		return 0, 0, false
	}
	if mib, ok = nodecontract.ParseSlotName(size); !ok {
		return 0, 0, false
	}
	n, ok = parseNumber(digits)
	return mib, n, ok
}

// parseNumber parses the output of strconv.Itoa for a number that is not negative.
func parseNumber(digits string) (n int, ok bool) {
	n, err := strconv.Atoi(digits)
	return n, err == nil && strconv.Itoa(n) == digits && n >= 0
}

// UUID returns the GPU's UUID from a device ID.
func UUID(id string) string {
	uuid, _, _ := Parse(id)
	return uuid
}

// Load is the load of a GPU. It decides between GPUs with the same number of free replicas.
type Load struct {
	FreeMemoryMiB int64
	// Percent is the recent utilization of the GPU, from 0 to 100.
	Percent int
}

// Request is a request for the devices of one container.
type Request struct {
	// Available are the devices to choose from. MustInclude are the ones among them that must be selected.
	Available, MustInclude []string
	// Size is the number of devices to select, including MustInclude.
	Size int
	// Packed fills one GPU before the next. If it is false, replicas are spread over the GPUs.
	Packed bool
	// Loads are keyed by UUID.
	Loads map[string]Load
	// Score returns how well two GPUs, given by UUID, are connected. It is nil if unknown.
	Score func(a, b string) int
}

type choice struct {
	uuid  string
	ids   []string // free replicas, the next one to select first
	taken int      // replicas that the request has already taken
	load  Load
}

// Preferred returns the selected devices, starting with MustInclude even if those are more than Size. It returns fewer than Size if not enough are
// available.
//
// Replicas are spread by the number of free replicas on a GPU, then by free memory, then by utilization, because the most frequent complaint of users
// of time-slicing is two notebooks on one of four idle GPUs. Whole GPUs are chosen by their connections: see [linked].
func Preferred(r Request) []string {
	if gpus, must, ok := r.wholeGPUs(); ok {
		return bestLinked(gpus, must, r.Size, r.Score)
	}
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
		slices.SortFunc(c.ids, CompareIDs)
	}
	for len(out) < r.Size && len(choices) > 0 {
		best := slices.MinFunc(choices, func(a, b *choice) int { return compareChoices(a, b, r.Packed) })
		out = append(out, best.ids[0])
		best.ids = best.ids[1:]
		best.taken++
		if len(best.ids) == 0 {
			choices = slices.DeleteFunc(choices, func(c *choice) bool { return c == best })
		}
	}
	return out
}

// compareChoices orders GPUs by preference, the most preferred first.
func compareChoices(a, b *choice, packed bool) int {
	free, taken := cmp.Compare(len(b.ids), len(a.ids)), cmp.Compare(a.taken, b.taken)
	if packed {
		free, taken = -free, -taken
	}
	return cmp.Or(free, taken, cmp.Compare(b.load.FreeMemoryMiB, a.load.FreeMemoryMiB), cmp.Compare(a.load.Percent, b.load.Percent), cmp.Compare(a.uuid, b.uuid))
}

// CompareIDs orders replicas by number, so that those with high numbers are likely to be free when the number of replicas is reduced.
func CompareIDs(a, b string) int {
	_, n, _ := Parse(a)
	_, m, _ := Parse(b)
	return cmp.Or(cmp.Compare(n, m), cmp.Compare(a, b))
}
