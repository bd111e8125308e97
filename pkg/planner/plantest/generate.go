package plantest

import (
	"fmt"
	"slices"

	"pgregory.net/rapid"

	"karve.sh/karve/pkg/planner"
)

// Limits bound the contents of a generated snapshot.
type Limits struct {
	Pods    int // at most this many, at least one
	Classes int
	Nodes   int
	// Free omits limits of pools, closed pools, unavailable offerings and blocked classes.
	Free bool
}

// Snapshots generates small valid snapshots with small numbers, so that pods often barely fit or barely do not fit.
func Snapshots(limits Limits) *rapid.Generator[planner.Snapshot] {
	return rapid.Custom(func(t *rapid.T) planner.Snapshot {
		var s planner.Snapshot
		n := numbers(t)
		rarely := func(name string) bool { return limits.rarely(t, name) }
		stated := rapid.Bool().Draw(t, "device memory")
		for i := range n("quotas", 0, 4) - 2 {
			s.Quotas = append(s.Quotas, planner.Quota{Name: fmt.Sprintf("quota-%d", i), Each: int64(n("each", 0, 3))})
		}
		for i := range n("pools", 1, 2) {
			p := Pool(fmt.Sprintf("pool-%d", i))
			if rarely("limited") {
				p.Remaining.Nodes = int64(n("remaining nodes", -1, 3))
			}
			if rarely("limited GPUs") {
				p.Remaining.GPUs = int64(n("remaining GPUs", 0, 4))
			}
			p.Closed = refusalIf(rarely("closed"), planner.ReasonPoolClosed, p.Name+" is closed")
			s.Pools = append(s.Pools, p)
		}
		if !limits.Free {
			s.Stocks = stocks(t)
		}
		s.Offerings = limits.offerings(t, s, stated)
		for i := range n("nodes", 0, limits.Nodes) {
			s.Nodes = append(s.Nodes, node(t, s, fmt.Sprintf("node-%d", i), stated))
		}
		s.Classes = limits.classes(t, s, stated)
		s.Rules = aparts(t, s)
		return s
	})
}

// numbers draws numbers of a range.
func numbers(t *rapid.T) func(name string, low, high int) int {
	return func(name string, low, high int) int { return rapid.IntRange(low, high).Draw(t, name) }
}

// rarely draws whether something is so that is so in one of six cases, and never with Free.
func (limits Limits) rarely(t *rapid.T, name string) bool {
	return !limits.Free && numbers(t)(name, 0, 5) == 0
}

// offerings draws offerings of the pools. stated reports whether their GPUs have device memory.
func (limits Limits) offerings(t *rapid.T, s planner.Snapshot, stated bool) []planner.Offering {
	var out []planner.Offering
	n := numbers(t)
	for i := range n("offerings", 0, 5) {
		gpus, shared := int64(n("GPUs", 1, 3)), int64(n("shared by", 1, 4))
		o := planner.Offering{
			Pool: n("pool", 0, len(s.Pools)-1), InstanceType: fmt.Sprintf("type-%d", i), Zone: "zone-a", CapacityType: "on-demand",
			Price:    planner.MicroUSD(n("price", 1, 12)),
			Free:     resources(t, 12, gpus*shared),
			Physical: planner.Physical{MilliCPU: 10, MemoryBytes: 10, GPUs: gpus, Nodes: 1},
		}
		if stated {
			o.GPUs = slices.Repeat([]planner.GPU{{Replicas: shared, MemoryBytes: int64(n("device memory of a GPU", 0, 8))}}, int(gpus))
		}
		o.Quotas = amounts(t, s)
		o.Draws = draws(t, s, o.Price)
		if limits.rarely(t, "unavailable") {
			o.Unavailable = &planner.Refusal{Reason: planner.ReasonUnavailable, Message: o.InstanceType + " was refused"}
		}
		out = append(out, o)
		if len(o.Draws) > 0 && n("at another price", 0, 2) == 0 {
			o.Price, o.Draws = o.Price+planner.MicroUSD(n("more", 1, 8)), nil
			out = append(out, o)
		}
	}
	return out
}

// stocks draws a few stocks.
func stocks(t *rapid.T) []planner.Stock {
	var out []planner.Stock
	for i := range rapid.IntRange(0, 4).Draw(t, "stocks") - 2 {
		out = append(out, planner.Stock{Name: fmt.Sprintf("stock-%d", i), Left: int64(rapid.IntRange(0, 20).Draw(t, "left"))})
	}
	return out
}

