package nodecontract_test

import (
	"slices"
	"strings"
	"testing"

	"karve.sh/karve/pkg/nodecontract"
)

func TestMIGThatIsWrittenIsRead(t *testing.T) {
	t.Parallel()
	for _, want := range []nodecontract.MIG{
		{},
		{Profile: "1g.5gb", Count: 7, MemoryMiB: 4800, Naming: nodecontract.MIGMixed},
		{Profile: "7g.40gb", Count: 1, Naming: nodecontract.MIGSingle},
		nodecontract.MIGOf([]nodecontract.MIGGroup{{Instances: []nodecontract.MIGInstances{{"2g.10gb", 2, 9600}, {"1g.5gb", 3, 4800}}}}, 4),
		nodecontract.MIGOf([]nodecontract.MIGGroup{
			{GPUs: 4, Instances: []nodecontract.MIGInstances{{"3g.20gb", 2, 0}}},
			{GPUs: 2, Instances: []nodecontract.MIGInstances{{"1g.5gb", 7, 0}}},
			{GPUs: 2, Instances: []nodecontract.MIGInstances{{"3g.20gb", 2, 0}}},
		}, 1),
	} {
		if got, err := nodecontract.ParseMIG(want.String()); err != nil || !got.Equal(want) {
			t.Errorf("%q: %+v, %v", want.String(), got, err)
		}
	}
	for _, bad := range []string{
		"x", "[]", "{}", `{"profile":"1g.5gb","count":0,"naming":"Mixed"}`, `{"profile":"1g.5gb","count":65,"naming":"Mixed"}`, `{"profile":"1g.5gb","count":1}`,
		`{"profile":"1g.5gb","count":1,"naming":"Mixed","memoryMiB":-1}`, `{"profile":"1g.5gb","count":1,"naming":"Mixed","more":1}`,
		`{"naming":"Single","groups":[{"instances":[{"profile":"1g.5gb","count":3}]}]}`, `{"profile":"1g.5gb","naming":"Mixed","groups":[{"instances":[{"profile":"1g.5gb","count":3}]}]}`,
		`{"naming":"Mixed","groups":[{"instances":[]}]}`, `{"naming":"Mixed","groups":[{"instances":[{"profile":"1g.5gb","count":0}]}]}`,
		`{"naming":"Mixed","groups":[{"instances":[{"profile":"2g.10gb","count":1},{"profile":"1g.5gb","count":1}]}]}`,
		`{"naming":"Mixed","groups":[{"gpus":2,"instances":[{"profile":"1g.5gb","count":1}]},{"instances":[{"profile":"1g.5gb","count":2}]}]}`,
		`{"naming":"Mixed","groups":[{"instances":[{"profile":"1g.5gb","count":3}]}],"replicas":200}`, `{"profile":"1g.5gb","count":1,"naming":"Mixed","replicas":2}`,
		`{"naming":"Mixed","groups":[{"gpus":99999,"instances":[{"profile":"1g.5gb","count":1}]}]}`,
	} {
		if got, err := nodecontract.ParseMIG(bad); err == nil || !got.IsZero() {
			t.Errorf("%s is %+v", bad, got)
		}
	}
}

