package disruption

import "karve.sh/karve/pkg/planner"

// offers has the prices of the offerings that may be launched.
type offers map[offer]planner.MicroUSD

// offer identifies an offering in a pool.
type offer struct {
	pool, instanceType, zone, capacityType string
}

func offersOf(s planner.Snapshot) offers {
	all := offers{}
	for _, o := range s.Offerings {
		if pool := &s.Pools[o.Pool]; o.Unavailable == nil && pool.Closed == nil {
			all[offer{pool.Name, o.InstanceType, o.Zone, o.CapacityType}] = o.Price
		}
	}
	return all
}

// improves reports whether an offering is new or cheaper than before.
func (o offers) improves(before offers) bool {
	for key, price := range o {
		if was, ok := before[key]; !ok || price < was {
			return true
		}
	}
	return false
}
