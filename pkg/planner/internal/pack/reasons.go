package pack

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/amount"
)

// Refusal explains why a pod of a class that is not blocked is not placed, if left is what the pools may still launch and what is left of the stocks. Of several reasons it returns
// the one that is easiest to resolve: first an unavailable offering, then a closed pool, then a limit, then a stock of which nothing is left, then a request that is too large.
func (p *Problem) Refusal(sh *Shape, class planner.Class, left Limits) planner.Refusal {
	s := p.Snapshot
	admitting := slices.Clone(class.Offerings)
	var holding []int
	for _, i := range admitting {
		o := s.Offerings[i]
		if c := NewCapacity(p, o.Free, o.GPUs, o.Quotas); c.Alone(sh, 1) > 0 {
			holding = append(holding, i)
		}
	}
	slices.SortFunc(admitting, func(i, j int) int { return CompareOfferings(s, i, j) })
	slices.SortFunc(holding, func(i, j int) int { return CompareOfferings(s, i, j) })
	switch {
	case len(admitting) == 0 && len(class.Nodes) > 0 && class.NoOffering != nil:
		return planner.Refusal{Reason: class.NoOffering.Reason, Message: fmt.Sprintf("has no room on the %s that would take it, and %s", Count(len(class.Nodes), "node"), class.NoOffering.Message)}
	case len(admitting) == 0 && class.NoOffering != nil:
		return *class.NoOffering
	case len(admitting) == 0 && len(class.Nodes) > 0:
		return planner.Refusal{Reason: planner.ReasonNoPool, Message: fmt.Sprintf("has no room on the %s that would take it, and no NodePool of Karve's admits it: "+
			"match its nodeSelector, affinity, tolerations and GPU resource name to a NodePool", Count(len(class.Nodes), "node"))}
	case len(admitting) == 0:
		return planner.Refusal{Reason: planner.ReasonNoPool, Message: "matches no NodePool of Karve's: " +
			"match its nodeSelector, affinity, tolerations and GPU resource name to a NodePool"}
	case len(holding) == 0:
		return p.tooLarge(sh, class, admitting)
	}
	return blockedBy(s, holding, left)
}

// blockedBy explains why none of the offerings that could hold a pod can be launched.
func blockedBy(s planner.Snapshot, holding []int, left Limits) planner.Refusal {
	var unavailable, closed, held, limited, drained []int
	for _, i := range holding {
		o := s.Offerings[i]
		isClosed, isUnavailable := s.Pools[o.Pool].Closed != nil, o.Unavailable != nil
		switch {
		case !left.Supplies(o.Draws):
			drained = append(drained, i)
		case !left.Pool(o.Pool).Admits(amount.UsageOf(o.Physical)) && s.Pools[o.Pool].Limited == nil:
			limited = append(limited, i)
		case !left.Pool(o.Pool).Admits(amount.UsageOf(o.Physical)):
			held = append(held, i)
		case isClosed:
			closed = append(closed, i)
		case isUnavailable:
			unavailable = append(unavailable, i)
		}
	}
	switch {
	case len(unavailable) > 0:
		return passOn(planner.ReasonUnavailable, unavailable, func(i int) *planner.Refusal { return s.Offerings[i].Unavailable })
	case len(closed) > 0:
		return passOn(planner.ReasonPoolClosed, closed, func(i int) *planner.Refusal { return s.Pools[s.Offerings[i].Pool].Closed })
	case len(held) > 0:
		return passOn(planner.ReasonLimitReached, held, func(i int) *planner.Refusal { return s.Pools[s.Offerings[i].Pool].Limited })
	case len(limited) > 0:
		return limitReached(s, limited, left)
	case len(drained) > 0:
		return passOn(planner.ReasonUnavailable, drained, func(i int) *planner.Refusal { return nothingLeft(s, s.Offerings[i], left) })
	}
	// An offering that could be launched within the limits was not used. This only happens with absurd prices or capacities.
	o := s.Offerings[holding[0]]
	return planner.Refusal{Reason: planner.ReasonUnsupported, Message: fmt.Sprintf("fits %s, whose price or capacity in the catalog makes no sense: correct the catalog",
		nameOf(s, o))}
}

// nothingLeft names the stock of which too little is left for a machine.
func nothingLeft(s planner.Snapshot, o planner.Offering, left Limits) *planner.Refusal {
	at := slices.IndexFunc(o.Draws, func(d planner.Draw) bool { return left.Stock(d.Stock) < d.Amount })
	return &planner.Refusal{Reason: planner.ReasonUnavailable, Message: fmt.Sprintf("nothing is left of %s for another %s: wait, or allow other machines in the NodePool",
		s.Stocks[o.Draws[at].Stock].Name, o.InstanceType)}
}

