package disruption

import (
	"slices"

	"karve.sh/karve/pkg/planner"
)

// offers has the lowest prices of the offerings that may be launched.
type offers map[offer]planner.MicroUSD

// offer identifies an offering in a pool.
type offer struct {
	pool, instanceType, zone, capacityType string
}

func offersOf(s planner.Snapshot) offers {
	all := offers{}
	for _, o := range s.Offerings {
		pool := &s.Pools[o.Pool]
		if o.Unavailable != nil || pool.Closed != nil || slices.ContainsFunc(o.Draws, func(d planner.Draw) bool { return d.Amount > s.Stocks[d.Stock].Left }) {
			continue
		}
		key := offer{pool.Name, o.InstanceType, o.Zone, o.CapacityType}
		if least, ok := all[key]; !ok || o.Price < least {
			all[key] = o.Price
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
