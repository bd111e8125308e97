package check

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// Plan returns every violation of a plan, joined, or nil if the plan is correct. It shares no code with the packages that make plans. If
// [planner.Validate] refuses the snapshot, Plan returns the violations of the snapshot. [planner.Violations] returns what the errors concern.
func Plan(s planner.Snapshot, p planner.Plan) error {
	if err := planner.Validate(s); err != nil {
		return fmt.Errorf("the snapshot is not valid: %w", err)
	}
	c := checker{snapshot: s, class: s.ClassByPod(), seen: map[string]int{}}
	c.parted = make([][]int, len(s.Classes))
	for i, r := range s.Rules {
		for _, class := range r.Classes {
			if r.Kind == planner.Apart && r.Topology == planner.PerNode {
				c.parted[class] = append(c.parted[class], i)
			}
		}
	}
	for i, x := range p.Placements {
		c.concerns(x.Pods)
		c.placement(i, x)
	}
	c.oncePerNode(p.Placements)
	for i, x := range p.Launches {
		c.concerns(x.Pods)
		c.launch(i, x)
	}
	for i, x := range p.Unplaced {
		c.concerns(nil)
		if i, ok := c.class[x.Pod]; ok {
			c.concerns(nil, i)
		}
		c.unplaced(i, x)
	}
	c.everyPodOnce()
	c.limits(p)
	c.stocks(p)
	c.rules(p)
	c.groups(p)
	c.roomHeld(p)
	c.price(p)
	return errors.Join(c.errs...)
}

// everything is the capacity that is assumed for a machine that does not exist, so that no further violation is reported for it.
var everything = planner.Resources{MilliCPU: math.MaxInt64, MemoryBytes: math.MaxInt64, EphemeralBytes: math.MaxInt64, Pods: math.MaxInt64, Replicas: math.MaxInt64}

type checker struct {
	snapshot planner.Snapshot
	class    map[string]int // by pod of the snapshot
	seen     map[string]int // how often the plan mentions a pod
	blamed   []string       // the pods whose classes the next violations concern
	about    []int          // further classes that the next violations concern
	parted   [][]int        // by class, the rules that keep its pods apart from others on a machine
	errs     []error
}

func (c *checker) bad(format string, args ...any) {
	classes := map[int]bool{}
	for _, pod := range c.blamed {
		if i, ok := c.class[pod]; ok {
			classes[i] = true
		}
	}
	for _, i := range c.about {
		classes[i] = true
	}
	c.errs = append(c.errs, &planner.Violation{Message: fmt.Sprintf(format, args...), Classes: slices.Sorted(maps.Keys(classes))})
}

// concerns sets the pods and classes that the next violations concern.
func (c *checker) concerns(pods []string, classes ...int) { c.blamed, c.about = pods, classes }

func (c *checker) placement(i int, x planner.Placement) {
	where := fmt.Sprintf("placement %d", i)
	if x.Node < 0 || x.Node >= len(c.snapshot.Nodes) {
		c.bad("%s: there is no node %d", where, x.Node)
		c.pods(where, x.Pods, everything, nil)
		return
	}
	n := c.snapshot.Nodes[x.Node]
	where += " on node " + n.Name
	c.pods(where, x.Pods, n.Free, func(class planner.Class) bool { return slices.Contains(class.Nodes, x.Node) })
	c.gpus(where, x.Pods, x.GPUs, n.GPUs)
	c.quotas(where, x.Pods, n.Quotas)
	c.apart(where, x.Pods)
}

// oncePerNode reports nodes that several placements use. The capacity of each placement is checked separately.
func (c *checker) oncePerNode(placements []planner.Placement) {
	used := map[int]bool{}
	for i, x := range placements {
		c.concerns(x.Pods)
		if used[x.Node] {
			c.bad("placement %d: an earlier placement uses node %d already", i, x.Node)
		}
		used[x.Node] = true
	}
}

