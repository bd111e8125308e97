package overview

import (
	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

func reservationsOf(c *facts.Cluster) []Reservation {
	var all []Reservation
	slots := records.SlotsOf(c, records.Machines(c), records.Canaries(c))
	room := snapshot.RoomIn(c, slots)
	for _, s := range slots {
		r := Reservation{
			ID: s.ID, InstanceType: s.InstanceType, Zone: s.Zone, Used: s.Ours, Free: s.Left, Others: s.Others(), End: s.End.UTC(), Leaves: s.Leaves.UTC(), AsOf: s.Read.UTC(),
		}
		if s.ListMicroUSDPerHour > 0 {
			r.MicroUSDPerHour = new(s.ListMicroUSDPerHour)
		}
		if s.ListMicroUSDPerHour > 0 && !s.Read.IsZero() {
			r.FreeMicroUSDPerHour = new(amount.Times(s.ListMicroUSDPerHour, s.Left))
		}
		for _, would := range room[s.ID] {
			r.Holds = append(r.Holds, Room(would))
		}
		all = append(all, r)
	}
	return all
}
