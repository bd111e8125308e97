package v1alpha1

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"karve.sh/karve/pkg/nodecontract"
)

// memorySlots is StrategyMemorySlots: pods have slots of a GPU's device memory, in a few sizes, and take turns on it.
type memorySlots struct{}

func (memorySlots) shared() bool { return true }

// resource returns the resource of the smallest slots.
func (memorySlots) resource(s Sharing) string {
	if names := s.MemorySlots().Resources(); len(names) > 0 {
		return names[0]
	}
	return ResourceGPUShared // The schema requires a size.
}

// replicas returns 1 and 1, because the numbers depend on the memory of the GPU: see memorySlots.shares.
func (memorySlots) replicas(Sharing, string) (least, most int64) { return 1, 1 }

// shares returns a share with as many of the smallest slots as fit. It returns none if none fits.
func (memorySlots) shares(s Sharing, memoryMiB int64) []Share {
	slots := s.MemorySlots()
	most := slots.Most(memoryMiB)
	if most == 0 {
		return nil
	}
	return []Share{{Resource: s.Resource(), Least: most, Most: most, Slots: slots}}
}

// Defaults of MemorySharing.
const defaultReserveMiB = 512

// MemorySlots returns the slots of StrategyMemorySlots, without how many each GPU has. It returns zero slots for other strategies and for invalid
// sizes.
func (s Sharing) MemorySlots() nodecontract.Slots {
	if s.Strategy != StrategyMemorySlots || s.Memory == nil {
		return nodecontract.Slots{}
	}
	slots, err := s.Memory.slots()
	if err != nil {
		return nodecontract.Slots{}
	}
	return slots
}

func (m *MemorySharing) slots() (nodecontract.Slots, error) {
	slots := nodecontract.Slots{ReserveMiB: defaultReserveMiB, Enforcement: nodecontract.EnforceWatch}
	if m.Enforcement != "" {
		slots.Enforcement = string(m.Enforcement)
	}
	if m.Reserve != "" {
		mib, ok := wholeMiB(m.Reserve)
		if !ok {
			return nodecontract.Slots{}, fmt.Errorf("spec.sharing.memory.reserve is %.64q, and is an amount such as 512Mi", m.Reserve)
		}
		slots.ReserveMiB = mib
	}
	for i, size := range m.Sizes {
		mib, ok := wholeMiB(size)
		if !ok || mib < 1 {
			return nodecontract.Slots{}, fmt.Errorf("spec.sharing.memory.sizes[%d] is %.64q, and is an amount such as 4Gi", i, size)
		}
		slots.SizesMiB = append(slots.SizesMiB, mib)
	}
	if !slices.IsSorted(slots.SizesMiB) || len(slices.Compact(slices.Clone(slots.SizesMiB))) < len(slots.SizesMiB) {
		return nodecontract.Slots{}, fmt.Errorf("spec.sharing.memory.sizes must be different and in ascending order, for instance 2Gi, 4Gi and 8Gi")
	}
	return slots, nil
}

// wholeMiB returns the number of MiB in an amount in Mi or Gi.
func wholeMiB(text string) (int64, bool) {
	digits, scale := strings.TrimSuffix(text, "Gi"), int64(1024)
	if digits == text {
		digits, scale = strings.TrimSuffix(text, "Mi"), 1
	}
	n, err := strconv.ParseInt(digits, 10, 32)
	return n * scale, err == nil && n >= 0 && digits != text
}

// SizesError returns an error if the slots are invalid, which the schema prevents.
func (s Sharing) SizesError() error {
	if s.Strategy != StrategyMemorySlots || s.Memory == nil {
		return nil
	}
	_, err := s.Memory.slots()
	return err
}
