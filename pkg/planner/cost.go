package planner

// cost orders plans: fewer pods left out, then less money, then fewer machines.
type cost struct {
	left     int64
	price    int64
	machines int64
}

func (c cost) less(o cost) bool {
	if c.left != o.left {
		return c.left < o.left
	}
	if c.price != o.price {
		return c.price < o.price
	}
	return c.machines < o.machines
}

func (c cost) plus(o cost) cost {
	return cost{c.left + o.left, c.price + o.price, c.machines + o.machines}
}
