package nodecontract

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// SlotsAnnotation is part of the promise of a machine: its GPUs are shared by device memory, in slots, and its value is a [Slots]. The controller
// writes it to NodeClaims and Nodes, and changes it as pods arrive. The controller and the agent read it.
const SlotsAnnotation = domain + "/memory-slots"

// SlotsChangingTaintKey is the taint (NoSchedule) of a Node whose free slots are being withdrawn, so that the scheduler does not give them to pods
// meanwhile. The controller writes and removes it. The agent withdraws no free slot without it.
const SlotsChangingTaintKey = domain + "/slots-changing"

// Values of Slots.Enforcement.
const (
	// EnforceNone does nothing about pods that use more device memory than their slots have.
	EnforceNone = "None"
	// EnforceWatch reports such pods.
	EnforceWatch = "Watch"
	// EnforceMPS prevents processes from allocating more.
	EnforceMPS = "MPS"
)

// Limits of what [ParseSlots] accepts. They are far above those of the API.
const (
	maxSlotSizes   = 16
	maxSlotMiB     = 1 << 24
	maxSlotGPUs    = 64
	maxSlotsPerGPU = 4096
)

// Slots defines how GPUs are divided into slots of device memory. The zero value means that they are not.
type Slots struct {
	// SizesMiB are the sizes of slots in MiB, in ascending order.
	SizesMiB []int64 `json:"sizesMiB"`
	// ReserveMiB is the device memory of each GPU, in MiB, that is not divided into slots.
	ReserveMiB int64 `json:"reserveMiB"`
	// Enforcement is EnforceNone, EnforceWatch or EnforceMPS.
	Enforcement string `json:"enforcement"`
	// GPUs are the slots that each GPU should have, including those in use: for each GPU, in the order of the indices, how many of each size, in the order
	// of SizesMiB.
	GPUs [][]int64 `json:"gpus,omitempty"`
}

// IsZero reports whether GPUs are not divided into slots.
func (s Slots) IsZero() bool { return len(s.SizesMiB) == 0 }

// String returns the value of the annotation, or "" if s is zero.
func (s Slots) String() string {
	if s.IsZero() {
		return ""
	}
	data, err := json.Marshal(s)
	if err != nil {
		return "" // It has only numbers and text.
	}
	return string(data)
}

// ParseSlots parses the value of the annotation. An empty value is a zero Slots.
func ParseSlots(annotation string) (Slots, error) {
	if annotation == "" {
		return Slots{}, nil
	}
	var s Slots
	d := json.NewDecoder(strings.NewReader(annotation))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return Slots{}, fmt.Errorf("reading %s: %w", SlotsAnnotation, err)
	}
	if err := s.Check(); err != nil {
		return Slots{}, fmt.Errorf("reading %s: %w", SlotsAnnotation, err)
	}
	return s, nil
}

// Check returns an error if the slots are beyond the limits of the annotation.
func (s Slots) Check() error {
	if n := len(s.SizesMiB); n < 1 || n > maxSlotSizes {
		return fmt.Errorf("there are %d sizes, and there can be 1 to %d", n, maxSlotSizes)
	}
	for i, mib := range s.SizesMiB {
		switch {
		case mib < 1 || mib > maxSlotMiB:
			return fmt.Errorf("a size is %d MiB, and can be 1 to %d", mib, maxSlotMiB)
		case i > 0 && mib <= s.SizesMiB[i-1]:
			return fmt.Errorf("the size %d MiB follows %d, and sizes ascend", mib, s.SizesMiB[i-1])
		}
	}
	switch {
	case s.ReserveMiB < 0 || s.ReserveMiB > maxSlotMiB:
		return fmt.Errorf("reserveMiB is %d, and can be 0 to %d", s.ReserveMiB, maxSlotMiB)
	case s.Enforcement != EnforceNone && s.Enforcement != EnforceWatch && s.Enforcement != EnforceMPS:
		return fmt.Errorf("enforcement is %.64q, and can be %s, %s or %s", s.Enforcement, EnforceNone, EnforceWatch, EnforceMPS)
	case len(s.GPUs) > maxSlotGPUs:
		return fmt.Errorf("there are %d GPUs, and there can be %d", len(s.GPUs), maxSlotGPUs)
	}
	for i, counts := range s.GPUs {
		if len(counts) != len(s.SizesMiB) {
			return fmt.Errorf("GPU %d has %d numbers of slots, and there are %d sizes", i, len(counts), len(s.SizesMiB))
		}
		for _, n := range counts {
			if n < 0 || n > maxSlotsPerGPU {
				return fmt.Errorf("GPU %d is to have %d slots of a size, and can have 0 to %d", i, n, maxSlotsPerGPU)
			}
		}
	}
	return nil
}

// SameKind reports whether two machines differ at most in the number of their slots.
func (s Slots) SameKind(other Slots) bool {
	return slices.Equal(s.SizesMiB, other.SizesMiB) && s.ReserveMiB == other.ReserveMiB && s.Enforcement == other.Enforcement
}

// Equal reports whether s and other are equal.
func (s Slots) Equal(other Slots) bool {
	return s.SameKind(other) && slices.EqualFunc(s.GPUs, other.GPUs, slices.Equal[[]int64])
}

// Index returns the index of a size in SizesMiB, or -1 if there is none.
func (s Slots) Index(mib int64) int { return slices.Index(s.SizesMiB, mib) }

