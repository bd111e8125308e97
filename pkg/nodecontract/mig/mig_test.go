package mig_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/nodecontract/mig"
)

func a100(t *testing.T) mig.Model {
	t.Helper()
	models := mig.Models("a100", 40960)
	if len(models) != 1 {
		t.Fatalf("%d models of A100s with 40 GB", len(models))
	}
	return models[0]
}

// TestPerGPU has the profiles and the numbers of instances of NVIDIA's MIG user guide and mig-parted.
func TestPerGPU(t *testing.T) {
	t.Parallel()
	const rtx = "1g.24gb:4 1g.24gb+me:1 1g.24gb+gfx:4 1g.24gb+me.all:1 1g.24gb-me:4 2g.48gb:2 2g.48gb+gfx:2 2g.48gb+me.all:1 2g.48gb-me:2 4g.96gb:1 4g.96gb+gfx:1"
	checked := map[string]bool{}
	for _, c := range []struct {
		gpu    string
		memory int64
		// profiles has the largest number of instances of each.
		profiles string
	}{
		{"a100", 40960, "1g.5gb:7 1g.5gb+me:1 1g.10gb:4 2g.10gb:3 3g.20gb:2 4g.20gb:1 7g.40gb:1"},
		{"a100", 81920, "1g.10gb:7 1g.10gb+me:1 1g.20gb:4 2g.20gb:3 3g.40gb:2 4g.40gb:1 7g.80gb:1"},
		{"h100", 81920, "1g.10gb:7 1g.10gb+me:1 1g.20gb:4 2g.20gb:3 3g.40gb:2 4g.40gb:1 7g.80gb:1"},
		{"h100", 96256, "1g.12gb:7 1g.12gb+me:1 1g.24gb:4 2g.24gb:3 3g.47gb:2 4g.47gb:1 7g.94gb:1"},
		{"gh200", 98304, "1g.12gb:7 1g.12gb+me:1 1g.24gb:4 2g.24gb:3 3g.48gb:2 4g.48gb:1 7g.96gb:1"},
		{"gh200", 147456, "1g.18gb:7 1g.18gb+me:1 1g.36gb:4 2g.36gb:3 3g.72gb:2 4g.72gb:1 7g.144gb:1"},
		{"h20", 98304, "1g.12gb:7 1g.12gb+me:1 1g.24gb:4 2g.24gb:3 3g.48gb:2 4g.48gb:1 7g.96gb:1"},
		{"h20", 144384, "1g.18gb:7 1g.18gb+me:1 1g.35gb:4 2g.35gb:3 3g.71gb:2 4g.71gb:1 7g.141gb:1"},
		{"h200", 144384, "1g.18gb:7 1g.18gb+me:1 1g.35gb:4 2g.35gb:3 3g.71gb:2 4g.71gb:1 7g.141gb:1"},
		{"b200", 183359, "1g.23gb:7 1g.23gb+me:1 1g.45gb:4 2g.45gb:3 3g.90gb:2 4g.90gb:1 7g.180gb:1"},
		{"gb200", 190464, "1g.23gb:7 1g.23gb+me:1 1g.47gb:4 2g.47gb:3 3g.93gb:2 4g.93gb:1 7g.186gb:1"},
		{"b300", 275040, "1g.34gb:7 1g.34gb+me:1 1g.67gb:4 2g.67gb:3 3g.135gb:2 4g.135gb:1 7g.269gb:1"},
		{"gb300", 284672, "1g.35gb:7 1g.35gb+me:1 1g.70gb:4 2g.70gb:3 3g.139gb:2 4g.139gb:1 7g.278gb:1"},
		{"a30", 24576, "1g.6gb:4 1g.6gb+me:1 2g.12gb:2 2g.12gb+me:1 4g.24gb:1"},
		{"rtx-pro-server-6000", 98304, rtx},
		{"rtx-pro-6000", 98304, rtx},
		{"rtx-pro-5000", 49152, "1g.24gb:2 1g.24gb+me:1 1g.24gb+gfx:2 1g.24gb+me.all:1 1g.24gb-me:2 2g.48gb:1 2g.48gb+gfx:1"},
		{"rtx-pro-4500", 32768, "1g.16gb:2 1g.16gb+gfx:2 1g.16gb+me.all:1 1g.16gb-me:2 2g.32gb:1 2g.32gb+gfx:1"},
	} {
		models := mig.Models(c.gpu, c.memory)
		if len(models) != 1 {
			t.Errorf("%d models %s with %d MiB", len(models), c.gpu, c.memory)
			continue
		}
		checked[fmt.Sprint(c.gpu, c.memory)] = true
		var has []string
		for _, k := range models[0].Kinds {
			fit := models[0].Fit(k.Profile)
			has = append(has, fmt.Sprintf("%s:%d", k.Profile, fit))
			if all := models[0].InstanceMiB(k.Profile) * fit; all <= 0 || all > c.memory || mig.CheckLayout(c.gpu, c.memory, k.Profile) != nil {
				t.Errorf("%s: %d instances %s have %d MiB together", c.gpu, fit, k.Profile, all)
			}
		}
		if got := strings.Join(has, " "); got != c.profiles {
			t.Errorf("%s has %s, want %s", c.gpu, got, c.profiles)
		}
	}
	for _, name := range mig.ModelNames() {
		for _, m := range mig.Models(name, 0) {
			if !checked[fmt.Sprint(name, m.MemoryMiB)] {
				t.Errorf("nothing says what a %s with %d MiB should have", name, m.MemoryMiB)
			}
		}
	}
}

