package mig

import (
	"fmt"
	"slices"
	"strings"

	"karve.sh/karve/pkg/nodecontract"
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

// models are NVIDIA's GPUs that can be divided, those of EC2 first: p4d, p4de, p5, p5e and p5en, p6-b200, p6-b300 and g7e. Other clouds and machines must use
// these names, and the nominal memory in GB times 1024. The profiles are those of NVIDIA's MIG user guide for release 610 and of the default
// configuration of mig-parted. An H200 NVL is an h200. Products for the workstation with the same profiles have the same name.
var models = []Model{
	sevenths("a100", 40960, 15, 40),
	sevenths("a100", 81920, 15, 80),
	sevenths("h100", 81920, 15, 80),
	sevenths("h100", 96256, 14, 94), // H100 NVL, or SXM5 with 94 GB
	sevenths("h200", 144384, 14, 141),
	sevenths("b200", 183359, 14, 180),
	sevenths("b300", 275040, 14, 269),
	parts("rtx-pro-server-6000", 98304, 14, 96, 4, allSorts, mixed, graphics),

	sevenths("gh200", 98304, 14, 96),
	sevenths("gh200", 147456, 14, 144),
	sevenths("h20", 98304, 14, 96),
	sevenths("h20", 144384, 14, 141),
	sevenths("gb200", 190464, 14, 186),
	sevenths("gb300", 284672, 14, 278),
	parts("a30", 24576, 15, 24, 4, media, media, none),
	parts("rtx-pro-6000", 98304, 14, 96, 4, allSorts, mixed, graphics),
	parts("rtx-pro-5000", 49152, 14, 48, 2, allSorts, graphics),
	parts("rtx-pro-4500", 32768, 14, 32, 2, mixed, graphics),
}

// variant is the suffix of profiles that have other engines than the profile without it. once reports whether a GPU has one such instance at most.
type variant struct {
	suffix string
	once   bool
}

var (
	none     []variant
	media    = []variant{{"+me", true}}
	graphics = []variant{{"+gfx", false}}
	mixed    = []variant{{"+gfx", false}, {"+me.all", true}, {"-me", false}}
	allSorts = append(slices.Clone(media), mixed...)
)

// profileOf returns the name of a profile with part/of of a GPU's memory in GB.
func profileOf(compute, gb, part, of int) string {
	return fmt.Sprintf("%dg.%dgb", compute, (2*gb*part+of)/(2*of))
}

// sevenths returns a model with seven compute slices and eight memory slices. All such models have the same places for their instances.
func sevenths(model string, memoryMiB, shareOf16 int64, gb int) Model {
	one := profileOf(1, gb, 1, 8)
	return Model{
		Name: model, MemoryMiB: memoryMiB, memorySlices: 8, shareOf16: shareOf16,
		Geometry: Geometry{Slices: 7, Kinds: []Kind{
			{Profile: one, Slices: 1, Size: 1, Starts: []int{0, 1, 2, 3, 4, 5, 6}, Most: 7},
			{Profile: one + "+me", Slices: 1, Size: 1, Starts: []int{0, 1, 2, 3, 4, 5, 6}, Most: 1},
			{Profile: profileOf(1, gb, 2, 8), Slices: 1, Size: 2, Starts: []int{0, 2, 4, 6}, Most: 4},
			{Profile: profileOf(2, gb, 2, 8), Slices: 2, Size: 2, Starts: []int{0, 2, 4}, Most: 3},
			{Profile: profileOf(3, gb, 4, 8), Slices: 3, Size: 4, Starts: []int{0, 4}, Most: 2},
			{Profile: profileOf(4, gb, 4, 8), Slices: 4, Size: 4, Starts: []int{0}, Most: 1},
			{Profile: profileOf(7, gb, 8, 8), Slices: 7, Size: 8, Starts: []int{0}, Most: 1},
		}},
	}
}

// parts returns a model with as many compute slices as memory slices. The sizes of its instances are powers of two, each with its variants, the smallest
// first.
func parts(model string, memoryMiB, shareOf16 int64, gb, of int, variants ...[]variant) Model {
	g := Geometry{Slices: of}
	for i, others := range variants {
		size := 1 << i
		kind := Kind{Profile: profileOf(size, gb, size, of), Slices: size, Size: size, Most: of / size}
		for start := 0; start < of; start += size {
			kind.Starts = append(kind.Starts, start)
		}
		g.Kinds = append(g.Kinds, kind)
		for _, v := range others {
			other := kind
			other.Profile += v.suffix
			if v.once {
				other.Most = 1
			}
			g.Kinds = append(g.Kinds, other)
		}
	}
	return Model{Name: model, MemoryMiB: memoryMiB, memorySlices: int64(of), shareOf16: shareOf16, Geometry: g}
}

// ModelNames returns the names of the models, each once.
func ModelNames() []string {
	var names []string
	for i := range models {
		names = append(names, models[i].Name)
	}
	return slices.Compact(names)
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
	return CheckInstances(name, memoryMiB, []nodecontract.MIGInstances{{Profile: profile, Count: 1}})
}

// CheckInstances returns an error if the instances fit on no GPU with the name and, unless it is 0, the memory in MiB.
func CheckInstances(name string, memoryMiB int64, instances []nodecontract.MIGInstances) error {
	for _, of := range instances {
		if err := CheckProfile(of.Profile); err != nil {
			return err
		}
	}
	of, sized := Models(name, 0), Models(name, memoryMiB)
	var has, full []string
	profile := ""
	for _, m := range sized {
		missing := m.missing(instances)
		if missing != "" {
			profile = missing
			has = append(has, fmt.Sprintf("one of %d MiB has %s", m.MemoryMiB, Names(m.Kinds)))
			continue
		}
		if _, err := m.Place(Profiles(instances)); err != nil {
			full = append(full, fmt.Sprintf("on one of %d MiB, %s", m.MemoryMiB, err))
			continue
		}
		return nil
	}
	switch {
	case len(full) > 0:
		return fmt.Errorf("%s do not fit on a GPU %s: %s", nodecontract.DescribeInstances(instances), name, strings.Join(full, "; "))
	case len(of) == 0:
		return fmt.Errorf("GPUs %q cannot be divided, or are not known here: use one of %s", name, strings.Join(ModelNames(), ", "))
	case len(sized) == 0:
		var memory []string
		for i := range of {
			memory = append(memory, fmt.Sprint(of[i].MemoryMiB))
		}
		return fmt.Errorf("there is no %s with %d MiB: its memory is %s", name, memoryMiB, strings.Join(memory, " or "))
	}
	return fmt.Errorf("no %s has the profile %s: %s", name, profile, strings.Join(has, "; "))
}

// missing returns the first profile of the instances that the model does not have, or "".
func (m Model) missing(instances []nodecontract.MIGInstances) string {
	for _, of := range instances {
		if m.Kind(of.Profile) == nil {
			return of.Profile
		}
	}
	return ""
}

// Holds reports whether the instances fit on one GPU together.
func (m Model) Holds(instances []nodecontract.MIGInstances) bool {
	if m.missing(instances) != "" {
		return false
	}
	_, err := m.Place(Profiles(instances))
	return err == nil
}
