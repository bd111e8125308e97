package mig_test

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

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

// TestPerGPU has the numbers of instances of NVIDIA's mig-parted.
func TestPerGPU(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		gpu    string
		memory int64
		// profiles are those of which 7, 4, 3, 2, 1 and 1 fit on a GPU.
		profiles string
	}{
		{"a100", 40960, "1g.5gb 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb"},
		{"a100", 81920, "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"},
		{"h100", 81920, "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"},
		{"h200", 144384, "1g.18gb 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb"},
		{"b200", 183359, "1g.23gb 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb"},
		{"b300", 275040, "1g.34gb 1g.67gb 2g.67gb 3g.135gb 4g.135gb 7g.269gb"},
	} {
		model := mig.Models(c.gpu, c.memory)[0]
		for i, profile := range strings.Fields(c.profiles) {
			if n, want := model.Fit(profile), []int64{7, 4, 3, 2, 1, 1}[i]; n != want {
				t.Errorf("%s: %d instances %s, want %d", c.gpu, n, profile, want)
			}
			if all := model.InstanceMiB(profile) * model.Fit(profile); all <= 0 || all > c.memory {
				t.Errorf("%s: %s have %d MiB together", c.gpu, profile, all)
			}
		}
	}
	rtx := mig.Models("rtx-pro-server-6000", 0)[0]
	if a, b, c := rtx.Fit("1g.24gb"), rtx.Fit("2g.48gb"), rtx.Fit("4g.96gb"); a != 4 || b != 2 || c != 1 {
		t.Errorf("RTX PRO 6000: %d, %d and %d instances", a, b, c)
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