// TestInstancesHaveTheMemoryThatNVIDIAReports compares with the memory of instances in GiB that nvidia-smi shows on real GPUs.
func TestInstancesHaveTheMemoryThatNVIDIAReports(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		gpu     string
		memory  int64
		profile string
		gib     float64
	}{
		{"h100", 81920, "1g.10gb", 9.75},
		{"h100", 81920, "1g.20gb", 19.62},
		{"h100", 81920, "3g.40gb", 39.50},
		{"h100", 81920, "7g.80gb", 79.25},
		{"rtx-pro-server-6000", 98304, "1g.24gb", 23.62},
		{"rtx-pro-6000", 98304, "2g.48gb-me", 47.38},
		{"rtx-pro-6000", 98304, "4g.96gb+gfx", 95.00},
	} {
		if n := mig.Models(c.gpu, c.memory)[0].InstanceMiB(c.profile); n > int64(c.gib*1024) || n < int64(c.gib*1024*0.85) {
			t.Errorf("%s: %d MiB, and an instance has %v GiB", c.profile, n, c.gib)
		}
	}
}

// multisets calls f with each multiset of profiles that have together at most slices compute slices.
func multisets(kinds []mig.Kind, slicesLeft int, have []string, f func([]string)) {
	for i := range kinds {
		if kinds[i].Slices <= slicesLeft {
			more := append(slices.Clone(have), kinds[i].Profile)
			f(more)
			multisets(kinds[i:], slicesLeft-kinds[i].Slices, more, f)
		}
	}
}

// TestAllMultisetsOfA100 compares the search with a brute force over all places, and with creating instances at the first free place as mig-parted does.
func TestAllMultisetsOfA100(t *testing.T) {
	t.Parallel()
	g := a100(t).Geometry
	g.Kinds = slices.DeleteFunc(slices.Clone(g.Kinds), func(k mig.Kind) bool { return strings.HasSuffix(k.Profile, "+me") })
	valid, smallestFirst, largestFirst, sumOnly := 0, 0, 0, 0
	multisets(g.Kinds, g.Slices, nil, func(profiles []string) {
		placed, err := g.Place(profiles)
		if fits := bruteForce(g, profiles, 0); fits != (err == nil) {
			t.Errorf("%v: fits %t, and the search says %v", profiles, fits, err)
		}
		if err != nil {
			if strings.Contains(err.Error(), "do not fit on one GPU together") { // Not because there are too many of a profile.
				sumOnly++
			}
			return
		}
		valid++
		checkPlaced(t, g, profiles, placed)
		bySize := slices.Clone(profiles)
		slices.SortFunc(bySize, func(a, b string) int {
			k, l := g.Kind(a), g.Kind(b)
			return k.Size*10 + k.Slices - l.Size*10 - l.Slices
		})
		if !firstFree(g, bySize) {
			smallestFirst++
		}
		slices.Reverse(bySize)
		if !firstFree(g, bySize) {
			largestFirst++
		}
	})
	if valid != 77 || smallestFirst != 23 || largestFirst != 11 || sumOnly != 25 {
		t.Errorf("%d valid, %d fail smallest first and %d largest first, %d pass the sum and fit nowhere", valid, smallestFirst, largestFirst, sumOnly)
	}
}

