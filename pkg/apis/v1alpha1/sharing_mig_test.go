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
	if got := mixed.Shares("a100", 40960, 8); len(got) != 2 || got[0].Least != 7 || got[1].MIG.Profile != "1g.5gb+me" {
		t.Errorf("shares of an A100 with 40 GB: %+v", got)
	}
	if got := mixed.Shares("l4", 22888, 1); got != nil {
		t.Errorf("an L4 is divided: %+v", got)
	}
}

func TestLayoutsOfSeveralProfiles(t *testing.T) {
	t.Parallel()
	of := func(layouts ...MIGLayout) Sharing {
		return Sharing{Strategy: StrategyMIG, MIG: &MIGSharing{Layouts: layouts}}
	}
	two := []MIGInstances{{"2g.10gb", 2}, {"1g.5gb", 3}}
	several, sevens := MIGLayout{GPUName: "a100", Instances: two}, []MIGInstances{{"1g.5gb", 7}}
	groups := MIGLayout{GPUName: "a100", Groups: []MIGGroup{{4, two}, {4, sevens}}}
	single := of(several)
	single.MIG.Naming = MIGNamingSingle
	for name, c := range map[string]struct {
		sharing Sharing
		want    string
	}{
		"alike":                      {of(several), ""},
		"different":                  {of(several, groups), ""},
		"too many":                   {of(MIGLayout{GPUName: "a100", Instances: []MIGInstances{{"2g.10gb", 2}, {"1g.5gb", 4}}}), "layouts[0]: 2 MIG instances 2g.10gb and 4 of 1g.5gb do not fit on a GPU a100"},
		"too many in a group":        {of(several, MIGLayout{GPUName: "a100", Groups: []MIGGroup{{1, two}, {7, []MIGInstances{{"1g.5gb", 8}}}}}), "layouts[1]: groups[1]: 8 MIG instances 1g.5gb do not fit"},
		"of two models":              {of(MIGLayout{GPUName: "a100", Groups: []MIGGroup{{4, two}, {4, []MIGInstances{{"1g.20gb", 1}}}}}), "groups[1] has profiles of another a100 than the groups before"},
		"nothing":                    {of(MIGLayout{GPUName: "a100"}), "it has no instances: set profile, instances or groups"},
		"two ways":                   {of(MIGLayout{GPUName: "a100", Profile: "1g.5gb", Instances: two}), "it has two of profile, instances and groups: keep one"},
		"the same twice":             {of(several, MIGLayout{GPUName: "a100", GPUMemoryMiB: new(int64(40960)), Instances: []MIGInstances{{"1g.5gb", 3}, {"2g.10gb", 2}}}), "layouts[0] and [1] are the same"},
		"the same as with a profile": {of(MIGLayout{GPUName: "a100", Profile: "1g.5gb"}, MIGLayout{GPUName: "a100", Instances: sevens}), "layouts[0] and [1] are the same"},
		"with one name":              {single, "layouts[0] has instances, and with naming Single pods could not tell them apart"},
		"a group without GPUs":       {of(MIGLayout{GPUName: "a100", Groups: []MIGGroup{{0, two}}}), "groups[0].gpus is 0, and is at least 1"},
	} {
		err := c.sharing.LayoutsError()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	both := of(several, groups)
	if got := both.Resources(); !slices.Equal(got, []string{"nvidia.com/mig-2g.10gb", "nvidia.com/mig-1g.5gb"}) {
		t.Errorf("resources %v", got)
	}
	if got := both.Shares("a100", 40960, 8); len(got) != 2 || got[0].Least != 5 || got[0].MIG.Key() != "3x1g.5gb_2x2g.10gb" || got[1].Least != 6 || got[1].MIG.Key() != "4:3x1g.5gb_2x2g.10gb;4:7x1g.5gb" {
		t.Errorf("shares of a machine with 8 GPUs: %+v", got)
	}
	if got := both.Shares("a100", 40960, 4); len(got) != 1 {
		t.Errorf("shares of a machine with 4 GPUs: %+v", got)
	}
	if got := both.Shares("a100", 81920, 8); got != nil {
		t.Errorf("shares of GPUs with other profiles: %+v", got)
	}
	if _, ok := both.ShareWith(both.Shares("a100", 40960, 8)[1].MIG, "a100", 40960, 8); !ok {
		t.Error("a machine with the layout has drifted")
	}
	both.Replicas = new(int32(2))
	if _, ok := both.ShareWith(of(several).Shares("a100", 40960, 8)[0].MIG, "a100", 40960, 8); ok {
		t.Error("a machine whose pods have an instance each has not drifted")
	}
}
