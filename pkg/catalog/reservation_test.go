package catalog

import "testing"

func TestSmallerFreeMachineCostsLess(t *testing.T) {
	t.Parallel()
	// g4dn.xlarge, g4dn.2xlarge, g4dn.12xlarge and p5.48xlarge in us-east-1.
	last := int64(0)
	for _, list := range []int64{1, 526_000, 752_000, 3_912_000, 55_040_000} {
		price := Free(list)
		if price <= last || price > list {
			t.Errorf("the price is %d for %d in the list, want more than %d", price, list, last)
		}
		last = price
	}
}
