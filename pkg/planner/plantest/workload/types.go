// Package workload builds the snapshots on which the planner is measured: EC2 instance types with their prices, and pods drawn from fixed seeds or from
// a trace. They do not change with Karve's catalog, so that results of different days are comparable.
package workload

import (
	_ "embed"
	"encoding/csv"
	"fmt"
	"math/rand"
	"slices"
	"strconv"
	"strings"

	"karve.sh/karve/pkg/planner"
)

// types.csv has the amd64 types with prices and whole NVIDIA GPUs, in the order of their families: the allocatable resources that Karpenter computes with
// AL2023, memory in MiB, and the on-demand price in us-east-1 of 6 July 2026 in micro-dollars per hour. It is derived from Apache-2.0 files of
// aws/karpenter-provider-aws and getmoto/moto.
//
//go:embed types.csv
var typesCSV string

// Type is a machine type net of DaemonSets, in one zone and of one capacity type if these are set.
type Type struct {
	Name   string
	Family string
	// GPU is the GPU model. Each GPU is shared by Replicas pods and has GPUMiB of memory.
	GPU              string
	GPUs             int64
	Replicas, GPUMiB int64
	MilliCPU, MiB    int64
	Pods             int64
	VCPUs            int64
	// Price is in dollars per hour. It is rounded to micro-dollars once, when a snapshot is built.
	Price              float64
	Metal              bool
	Zone, CapacityType string
}

// The assumed requests of DaemonSets on each machine.
const (
	daemonMilliCPU = 180
	daemonMiB      = 200
	daemonPods     = 5
)

// G4dn is one family. G4to6 are the families with T4, A10G, L4 and L40S. G4to7 adds g7e.
var (
	G4dn  = []string{"g4dn"}
	G4to6 = []string{"g4dn", "g5", "g6", "g6e", "gr6"}
	G4to7 = []string{"g4dn", "g5", "g6", "g6e", "gr6", "g7e"}
)

// Types returns the types of the families, or of all families if it is nil. Each GPU is shared by the given number of pods.
func Types(families []string, replicas int64) []Type {
	records, err := csv.NewReader(strings.NewReader(typesCSV)).ReadAll()
	if err != nil {
		panic(fmt.Sprintf("types.csv: %v", err))
	}
	var out []Type
	for _, r := range records[1:] {
		n := func(i int) int64 {
			x, err := strconv.ParseInt(r[i], 10, 64)
			if err != nil {
				panic(fmt.Sprintf("types.csv: %v", err))
			}
			return x
		}
		t := Type{
			Name: r[0], Family: r[1], GPU: r[2], GPUs: n(3), GPUMiB: n(4), Replicas: replicas,
			MilliCPU: n(5) - daemonMilliCPU, MiB: n(6) - daemonMiB, Pods: n(7) - daemonPods,
			Price: float64(n(8)) / 1e6, VCPUs: n(9), Metal: n(10) == 1,
		}
		if families == nil || slices.Contains(families, t.Family) {
			out = append(out, t)
		}
	}
	return out
}

// WithoutMetal removes bare-metal types.
func WithoutMetal(types []Type) []Type {
	return slices.DeleteFunc(slices.Clone(types), func(t Type) bool { return t.Metal })
}

// Spread offers each type in the given number of zones, on demand and as spot. Spot prices are synthetic: 30 to 75 % of the on-demand price, drawn from the
// seed.
func Spread(types []Type, zones int, seed int64) []Type {
	r := rand.New(rand.NewSource(seed))
	var out []Type
	for _, t := range types {
		base := 0.30 + 0.35*r.Float64()
		for z := range zones {
			onDemand, spot := t, t
			onDemand.Zone = fmt.Sprintf("az%d", z+1)
			spot.Zone = onDemand.Zone
			onDemand.CapacityType, spot.CapacityType = "on-demand", "spot"
			spot.Price = t.Price * (base + 0.10*r.Float64())
			out = append(out, onDemand, spot)
		}
	}
	return out
}

func (t Type) offering() planner.Offering {
	o := planner.Offering{
		InstanceType: t.Name, Zone: t.Zone, CapacityType: t.CapacityType, Price: planner.MicroUSD(t.Price*1e6 + 0.5),
		Free:     planner.Resources{MilliCPU: t.MilliCPU, MemoryBytes: t.MiB << 20, Pods: t.Pods, Replicas: t.GPUs * t.Replicas},
		Physical: planner.Physical{MilliCPU: t.VCPUs * 1000, MemoryBytes: t.MiB << 20, GPUs: t.GPUs, Replicas: t.GPUs * t.Replicas, Nodes: 1},
	}
	for range t.GPUs {
		o.GPUs = append(o.GPUs, planner.GPU{Replicas: t.Replicas, MemoryBytes: t.GPUMiB << 20})
	}
	return o
}
