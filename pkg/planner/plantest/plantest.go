// Package plantest builds snapshots for tests of the planner, and finds the true optimum of small ones.
package plantest

import (
	"fmt"
	"slices"
	"strings"

	"karve.sh/karve/pkg/planner"
)

// Units of memory in bytes.
const (
	Mi = 1 << 20
	Gi = 1 << 30
)

// Machine is an instance type with its capacity for pods before DaemonSets, and its on-demand price.
type Machine struct {
	Type     string
	VCPU     int64
	MilliCPU int64
	MiB      int64
	Pods     int64
	GPUs     int64
	GPUMiB   int64 // device memory of each GPU
	Price    planner.MicroUSD
}

// G4dn returns the g4dn family of EC2 in us-east-1: allocatable capacity with Karpenter's overhead, with one or more T4 GPUs each.
func G4dn() []Machine {
	return []Machine{
		{"g4dn.xlarge", 4, 3900, 14481, 29, 1, 15_360, 526_000},
		{"g4dn.2xlarge", 8, 7900, 29636, 29, 1, 15_360, 752_000},
		{"g4dn.4xlarge", 16, 15900, 59946, 29, 1, 15_360, 1_204_000},
		{"g4dn.8xlarge", 32, 31900, 120248, 58, 1, 15_360, 2_176_000},
		{"g4dn.12xlarge", 48, 47900, 178933, 234, 4, 15_360, 3_912_000},
		{"g4dn.16xlarge", 64, 63900, 241490, 58, 1, 15_360, 4_352_000},
		{"g4dn.metal", 96, 95900, 355262, 737, 8, 15_360, 7_824_000},
	}
}

// Pool returns an open pool without limits.
func Pool(name string) planner.Pool {
	return planner.Pool{Name: name, Remaining: planner.NoLimits}
}

// Offering returns the machine as an offering of the pool with the given index. Each of its GPUs is shared by the given number of replicas.
func (m Machine) Offering(pool int, zone, capacityType string, price planner.MicroUSD, replicas int64) planner.Offering {
	return planner.Offering{
		Pool: pool, InstanceType: m.Type, Zone: zone, CapacityType: capacityType, Price: price,
		Free: planner.Resources{
			MilliCPU: m.MilliCPU, MemoryBytes: m.MiB * Mi, EphemeralBytes: 100 * Gi, Pods: m.Pods, Replicas: m.GPUs * replicas,
		},
		Physical: planner.Physical{
			MilliCPU: m.VCPU * 1000, MemoryBytes: m.MiB * Mi, GPUs: m.GPUs, Replicas: m.GPUs * replicas, Nodes: 1,
		},
		GPUs: slices.Repeat([]planner.GPU{{Replicas: replicas, MemoryBytes: m.GPUMiB * Mi}}, int(m.GPUs)),
	}
}

// Offerings returns on-demand offerings of the machines in one zone, from the pool with index 0.
func Offerings(machines []Machine, replicas int64) []planner.Offering {
	var out []planner.Offering
	for _, m := range machines {
		out = append(out, m.Offering(0, "zone-a", "on-demand", m.Price, replicas))
	}
	return out
}

// SpotOfferings returns offerings of the machines in the given zones, on demand and as spot. Spot offerings cost about two fifths of the price, slightly
// different in each zone.
func SpotOfferings(machines []Machine, zones []string, replicas int64) []planner.Offering {
	var out []planner.Offering
	for _, m := range machines {
		for z, zone := range zones {
			spot := m.Price * planner.MicroUSD(38+2*z) / 100
			out = append(out, m.Offering(0, zone, "on-demand", m.Price, replicas), m.Offering(0, zone, "spot", spot, replicas))
		}
	}
	return out
}

// Request returns the requests of one pod: CPU in thousandths, memory in MiB, and replicas.
func Request(milliCPU, mib, replicas int64) planner.Resources {
	return planner.Resources{MilliCPU: milliCPU, MemoryBytes: mib * Mi, Pods: 1, Replicas: replicas}
}

// Class returns n pods named prefix-00000 and so on, which are admitted everywhere in the snapshot.
func Class(s planner.Snapshot, prefix string, n int, request planner.Resources) planner.Class {
	c := planner.Class{Requests: request}
	for i := range n {
		c.Pods = append(c.Pods, fmt.Sprintf("default/%s-%05d", prefix, i))
	}
	for i := range s.Offerings {
		c.Offerings = append(c.Offerings, i)
	}
	for i := range s.Nodes {
		c.Nodes = append(c.Nodes, i)
	}
	return c
}

