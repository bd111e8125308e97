package usage

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

const (
	// ExceedPercent is by how many percent a pod may exceed the device memory of its slots: the contexts of CUDA and its libraries also count.
	ExceedPercent = 10
	// ExceedFor is how long a pod must exceed it before it is reported.
	ExceedFor = 30 * time.Second
)

// PodMemory is the device memory that a pod uses on a GPU, and that of its slots there.
type PodMemory struct {
	// Pod is the namespace/name of the pod. UUID is that of the GPU.
	Pod, UUID string
	// UsedMiB is the memory that its processes use. SlotMiB is that of its slots.
	UsedMiB, SlotMiB int64
}

// above reports whether the pod uses more than allowed.
func (m PodMemory) above() bool { return m.UsedMiB*100 > m.SlotMiB*(100+ExceedPercent) }

// Exceeding finds the pods that have used more device memory than their slots have for ExceedFor.
type Exceeding struct {
	since map[[2]string]time.Time
	told  map[[2]string]bool
}

// Look adds the current use of pods. It returns the pods that exceed their slots, and which of them have just begun to, both sorted. A pod that is no
// longer listed has ended or uses less.
func (e *Exceeding) Look(now time.Time, pods []PodMemory) (exceeding, begun []PodMemory) {
	since, told := map[[2]string]time.Time{}, map[[2]string]bool{}
	pods = slices.SortedFunc(slices.Values(pods), func(a, b PodMemory) int {
		return cmp.Or(strings.Compare(a.Pod, b.Pod), strings.Compare(a.UUID, b.UUID))
	})
	for _, p := range pods {
		if !p.above() {
			continue
		}
		key := [2]string{p.Pod, p.UUID}
		at, known := e.since[key]
		if !known || at.After(now) {
			at = now
		}
		since[key] = at
		if now.Sub(at) < ExceedFor {
			continue
		}
		exceeding = append(exceeding, p)
		if !e.told[key] {
			begun = append(begun, p)
		}
		told[key] = true
	}
	e.since, e.told = since, told
	return exceeding, begun
}
