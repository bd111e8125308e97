package records

import (
	"maps"
	"slices"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/snapshot/facts"
)

// countingDelay is how long after a launch the cloud may still count the slot as free. Times in the API are whole seconds.
const countingDelay = 2 * time.Second

// Slots are the machines of a reservation.
type Slots struct {
	catalog.Reservation
	// Ours are those that machines of Karve take, or will take.
	Ours int64
	// Left are those that may still be launched: those that the cloud knew to be free, less those that Karve has launched since, or is about to.
	Left int64
}

// Others returns the number of slots that are neither Karve's nor free. It is 0 if the cloud has not said how many there are.
func (s *Slots) Others() int64 { return max(0, s.Total-s.Ours-s.Left) }

// SlotsOf returns the slots of all reservations, sorted by ID, given all machines of Karve. Others may take slots too: what is left is not a promise.
func SlotsOf(c *facts.Cluster, lists ...[]Machine) []Slots {
	return CountSlots(c.Reservations(), lists...)
}

// CountSlots returns the slots of these reservations, in their order, given all machines of Karve.
func CountSlots(reservations []catalog.Reservation, lists ...[]Machine) []Slots {
	slots, at := make([]Slots, len(reservations)), make(map[string]*Slots, len(reservations))
	for i, r := range reservations {
		r.Free, r.Total = catalog.Slots(r.Free), catalog.Slots(r.Total)
		slots[i] = Slots{Reservation: r, Left: r.Free}
		at[r.ID] = &slots[i]
	}
	for _, machines := range lists {
		for i := range machines {
			s := at[machines[i].Reservation]
			if s == nil {
				continue
			}
			s.Ours++
			if !machines[i].countedAt(s.Read) {
				s.Left--
			}
		}
	}
	for i := range slots {
		slots[i].Left = max(0, slots[i].Left)
	}
	return slots
}

// Vacated returns the node classes of a cluster with the reservations as they would be without machines of Karve.
func Vacated(c *facts.Cluster) map[v1alpha1.NodeClassReference]facts.NodeClassState {
	free := map[string]int64{}
	for _, s := range SlotsOf(c, Machines(c), Canaries(c)) {
		free[s.ID] = s.Left + s.Ours
	}
	if len(free) == 0 {
		return c.NodeClasses
	}
	vacated := maps.Clone(c.NodeClasses)
	for ref, state := range vacated {
		state.Reservations = slices.Clone(state.Reservations)
		for i := range state.Reservations {
			state.Reservations[i].Free = free[state.Reservations[i].ID]
		}
		vacated[ref] = state
	}
	return vacated
}

// leaveTimes returns when the machines of reservations leave, by ID. It has no reservations whose machines go on.
func leaveTimes(c *facts.Cluster) map[string]time.Time {
	all := map[string]time.Time{}
	for _, r := range c.Reservations() {
		if !r.Leaves.IsZero() {
			all[r.ID] = r.Leaves
		}
	}
	return all
}

// countedAt reports whether the cloud knew at a time that the machine takes a slot. It knew nothing at the zero time, and then there is nothing to subtract from.
func (m *Machine) countedAt(read time.Time) bool {
	launched := m.since(karpv1.ConditionTypeLaunched)
	return read.IsZero() || !launched.IsZero() && !launched.Add(countingDelay).After(read)
}
