package nodecontract_test

import (
	"testing"

	"karve.sh/karve/pkg/nodecontract"
)

func TestMIGThatIsWrittenIsRead(t *testing.T) {
	t.Parallel()
	for _, want := range []nodecontract.MIG{
		{}, {Profile: "1g.5gb", Count: 7, MemoryMiB: 4800, Naming: nodecontract.MIGMixed}, {Profile: "7g.40gb", Count: 1, Naming: nodecontract.MIGSingle},
	} {
		if got, err := nodecontract.ParseMIG(want.String()); err != nil || got != want {
			t.Errorf("%q: %+v, %v", want.String(), got, err)
		}
	}
	for _, bad := range []string{
		"x", "[]", "{}", `{"profile":"1g.5gb","count":0,"naming":"Mixed"}`, `{"profile":"1g.5gb","count":65,"naming":"Mixed"}`, `{"profile":"1g.5gb","count":1}`,
		`{"profile":"1g.5gb","count":1,"naming":"Mixed","memoryMiB":-1}`, `{"profile":"1g.5gb","count":1,"naming":"Mixed","more":1}`,
	} {
		if got, err := nodecontract.ParseMIG(bad); err == nil || got != (nodecontract.MIG{}) {
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
