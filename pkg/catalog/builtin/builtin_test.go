package builtin

import (
	"testing"

	"karve.sh/karve/pkg/catalog"
)

func TestBuiltInTypesAreRead(t *testing.T) {
	t.Parallel()
	types, err := InstanceTypes()
	if err != nil {
		t.Fatal(err)
	}
	if len(types) != 59 {
		t.Errorf("%d types, want 59 as README.md says", len(types))
	}
	if size := len(file); size > 400_000 {
		t.Errorf("%d bytes are too many to carry in every binary", size)
	}
	byName := map[string]catalog.InstanceType{}
	for _, it := range types {
		byName[it.Name] = it
		if it.GPU.Count < 1 || it.GPU.MemoryMiB < 1 || it.GPU.Name == "" {
			t.Errorf("%s has GPUs %+v", it.Name, it.GPU)
		}
		for _, o := range it.Offerings {
			if o.CapacityType != "on-demand" {
				t.Errorf("%s is offered as %s, of which no price is known", it.Name, o.CapacityType)
			}
		}
	}
	for name, want := range map[string]struct {
		gpus, cpu, memoryMiB, price int64
		arch                        string
	}{
		"g4dn.xlarge":      {1, 3900, 14481, 526_000, "amd64"}, // 3920m: the schema's figure is a little less
		"g4dn.metal":       {8, 95690, 355262, 7_824_000, "amd64"},
		"g5.48xlarge":      {8, 191450, 723299, 16_288_000, "amd64"},
		"g5g.xlarge":       {1, 3900, 6525, 420_000, "arm64"},
		"p5.48xlarge":      {8, 191450, 1938410, 55_040_000, "amd64"},
		"p6-b300.48xlarge": {8, 191450, 3877198, 142_416_000, "amd64"},
	} {
		it := byName[name]
		if it.GPU.Count != want.gpus || it.Allocatable.MilliCPU != want.cpu || it.Allocatable.MemoryBytes>>20 != want.memoryMiB ||
			it.Offerings[0].MicroUSDPerHour != want.price || it.Labels["kubernetes.io/arch"] != want.arch {
			t.Errorf("%s is %+v, want %+v", name, it, want)
		}
	}
	for _, name := range []string{"g6f.large", "gr6f.4xlarge", "p5e.48xlarge", "p3.2xlarge"} {
		if _, ok := byName[name]; ok {
			t.Errorf("%s is built in, but README.md says that it is not", name)
		}
	}
}
