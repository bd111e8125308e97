package mig

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Kind is a profile that a GPU has.
type Kind struct {
	// Profile is the name, for example "1g.5gb".
	Profile string
	// Slices is the number of compute slices of an instance.
	Slices int
	// Size is the number of memory slices of an instance, and Starts are the memory slices at which one may begin.
	Size   int
	Starts []int
	// Most is the largest number of instances of the profile on a GPU.
	Most int
}

// Geometry defines into which instances a GPU can be divided.
type Geometry struct {
	// Slices is the number of compute slices of the GPU.
	Slices int
	Kinds  []Kind
}

// Kind returns the kind with the profile, or nil if the GPU does not have it.
func (g Geometry) Kind(profile string) *Kind {
	for i := range g.Kinds {
		if g.Kinds[i].Profile == profile {
			return &g.Kinds[i]
		}
	}
	return nil
}

// Placement is the place of an instance on a GPU.
type Placement struct {
	Profile string
	// Start is the first memory slice. Size is the number of memory slices.
	Start, Size int
}

// maxMemorySlices is the largest number of memory slices of a GPU for which instances are placed. NVIDIA's GPUs have at most 12.
const maxMemorySlices = 64

// Place returns a place for an instance of each profile, sorted by start. It finds places if there are any: instances that are created at the first
// free place may leave no room for the rest, although all of them fit. It is deterministic, and does not depend on the order of the profiles.
func (g Geometry) Place(profiles []string) ([]Placement, error) {
	kinds := make([]*Kind, 0, len(profiles))
	slicesLeft, count := g.Slices, map[string]int{}
	for _, name := range profiles {
		k := g.Kind(name)
		if k == nil {
			return nil, fmt.Errorf("there is no profile %s; there is %s", name, Names(g.Kinds))
		}
		count[name]++
		if count[name] > k.Most {
			return nil, fmt.Errorf("%d instances %s do not fit, at most %d do", count[name], name, k.Most)
		}
		if slicesLeft -= k.Slices; slicesLeft < 0 {
			return nil, fmt.Errorf("%s need more than the %d compute slices of the GPU", strings.Join(profiles, ", "), g.Slices)
		}
		kinds = append(kinds, k)
	}
	// Those with the fewest places first.
	slices.SortStableFunc(kinds, func(a, b *Kind) int {
		return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(len(a.Starts), len(b.Starts)), cmp.Compare(a.Profile, b.Profile))
	})
	placed := make([]Placement, len(kinds))
	if !place(kinds, placed, 0, 0) {
		return nil, fmt.Errorf("%s do not fit on one GPU together", strings.Join(profiles, ", "))
	}
	slices.SortFunc(placed, func(a, b Placement) int { return cmp.Compare(a.Start, b.Start) })
	return placed, nil
}

// place finds places for kinds[at:] beside the memory slices in use.
func place(kinds []*Kind, placed []Placement, at int, use uint64) bool {
	if at == len(kinds) {
		return true
	}
	k := kinds[at]
	for _, start := range k.Starts {
		if start < 0 || k.Size < 1 || start+k.Size > maxMemorySlices {
			continue
		}
		if at > 0 && kinds[at-1] == k && start < placed[at-1].Start {
			continue // Equal instances are in order, so that no arrangement is tried twice.
		}
		if own := (uint64(1)<<k.Size - 1) << start; use&own == 0 {
			placed[at] = Placement{Profile: k.Profile, Start: start, Size: k.Size}
			if place(kinds, placed, at+1, use|own) {
				return true
			}
		}
	}
	return false
}

// Fit returns how many instances of a profile fit on an empty GPU, or 0 if the GPU does not have the profile.
func (g Geometry) Fit(profile string) int64 {
	n := 0
	for {
		if _, err := g.Place(slices.Repeat([]string{profile}, n+1)); err != nil {
			return int64(n)
		}
		n++
	}
}
