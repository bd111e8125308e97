package overview

import (
	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

func reservationsOf(c *facts.Cluster) []Reservation {
	var all []Reservation
	for _, s := range records.SlotsOf(c, records.Machines(c), records.Canaries(c)) {
		r := Reservation{
			ID: s.ID, InstanceType: s.InstanceType, Zone: s.Zone, Used: s.Ours, Free: s.Left, Others: s.Others(), End: s.End.UTC(), Leaves: s.Leaves.UTC(), AsOf: s.Read.UTC(),
		}
		if s.ListMicroUSDPerHour > 0 {
			r.MicroUSDPerHour = new(s.ListMicroUSDPerHour)
		}
		if s.ListMicroUSDPerHour > 0 && !s.Read.IsZero() {
			r.FreeMicroUSDPerHour = new(amount.Times(s.ListMicroUSDPerHour, s.Left))
		}
		all = append(all, r)
	}
	return all
}