func TestGPUResources(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"nvidia.com/gpu": true, "nvidia.com/gpu.shared": true, "nvidia.com/mig-1g.5gb": true, "nvidia.com/mig-1g.5gb.shared": true,
		"nvidia.com/gpu.sharded": false, "nvidia.com/hostdev": false, "example.com/gpu": false, "gpu": false,
	} {
		if got := nodecontract.IsGPUResource(name); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestMIGIsDescribed(t *testing.T) {
	t.Parallel()
	small, middle := nodecontract.MIGInstances{Profile: "1g.5gb", Count: 3}, nodecontract.MIGInstances{Profile: "2g.10gb", Count: 2}
	groups := []nodecontract.MIGGroup{{GPUs: 5, Instances: []nodecontract.MIGInstances{middle}}, {GPUs: 3, Instances: []nodecontract.MIGInstances{middle, small}}}
	for _, c := range []struct {
		mig           nodecontract.MIG
		key, describe string
		gpus          int64
		of            []nodecontract.MIGInstances // on 8 GPUs
	}{
		{nodecontract.MIG{}, "", "0 MIG instances ", 0, nil},
		{nodecontract.MIG{Profile: "1g.5gb", Count: 7, Naming: nodecontract.MIGMixed}, "1g.5gb", "7 MIG instances 1g.5gb", 0, []nodecontract.MIGInstances{{"1g.5gb", 56, 0}}},
		{
			nodecontract.MIGOf([]nodecontract.MIGGroup{{Instances: []nodecontract.MIGInstances{middle, small}}}, 1), "3x1g.5gb_2x2g.10gb", "3 MIG instances 1g.5gb and 2 of 2g.10gb", 0,
			[]nodecontract.MIGInstances{{"1g.5gb", 24, 0}, {"2g.10gb", 16, 0}},
		},
		{
			nodecontract.MIGOf(groups, 1), "5:2x2g.10gb;3:3x1g.5gb_2x2g.10gb", "2 MIG instances 2g.10gb on 5 GPUs, 3 MIG instances 1g.5gb and 2 of 2g.10gb on 3 GPUs", 8,
			[]nodecontract.MIGInstances{{"1g.5gb", 9, 0}, {"2g.10gb", 16, 0}},
		},
	} {
		if got := c.mig.Key(); got != c.key {
			t.Errorf("the key is %q, want %q", got, c.key)
		}
		if got := c.mig.Describe(); got != c.describe {
			t.Errorf("it is %q, want %q", got, c.describe)
		}
		if got := c.mig.GPUs(); got != c.gpus {
			t.Errorf("%s: for %d GPUs", c.describe, got)
		}
		if got := c.mig.Instances(8); !slices.Equal(got, c.of) {
			t.Errorf("%s: %v", c.describe, got)
		}
	}
	a := nodecontract.MIGOf(groups, 1)
	slices.Reverse(groups)
	if !a.Same(nodecontract.MIGOf(groups, 1)) || a.Same(nodecontract.MIGOf(groups[:1], 1)) || a.Same(nodecontract.MIGOf(groups, 2)) {
		t.Error("the order of groups counts, or groups and replicas do not")
	}
}

func TestGPUsKeepWhatTheyHave(t *testing.T) {
	t.Parallel()
	small, large := []nodecontract.MIGInstances{{Profile: "1g.5gb", Count: 7}}, []nodecontract.MIGInstances{{Profile: "3g.20gb", Count: 2}}
	m := nodecontract.MIGOf([]nodecontract.MIGGroup{{GPUs: 2, Instances: small}, {GPUs: 2, Instances: large}}, 1)
	has := func(all ...string) string {
		assigned, err := m.Assign(len(all), func(i int) map[string]int64 {
			switch all[i] {
			case "small":
				return map[string]int64{"1g.5gb": 7}
			case "large":
				return map[string]int64{"3g.20gb": 2}
			case "part":
				return map[string]int64{"1g.5gb": 3}
			}
			return map[string]int64{}
		})
		if err != nil {
			return err.Error()
		}
		var names []string
		for _, of := range assigned {
			names = append(names, of[0].Profile)
		}
		return strings.Join(names, " ")
	}
	for want, all := range map[string][]string{
		"3g.20gb 3g.20gb 1g.5gb 1g.5gb": {"", "", "", ""},
		"1g.5gb 3g.20gb 3g.20gb 1g.5gb": {"small", "", "", ""},
		"1g.5gb 1g.5gb 3g.20gb 3g.20gb": {"small", "small", "large", ""},
		"1g.5gb 1g.5gb 3g.20gb":         {"small", "small", "small"},
		"there are 5 GPUs, and 2 MIG instances 3g.20gb on 2 GPUs, 7 MIG instances 1g.5gb on 2 GPUs were promised": {"", "", "", "", ""},
	} {
		if got := has(all...); got != want {
			t.Errorf("%q: %s, want %s", all, got, want)
		}
	}
}
