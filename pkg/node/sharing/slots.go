package sharing

import (
	"fmt"
	"slices"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/mps"
	"karve.sh/karve/pkg/nodecontract"
)

// slotResources returns the resources of a machine whose GPUs are divided into slots: one for each size, with the wanted number on each GPU. NVIDIA's
// configuration has no slots, so they always come from a promise.
func (c Config) slotResources(devices []gpu.Device) ([]Resource, error) {
	slots := c.Sharing.Slots
	for _, d := range devices {
		switch {
		case d.MIG:
			return nil, fmt.Errorf("GPU %d (%s) is partitioned, and has no slots of memory; take the partitions away", d.Index, d.Product)
		case slots.Most(d.MemoryMiB) == 0:
			return nil, fmt.Errorf("GPU %d (%s) has %d MiB of memory, and the smallest slot has %d beside a reserve of %d", d.Index, d.Product, d.MemoryMiB, slots.SizesMiB[0], slots.ReserveMiB)
		case slots.Enforcement == nodecontract.EnforceMPS && mpsSharing.cannot(d) != nil:
			return nil, fmt.Errorf("memory slots with enforcement MPS: %w", mpsSharing.cannot(d))
		}
	}
	out := make([]Resource, 0, len(slots.SizesMiB))
	for i, mib := range slots.SizesMiB {
		r := Resource{Name: nodecontract.SlotResource(mib), FailRequestsGreaterThanOne: true}
		for at, d := range devices {
			g := GPU{Device: d, SlotMiB: mib, ReserveMiB: slots.ReserveMiB, MPS: slotLimits(slots, d)}
			if at < len(slots.GPUs) {
				g.Replicas = int(slots.GPUs[at][i])
			}
			r.GPUs = append(r.GPUs, g)
		}
		out = append(out, r)
	}
	return out, nil
}

// slotLimits returns the limits that the MPS daemon of a GPU enforces: no process has more memory than the largest slot. The agent sets the limit of
// each slot for its container. It returns nil if there is no daemon.
func slotLimits(s nodecontract.Slots, d gpu.Device) *mps.Limits {
	if s.Enforcement != nodecontract.EnforceMPS {
		return nil
	}
	return &mps.Limits{UUID: d.UUID, MemoryMiB: min(s.CapacityMiB(d.MemoryMiB), slices.Max(s.SizesMiB)), ThreadPercent: allThreads, MultiUser: true}
}

// allThreads is the share of a GPU's threads that a process in a slot may use: slots divide memory only.
const allThreads = 100