func bruteForce(g mig.Geometry, profiles []string, use uint64) bool {
	if len(profiles) == 0 {
		return true
	}
	k := g.Kind(profiles[0])
	for _, start := range k.Starts {
		if own := (uint64(1)<<k.Size - 1) << start; use&own == 0 && bruteForce(g, profiles[1:], use|own) {
			return true
		}
	}
	return false
}

func firstFree(g mig.Geometry, profiles []string) bool {
	use := uint64(0)
	for _, name := range profiles {
		k, made := g.Kind(name), false
		for _, start := range k.Starts {
			if own := (uint64(1)<<k.Size - 1) << start; use&own == 0 && !made {
				use, made = use|own, true
			}
		}
		if !made {
			return false
		}
	}
	return true
}

type fataler interface {
	Errorf(format string, args ...any)
}

func checkPlaced(t fataler, g mig.Geometry, profiles []string, placed []mig.Placement) {
	use, names := uint64(0), []string(nil)
	for _, p := range placed {
		k := g.Kind(p.Profile)
		own := (uint64(1)<<p.Size - 1) << p.Start
		if p.Size != k.Size || !slices.Contains(k.Starts, p.Start) || use&own != 0 {
			t.Errorf("%v: %v is no place beside the others: %v", profiles, p, placed)
		}
		use, names = use|own, append(names, p.Profile)
	}
	want := slices.Sorted(slices.Values(profiles))
	if slices.Sort(names); !slices.Equal(names, want) {
		t.Errorf("%v were placed as %v", profiles, placed)
	}
}

// TestPlaceProperties draws GPUs that need not exist.
func TestPlaceProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		g := mig.Geometry{Slices: rapid.IntRange(1, 8).Draw(t, "slices")}
		for i := range rapid.IntRange(1, 4).Draw(t, "kinds") {
			size := rapid.IntRange(1, 4).Draw(t, "size")
			g.Kinds = append(g.Kinds, mig.Kind{
				Profile: string(rune('a' + i)), Slices: rapid.IntRange(1, 4).Draw(t, "of"), Size: size, Most: rapid.IntRange(1, 8).Draw(t, "most"),
				Starts: rapid.SliceOfNDistinct(rapid.IntRange(0, 8-size), 1, 8-size+1, rapid.ID).Draw(t, "starts"),
			})
		}
		var profiles []string
		for range rapid.IntRange(0, 6).Draw(t, "instances") {
			profiles = append(profiles, rapid.SampledFrom(g.Kinds).Draw(t, "kind").Profile)
		}
		placed, err := g.Place(profiles)
		if err == nil {
			checkPlaced(t, g, profiles, placed)
			reversed := slices.Clone(profiles)
			slices.Reverse(reversed)
			if again, err := g.Place(reversed); err != nil || !slices.Equal(again, placed) {
				t.Errorf("in another order %v and %v, %v", placed, again, err)
			}
			return
		}
		used, few := 0, true
		for _, k := range g.Kinds {
			n := len(slices.DeleteFunc(slices.Clone(profiles), func(p string) bool { return p != k.Profile }))
			used, few = used+n*k.Slices, few && n <= k.Most
		}
		if used <= g.Slices && few && bruteForce(g, profiles, 0) {
			t.Errorf("%v fit on %+v: %v", profiles, g, err)
		}
	})
}

func TestLayoutsThatCannotBeAreExplained(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		gpu     string
		memory  int64
		profile string
		want    string
	}{
		{"a100", 40960, "1g.5gb", ""},
		{"a100", 0, "1g.5gb", ""},
		{"a100", 0, "1g.20gb", ""},
		{"a100", 40960, "1g.5gb+me", ""},
		{"a100", 81920, "1g.5gb", "one of 81920 MiB has 1g.10gb"},
		{"a100", 0, "1g.6gb", "no a100 has the profile 1g.6gb: one of 40960 MiB has 1g.5gb"},
		{"a100", 16384, "1g.5gb", "there is no a100 with 16384 MiB: its memory is 40960 or 81920"},
		{"t4", 0, "1g.5gb", `GPUs "t4" cannot be divided, or are not known here: use one of a100, h100`},
		{"a100", 0, "1c.3g.20gb", "is not a profile of MIG instances"},
		{"a100", 0, "all-1g.5gb", "is not a profile of MIG instances"},
	} {
		err := mig.CheckLayout(c.gpu, c.memory, c.profile)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %d MiB, %s: %v, want %q in it", c.gpu, c.memory, c.profile, err, c.want)
		}
	}
}