// Identical returns a snapshot of n identical pods and one pool with the given offerings.
func Identical(offerings []planner.Offering, n int, request planner.Resources) planner.Snapshot {
	s := planner.Snapshot{Pools: []planner.Pool{Pool("gpu-shared")}, Offerings: offerings}
	s.Classes = []planner.Class{Class(s, "pod", n, request)}
	return s
}

// Mixed returns a snapshot of pods in the given number of shapes, drawn from a fixed sequence: CPU from 100m to 4, memory from 256 MiB to 16 GiB, mostly one
// replica. Every fifth shape must be on demand, and every seventh in one zone.
func Mixed(offerings []planner.Offering, pods, shapes int, seed uint64) planner.Snapshot {
	s := planner.Snapshot{Pools: []planner.Pool{Pool("gpu-shared")}, Offerings: offerings}
	draw := func(n int) int {
		seed += 0x9e3779b97f4a7c15
		z := seed
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		return int((z ^ z>>31) % uint64(n))
	}
	cpus := []int64{100, 200, 250, 300, 500, 700, 1000, 1500, 2000, 3000, 4000}
	mems := []int64{256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 16384}
	reps := []int64{1, 1, 1, 1, 1, 1, 2, 2, 3, 5}
	for k := range shapes {
		n := pods / shapes
		if k < pods%shapes {
			n++
		}
		c := Class(s, fmt.Sprintf("s%02d", k), n, Request(cpus[draw(len(cpus))], mems[draw(len(mems))], reps[draw(len(reps))]))
		c.Offerings = slices.DeleteFunc(c.Offerings, func(i int) bool {
			o := s.Offerings[i]
			return k%5 == 4 && o.CapacityType == "spot" || k%7 == 6 && o.Zone != s.Offerings[0].Zone
		})
		s.Classes = append(s.Classes, c)
	}
	return s
}

// Applied returns the snapshot after a plan was carried out and before any pod was bound. Each launch is a node with its full capacity, for the classes
// that its offering admits, and counts against the limits of its pool and draws from stocks. All pods are still pending.
func Applied(s planner.Snapshot, p planner.Plan) planner.Snapshot {
	out := Clone(s)
	for i, l := range p.Launches {
		o := s.Offerings[l.Offering]
		out.Nodes = append(out.Nodes, planner.Node{
			Name: fmt.Sprintf("launched-%05d", i), Free: o.Free, GPUs: o.GPUs, Quotas: o.Quotas, Domains: o.Domains,
		})
		for c := range out.Classes {
			if slices.Contains(out.Classes[c].Offerings, l.Offering) {
				out.Classes[c].Nodes = append(out.Classes[c].Nodes, len(out.Nodes)-1)
			}
		}
		planner.Take(out.Stocks, o.Draws)
		out.Pools[o.Pool].Remaining.Take(o.Physical)
	}
	return out
}

// Clone copies a snapshot and its slices, so that they may be changed.
func Clone(s planner.Snapshot) planner.Snapshot {
	out := planner.Snapshot{
		Pools: slices.Clone(s.Pools), Offerings: slices.Clone(s.Offerings), Nodes: slices.Clone(s.Nodes), Classes: slices.Clone(s.Classes),
		Quotas: slices.Clone(s.Quotas), Topologies: slices.Clone(s.Topologies), Rules: slices.Clone(s.Rules), Stocks: slices.Clone(s.Stocks), Groups: slices.Clone(s.Groups),
	}
	for i := range out.Pools {
		p := &out.Pools[i]
		p.MinValues = slices.Clone(p.MinValues)
	}
	for i := range out.Classes {
		c := &out.Classes[i]
		c.Pods, c.Offerings, c.Nodes = slices.Clone(c.Pods), slices.Clone(c.Offerings), slices.Clone(c.Nodes)
		c.Quotas, c.Preferences = slices.Clone(c.Quotas), slices.Clone(c.Preferences)
		for j := range c.Preferences {
			w := &c.Preferences[j]
			w.Offerings, w.Nodes = slices.Clone(w.Offerings), slices.Clone(w.Nodes)
		}
	}
	for i := range out.Rules {
		r := &out.Rules[i]
		r.Classes, r.Counted, r.Present, r.Eligible = slices.Clone(r.Classes), slices.Clone(r.Counted), slices.Clone(r.Present), slices.Clone(r.Eligible)
	}
	return out
}

// Shuffled returns the same snapshot with pools, offerings, nodes and classes in another order. pick(n) chooses from 0 to n-1.
func Shuffled(s planner.Snapshot, pick func(n int) int) planner.Snapshot {
	out, _ := shuffled(s, pick)
	return out
}

