package instancetype_test

import (
	"testing"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/catalog/builtin"
	fakeaws "karve.sh/karve/test/harness/aws"
)

// cpuKept is how much less CPU, in milli-CPU, the built-in catalog may promise: its file has one figure for both capacity and allocatable.
const cpuKept = 20

// A plan made without a cluster must equal one made with it: the built-in catalog is what AWS returns in us-east-1 for AL2023 with its defaults.
func TestBuiltinCatalogMatchesAWS(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fakeaws.Config{})
	listing := w.until(object(t, nodeClass("gpu", allZones)), "fresh", fresh)
	types, err := builtin.InstanceTypes()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, ours := range types {
		known[ours.Name] = true
		aws := named(t, listing, ours.Name)
		left := ours.Allocatable
		if cpu := aws.Allocatable.MilliCPU - left.MilliCPU; cpu < 0 || cpu > cpuKept {
			t.Errorf("%s has %d mCPU allocatable, on AWS %d", ours.Name, left.MilliCPU, aws.Allocatable.MilliCPU)
		}
		if left.MilliCPU = aws.Allocatable.MilliCPU; left != aws.Allocatable {
			t.Errorf("%s has %+v allocatable, on AWS %+v", ours.Name, left, aws.Allocatable)
		}
		if ours.GPU != aws.GPU {
			t.Errorf("%s has %+v, and on AWS %+v", ours.Name, ours.GPU, aws.GPU)
		}
		for key, value := range ours.Labels {
			if aws.Labels[key] != value {
				t.Errorf("%s has the label %s=%q, and on AWS %q", ours.Name, key, value, aws.Labels[key])
			}
		}
		zones := 0
		for _, o := range aws.Offerings {
			if o.CapacityType != "on-demand" {
				continue
			}
			if zones++; priceOf(ours, o.Zone, o.CapacityType) != o.MicroUSDPerHour {
				t.Errorf("%s costs %d in %s, and on AWS %d", ours.Name, priceOf(ours, o.Zone, o.CapacityType), o.Zone, o.MicroUSDPerHour)
			}
		}
		if zones != len(ours.Offerings) {
			t.Errorf("%s has %d zones, and on AWS %d", ours.Name, len(ours.Offerings), zones)
		}
	}
	for _, aws := range listing.InstanceTypes {
		if whole := aws.GPU.Count > 0 && hasOnDemand(aws); whole != known[aws.Name] {
			t.Errorf("%s is available on AWS: %v, in the built-in catalog: %v", aws.Name, whole, known[aws.Name])
		}
	}
}

func hasOnDemand(it catalog.InstanceType) bool {
	for _, o := range it.Offerings {
		if o.CapacityType == "on-demand" {
			return true
		}
	}
	return false
}