func TestResource(t *testing.T) {
	t.Parallel()
	for profile, want := range map[string]string{"1g.5gb": "nvidia.com/mig-1g.5gb", "1g.5gb+me": "nvidia.com/mig-1g.5gb.me", "1g.24gb-me": "nvidia.com/mig-1g.24gb-me"} {
		if got := mig.Resource(profile); got != want {
			t.Errorf("%s is %s", profile, got)
		}
	}
}

func FuzzCheckProfile(f *testing.F) {
	for _, name := range []string{"1g.5gb", "1g.5gb+me", "7g.141gb", "1c.2g.10gb", ""} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if mig.CheckProfile(name) == nil && len(mig.Resource(name)) > 63 && len(name) < 40 {
			t.Errorf("%q makes a name that is too long", name)
		}
	})
}

// TestHoldsAgreesWithExhaustiveSearch compares all numbers of instances of three profiles, on each model.
func TestHoldsAgreesWithExhaustiveSearch(t *testing.T) {
	t.Parallel()
	fit, no := 0, 0
	for _, name := range mig.ModelNames() {
		for _, m := range mig.Models(name, 0) {
			for i := range len(m.Kinds) - 2 {
				kinds := m.Kinds[i : i+3]
				for n := range int64(5 * 4 * 4) {
					instances := []nodecontract.MIGInstances{{Profile: kinds[0].Profile, Count: n % 5}, {Profile: kinds[1].Profile, Count: n / 5 % 4}, {Profile: kinds[2].Profile, Count: n / 20}}
					slices, few := 0, true
					for j, of := range instances {
						slices, few = slices+int(of.Count)*kinds[j].Slices, few && int(of.Count) <= kinds[j].Most
					}
					want := slices <= m.Slices && few && bruteForce(m.Geometry, mig.Profiles(instances), 0)
					if got := m.Holds(instances); got != want {
						t.Errorf("%s of %d MiB holds %s: %t, want %t", m.Name, m.MemoryMiB, nodecontract.DescribeInstances(instances), got, want)
					}
					if want {
						fit++
					} else {
						no++
					}
				}
			}
		}
	}
	if fit < 1000 || no < 1000 {
		t.Errorf("%d fit and %d do not", fit, no)
	}
}

func TestInstancesThatDoNotFitAreExplained(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		memory int64
		counts map[string]int64
		want   string
	}{
		{40960, map[string]int64{"1g.5gb": 3, "2g.10gb": 2}, ""},
		{0, map[string]int64{"1g.10gb": 3, "2g.20gb": 2}, ""},
		{40960, map[string]int64{"1g.5gb": 4, "2g.10gb": 2}, "4 MIG instances 1g.5gb and 2 of 2g.10gb do not fit on a GPU a100: on one of 40960 MiB, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 2g.10gb, 2g.10gb need more than the 7 compute slices"},
		{40960, map[string]int64{"1g.5gb": 1, "3g.20gb": 2}, "do not fit on one GPU together"},
		{40960, map[string]int64{"3g.20gb": 3}, "3 instances 3g.20gb do not fit, at most 2 do"},
		{81920, map[string]int64{"1g.10gb": 1, "2g.10gb": 1}, "no a100 has the profile 2g.10gb: one of 81920 MiB has 1g.10gb"},
		{0, map[string]int64{"1g.5gb": 1, "1c.2g.10gb": 1}, "is not a profile of MIG instances"},
	} {
		var instances []nodecontract.MIGInstances
		for _, profile := range slices.Sorted(maps.Keys(c.counts)) {
			instances = append(instances, nodecontract.MIGInstances{Profile: profile, Count: c.counts[profile]})
		}
		err := mig.CheckInstances("a100", c.memory, instances)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q in it", c.counts, err, c.want)
		}
	}
}