// moves are the new indices of pools, nodes and classes.
type moves struct{ pool, node, class []int }

func shuffled(s planner.Snapshot, pick func(n int) int) (planner.Snapshot, moves) {
	pools, poolAt := permutation(len(s.Pools), pick)
	offerings, offeringAt := permutation(len(s.Offerings), pick)
	nodes, nodeAt := permutation(len(s.Nodes), pick)
	classes, classAt := permutation(len(s.Classes), pick)
	out := planner.Snapshot{Quotas: s.Quotas, Topologies: s.Topologies, Stocks: s.Stocks}
	for _, i := range pools {
		p := s.Pools[i]
		p.MinValues = slices.Clone(p.MinValues)
		for j, m := range p.MinValues {
			p.MinValues[j].Values = rearranged(m.Values, offeringAt)
		}
		out.Pools = append(out.Pools, p)
	}
	for _, i := range offerings {
		o := s.Offerings[i]
		o.Pool = poolAt[o.Pool]
		out.Offerings = append(out.Offerings, o)
	}
	for _, i := range nodes {
		out.Nodes = append(out.Nodes, s.Nodes[i])
	}
	moved := func(indices, at []int) []int {
		var to []int
		for _, i := range indices {
			to = append(to, at[i])
		}
		slices.Sort(to)
		return to
	}
	for _, i := range classes {
		c := s.Classes[i]
		c.Offerings, c.Nodes = moved(c.Offerings, offeringAt), moved(c.Nodes, nodeAt)
		c.Preferences = slices.Clone(c.Preferences)
		for j, w := range c.Preferences {
			c.Preferences[j].Offerings, c.Preferences[j].Nodes = moved(w.Offerings, offeringAt), moved(w.Nodes, nodeAt)
		}
		out.Classes = append(out.Classes, c)
	}
	for _, r := range s.Rules {
		r.Classes, r.Counted = moved(r.Classes, classAt), moved(r.Counted, classAt)
		if r.Topology == planner.PerNode {
			r.Present = rearranged(r.Present, nodeAt)
		}
		out.Rules = append(out.Rules, r)
	}
	for _, g := range s.Groups {
		g.Classes = moved(g.Classes, classAt)
		out.Groups = append(out.Groups, g)
	}
	return out, moves{poolAt, nodeAt, classAt}
}

// rearranged moves each value to its new index. Missing values are zero.
func rearranged[T any](values []T, at []int) []T {
	if values == nil {
		return nil
	}
	out := make([]T, len(at))
	for i, v := range values {
		out[at[i]] = v
	}
	return out
}

// permutation returns an order of n items, and the new index of each.
func permutation(n int, pick func(int) int) (order, at []int) {
	for i := range n {
		order = append(order, i)
	}
	for i := n - 1; i > 0; i-- {
		j := pick(i + 1)
		order[i], order[j] = order[j], order[i]
	}
	at = make([]int, n)
	for to, from := range order {
		at[from] = to
	}
	return order, at
}

// Named is a plan with names instead of indices, so that plans for shuffled snapshots can be compared.
type Named struct {
	Placements []string
	Launches   []string
	Unplaced   []planner.Unplaced
	Price      planner.MicroUSD
	Bound      planner.MicroUSD
}

// Names replaces the indices of a plan by names. It keeps the order of the plan, except among machines of the same kind.
func Names(s planner.Snapshot, p planner.Plan) Named {
	n := Named{Unplaced: p.Unplaced, Price: p.Price, Bound: p.Bound}
	for _, x := range p.Placements {
		n.Placements = append(n.Placements, fmt.Sprint(s.Nodes[x.Node].Name, x.Pods, x.GPUs))
	}
	for _, x := range p.Launches {
		o := s.Offerings[x.Offering]
		n.Launches = append(n.Launches, fmt.Sprint(s.Pools[o.Pool].Name, " ", o.InstanceType, " ", o.Zone, " ", o.CapacityType, " ", x.Pods, x.GPUs))
	}
	return n
}

// Counts returns how many machines of each type a plan launches, as "2 g4dn.xlarge, 1 g4dn.metal" in the order of the names.
func Counts(s planner.Snapshot, p planner.Plan) string {
	n := map[string]int{}
	var types []string
	for _, l := range p.Launches {
		t := s.Offerings[l.Offering].InstanceType
		if n[t]++; n[t] == 1 {
			types = append(types, t)
		}
	}
	slices.Sort(types)
	out := make([]string, 0, len(types))
	for _, t := range types {
		out = append(out, fmt.Sprintf("%d %s", n[t], t))
	}
	return strings.Join(out, ", ")
}
