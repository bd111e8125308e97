package check

import (
	"slices"

	"karve.sh/karve/pkg/planner"
)

// freely checks the alternatives of a launch whose pool has no MinValues. Every combination of instance type and zone that the NodeClaim allows must
// also be able to serve the pods, within the pool's premium.
func (c *checker) freely(where string, l planner.Launch, all []int) {
	s := c.snapshot
	o := s.Offerings[l.Offering]
	types, zones := map[string]bool{}, map[string]bool{}
	for _, i := range all {
		x := s.Offerings[i]
		types[x.InstanceType], zones[x.Zone] = true, true
		if x.CapacityType != o.CapacityType || x.Choice != o.Choice {
			c.bad("%s: alternative %d is of another capacity type or has other labels", where, i)
		}
		if 100*(float64(x.Price)-float64(o.Price)) > float64(s.Pools[o.Pool].MaxPremium)*float64(o.Price) {
			c.bad("%s: alternative %d costs %d, which is over %d %% above %d", where, i, x.Price, s.Pools[o.Pool].MaxPremium, o.Price)
		}
		if x.ListPrice < o.ListPrice && x.Price > o.Price {
			c.bad("%s: the cloud prefers alternative %d, which costs %d instead of %d", where, i, x.Price, o.Price)
		}
		c.promise(where, l, i)
		c.preferences(where, l, i)
	}
	if len(all) == 1 {
		return // The snapshot decides about other offerings of the same type in the same zone.
	}
	for i, x := range s.Offerings {
		if x.Pool == o.Pool && x.CapacityType == o.CapacityType && x.Choice == o.Choice && types[x.InstanceType] && zones[x.Zone] && !slices.Contains(all, i) && !planner.Repriced(o, x) {
			c.bad("%s: its claim admits offering %d, which is no alternative", where, i)
		}
	}
}

// promise checks that an alternative has the replicas for the pods of a launch if its GPUs are shared like those of the launch's offering.
func (c *checker) promise(where string, l planner.Launch, i int) {
	s := c.snapshot
	o, x := s.Offerings[l.Offering], s.Offerings[i]
	if len(o.GPUs) == 0 || len(x.GPUs) == 0 || slices.Equal(o.GPUs, x.GPUs) {
		return
	}
	var asked, shared int64
	for _, pod := range l.Pods {
		if at, ok := c.class[pod]; ok {
			asked += s.Classes[at].Requests.Replicas
		}
	}
	for _, g := range o.GPUs {
		shared = max(shared, g.Replicas)
	}
	if asked > shared*int64(len(x.GPUs)) {
		c.bad("%s: alternative %d has %d GPUs, which hold %d replicas when shared as the claim says, its pods ask for %d", where, i, len(x.GPUs), shared*int64(len(x.GPUs)), asked)
	}
	if slices.ContainsFunc(x.GPUs, func(g planner.GPU) bool { return g.Replicas < shared }) {
		c.bad("%s: alternative %d has GPUs of fewer replicas than the %d that the claim says", where, i, shared)
	}
}

// preferences checks that an alternative satisfies each preference of the pods that the launch satisfies.
func (c *checker) preferences(where string, l planner.Launch, i int) {
	for _, pod := range l.Pods {
		at, ok := c.class[pod]
		if !ok {
			continue
		}
		for _, w := range c.snapshot.Classes[at].Preferences {
			if w.Rule < 0 && slices.Contains(w.Offerings, l.Offering) && !slices.Contains(w.Offerings, i) {
				c.bad("%s: alternative %d takes a preference from pod %s", where, i, pod)
			}
		}
	}
}
