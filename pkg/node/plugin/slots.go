package plugin

import (
	"fmt"
	"maps"
	"slices"

	"karve.sh/karve/pkg/node/alloc"
	"karve.sh/karve/pkg/nodecontract"
)

// slotted describes the slots of memory that a GPU should have.
type slotted struct {
	// capacityMiB is the memory in MiB that is available to its slots.
	capacityMiB int64
	// wanted is the wanted number of slots by size in MiB.
	wanted map[int64]int
}

func (s *slotted) has(mib int64) bool { _, ok := s.wanted[mib]; return ok }

// sizes returns the sizes of slots, the largest first, because small slots fit beside large ones and not the other way round.
func (s *slotted) sizes() []int64 {
	sizes := slices.Sorted(maps.Keys(s.wanted))
	slices.Reverse(sizes)
	return sizes
}

// slotsOf returns the total memory in MiB of a GPU's held slots, and whether one of the held devices is not a slot: a pod then holds the whole GPU, or
// a replica without a size.
func slotsOf(held []held) (mib int64, other bool) {
	for _, h := range held {
		size, _, ok := alloc.Slot(h.id)
		other = other || !ok
		mib += size
	}
	return mib, other
}

// offerSlots adds the slots of one GPU. Slots that pods hold always stay. Free slots stay while keep is true, even if they are no longer wanted: the
// scheduler may have given one to a pod. As many of the wanted slots as fit are added in the remaining memory. settling reports whether some did not
// fit.
func offerSlots(t target, held []held, listed idSet, keep bool, offered map[string][]string) (settling bool) {
	left := t.slots.capacityMiB
	used, other := slotsOf(held)
	left -= used
	own := map[string]map[string]bool{}
	have := map[int64]int{}
	add := func(resource, id string) {
		if own[resource] == nil {
			own[resource] = map[string]bool{}
		}
		own[resource][id] = true
	}
	for _, h := range held {
		add(h.resource, h.id)
		if size, _, ok := alloc.Slot(h.id); ok {
			have[size]++
		}
	}
	for _, size := range t.slots.sizes() {
		resource := nodecontract.SlotResource(size)
		free := func(id string) bool {
			if other || left < size || own[resource][id] {
				return false
			}
			left -= size
			have[size]++
			add(resource, id)
			return true
		}
		for _, id := range knownSlots(listed[resource], t.uuid) {
			if keep || have[size] < t.slots.wanted[size] {
				free(id)
			}
		}
	}
	for _, size := range t.slots.sizes() {
		resource := nodecontract.SlotResource(size)
		for n := 0; have[size] < t.slots.wanted[size] && !other && left >= size; n++ {
			if id := alloc.SlotID(t.uuid, size, n); !own[resource][id] {
				left -= size
				have[size]++
				add(resource, id)
			}
		}
		settling = settling || have[size] < t.slots.wanted[size]
	}
	for resource, ids := range own {
		offered[resource] = append(offered[resource], slices.SortedFunc(maps.Keys(ids), alloc.CompareIDs)...)
	}
	return settling
}

// knownSlots returns the slots of a GPU that the kubelet knows, by number.
func knownSlots(listed map[string]bool, uuid string) []string {
	var ids []string
	for id := range listed {
		if _, _, ok := alloc.Slot(id); ok && alloc.UUID(id) == uuid {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, alloc.CompareIDs)
	return ids
}

// Slots are the slots of one size on a GPU.
type Slots struct {
	// MiB is the memory of each slot.
	MiB int64
	// Held is how many slots pods hold. Free is how many others the kubelet may give to pods.
	Held, Free int
}

// slotShare returns the listed slots of a GPU. m.mu is held.
func (m *Manager) slotShare(t target) Share {
	share := Share{Unhealthy: m.outOfService(t.uuid), Cordoned: m.isCordoned(t.uuid)}
	sizes := t.slots.sizes()
	slices.Reverse(sizes)
	for _, size := range sizes {
		of, resource := Slots{MiB: size}, nodecontract.SlotResource(size)
		for _, id := range knownSlots(m.listed[resource], t.uuid) {
			if _, held := m.taken.by[resource][id]; held {
				of.Held++
			} else {
				of.Free++
			}
		}
		share.Total += of.Held + of.Free
		share.Slots = append(share.Slots, of)
	}
	return share
}

// slotFor returns the size in MiB of the slot that a container gets, or 0 if the devices are not slots. It returns an error if the held slots of the
// GPU would have more memory than the GPU: the kubelet may choose a slot that was withdrawn a moment ago. m.mu is held.
func (m *Manager) slotFor(resource string, ids []string) (mib int64, err error) {
	if len(ids) != 1 {
		return 0, nil
	}
	mib, _, ok := alloc.Slot(ids[0])
	uuid := alloc.UUID(ids[0])
	at := slices.IndexFunc(m.targets, func(t target) bool { return t.uuid == uuid && t.slots != nil })
	if !ok || at < 0 {
		return 0, nil
	}
	used := mib
	for of, held := range m.taken.by {
		for id := range held {
			if alloc.UUID(id) != uuid || of == resource && id == ids[0] {
				continue
			}
			size, _, ok := alloc.Slot(id)
			if !ok {
				return 0, fmt.Errorf("GPU %s is not free: a pod holds %s, which is no slot", uuid, id)
			}
			used += size
		}
	}
	if capacity := m.targets[at].slots.capacityMiB; used > capacity {
		return 0, fmt.Errorf("the slot %s was withdrawn: with it, pods would hold slots of %d MiB of GPU %s, which has %d for them", ids[0], used, uuid, capacity)
	}
	return mib, nil
}

// smallerAmount returns the smaller of two amounts. The first may be 0, which means unknown.
func smallerAmount(a, b int64) int64 {
	if a <= 0 {
		return b
	}
	return min(a, b)
}
