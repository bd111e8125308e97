package workload

import (
	"cmp"
	"fmt"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// What a company owns in [Owned]: a slot for each of ownedPart machines of a type, and a savings plan for 1/committedPart of the price, at which machines on demand cost
// planPercent of the list price.
const (
	ownedPart, committedPart = 3, 5
	planPercent              = 55
	reserved, savingsPlan    = "reserved", "savings-plan"
)

// Owned adds to a snapshot what a company owns that planned for its pods before: reserved slots for a third of the plan's machines of each type, rounded up, and a savings
// plan for a fifth of the plan's price, which lowers the prices of all offerings that are not spot by 45 %. Slots cost what package catalog lets them.
func Owned(s planner.Snapshot, p planner.Plan) planner.Snapshot {
	listed := slices.Clone(s.Offerings)
	slots := map[int]int64{}
	for _, l := range p.Launches {
		slots[l.Offering]++
	}
	plan := planner.Stock{Name: savingsPlan, Left: int64(p.Price) / committedPart}
	for i := range listed {
		if n := (slots[i] + ownedPart - 1) / ownedPart; n > 0 {
			s.Stocks = append(s.Stocks, planner.Stock{Name: fmt.Sprintf("cr-%04d", i), Left: n})
			o := listed[i]
			o.Price, o.ListPrice, o.CapacityType, o.Draws = max(1, o.Price/100_000), o.Price, reserved, []planner.Draw{{Stock: len(s.Stocks) - 1, Amount: 1}}
			s.Offerings = append(s.Offerings, o)
		}
	}
	s.Stocks = append(s.Stocks, plan)
	for _, o := range listed {
		if o.CapacityType != "spot" {
			o.Price, o.ListPrice = o.Price*planPercent/100, o.Price
			o.Draws = []planner.Draw{{Stock: len(s.Stocks) - 1, Amount: int64(o.Price)}}
			s.Offerings = append(s.Offerings, o)
		}
	}
	s.Classes = slices.Clone(s.Classes)
	for k := range s.Classes {
		for i := len(listed); i < len(s.Offerings); i++ {
			s.Classes[k].Offerings = append(slices.Clip(s.Classes[k].Offerings), i)
		}
	}
	return s
}

// Bill returns what the machines of a plan for a snapshot of [Owned] without spot add to the bill of an hour. Slots are paid anyway. The commitment is paid whether it is used or
// not, and covers machines, also a part of one, at the lower price, whatever the plan took it to cover. The rest costs the list price.
func Bill(s planner.Snapshot, p planner.Plan) planner.MicroUSD {
	var list, committed planner.MicroUSD
	for _, l := range p.Launches {
		if o := s.Offerings[l.Offering]; o.CapacityType != reserved {
			list += cmp.Or(o.ListPrice, o.Price)
		}
	}
	for _, x := range s.Stocks {
		if x.Name == savingsPlan {
			committed = planner.MicroUSD(x.Left)
		}
	}
	return committed + max(0, list-committed*100/planPercent)
}
