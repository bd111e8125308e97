package nodecontract

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

const (
	// HoldersBeat is the interval at which the agent confirms a HoldersReport in which nothing has changed.
	HoldersBeat = 5 * time.Minute
	// HoldersFresh is the age up to which a HoldersReport is valid. It allows for one missed beat.
	HoldersFresh = 2 * HoldersBeat
	// MaxHolders is the largest size of a HoldersReport that names the pods, in bytes. The API server limits the annotations of an object to 256 KiB in
	// total.
	MaxHolders = 32 << 10
)

// HoldersReport lists which pods hold which replicas of the GPUs of a Node.
type HoldersReport struct {
	// AsOf is when the agent last looked.
	AsOf time.Time `json:"asOf"`
	GPUs []HeldGPU `json:"gpus"`
	// Truncated reports that GPUs have no holders because the report would be too long.
	Truncated bool `json:"truncated,omitempty"`
}

// HeldGPU is a GPU or a MIG instance of one, and its holders.
type HeldGPU struct {
	UUID string `json:"uuid"`
	// Index is the index of the GPU in NVML, from 0.
	Index int `json:"index"`
	// Instance is the index of the MIG instance on the GPU, from 0, or nil for an undivided GPU. Profile is its profile, for example "1g.5gb".
	Instance *int   `json:"instance,omitempty"`
	Profile  string `json:"profile,omitempty"`
	Product  string `json:"product"`
	// MemoryMiB is the device memory in MiB.
	MemoryMiB int64 `json:"memMiB"`
	// Replicas is the number of replicas that the agent offers. It is 0 while it serves none.
	Replicas int       `json:"replicas"`
	Health   GPUHealth `json:"health"`
	// Held is the number of replicas that pods hold.
	Held    int         `json:"held"`
	Holders []GPUHolder `json:"holders,omitempty"`
	// Slots are the slots of memory that make up the replicas, the smallest first. There are none if the GPU is not divided into slots.
	Slots []HeldSlots `json:"slots,omitempty"`
}

// HeldSlots are the slots of one size on a GPU.
type HeldSlots struct {
	// MiB is the memory of each slot in MiB.
	MiB int64 `json:"mib"`
	// Held is how many slots pods hold. Free is how many others the kubelet may give to pods.
	Held int `json:"held,omitempty"`
	Free int `json:"free,omitempty"`
}

// Name returns nvidia-smi's name of the GPU or the MIG instance, for example "0" and "0:3".
func (g HeldGPU) Name() string {
	if g.Instance == nil {
		return strconv.Itoa(g.Index)
	}
	return fmt.Sprintf("%d:%d", g.Index, *g.Instance)
}

func (g HeldGPU) instance() int {
	if g.Instance == nil {
		return -1
	}
	return *g.Instance
}

// GPUHealth reports whether a GPU is in service.
type GPUHealth string

// Values of GPUHealth.
const (
	GPUInService    GPUHealth = "InService"
	GPUOutOfService GPUHealth = "OutOfService"
	// GPUCordoned is a GPU that could be in service, but accepts no new pods because GPUCordonAnnotation names it.
	GPUCordoned GPUHealth = "Cordoned"
)

// GPUHolder is a container that holds replicas of a GPU.
type GPUHolder struct {
	// Pod is the namespace/name of the pod.
	Pod       string `json:"pod"`
	Container string `json:"container"`
	// IDs are the numbers of the replicas. It is empty for an unshared GPU, and for slots.
	IDs []int `json:"ids,omitempty"`
	// Slots are the slots, by size and number, for example "4gb-0".
	Slots []string `json:"slots,omitempty"`
}

// MiB returns the memory of the holder's slots in MiB.
func (h GPUHolder) MiB() int64 {
	var sum int64
	for _, slot := range h.Slots {
		size, _, _ := strings.Cut(slot, "-")
		mib, _ := ParseSlotName(size)
		sum += mib
	}
	return sum
}

// String returns the value of the annotation. If it would be longer than MaxHolders, it has the numbers of held replicas and no pods.
func (r HoldersReport) String() string {
	data, err := json.Marshal(r)
	if err != nil {
		return "" // JSON cannot represent the year.
	}
	if len(data) > MaxHolders && !r.Truncated {
		r.Truncated, r.GPUs = true, slices.Clone(r.GPUs)
		for i := range r.GPUs {
			r.GPUs[i].Holders = nil
		}
		return r.String()
	}
	return string(data)
}

// SameHolders reports whether two reports are equal apart from when the agent looked.
func (r HoldersReport) SameHolders(other HoldersReport) bool {
	r.AsOf, other.AsOf = time.Time{}, time.Time{}
	return r.String() == other.String()
}

// FreshAt reports whether the report is valid at the time now. A report from the future is valid up to the same distance, because clocks differ.
func (r HoldersReport) FreshAt(now time.Time) bool {
	return now.Sub(r.AsOf).Abs() <= HoldersFresh
}

// ParseHolders parses the value of the annotation, which anyone who may change the Node can write. Its GPUs are sorted by index, and its text is safe
// to print. ok is false if the value is empty.
func ParseHolders(annotation string) (r HoldersReport, ok bool, err error) {
	if annotation == "" {
		return HoldersReport{}, false, nil
	}
	if err := json.Unmarshal([]byte(annotation), &r); err != nil {
		return HoldersReport{}, false, fmt.Errorf("reading %s: %w", HoldersAnnotation, err)
	}
	if r.AsOf.IsZero() {
		return HoldersReport{}, false, fmt.Errorf("reading %s: %w", HoldersAnnotation, errors.New("it has no asOf"))
	}
	for i := range r.GPUs {
		g := &r.GPUs[i]
		if g.Index < 0 || g.MemoryMiB < 0 || g.Replicas < 0 || g.Held < 0 || g.Instance != nil && *g.Instance < 0 ||
			slices.ContainsFunc(g.Slots, func(s HeldSlots) bool {
				return s.MiB < 1 || s.MiB > maxSlotMiB || min(s.Held, s.Free) < 0 || max(s.Held, s.Free) > maxSlotsPerGPU
			}) {
			return HoldersReport{}, false, fmt.Errorf("reading %s: the GPU %q has a number that cannot be", HoldersAnnotation, g.UUID)
		}
		g.UUID, g.Product, g.Health = printable(g.UUID), printable(g.Product), GPUHealth(printable(string(g.Health)))
		g.Profile = printable(g.Profile)
		for j := range g.Holders {
			h := &g.Holders[j]
			h.Pod, h.Container = printable(h.Pod), printable(h.Container)
			for k := range h.Slots {
				h.Slots[k] = printable(h.Slots[k])
			}
		}
	}
	slices.SortStableFunc(r.GPUs, func(a, b HeldGPU) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.instance(), b.instance()))
	})
	return r, true, nil
}

// printable removes control characters, which a terminal would obey instead of printing them.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, text)
}