// passOn combines the snapshot's messages about offerings or pools, without duplicates and at most three.
func passOn(reason planner.Reason, indices []int, said func(int) *planner.Refusal) planner.Refusal {
	var messages []string
	for _, i := range indices {
		r := said(i)
		if r.Message != "" && !slices.Contains(messages, r.Message) {
			messages = append(messages, r.Message)
		}
		if r.Reason != "" && len(messages) <= 1 {
			reason = r.Reason
		}
	}
	const most = 3
	if more := len(messages) - most; more > 0 {
		messages = append(messages[:most], fmt.Sprintf("and %d more", more))
	}
	if len(messages) == 0 {
		return planner.Refusal{Reason: reason, Message: "every machine that could hold it is refused at present, no reason is known: wait, or allow others in the NodePool"}
	}
	return planner.Refusal{Reason: reason, Message: strings.Join(messages, "; ")}
}

// limitReached names, for the smallest suitable machine of each pool, the limit that does not allow it.
func limitReached(s planner.Snapshot, holding []int, left Limits) planner.Refusal {
	smallest := map[int]int{}
	for _, i := range holding {
		pool := s.Offerings[i].Pool
		best, ok := smallest[pool]
		if !ok || compareUsage(s.Offerings[i].Physical, s.Offerings[best].Physical) < 0 {
			smallest[pool] = i
		}
	}
	var parts []string
	for _, i := range holding {
		o := s.Offerings[i]
		if smallest[o.Pool] != i {
			continue
		}
		uses, rest := amount.UsageOf(o.Physical), left.Pool(o.Pool)
		for d := range uses {
			if uses[d] > rest[d] {
				parts = append(parts, fmt.Sprintf("NodePool %s may launch %s more within spec.limits, and %s, the smallest machine that holds the pod, counts %s",
					s.Pools[o.Pool].Name, limitAmount(d, max(0, rest[d])), o.InstanceType, limitAmount(d, uses[d])))
				break
			}
		}
	}
	return planner.Refusal{Reason: planner.ReasonLimitReached, Message: strings.Join(parts, "; ") + ": raise the limit, or wait until machines of the pool are gone"}
}

func compareUsage(a, b planner.Physical) int {
	return cmp.Or(cmp.Compare(a.GPUs, b.GPUs), cmp.Compare(a.MilliCPU, b.MilliCPU), cmp.Compare(a.MemoryBytes, b.MemoryBytes),
		cmp.Compare(a.Replicas, b.Replicas))
}

func limitAmount(d int, x int64) string {
	switch d {
	case 0:
		return Count(int(x), "GPU")
	case 1:
		return cpus(x)
	case 2:
		return byteCount(x) + " of memory"
	case 3:
		return Count(int(x), "replica")
	}
	return Count(int(x), "node")
}

// tooLarge names the resource of which the pod requests more than any machine that admits it has, and the machine that has most of it.
func (p *Problem) tooLarge(sh *Shape, class planner.Class, admitting []int) planner.Refusal {
	s, request := p.Snapshot, amount.VectorOf(class.Requests)
	for d := range amount.GPUMemory {
		best := admitting[0]
		for _, i := range admitting {
			if amount.VectorOf(s.Offerings[i].Free)[d] > amount.VectorOf(s.Offerings[best].Free)[d] {
				best = i
			}
		}
		o := s.Offerings[best]
		if has := amount.VectorOf(o.Free)[d]; request[d] > has {
			return planner.Refusal{Reason: planner.ReasonTooLarge, Message: fmt.Sprintf("asks for %s; the largest machine that admits it, %s, has %s after DaemonSets: "+
				"ask for less or allow larger instance types in the NodePool's requirements", describe(d, request[d]), nameOf(s, o), describe(d, has))}
		}
	}
	if r := p.tooLargeForGPUs(sh, admitting); r != nil {
		return *r
	}
	if r := p.tooLargeForQuotas(class, admitting); r != nil {
		return *r
	}
	return p.tooLargeAtOnce(request, admitting)
}

