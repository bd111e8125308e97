package nvidiadra

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"karve.sh/karve/pkg/node/gpu"
)

// TestSliceIsLikeThatOfTheDriver compares with what the driver of that commit published on a machine with an H200 (driver version 580.159.04, API server 1.36.3).
func TestSliceIsLikeThatOfTheDriver(t *testing.T) {
	t.Parallel()
	h200 := gpu.Device{
		UUID: "GPU-00000000-0000-0000-0000-000000000000", Product: "NVIDIA H200", MemoryMiB: 143771, ComputeMajor: 9, PCIeRoot: "pci0000:00",
	}
	for name, shares := range map[string]string{"h200-whole": "disabled", "h200-4-shares": "4"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(filepath.Join("testdata", name+".json"))
			if err != nil {
				t.Fatal(err)
			}
			published := &resourcev1.ResourceSlice{}
			if err := json.Unmarshal(data, published); err != nil {
				t.Fatal(err)
			}
			made := Slice("machine", shares, h200)
			for _, s := range []*resourcev1.ResourceSlice{published, made} {
				s.TypeMeta.Kind, s.APIVersion, s.Name, s.GenerateName = "", "", "", ""
				d := &s.Spec.Devices[0]
				delete(d.Attributes, "resource.kubernetes.io/numaNode") // That machine tells none.
				for _, of := range []resourcev1.QualifiedName{"driverVersion", "resource.kubernetes.io/pciBusID", "addressingMode"} {
					if a := d.Attributes[of]; a.StringValue == nil && a.VersionValue == nil {
						t.Errorf("no attribute %s", of)
					}
					delete(d.Attributes, of)
				}
				memory := d.Capacity["memory"]
				memory.Value = *resource.NewQuantity(memory.Value.Value()>>20<<20, resource.BinarySI) // Not all GPUs have whole MiB.
				d.Capacity["memory"] = memory
			}
			if diff := cmp.Diff(published, made); diff != "" {
				t.Errorf("-published +made:\n%s", diff)
			}
		})
	}
}