func (c *checker) launch(i int, x planner.Launch) {
	where := fmt.Sprintf("launch %d", i)
	if x.Offering < 0 || x.Offering >= len(c.snapshot.Offerings) {
		c.bad("%s: there is no offering %d", where, x.Offering)
		c.pods(where, x.Pods, everything, nil)
		return
	}
	o := c.snapshot.Offerings[x.Offering]
	where += " of " + o.InstanceType
	if o.Unavailable != nil {
		c.bad("%s: the offering is unavailable: %s", where, o.Unavailable.Message)
	}
	if pool := c.snapshot.Pools[o.Pool]; pool.Closed != nil {
		c.bad("%s: pool %s is closed: %s", where, pool.Name, pool.Closed.Message)
	}
	c.pods(where, x.Pods, o.Free, func(class planner.Class) bool { return slices.Contains(class.Offerings, x.Offering) })
	c.gpus(where, x.Pods, x.GPUs, o.GPUs)
	c.quotas(where, x.Pods, o.Quotas)
	c.apart(where, x.Pods)
}

// pods checks the pods of one machine: there is at least one, they are known, admitted, not blocked and sorted, and they fit into what is free.
func (c *checker) pods(where string, pods []string, free planner.Resources, admitted func(planner.Class) bool) {
	if len(pods) == 0 {
		c.bad("%s: has no pods", where)
	}
	if !sortedOnce(pods) {
		c.bad("%s: pods are not sorted or repeat", where)
	}
	for _, pod := range pods {
		c.seen[pod]++
		i, ok := c.class[pod]
		if !ok {
			c.bad("%s: pod %s is not in the snapshot", where, pod)
			continue
		}
		class := c.snapshot.Classes[i]
		if class.Blocked != nil {
			c.bad("%s: nothing may be planned for pod %s: %s", where, pod, class.Blocked.Message)
		}
		if admitted != nil && !admitted(class) {
			c.bad("%s: pod %s is not admitted", where, pod)
		}
		r := class.Requests
		for _, x := range []struct {
			what string
			free *int64
			asks int64
		}{
			{"CPU", &free.MilliCPU, r.MilliCPU},
			{"memory", &free.MemoryBytes, r.MemoryBytes},
			{"ephemeral storage", &free.EphemeralBytes, r.EphemeralBytes},
			{"pod slots", &free.Pods, r.Pods},
			{"replicas", &free.Replicas, r.Replicas},
		} {
			if x.asks > *x.free {
				c.bad("%s: pod %s asks for %d of %s, %d are left", where, pod, x.asks, x.what, *x.free)
				*x.free = 0
				continue
			}
			*x.free -= x.asks
		}
	}
}

func (c *checker) unplaced(i int, x planner.Unplaced) {
	c.seen[x.Pod]++
	if _, ok := c.class[x.Pod]; !ok {
		c.bad("unplaced %d: pod %s is not in the snapshot", i, x.Pod)
	}
	if x.Reason == "" || x.Message == "" {
		c.bad("unplaced %d: pod %s has no reason or no message", i, x.Pod)
	}
}

func (c *checker) everyPodOnce() {
	for i, class := range c.snapshot.Classes {
		c.concerns(nil, i)
		for _, pod := range class.Pods {
			if n := c.seen[pod]; n != 1 {
				c.bad("pod %s is in the plan %d times", pod, n)
			}
		}
	}
}

// groups checks that the plan places enough pods of a group, or none.
func (c *checker) groups(p planner.Plan) {
	if len(c.snapshot.Groups) == 0 {
		return
	}
	placed := make([]int64, len(c.snapshot.Classes))
	count := func(pods []string) {
		for _, pod := range pods {
			if i, ok := c.class[pod]; ok {
				placed[i]++
			}
		}
	}
	for _, x := range p.Placements {
		count(x.Pods)
	}
	for _, x := range p.Launches {
		count(x.Pods)
	}
	for _, g := range c.snapshot.Groups {
		c.concerns(nil, g.Classes...)
		total := int64(0)
		for _, i := range g.Classes {
			total += placed[i]
		}
		if total > 0 && total < g.Min {
			c.bad("%s: needs %d pods at once, the plan places %d", g.Name, g.Min, total)
		}
	}
}

