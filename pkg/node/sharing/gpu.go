package sharing

import (
	"cmp"
	"fmt"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/mps"
)

// GPU is a GPU or a MIG instance with its number of replicas, which is 1 if it is not shared.
type GPU struct {
	gpu.Device
	// Instance is the MIG instance of the GPU, or nil for the whole GPU.
	Instance *gpu.Instance
	Replicas int
	// MPS are the limits of each replica if the GPU is shared with MPS. Otherwise it is nil.
	MPS *mps.Limits
	// SlotMiB is the memory of each replica in MiB if they are slots of memory, and 0 otherwise. With slots, the GPU is in several resources, and may have
	// no replicas in one. Its slots together have at most its memory less ReserveMiB.
	SlotMiB, ReserveMiB int64
}

// ID returns the UUID of the MIG instance, or that of the GPU if there is no instance.
func (g GPU) ID() string {
	if g.Instance != nil {
		return g.Instance.UUID
	}
	return g.UUID
}

func (g GPU) String() string {
	if g.Instance == nil {
		return fmt.Sprintf("GPU %d (%s)", g.Index, g.UUID)
	}
	return fmt.Sprintf("MIG instance %d:%d (%s)", g.Index, g.Instance.Index, g.Instance.UUID)
}

// Compare orders by the index of the GPU, and then by that of the instance.
func (g GPU) Compare(other GPU) int {
	instance := 0
	if g.Instance != nil && other.Instance != nil {
		instance = cmp.Compare(g.Instance.Index, other.Instance.Index)
	}
	return cmp.Or(cmp.Compare(g.Index, other.Index), instance, cmp.Compare(g.ID(), other.ID()))
}
