package nvmltest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// MIGProfile is a profile of MIG instances as NVML describes it.
type MIGProfile struct {
	// Number is NVML's number of the profile. ID is the driver's.
	Number, ID int
	Name       string
	// Slices is the number of compute slices. Count is the largest number of instances on a GPU.
	Slices, Count int
	MemoryMiB     int64
	// Multiprocessors and Engines (copy, decoder, encoder, JPEG and OFA) are the resources of an instance.
	Multiprocessors int
	Engines         [5]int
	// Size is the number of memory slices, and Starts are those at which an instance may begin.
	Size   int
	Starts []int
}

func (p MIGProfile) String() string {
	numbers := func(all []int, separator string) string {
		var text []string
		for _, n := range all {
			text = append(text, strconv.Itoa(n))
		}
		return strings.Join(text, separator)
	}
	return fmt.Sprintf("%d %d %d %d %d %d %s %d %s %s", p.Number, p.ID, p.Slices, p.Count, p.MemoryMiB, p.Multiprocessors, numbers(p.Engines[:], " "), p.Size, numbers(p.Starts, ","), p.Name)
}

// Numbers of profiles in NVML (NVML_GPU_INSTANCE_PROFILE_*).
const (
	oneSlice, twoSlices, threeSlices, fourSlices, sevenSlices = 0, 1, 2, 3, 4

	oneSliceWithMedia, oneSliceWide = 7, 9
)

// profilesOfSevenths returns the profiles of a GPU with seven compute slices and eight memory slices. mib has the memory of an instance with one, two, four and
// eight memory slices.
func profilesOfSevenths(names string, mib [4]int64, multiprocessors [5]int, media bool) []MIGProfile {
	n := strings.Fields(names)
	one, wide, two, three, four, seven := n[0], n[1], n[2], n[3], n[4], n[5]
	sm := multiprocessors
	decoders := [6]int{0, 1, 1, 2, 2, 5}
	if media { // As on Hopper, each instance has media engines.
		decoders = [6]int{1, 1, 2, 3, 4, 7}
	}
	return []MIGProfile{
		{Number: oneSlice, ID: 19, Name: one, Slices: 1, Count: 7, MemoryMiB: mib[0], Multiprocessors: sm[0], Engines: [5]int{1, decoders[0]}, Size: 1, Starts: []int{0, 1, 2, 3, 4, 5, 6}},
		{Number: oneSliceWithMedia, ID: 20, Name: one + "+me", Slices: 1, Count: 1, MemoryMiB: mib[0], Multiprocessors: sm[0], Engines: [5]int{1, 1, 0, 1, 1}, Size: 1, Starts: []int{0, 1, 2, 3, 4, 5, 6}},
		{Number: oneSliceWide, ID: 15, Name: wide, Slices: 1, Count: 4, MemoryMiB: mib[1], Multiprocessors: sm[0], Engines: [5]int{1, decoders[1]}, Size: 2, Starts: []int{0, 2, 4, 6}},
		{Number: twoSlices, ID: 14, Name: two, Slices: 2, Count: 3, MemoryMiB: mib[1], Multiprocessors: sm[1], Engines: [5]int{2, decoders[2]}, Size: 2, Starts: []int{0, 2, 4}},
		{Number: threeSlices, ID: 9, Name: three, Slices: 3, Count: 2, MemoryMiB: mib[2], Multiprocessors: sm[2], Engines: [5]int{3, decoders[3]}, Size: 4, Starts: []int{0, 4}},
		{Number: fourSlices, ID: 5, Name: four, Slices: 4, Count: 1, MemoryMiB: mib[2], Multiprocessors: sm[3], Engines: [5]int{4, decoders[4]}, Size: 4, Starts: []int{0}},
		{Number: sevenSlices, ID: 0, Name: seven, Slices: 7, Count: 1, MemoryMiB: mib[3], Multiprocessors: sm[4], Engines: [5]int{7, decoders[5], 0, 1, 1}, Size: 8, Starts: []int{0}},
	}
}

// MIGFile returns the path of the file with the MIG mode and the instances of a GPU. Without the file, the mode is that of the state file, and there
// are no instances.
func MIGFile(state string, index int) string { return fmt.Sprintf("%s.mig.%d", state, index) }

// Reset resets a GPU: a pending MIG mode takes effect, and its instances are removed.
func Reset(state string, index int) error {
	path := MIGFile(state, index)
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil
	}
	var current, pending int
	if err == nil {
		_, err = fmt.Sscanf(string(text), "mode %d %d", &current, &pending)
	}
	if err != nil {
		return fmt.Errorf("resetting GPU %d: %w", index, err)
	}
	return os.WriteFile(path, fmt.Appendf(nil, "mode %d %d\n", pending, pending), 0o600)
}

// Reboot reboots the machine, which resets each GPU.
func (m *Machine) Reboot(t testing.TB) {
	t.Helper()
	for i := range m.State.Devices {
		if err := Reset(m.Path, i); err != nil {
			t.Fatal(err)
		}
	}
}

// Instances returns the instances of a GPU as "profile@start", in the order of their places. It is "" while the MIG mode is off.
func (m *Machine) Instances(t testing.TB, index int) string {
	t.Helper()
	text, err := os.ReadFile(MIGFile(m.Path, index))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	at := map[int]string{}
	for line := range strings.Lines(string(text)) {
		var id, profile, start, size int
		if n, _ := fmt.Sscanf(line, "instance %d %d %d %d", &id, &profile, &start, &size); n == 4 {
			at[start] = fmt.Sprintf("%s@%d", m.State.Devices[index].MIGProfiles[profile].Name, start)
		}
	}
	var all []string
	for start := range 64 {
		if at[start] != "" {
			all = append(all, at[start])
		}
	}
	return strings.Join(all, " ")
}
