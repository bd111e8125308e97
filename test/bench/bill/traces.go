// Package bill measures what a cluster pays for machines and for restarts while pods come and go for weeks.
package bill

import (
	"cmp"
	"fmt"
	"math"
	"math/rand"
	"slices"
	"time"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/plantest/workload"
	"karve.sh/karve/pkg/replay"
)

const day = 24 * time.Hour

// deployments are long-lived pods in a number of shapes. They are drawn from a seed.
type deployments struct {
	r      *rand.Rand
	trace  replay.Trace
	weight []int
	// running has the indices of the running pods of each shape, the oldest first.
	running [][]int
	// length is the time at which pods that still run end.
	length time.Duration
}

// shapes returns the shapes of the synthetic rows. Their counts are how many pods of each run on average.
func shapes(types []workload.Type, pods int) []workload.Pods {
	return workload.Mixed(7, workload.Mix{Shapes: 12, Pods: pods, GPUMemory: true}, types)
}

func newDeployments(name string, seed int64, shapes []workload.Pods, types []workload.Type, length time.Duration) *deployments {
	d := &deployments{r: rand.New(rand.NewSource(seed)), length: length, running: make([][]int, len(shapes))}
	d.trace = replay.Trace{Name: name, Snapshot: workload.Snapshot(shapes, types)}
	for i, s := range shapes {
		d.weight = append(d.weight, s.Count)
		d.trace.Snapshot.Classes[i].Pods = nil
	}
	return d
}

// starts adds a pod of a shape that starts.
func (d *deployments) starts(shape int, at time.Duration) {
	d.running[shape] = append(d.running[shape], len(d.trace.Pods))
	d.trace.Pods = append(d.trace.Pods, replay.Pod{Shape: shape, Arrives: at, Ends: d.length})
}

// ends sets the end of a running pod of a shape.
func (d *deployments) ends(shape, i int, at time.Duration) {
	d.trace.Pods[d.running[shape][i]].Ends = at
	d.running[shape] = slices.Delete(d.running[shape], i, i+1)
}

// scale sets the number of pods of a shape. Pods that end are drawn at random, as the ReplicaSet controller ends those that share a node with others first.
func (d *deployments) scale(shape, replicas int, at time.Duration) {
	for len(d.running[shape]) < replicas {
		d.starts(shape, at)
	}
	for len(d.running[shape]) > replicas {
		d.ends(shape, d.r.Intn(len(d.running[shape])), at)
	}
}

func (d *deployments) sorted() replay.Trace {
	slices.SortStableFunc(d.trace.Pods, func(a, b replay.Pod) int { return cmp.Compare(a.Arrives, b.Arrives) })
	return d.trace
}

// tides returns pods that follow the hours of the day: at night a fifth of those at noon.
func tides(shapes []workload.Pods, types []workload.Type) replay.Trace {
	d := newDeployments("daily tides", 1, shapes, types, 14*day)
	for at := time.Duration(0); at < d.length; at += 10 * time.Minute {
		sun := 0.5 - 0.5*math.Cos(2*math.Pi*(at.Hours()-4)/24)
		for shape, n := range d.weight {
			d.scale(shape, int(math.Round(float64(n)*(0.3+1.2*sun)*(1+0.05*d.r.NormFloat64()))), at)
		}
	}
	return d.sorted()
}

// inference returns pods that run for weeks. Each Deployment is rolled out anew every three days on average, pod by pod, and changes its size once a day.
func inference(name string, shapes []workload.Pods, types []workload.Type) replay.Trace {
	d := newDeployments(name, 2, shapes, types, 28*day)
	rollout, size := make([]time.Duration, len(d.weight)), make([]time.Duration, len(d.weight))
	left := make([]int, len(d.weight))
	for shape, n := range d.weight {
		d.scale(shape, n, 0)
		rollout[shape], size[shape] = d.after(3*day), d.after(day)
	}
	for at := 2 * time.Minute; at < d.length; at += 2 * time.Minute {
		for shape, n := range d.weight {
			switch {
			case left[shape] > 0 && len(d.running[shape]) > 0:
				d.starts(shape, at)
				d.ends(shape, 0, at+time.Minute)
				left[shape]--
			case at >= rollout[shape]:
				left[shape], rollout[shape] = len(d.running[shape]), at+d.after(3*day)
			case at >= size[shape]:
				d.scale(shape, int(math.Round(float64(n)*(0.6+0.8*d.r.Float64()))), at)
				size[shape] = at + d.after(day)
			}
		}
	}
	return d.sorted()
}

func (d *deployments) after(mean time.Duration) time.Duration {
	return time.Duration(d.r.ExpFloat64() * float64(mean))
}

// jobs returns pods that run for 40 minutes in the median and some for a day, and come in bursts.
func jobs(shapes []workload.Pods, types []workload.Type) replay.Trace {
	d := newDeployments("Jobs", 3, shapes, types, 0)
	for at := time.Duration(0); at < 14*day; at += d.after(90 * time.Minute) {
		shape := d.r.Intn(len(shapes))
		for range 1 + d.r.Intn(24) {
			lasts := time.Duration(math.Exp(1.2*d.r.NormFloat64()) * float64(40*time.Minute))
			d.trace.Pods = append(d.trace.Pods, replay.Pod{Shape: shape, Arrives: at, Ends: at + min(day, max(time.Minute, lasts))})
		}
	}
	return d.sorted()
}

// spot adds prices of spot capacity that move every hour, between a quarter and all of the price on demand.
func spot(t replay.Trace, types []workload.Type) replay.Trace {
	r := rand.New(rand.NewSource(4))
	level := map[int]float64{}
	onDemand := map[string]float64{}
	for _, x := range types {
		if x.CapacityType == "on-demand" {
			onDemand[x.Name] = x.Price
		}
	}
	for at := time.Hour; at < t.Pods[len(t.Pods)-1].Arrives; at += time.Hour {
		for i, x := range types {
			if x.CapacityType != "spot" {
				continue
			}
			if level[i] == 0 {
				level[i] = x.Price / onDemand[x.Name]
			}
			level[i] = min(1, max(0.25, level[i]*math.Exp(0.05*r.NormFloat64())))
			t.Prices = append(t.Prices, replay.PriceChange{At: at, Offering: i, Price: planner.MicroUSD(level[i] * onDemand[x.Name] * 1e6)})
		}
	}
	return t
}

// onDemand returns the types in each zone, on demand only.
func onDemand(types []workload.Type, zones int) []workload.Type {
	return slices.DeleteFunc(workload.Spread(types, zones, 1), func(t workload.Type) bool { return t.CapacityType != "on-demand" })
}

// zonal divides each shape among the zones, so that its pods are spread evenly over them.
func zonal(shapes []workload.Pods, types []workload.Type, zones int) []workload.Pods {
	var out []workload.Pods
	for _, s := range shapes {
		for z := range zones {
			zone := fmt.Sprintf("az%d", z+1)
			in := s
			in.Name, in.Count, in.Allowed = s.Name+zone, (s.Count+zones-1-z)/zones, nil
			for _, t := range types {
				in.Allowed = append(in.Allowed, t.Zone == zone)
			}
			out = append(out, in)
		}
	}
	return out
}