// roomHeld checks that room is held only for pods without a place, on nodes that admit them.
func (c *checker) roomHeld(p planner.Plan) {
	if len(p.Held) == 0 {
		return
	}
	unplaced := map[string]bool{}
	for _, x := range p.Unplaced {
		unplaced[x.Pod] = true
	}
	for i, x := range p.Held {
		c.concerns(x.Pods)
		for _, pod := range x.Pods {
			class, ok := c.class[pod]
			if !unplaced[pod] || !ok || !slices.Contains(c.snapshot.Classes[class].Nodes, x.Node) {
				c.bad("held room %d: it is for pod %s, which has a place or is not admitted", i, pod)
			}
		}
	}
}

// limits checks that the launches of each pool are within each of its remaining limits.
func (c *checker) limits(p planner.Plan) {
	left := map[int]planner.Physical{}
	for i, x := range p.Launches {
		if x.Offering < 0 || x.Offering >= len(c.snapshot.Offerings) {
			continue
		}
		c.concerns(x.Pods)
		o := c.snapshot.Offerings[x.Offering]
		l, ok := left[o.Pool]
		if !ok {
			l = c.snapshot.Pools[o.Pool].Remaining
		}
		// The cloud may launch any of the machines that the NodeClaim names.
		most := o.Physical
		for _, a := range x.Alternatives {
			if a >= 0 && a < len(c.snapshot.Offerings) {
				most = most.Max(c.snapshot.Offerings[a].Physical)
			}
		}
		for _, d := range []struct {
			what string
			left *int64
			uses int64
		}{
			{"CPU", &l.MilliCPU, most.MilliCPU},
			{"memory", &l.MemoryBytes, most.MemoryBytes},
			{"GPUs", &l.GPUs, most.GPUs},
			{"replicas", &l.Replicas, most.Replicas},
			{"nodes", &l.Nodes, most.Nodes},
		} {
			if *d.left == planner.Unlimited {
				continue
			}
			if d.uses > *d.left {
				c.bad("launch %d: counts %d %s, the limit of pool %s leaves %d", i, d.uses, d.what,
					c.snapshot.Pools[o.Pool].Name, *d.left)
				continue
			}
			*d.left -= d.uses
		}
		left[o.Pool] = l
	}
}

// stocks checks that the launches draw no more from any stock than there is. Alternatives must draw nothing: the cloud might launch them.
func (c *checker) stocks(p planner.Plan) {
	left := make([]int64, len(c.snapshot.Stocks))
	for i, x := range c.snapshot.Stocks {
		left[i] = x.Left
	}
	for i, x := range p.Launches {
		if x.Offering < 0 || x.Offering >= len(c.snapshot.Offerings) {
			continue
		}
		c.concerns(x.Pods)
		for _, d := range c.snapshot.Offerings[x.Offering].Draws {
			if left[d.Stock] -= d.Amount; left[d.Stock] < 0 {
				c.bad("launch %d: draws %d from %s, %d are left", i, d.Amount, c.snapshot.Stocks[d.Stock].Name, left[d.Stock]+d.Amount)
				left[d.Stock] += d.Amount
			}
		}
		for _, a := range x.Alternatives {
			if a >= 0 && a < len(c.snapshot.Offerings) && len(c.snapshot.Offerings[a].Draws) > 0 {
				c.bad("launch %d: alternative %d draws from stocks", i, a)
			}
		}
	}
}

func (c *checker) price(p planner.Plan) {
	c.concerns(nil)
	var sum planner.MicroUSD
	for _, x := range p.Launches {
		if x.Offering >= 0 && x.Offering < len(c.snapshot.Offerings) {
			sum += c.snapshot.Offerings[x.Offering].Price
		}
	}
	if sum != p.Price {
		c.bad("the price is %d, the launches sum to %d", p.Price, sum)
	}
	if p.Bound < 0 || p.Bound > p.Price {
		c.bad("the bound %d is not within 0 and the price %d", p.Bound, p.Price)
	}
}

// sortedOnce reports whether names are sorted and unique.
func sortedOnce(names []string) bool {
	return slices.IsSorted(names) && len(slices.Compact(slices.Clone(names))) == len(names)
}
