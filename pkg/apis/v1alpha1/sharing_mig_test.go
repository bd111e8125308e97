package v1alpha1

import (
	"slices"
	"strings"
	"testing"
)

func TestLayoutsThatContradictEachOtherAreRefused(t *testing.T) {
	t.Parallel()
	of := func(naming MIGNaming, layouts ...MIGLayout) Sharing {
		return Sharing{Strategy: StrategyMIG, MIG: &MIGSharing{Naming: naming, Layouts: layouts}}
	}
	small, large, old := MIGLayout{GPUName: "a100", Profile: "1g.10gb"}, MIGLayout{GPUName: "a100", Profile: "3g.20gb"}, MIGLayout{GPUName: "t4", Profile: "1g.5gb"}
	forty, eighty := small, small
	forty.GPUMemoryMiB, eighty.GPUMemoryMiB = new(int64(40960)), new(int64(81920))
	hopper := MIGLayout{GPUName: "h100", Profile: "1g.10gb"}
	for name, c := range map[string]struct {
		sharing Sharing
		want    string
	}{
		"one":                               {of("", small), ""},
		"two of a GPU":                      {of("", small, large), ""},
		"one for each size":                 {of("", forty, eighty), ""},
		"one for each GPU, with one name":   {of(MIGNamingSingle, small, hopper), ""},
		"two of a GPU, with one name":       {of(MIGNamingSingle, small, large), "layouts[0] and [1] are both for a100"},
		"the same twice":                    {of("", small, eighty), "layouts[0] and [1] are the same for a100: remove one"},
		"a GPU that cannot be divided":      {of("", small, old), `spec.sharing.mig.layouts[1]: GPUs "t4" cannot be divided`},
		"none, which the schema refuses":    {of(""), ""},
		"another strategy does not look":    {Sharing{Strategy: StrategyNone, MIG: &MIGSharing{Layouts: []MIGLayout{old}}}, ""},
		"no mig, which the schema refuses ": {Sharing{Strategy: StrategyMIG}, ""},
	} {
		err := c.sharing.LayoutsError()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestResourcesOfLayouts(t *testing.T) {
	t.Parallel()
	layouts := []MIGLayout{{GPUName: "a100", Profile: "1g.5gb"}, {GPUName: "a100", Profile: "3g.40gb"}, {GPUName: "h100", Profile: "3g.40gb"}, {GPUName: "a100", Profile: "1g.5gb+me"}}
	mixed := Sharing{Strategy: StrategyMIG, MIG: &MIGSharing{Layouts: layouts}}
	shared, single := mixed, mixed
	shared.Replicas, single.MIG = new(int32(2)), &MIGSharing{Naming: MIGNamingSingle, Layouts: layouts}
	for name, c := range map[string]struct {
		sharing Sharing
		want    []string
	}{
		"mixed":        {mixed, []string{"nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.40gb", "nvidia.com/mig-1g.5gb.me"}},
		"shared":       {shared, []string{"nvidia.com/mig-1g.5gb.shared", "nvidia.com/mig-3g.40gb.shared", "nvidia.com/mig-1g.5gb.me.shared"}},
		"single":       {single, []string{"nvidia.com/gpu"}},
		"time-slicing": {Sharing{Strategy: StrategyTimeSlicing}, []string{"nvidia.com/gpu.shared"}},
	} {
		if got := c.sharing.Resources(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	if least, most := (Sharing{Strategy: StrategyMIG, MIG: &MIGSharing{Layouts: []MIGLayout{{GPUName: "a100", Profile: "1g.10gb"}}}}).ReplicasRange("a100"); least != 4 || most != 7 {
		t.Errorf("an A100 has %d to %d instances 1g.10gb, depending on its memory", least, most)
	}
	if got := mixed.Shares("a100", 40960); len(got) != 2 || got[0].Least != 7 || got[1].MIG.Profile != "1g.5gb+me" {
		t.Errorf("shares of an A100 with 40 GB: %+v", got)
	}
	if got := mixed.Shares("l4", 22888); got != nil {
		t.Errorf("an L4 is divided: %+v", got)
	}
}