// draws returns what an offering takes from the stocks: one machine, or its price as from a savings plan, or a few.
func draws(t *rapid.T, s planner.Snapshot, price planner.MicroUSD) []planner.Draw {
	var out []planner.Draw
	for i := range s.Stocks {
		if n := rapid.IntRange(0, 9).Draw(t, "drawn"); n < 5 {
			out = append(out, planner.Draw{Stock: i, Amount: []int64{int64(price), int64(price), 1, 4, 9}[n]})
		}
	}
	return out
}

// classes draws classes of pods that some offerings and nodes admit. stated reports whether some of them state device memory.
func (limits Limits) classes(t *rapid.T, s planner.Snapshot, stated bool) []planner.Class {
	var all []planner.Class
	n := numbers(t)
	left := n("pods", 1, limits.Pods)
	for i := range n("classes", 1, limits.Classes) {
		if left == 0 {
			break
		}
		k := n("pods of the class", 1, left)
		left -= k
		c := Class(s, fmt.Sprintf("class-%d", i), k, planner.Resources{
			MilliCPU: int64(n("cpu", 0, 6)), MemoryBytes: int64(n("memory", 0, 6)), Pods: 1, Replicas: int64(n("asked replicas", 0, 3)),
		})
		out := func(int) bool { return n("not admitted", 0, 4) == 0 }
		c.Offerings, c.Nodes = slices.DeleteFunc(c.Offerings, out), slices.DeleteFunc(c.Nodes, out)
		if stated && rapid.Bool().Draw(t, "states device memory") {
			c.GPUMemoryBytes = int64(n("stated device memory", 1, 6))
		}
		c.Quotas = amounts(t, s)
		c.Blocked = refusalIf(limits.rarely(t, "blocked"), planner.ReasonUnsupported, "blocked")
		all = append(all, c)
	}
	return all
}

// aparts draws rules that keep pods apart on machines.
func aparts(t *rapid.T, s planner.Snapshot) []planner.Rule {
	var out []planner.Rule
	some := func(name string) []int {
		return slices.Sorted(slices.Values(rapid.SliceOfNDistinct(rapid.IntRange(0, len(s.Classes)-1), 0, 2, rapid.ID[int]).Draw(t, name)))
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "rules") - 2 {
		out = append(out, planner.Rule{
			Kind: planner.Apart, Name: fmt.Sprintf("rule-%d", i), Topology: planner.PerNode, Classes: some("apart"), Counted: some("from"),
		})
	}
	return out
}

// node draws a node. If stated is true, its GPUs may differ.
func node(t *rapid.T, s planner.Snapshot, name string, stated bool) planner.Node {
	upTo := func(name string, most int) int { return rapid.IntRange(0, most).Draw(t, name) }
	v := planner.Node{Name: name, Free: resources(t, 8, int64(upTo("replicas", 4))), Quotas: amounts(t, s)}
	if stated {
		for range upTo("GPUs of the node", 3) {
			v.GPUs = append(v.GPUs, planner.GPU{Replicas: int64(upTo("replicas left", 4)), MemoryBytes: int64(upTo("device memory left", 8))})
		}
	}
	return v
}

func refusalIf(refused bool, reason planner.Reason, message string) *planner.Refusal {
	if !refused {
		return nil
	}
	return &planner.Refusal{Reason: reason, Message: message}
}

// amounts draws an amount for some of the quotas.
func amounts(t *rapid.T, s planner.Snapshot) []planner.Amount {
	var out []planner.Amount
	for q := range s.Quotas {
		if rapid.Bool().Draw(t, "says an amount") {
			out = append(out, planner.Amount{Quota: q, Count: int64(rapid.IntRange(0, 3).Draw(t, "amount"))})
		}
	}
	return out
}

func resources(t *rapid.T, most int, replicas int64) planner.Resources {
	return planner.Resources{
		MilliCPU:    int64(rapid.IntRange(0, most).Draw(t, "free cpu")),
		MemoryBytes: int64(rapid.IntRange(0, most).Draw(t, "free memory")),
		Pods:        int64(rapid.IntRange(0, 6).Draw(t, "free pods")),
		Replicas:    replicas,
	}
}
