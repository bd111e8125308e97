package mig

import (
	"fmt"
	"slices"
	"strings"
)

// Model is a model of GPUs that can be divided into instances.
type Model struct {
	// Name is the cloud's name, as in the label karpenter.k8s.aws/instance-gpu-name, and MemoryMiB the device memory according to the cloud, in MiB.
	Name      string
	MemoryMiB int64
	Geometry
	// memorySlices is the number of memory slices. An instance has at least shareOf16 sixteenths of its share of the memory. The driver takes the rest.
	memorySlices, shareOf16 int64
}

// models are the GPUs of EC2 that can be divided: those of p4d, p4de, p5, p5e and p5en, p6-b200, p6-b300 and g7e. The profiles and their numbers are those of
// NVIDIA's mig-parted.
var models = []Model{
	sevenths("a100", 40960, 15, "1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"),
	sevenths("a100", 81920, 15, "1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
	sevenths("h100", 81920, 15, "1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
	sevenths("h200", 144384, 14, "1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"),
	sevenths("b200", 183359, 14, "1g.23gb", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"),
	sevenths("b300", 275040, 14, "1g.34gb", "1g.67gb", "2g.67gb", "3g.135gb", "4g.135gb", "7g.269gb"),
	{
		Name: "rtx-pro-server-6000", MemoryMiB: 98304, memorySlices: 4, shareOf16: 14,
		Geometry: Geometry{Slices: 4, Kinds: []Kind{
			{Profile: "1g.24gb", Slices: 1, Size: 1, Starts: []int{0, 1, 2, 3}, Most: 4},
			{Profile: "2g.48gb", Slices: 2, Size: 2, Starts: []int{0, 2}, Most: 2},
			{Profile: "4g.96gb", Slices: 4, Size: 4, Starts: []int{0}, Most: 1},
		}},
	},
}

// sevenths returns a model with seven compute slices and eight memory slices. All such models have the same places for their instances.
func sevenths(name string, memoryMiB, shareOf16 int64, one, wide, two, three, four, seven string) Model {
	return Model{
		Name: name, MemoryMiB: memoryMiB, memorySlices: 8, shareOf16: shareOf16,
		Geometry: Geometry{Slices: 7, Kinds: []Kind{
			{Profile: one, Slices: 1, Size: 1, Starts: []int{0, 1, 2, 3, 4, 5, 6}, Most: 7},
			{Profile: one + "+me", Slices: 1, Size: 1, Starts: []int{0, 1, 2, 3, 4, 5, 6}, Most: 1},
			{Profile: wide, Slices: 1, Size: 2, Starts: []int{0, 2, 4, 6}, Most: 4},
			{Profile: two, Slices: 2, Size: 2, Starts: []int{0, 2, 4}, Most: 3},
			{Profile: three, Slices: 3, Size: 4, Starts: []int{0, 4}, Most: 2},
			{Profile: four, Slices: 4, Size: 4, Starts: []int{0}, Most: 1},
			{Profile: seven, Slices: 7, Size: 8, Starts: []int{0}, Most: 1},
		}},
	}
}

// Models returns the models with a name and, unless it is 0, a device memory in MiB.
func Models(name string, memoryMiB int64) []Model {
	return slices.DeleteFunc(slices.Clone(models), func(m Model) bool {
		return m.Name != name || memoryMiB != 0 && m.MemoryMiB != memoryMiB
	})
}

// InstanceMiB returns the minimum device memory in MiB of an instance of a profile, or 0 if the model does not have the profile.
func (m Model) InstanceMiB(profile string) int64 {
	k := m.Kind(profile)
	if k == nil {
		return 0
	}
	return m.MemoryMiB * int64(k.Size) / m.memorySlices * m.shareOf16 / 16
}

// CheckLayout returns an error if no GPU with the name and, unless it is 0, the memory in MiB has the profile.
func CheckLayout(name string, memoryMiB int64, profile string) error {
	if err := CheckProfile(profile); err != nil {
		return err
	}
	of, sized := Models(name, 0), Models(name, memoryMiB)
	var has []string
	for _, m := range sized {
		if m.Kind(profile) != nil {
			return nil
		}
		has = append(has, fmt.Sprintf("one of %d MiB has %s", m.MemoryMiB, Names(m.Kinds)))
	}
	switch {
	case len(of) == 0:
		var names []string
		for i := range models {
			names = append(names, models[i].Name)
		}
		return fmt.Errorf("GPUs %q cannot be divided, or are not known here: use one of %s", name, strings.Join(slices.Compact(names), ", "))
	case len(sized) == 0:
		var memory []string
		for i := range of {
			memory = append(memory, fmt.Sprint(of[i].MemoryMiB))
		}
		return fmt.Errorf("there is no %s with %d MiB: its memory is %s", name, memoryMiB, strings.Join(memory, " or "))
	}
	return fmt.Errorf("no %s has the profile %s: %s", name, profile, strings.Join(has, "; "))
}
