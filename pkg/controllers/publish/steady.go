package publish

import (
	"maps"
	"slices"
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// countedFor is how long a count of free slots stays published while readers compute the same from it as from the latest one. They show when it was made.
const countedFor = time.Hour

// steady returns the node classes of a cluster with the counts of slots that were published before, by the ID of their reservation, where readers compute the same from them: the
// controller counts each minute, and the time of a count alone is nothing new. Readers subtract the machines that were launched after a count, so an equal number
// of free slots is not enough.
func steady(c *facts.Cluster, before map[string]catalog.Reservation, now time.Time) map[v1alpha1.NodeClassReference]facts.NodeClassState {
	machines, canaries := records.Machines(c), records.Canaries(c)
	latest := c.Reservations()
	was := make([]catalog.Reservation, len(latest))
	for i, r := range latest {
		was[i] = r
		if b, ok := before[r.ID]; ok && !b.Read.IsZero() && now.Sub(b.Read) < countedFor {
			was[i].Free, was[i].Total, was[i].Read = b.Free, b.Total, b.Read
		}
	}
	then, today := records.CountSlots(was, machines, canaries), records.CountSlots(latest, machines, canaries)
	kept := map[string]catalog.Reservation{}
	for i := range latest {
		if !latest[i].Read.IsZero() && then[i].Left == today[i].Left && then[i].Total == today[i].Total {
			kept[latest[i].ID] = was[i]
		}
	}
	classes := maps.Clone(c.NodeClasses)
	for ref, state := range classes {
		state.Reservations = slices.Clone(state.Reservations)
		for i, r := range state.Reservations {
			if b, ok := kept[r.ID]; ok {
				state.Reservations[i].Free, state.Reservations[i].Total, state.Reservations[i].Read = b.Free, b.Total, b.Read
			}
		}
		classes[ref] = state
	}
	return classes
}
