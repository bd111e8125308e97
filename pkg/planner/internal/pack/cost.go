package pack

// Cost is the cost of a plan. Plans are compared by the number of unplaced pods, then by price, then by the number of machines.
type Cost struct {
	Left     int64
	Price    int64
	Machines int64
}

// Less reports whether c is better than o: fewer pods are left, then the price is lower, then there are fewer machines.
func (c Cost) Less(o Cost) bool {
	if c.Left != o.Left {
		return c.Left < o.Left
	}
	if c.Price != o.Price {
		return c.Price < o.Price
	}
	return c.Machines < o.Machines
}

// Plus returns the sum of two costs.
func (c Cost) Plus(o Cost) Cost {
	return Cost{c.Left + o.Left, c.Price + o.Price, c.Machines + o.Machines}
}
