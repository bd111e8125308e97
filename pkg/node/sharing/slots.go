package sharing

import (
	"fmt"
	"slices"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/mps"
	"karve.sh/karve/pkg/nodecontract"
)

// readMemorySlots reads slots that are the same on each GPU. It records what is wrong with them.
func readMemorySlots(o *object) (*MemorySlots, nodecontract.Slots) {
	m := &MemorySlots{Enforcement: or(o.text("enforcement"), nodecontract.EnforceWatch)}
	number := func(o *object, key string) int64 {
		v, ok := o.take(key)
		if !ok {
			return 0
		}
		n, _ := o.r.integer(o.at(key), v)
		return int64(n)
	}
	m.ReserveMiB = number(o, "reserveMiB")
	for i, v := range o.list("slots") {
		o.r.item(indexPath(o.at("slots"), i), v, func(o *object) {
			m.Slots = append(m.Slots, SlotCount{SizeMiB: number(o, "sizeMiB"), Count: number(o, "count")})
		})
	}
	s := nodecontract.Slots{ReserveMiB: m.ReserveMiB, Enforcement: m.Enforcement, GPUs: [][]int64{nil}}
	for _, slot := range m.Slots {
		s.SizesMiB, s.GPUs[0] = append(s.SizesMiB, slot.SizeMiB), append(s.GPUs[0], slot.Count)
	}
	if err := s.Check(); err != nil {
		o.r.fail(o.path, "%v", err)
		return nil, nodecontract.Slots{}
	}
	return m, s
}

// slotResources returns the resources of a machine whose GPUs are divided into slots: one for each size, with the wanted number on each GPU.
func (c Config) slotResources(devices []gpu.Device) ([]Resource, error) {
	slots := c.Sharing.Slots
	needed := int64(0) // on each GPU
	if c.Sharing.MemorySlots != nil {
		for _, s := range c.Sharing.MemorySlots.Slots {
			needed += s.SizeMiB * s.Count
		}
	}
	for _, d := range devices {
		switch {
		case d.MIG:
			return nil, fmt.Errorf("GPU %d (%s) is partitioned, and has no slots of memory; take the partitions away", d.Index, d.Product)
		case slots.Most(d.MemoryMiB) == 0:
			return nil, fmt.Errorf("GPU %d (%s) has %d MiB of memory, and the smallest slot has %d beside a reserve of %d", d.Index, d.Product, d.MemoryMiB, slots.SizesMiB[0], slots.ReserveMiB)
		case needed > slots.CapacityMiB(d.MemoryMiB):
			return nil, fmt.Errorf("sharing.memorySlots: GPU %d (%s) has %d MiB of memory, and the slots need %d beside a reserve of %d", d.Index, d.Product, d.MemoryMiB, needed, slots.ReserveMiB)
		case slots.Enforcement == nodecontract.EnforceMPS && mpsSharing.cannot(d) != nil:
			return nil, fmt.Errorf("memory slots with enforcement MPS: %w", mpsSharing.cannot(d))
		}
	}
	out := make([]Resource, 0, len(slots.SizesMiB))
	for i, mib := range slots.SizesMiB {
		r := Resource{Name: nodecontract.SlotResource(mib), FailRequestsGreaterThanOne: true}
		for at, d := range devices {
			g := GPU{Device: d, SlotMiB: mib, ReserveMiB: slots.ReserveMiB, MPS: slotLimits(slots, d)}
			if c.Sharing.MemorySlots != nil {
				at = 0
			}
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
