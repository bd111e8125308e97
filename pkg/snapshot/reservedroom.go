package snapshot

import (
	"cmp"
	"slices"
	"strings"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// Room is what the free slots of a reservation would hold if a NodePool took them.
type Room struct {
	NodePool string
	// Resource is what pods would request, and Replicas how many there would be, without those of DaemonSets.
	Resource string
	Replicas int64
}

// RoomIn returns what the free slots of reservations would hold, by ID: an entry for each NodePool that may take them and each resource, in order.
func RoomIn(c *facts.Cluster, slots []records.Slots) map[string][]Room {
	left := map[string]int64{}
	for i := range slots {
		if slots[i].Left > 0 {
			left[slots[i].ID] = slots[i].Left
		}
	}
	if len(left) == 0 {
		return nil
	}
	type key struct{ reservation, pool, resource string }
	most := map[key]int64{}
	for i := range c.NodePools {
		np := &c.NodePools[i]
		if !facts.IsOurs(np) {
			continue
		}
		p := Pool{NodePool: np, Class: c.GPUNodeClass(np.Spec.Template.Spec.NodeClassRef.Name)}
		if p.Class == nil || p.setAside() != "" {
			continue
		}
		t := templateOf(c, &p)
		t.reservedOnly = true
		offerings := offeringsOf(c, &p, t)
		for j := range offerings {
			o := &offerings[j]
			at := key{o.Reservation, np.Name, o.Share.Resource}
			most[at] = max(most[at], amount.Times(max(0, o.Free().Replicas), left[o.Reservation]))
		}
	}
	room := map[string][]Room{}
	for at, replicas := range most {
		if replicas > 0 {
			room[at.reservation] = append(room[at.reservation], Room{at.pool, at.resource, replicas})
		}
	}
	for _, all := range room {
		slices.SortFunc(all, func(a, b Room) int {
			return cmp.Or(strings.Compare(a.NodePool, b.NodePool), strings.Compare(a.Resource, b.Resource))
		})
	}
	return room
}