// tooLargeAtOnce names the machine that lacks the fewest of the resources that the pod requests. None of them is too large by itself.
func (p *Problem) tooLargeAtOnce(request amount.Vector, admitting []int) planner.Refusal {
	s := p.Snapshot
	best, missing := admitting[0], amount.Dims+1
	for _, i := range admitting {
		n := 0
		for d, x := range amount.VectorOf(s.Offerings[i].Free) {
			if d < amount.GPUMemory && request[d] > x {
				n++
			}
		}
		if n < missing {
			best, missing = i, n
		}
	}
	o := s.Offerings[best]
	asks, has := []string{"so much"}, []string{"less"}
	if missing > 0 {
		asks, has = nil, nil
	}
	for d, x := range amount.VectorOf(o.Free) {
		if d < amount.GPUMemory && request[d] > x {
			asks, has = append(asks, describe(d, request[d])), append(has, describe(d, x))
		}
	}
	return planner.Refusal{Reason: planner.ReasonTooLarge, Message: fmt.Sprintf("asks for more at once than any one machine that admits it has; the nearest, %s, has %s where it asks for %s: "+
		"ask for less or allow larger instance types in the NodePool's requirements", nameOf(s, o), strings.Join(has, " and "), strings.Join(asks, " and "))}
}

// tooLargeForGPUs returns a refusal if no GPU of the machines that admit a pod has the device memory and the replicas that it requests on one GPU.
// Otherwise it returns nil.
func (p *Problem) tooLargeForGPUs(sh *Shape, admitting []int) *planner.Refusal {
	if !sh.States() {
		return nil
	}
	best, most := admitting[0], planner.GPU{}
	for _, i := range admitting {
		for _, g := range p.Snapshot.Offerings[i].GPUs {
			if fitGPU(&g, sh, 1) > 0 {
				return nil
			}
			if compareGPUs(g, most) > 0 {
				best, most = i, g
			}
		}
	}
	return &planner.Refusal{Reason: planner.ReasonTooLarge, Message: fmt.Sprintf("asks for %s and %s of one GPU; the largest that admits it, of %s, has %s and %s: "+
		"ask for less or allow instance types with larger GPUs in the NodePool's requirements",
		describe(amount.GPUMemory, sh.Request[amount.GPUMemory]), describe(amount.Replicas, sh.Request[amount.Replicas]), nameOf(p.Snapshot, p.Snapshot.Offerings[best]),
		describe(amount.GPUMemory, most.MemoryBytes), describe(amount.Replicas, most.Replicas))}
}

// tooLargeForQuotas returns a refusal if no machine that admits a pod has the amount of a quota that the pod uses. Otherwise it returns nil.
func (p *Problem) tooLargeForQuotas(class planner.Class, admitting []int) *planner.Refusal {
	for _, x := range class.Quotas {
		q := p.Snapshot.Quotas[x.Quota]
		best, most := admitting[0], int64(-1)
		for _, i := range admitting {
			if has := p.Snapshot.QuotaOf(p.Snapshot.Offerings[i].Quotas, x.Quota); has > most {
				best, most = i, has
			}
		}
		if x.Count > most {
			return &planner.Refusal{Reason: planner.ReasonTooLarge, Message: fmt.Sprintf("takes %d of %s; the machine with most of it that admits the pod, %s, has %d: "+
				"take less or allow instance types that have more in the NodePool's requirements", x.Count, q.Name,
				nameOf(p.Snapshot, p.Snapshot.Offerings[best]), max(0, most))}
		}
	}
	return nil
}

func nameOf(s planner.Snapshot, o planner.Offering) string {
	return fmt.Sprintf("%s in NodePool %s", o.InstanceType, s.Pools[o.Pool].Name)
}

// describe formats an amount of a dimension for people.
func describe(d int, x int64) string {
	switch d {
	case amount.Replicas:
		return Count(int(x), "replica")
	case amount.CPU:
		return cpus(x)
	case amount.Memory:
		return byteCount(x) + " of memory"
	case amount.Ephemeral:
		return byteCount(x) + " of ephemeral storage"
	case amount.GPUMemory:
		return byteCount(x) + " of device memory"
	}
	return Count(int(x), "pod slot")
}

// Count returns a number of things in words: "1 pod", "2 pods".
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// cpus formats thousandths of a CPU as Kubernetes does.
func cpus(milli int64) string {
	if milli%1000 == 0 {
		return fmt.Sprintf("%d CPU", milli/1000)
	}
	return fmt.Sprintf("%dm CPU", milli)
}

// byteCount formats bytes in the largest binary unit that gives a whole number.
func byteCount(b int64) string {
	units := []string{"", "Ki", "Mi", "Gi", "Ti", "Pi"}
	u := 0
	for u < len(units)-1 && b != 0 && b%1024 == 0 {
		b /= 1024
		u++
	}
	return fmt.Sprintf("%d%s", b, units[u])
}
