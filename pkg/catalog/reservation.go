package catalog

import (
	"cmp"
	"time"
)

// Reservation is a number of machines that a company pays whether they run or not: a capacity reservation, or a capacity block.
type Reservation struct {
	// ID is the cloud's name of the reservation, for example "cr-0123".
	ID           string `json:"id"`
	InstanceType string `json:"instanceType"`
	Zone         string `json:"zone"`
	// Free is how many of its machines could be launched at the time Read, and Total how many it has. They are 0, and Read is zero, if that is unknown.
	Free  int64     `json:"free,omitempty"`
	Total int64     `json:"total,omitempty"`
	Read  time.Time `json:"read,omitzero"`
	// End is when the reservation ends, or zero if that is open.
	End time.Time `json:"end,omitzero"`
	// Leaves is when Karpenter deletes the machines, because the cloud ends them with the reservation. It is zero if they go on, at the price on demand.
	Leaves time.Time `json:"leaves,omitzero"`
	// ListMicroUSDPerHour is the price of one such machine in the cloud's list, in micro-dollars per hour. It is 0 if unknown.
	ListMicroUSDPerHour int64 `json:"listMicroUSDPerHour,omitempty"`
}

// maxSlots is the largest number of machines of a reservation.
const maxSlots = 1_000_000

// Slots returns a number of machines of a reservation as far as one can have it: the cloud, or what was published, may say any number.
func Slots(n int64) int64 { return min(max(0, n), maxSlots) }

// Capacity returns a capacity type with the ID of a reservation of it, which may be "": "reserved cr-0123", or "spot".
func Capacity(capacityType, reservation string) string {
	if reservation == "" {
		return capacityType
	}
	return capacityType + " " + reservation
}

// Until returns when the machines begin to cost more or to leave. It is zero if that is open.
func (r *Reservation) Until() time.Time {
	if !r.Leaves.IsZero() {
		return r.Leaves
	}
	return r.End
}

// freeDivisor divides the list price of a machine that costs nothing more, so that a plan prefers the machine whose list price is lower. Karpenter divides by ten
// million. In whole micro-dollars, that would make all machines up to 20 dollars per hour cost 1.
const freeDivisor = 100_000

// Free returns the price of a machine that costs nothing more, given its list price, in micro-dollars per hour. It is at least 1.
func Free(list int64) int64 { return max(1, list/freeDivisor) }

// Reserve makes an offering one of a slot of a reservation, given its list price in micro-dollars per hour, or 0 if unknown. The slot is paid anyway.
func (o *Offering) Reserve(reservation string, list int64) {
	o.Reservation, o.MicroUSDPerHour, o.ListMicroUSDPerHour = reservation, Free(list), cmp.Or(list, 1)
	o.Limited = []LimitedPrice{{MicroUSDPerHour: o.MicroUSDPerHour, Limit: reservation, Draws: 1}}
}