// CapacityMiB returns the device memory in MiB that is available to the slots of a GPU with gpuMiB of memory.
func (s Slots) CapacityMiB(gpuMiB int64) int64 { return max(0, gpuMiB-s.ReserveMiB) }

// Most returns the largest number of slots of a GPU with gpuMiB of memory. It is 0 if not even the smallest slot fits.
func (s Slots) Most(gpuMiB int64) int64 {
	if s.IsZero() {
		return 0
	}
	n := min(s.CapacityMiB(gpuMiB)/s.SizesMiB[0], maxSlotsPerGPU)
	if s.Enforcement == EnforceMPS {
		n = min(n, MaxMPSReplicas)
	}
	return n
}

// UsedMiB returns the device memory in MiB of slots, given how many there are of each size.
func (s Slots) UsedMiB(counts []int64) int64 {
	var sum int64
	for i, n := range counts {
		sum += n * s.SizesMiB[i]
	}
	return sum
}

// Wanted returns how many slots of each size all GPUs should have in total.
func (s Slots) Wanted() []int64 {
	sum := make([]int64, len(s.SizesMiB))
	for _, counts := range s.GPUs {
		for i, n := range counts {
			sum[i] += n
		}
	}
	return sum
}

// Count returns how many slots all GPUs should have in total.
func (s Slots) Count() int64 {
	var n int64
	for _, of := range s.Wanted() {
		n += of
	}
	return n
}

// Resources returns the resources of the slots, in the order of the sizes.
func (s Slots) Resources() []string {
	names := make([]string, 0, len(s.SizesMiB))
	for _, mib := range s.SizesMiB {
		names = append(names, SlotResource(mib))
	}
	return names
}

// Units in the names of slot sizes.
const (
	slotGiB    = "gb"
	slotMiB    = "mb"
	mibPerGiB  = 1024
	slotPrefix = ResourceGPU + "-"
)

// SlotName returns the name of a slot's size, which is used in device IDs and resources: "2gb" for 2048 MiB, and "1536mb" for a size that is not a
// whole number of GiB.
func SlotName(mib int64) string {
	if mib%mibPerGiB == 0 {
		return strconv.FormatInt(mib/mibPerGiB, 10) + slotGiB
	}
	return strconv.FormatInt(mib, 10) + slotMiB
}

// ParseSlotName returns the size in MiB of a name from SlotName. It returns false for any other text.
func ParseSlotName(name string) (mib int64, ok bool) {
	digits, scale := strings.TrimSuffix(name, slotGiB), int64(mibPerGiB)
	if digits == name {
		digits, scale = strings.TrimSuffix(name, slotMiB), 1
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 1 || n > maxSlotMiB/scale || SlotName(n*scale) != name {
		return 0, false
	}
	return n * scale, true
}

// SlotResource returns the resource of slots of a size, for example "nvidia.com/gpu-2gb".
func SlotResource(mib int64) string { return slotPrefix + SlotName(mib) }

// ParseSlotResource returns the size in MiB of the slots of a resource. It returns false if it is not a resource of slots.
func ParseSlotResource(resource string) (mib int64, ok bool) {
	name, ok := strings.CutPrefix(resource, slotPrefix)
	if !ok {
		return 0, false
	}
	return ParseSlotName(name)
}

// SlotsInUseAnnotation holds a [SlotsInUse]. The agent writes it to its Node, and the controller reads it.
const SlotsInUseAnnotation = domain + "/memory-slots-in-use"

// SlotsInUse lists which slots of the GPUs of a Node pods hold.
type SlotsInUse struct {
	// SizesMiB are the sizes of slots in MiB, as in [Slots].
	SizesMiB []int64 `json:"sizesMiB"`
	// GPUs are the GPUs, in the order of their indices.
	GPUs []GPUSlotsInUse `json:"gpus"`
}

// GPUSlotsInUse lists which slots of a GPU pods hold.
type GPUSlotsInUse struct {
	// MemoryMiB is the memory of the GPU in MiB. It is 0 if the GPU is out of service.
	MemoryMiB int64 `json:"mib"`
	// Held is how many slots of each size pods hold, in the order of SizesMiB.
	Held []int64 `json:"held"`
}

// String returns the value of the annotation.
func (s SlotsInUse) String() string {
	data, err := json.Marshal(s)
	if err != nil {
		return "" // It has only numbers.
	}
	return string(data)
}

// ParseSlotsInUse parses the value of the annotation of a machine with slots of these sizes. ok is false if the value is empty, invalid, or for other
// sizes: the slots in use are then unknown.
func ParseSlotsInUse(annotation string, sizesMiB []int64) (s SlotsInUse, ok bool) {
	if annotation == "" || json.Unmarshal([]byte(annotation), &s) != nil || !slices.Equal(s.SizesMiB, sizesMiB) || len(s.GPUs) > maxSlotGPUs {
		return SlotsInUse{}, false
	}
	for _, g := range s.GPUs {
		if g.MemoryMiB < 0 || g.MemoryMiB > maxSlotMiB || len(g.Held) != len(sizesMiB) || slices.Min(g.Held) < 0 || slices.Max(g.Held) > maxSlotsPerGPU {
			return SlotsInUse{}, false
		}
	}
	return s, true
}
