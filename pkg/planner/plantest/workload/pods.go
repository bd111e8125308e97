package workload

import (
	"fmt"
	"math"
	"math/rand"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/plantest"
)

// Pods are Count identical pods.
type Pods struct {
	Name     string
	Count    int
	MilliCPU int64
	MiB      int64
	Replicas int64
	// GPUMiB is the device memory that each pod requests, or 0 for none. A pod that requests some has all its replicas on one GPU.
	GPUMiB int64
	// Allowed reports for each type whether it admits the pods. If it is nil, all types do.
	Allowed []bool
}

// Identical returns n pods with one CPU, 2 GiB and one replica.
func Identical(n int) []Pods {
	return []Pods{{Name: "p", Count: n, MilliCPU: 1000, MiB: 2048, Replicas: 1}}
}

// Mix configures what Mixed draws.
type Mix struct {
	Shapes, Pods int
	// GPUMemory makes the pods request device memory. Pinned pins a third of the shapes to a GPU model, and some of those to a zone or to on-demand
	// machines.
	GPUMemory, Pinned bool
}

// Mixed draws pods in a number of shapes from a seed. The first shapes are the most frequent.
func Mixed(seed int64, m Mix, types []Type) []Pods {
	r := rand.New(rand.NewSource(seed))
	cpu := []int64{250, 500, 1000, 1500, 2000, 3000, 4000, 6000, 8000}
	mibPerCPU := []int64{1024, 2048, 3072, 4096, 6144, 8192}
	gpuMiB := []int64{1024, 2048, 3072, 4096, 5120, 6144, 8192, 10240, 12288, 15000}
	models := modelsOf(types)
	weights, sum := make([]float64, m.Shapes), 0.0
	for i := range weights {
		weights[i] = 1 / math.Pow(float64(i+1), 0.8)
		sum += weights[i]
	}
	var out []Pods
	left := m.Pods
	for i := range m.Shapes {
		count := max(1, int(math.Round(weights[i]/sum*float64(m.Pods))))
		if i == m.Shapes-1 || count > left {
			count = left
		}
		left -= count
		if count <= 0 {
			continue
		}
		p := Pods{Name: fmt.Sprintf("c%02d", i), MilliCPU: cpu[r.Intn(len(cpu))], Replicas: 1, Count: count}
		p.MiB = p.MilliCPU * mibPerCPU[r.Intn(len(mibPerCPU))] / 1000
		if m.GPUMemory {
			p.GPUMiB = gpuMiB[r.Intn(len(gpuMiB))]
		}
		if m.Pinned && r.Float64() < 0.33 {
			p.pin(r, models, types)
		}
		out = append(out, p)
	}
	return out
}

// pin restricts the pods to types with one GPU model, possibly in one zone or on demand. If none of those types can hold a pod, it does not restrict them.
func (p *Pods) pin(r *rand.Rand, models []string, types []Type) {
	model := models[r.Intn(len(models))]
	zone := ""
	if r.Float64() < 0.4 {
		zone = fmt.Sprintf("az%d", 1+r.Intn(3))
	}
	onDemand := r.Float64() < 0.3
	allowed, holds := make([]bool, len(types)), false
	for i, t := range types {
		allowed[i] = t.GPU == model && (zone == "" || t.Zone == "" || t.Zone == zone) && (!onDemand || t.CapacityType != "spot")
		holds = holds || allowed[i] && t.GPUMiB >= p.GPUMiB && t.MilliCPU >= p.MilliCPU && t.MiB >= p.MiB
	}
	if holds {
		p.Allowed = allowed
	}
}

// Snapshot returns a snapshot with the pods pending and one pool that offers the types.
func Snapshot(pods []Pods, types []Type) planner.Snapshot {
	s := planner.Snapshot{Pools: []planner.Pool{plantest.Pool("gpu-shared")}}
	for _, t := range types {
		s.Offerings = append(s.Offerings, t.offering())
	}
	for _, p := range pods {
		s.Classes = append(s.Classes, p.class(len(types)))
	}
	return s
}

func (p Pods) class(types int) planner.Class {
	c := planner.Class{
		Requests:       planner.Resources{MilliCPU: p.MilliCPU, MemoryBytes: p.MiB << 20, Pods: 1, Replicas: p.Replicas},
		GPUMemoryBytes: p.GPUMiB << 20,
	}
	for i := range p.Count {
		c.Pods = append(c.Pods, fmt.Sprintf("default/%s-%06d", p.Name, i))
	}
	for i := range types {
		if p.Allowed == nil || p.Allowed[i] {
			c.Offerings = append(c.Offerings, i)
		}
	}
	return c
}
