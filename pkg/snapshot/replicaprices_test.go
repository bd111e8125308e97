package snapshot_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/prices"
	"karve.sh/karve/pkg/snapshot"
)

func TestReplicasHaveTheLowestPriceOfTheirGPU(t *testing.T) {
	t.Parallel()
	two := int64(2)
	c := limitedTo(prices.UpTo{Machines: &two})
	c.UsePrices(prices.NewBook(nil, []prices.Rule{{Name: "discount", PriceAdjustment: "-10%"}, {Name: "plan", PriceAdjustment: "-50%", UpTo: &prices.UpTo{Machines: &two}}}))
	// Ten replicas of a g4dn.xlarge at $0.526; a g4dn.2xlarge costs more.
	want := []snapshot.ReplicaPrice{{GPUName: "t4", CapacityType: "on-demand", MicroUSDPerHour: 47_340, ListMicroUSDPerHour: 52_600}}
	if diff := cmp.Diff(want, snapshot.Pools(c)[0].ReplicaPrices()); diff != "" {
		t.Error(diff)
	}
}
