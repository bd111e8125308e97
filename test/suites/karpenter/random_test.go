package karpenter_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/firstfit"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/test/harness/karpenter"
)

// drawn is a snapshot that can be expressed in Karpenter's terms. nodeOf is the offering of each of its nodes.
type drawn struct {
	planner.Snapshot
	nodeOf []int
}

// size bounds a drawn snapshot.
type size struct{ pods, classes, nodes int }

// draw draws pools with weights, limits and offerings by type, zone and capacity type, nodes from some of these offerings, and pods that select among them.
func draw(t *rapid.T, most size) drawn {
	n := func(name string, low, high int) int { return rapid.IntRange(low, high).Draw(t, name) }
	rarely := func(name string) bool { return n(name, 0, 5) == 0 }
	var d drawn
	zones, capacities := []string{"zone-a", "zone-b", "zone-c"}[:n("zones", 1, 3)], []string{"on-demand", "spot"}[:n("capacity types", 1, 2)]
	for i := range n("pools", 1, 3) {
		p := plantest.Pool(fmt.Sprintf("pool-%d", i))
		p.Weight = int32(n("weight", 0, 2))
		if rarely("limited nodes") {
			p.Remaining.Nodes = int64(n("remaining nodes", 0, 6))
		}
		if rarely("limited GPUs") {
			p.Remaining.GPUs = int64(n("remaining GPUs", 0, 20))
		}
		if rarely("limited CPU") {
			p.Remaining.MilliCPU = int64(n("remaining CPU", 0, 400_000))
		}
		d.Pools = append(d.Pools, p)
	}
	for pool := range d.Pools {
		for i := range n("types", 1, 4) {
			gpus := int64([]int{1, 1, 2, 4, 8}[n("GPUs", 0, 4)])
			m := plantest.Machine{
				Type: fmt.Sprintf("type-%d-%d", pool, i), VCPU: int64(4 * n("quadruple CPUs", 1, 24)), MiB: int64(1024 * n("GiB", 4, 200)),
				Pods: int64(n("pods of a machine", 3, 60)), GPUs: gpus,
			}
			m.MilliCPU = m.VCPU*1000 - 100
			sharedBy, price := int64(n("shared by", 1, 10)), n("price", 100, 8000)
			for _, zone := range zones {
				for k, capacity := range capacities {
					if rarely("not offered") {
						continue
					}
					o := m.Offering(pool, zone, capacity, planner.MicroUSD(1000*price/(k+1)+n("and", 0, 99)), sharedBy)
					if rarely("unavailable") {
						o.Unavailable = &planner.Refusal{Reason: planner.ReasonUnavailable, Message: "refused"}
					}
					d.Offerings = append(d.Offerings, o)
				}
			}
		}
	}
	if len(d.Offerings) > 0 {
		for i := range n("nodes", 0, most.nodes) {
			of := n("node of", 0, len(d.Offerings)-1)
			free := d.Offerings[of].Free
			free.MilliCPU = free.MilliCPU * int64(n("free CPU", 0, 10)) / 10
			free.Replicas = free.Replicas * int64(n("free replicas", 0, 10)) / 10
			d.Nodes, d.nodeOf = append(d.Nodes, planner.Node{Name: fmt.Sprintf("node-%d", i), Free: free}), append(d.nodeOf, of)
		}
	}
	for i := range n("classes", 1, most.classes) {
		d.Classes = append(d.Classes, drawClass(t, d, fmt.Sprintf("class-%02d", i), most.pods/most.classes))
	}
	return d
}

// drawClass draws pods that select among pools, zones and capacity types.
func drawClass(t *rapid.T, d drawn, name string, most int) planner.Class {
	n := func(name string, low, high int) int { return rapid.IntRange(low, high).Draw(t, name) }
	c := plantest.Class(d.Snapshot, name, n("count", 1, most), planner.Resources{
		MilliCPU: int64(50 * n("CPU", 0, 80)), MemoryBytes: int64(n("memory", 0, 32)) * plantest.Gi / 2, Pods: 1, Replicas: int64([]int{0, 1, 1, 1, 2, 5}[n("replicas", 0, 5)]),
	})
	notPool, notZone, notCapacity := n("not of pool", 0, 8), n("not of zone", 0, 8), n("not of capacity type", 0, 8)
	denied := func(o planner.Offering) bool {
		return o.Pool == notPool || o.Zone == fmt.Sprint("zone-", string(rune('a'+notZone))) || o.CapacityType == [...]string{"on-demand", "spot", "", "", "", "", "", "", ""}[notCapacity]
	}
	c.Offerings = slices.DeleteFunc(c.Offerings, func(i int) bool { return denied(d.Offerings[i]) })
	c.Nodes = slices.DeleteFunc(c.Nodes, func(i int) bool { return denied(d.Offerings[d.nodeOf[i]]) || n("node tainted", 0, 5) == 0 })
	return c
}

// outcome is the part of two plans that must be equal.
type outcome struct {
	Price                      planner.MicroUSD
	Launches, Places, Unplaced int
}

func outcomeOf(p planner.Plan) outcome {
	places := 0
	for _, x := range p.Placements {
		places += len(x.Pods)
	}
	return outcome{p.Price, len(p.Launches), places, len(p.Unplaced)}
}

func TestFirstFitPacksAnySnapshotLikeKarpenter(t *testing.T) {
	t.Parallel()
	for name, most := range map[string]size{"few": {20, 4, 2}, "some": {120, 8, 4}, "many": {600, 12, 6}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				d := draw(t, most)
				theirs, _, err := karpenter.Plan(t.Context(), d.Snapshot, d.nodeOf)
				if err != nil {
					t.Fatal(err)
				}
				ours := firstfit.Plan(d.Snapshot)
				for who, p := range map[string]planner.Plan{"FirstFit": ours, "Karpenter": theirs} {
					if err := check.Plan(d.Snapshot, p); err != nil {
						t.Fatalf("%s: %v", who, err)
					}
				}
				if diff := cmp.Diff(outcomeOf(theirs), outcomeOf(ours)); diff != "" {
					t.Fatalf("Karpenter and FirstFit differ:\n%s", diff)
				}
			})
		})
	}
}
