package workload

import (
	"fmt"
	"math"
	"math/rand"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// Deployments draws n Deployments from a seed. Each has requests of its own, and one to ten pods: three on average. A third is pinned to a GPU model, as in
// [Mixed].
func Deployments(seed int64, n int, types []Type) []Pods {
	r := rand.New(rand.NewSource(seed))
	models := modelsOf(types)
	var out []Pods
	for i := range n {
		p := Pods{Name: fmt.Sprintf("d%04d", i), Replicas: 1, Count: 1}
		for p.Count < 10 && r.Float64() < 2.0/3 {
			p.Count++
		}
		p.MilliCPU = between(r, 250, 8000, 50)
		p.MiB = between(r, p.MilliCPU, 8*p.MilliCPU, 64)
		p.GPUMiB = between(r, 1024, 15_000, 128)
		if r.Float64() < 0.33 {
			p.pin(r, models, types)
		}
		out = append(out, p)
	}
	return out
}

// between draws a multiple of step between low and high, small ones as often as large ones by order of magnitude.
func between(r *rand.Rand, low, high, step int64) int64 {
	x := float64(low) * math.Pow(float64(high)/float64(low), r.Float64())
	return max(step, int64(math.Round(x/float64(step)))*step)
}

func modelsOf(types []Type) []string {
	var models []string
	for _, t := range types {
		models = append(models, t.GPU)
	}
	slices.Sort(models)
	return slices.Compact(models)
}

// Services draws the instances of recommendation services from a seed, like a trace of models that share GPUs: 150 services, a few of which have most of the
// instances, in one to three sizes each. An instance requests device memory, and a machine holds at most a few instances of a service, which is a quota of it.
func Services(seed int64, instances int, types []Type) planner.Snapshot {
	const services = 150
	r := rand.New(rand.NewSource(seed))
	weights, sum := make([]float64, services), 0.0
	for i := range weights {
		weights[i] = 1 / math.Pow(float64(i+1), 1.1)
		sum += weights[i]
	}
	var pods []Pods
	var quotaOf []int
	var each []int64
	left := instances
	for i := range services {
		n := max(1, int(math.Round(weights[i]/sum*float64(instances))))
		if i == services-1 || n > left {
			n = left
		}
		left -= n
		milliCPU, gpuMiB := between(r, 1000, 8000, 500), between(r, 1024, 12_000, 512)
		each = append(each, 1+int64(r.Intn(4)))
		sizes := 1 + r.Intn(3)
		for size := range sizes {
			count := n / sizes
			if size == 0 {
				count = n - n/sizes*(sizes-1)
			}
			if count == 0 {
				continue
			}
			pods = append(pods, Pods{
				Name: fmt.Sprintf("s%03d-%d", i, size), Count: count, Replicas: 1,
				MilliCPU: milliCPU, MiB: between(r, 2*milliCPU, 8*milliCPU, 512), GPUMiB: gpuMiB + int64(size)*512,
			})
			quotaOf = append(quotaOf, i)
		}
	}
	s := Snapshot(pods, types)
	for i, n := range each {
		s.Quotas = append(s.Quotas, planner.Quota{Name: fmt.Sprintf("service-%03d", i), Each: n})
	}
	for c := range s.Classes {
		s.Classes[c].Quotas = []planner.Amount{{Quota: quotaOf[c], Count: 1}}
	}
	return s
}
