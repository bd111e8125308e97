package replay

import (
	"cmp"
	"fmt"
	"math"
	"math/rand"
	"slices"
	"time"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/plantest/workload"
)

// Trace is a sequence of pods that come and go, on machines of some types.
type Trace struct {
	Name string
	// Snapshot holds the offerings, and a class without pods for each shape of pods. The index of a class is its shape.
	Snapshot planner.Snapshot
	// Pods are ordered by arrival.
	Pods []Pod
}

// Pod arrives and ends at times that count from the start of the trace.
type Pod struct {
	Shape         int
	Arrives, Ends time.Duration
}

// Openb returns the pods of the openb trace that share GPUs and arrive at second from or later. The times between arrivals are divided by factor; the
// lifetimes of pods are not. The trace is a sample, so this is how many pods run at once. A pod runs for at least a second.
func Openb(path string, from, factor int64, types []workload.Type) (Trace, error) {
	all, err := workload.Openb(path)
	if err != nil {
		return Trace{}, err
	}
	pods := slices.DeleteFunc(all, func(p workload.TracePod) bool { return p.Created < from })
	slices.SortStableFunc(pods, func(a, b workload.TracePod) int { return cmp.Compare(a.Created, b.Created) })
	shapes, of := workload.ShapesOf(pods, workload.Memory)
	t := Trace{Name: "openb", Snapshot: without(workload.Snapshot(shapes, types))}
	for i, p := range pods {
		at := time.Duration(p.Created-from) * time.Second / time.Duration(factor)
		t.Pods = append(t.Pods, Pod{of[i], at, at + time.Duration(max(1, p.Deleted-p.Created))*time.Second})
	}
	return t, nil
}

// Churn configures [Synthetic].
type Churn struct {
	Pods int
	// Mix provides the shapes. Its number of pods only weighs them.
	Mix workload.Mix
	// Between is the mean time between arrivals. Median is the median lifetime of pods. A tenth of the pods live more than twenty times as long.
	Between, Median time.Duration
}

// Synthetic draws a trace from a seed.
func Synthetic(seed int64, c Churn, types []workload.Type) Trace {
	shapes := workload.Mixed(seed, c.Mix, types)
	t := Trace{Name: fmt.Sprintf("synthetic %d", seed), Snapshot: without(workload.Snapshot(shapes, types))}
	r := rand.New(rand.NewSource(seed))
	var weights []int
	for i, s := range shapes {
		weights = append(weights, slices.Repeat([]int{i}, s.Count)...)
	}
	at := time.Duration(0)
	for range c.Pods {
		at += time.Duration(r.ExpFloat64() * float64(c.Between))
		lasts := time.Duration(math.Exp(r.NormFloat64()*math.Log(20)/1.28) * float64(c.Median))
		t.Pods = append(t.Pods, Pod{weights[r.Intn(len(weights))], at, at + max(time.Second, lasts)})
	}
	return t
}

// without returns the snapshot without its pods.
func without(s planner.Snapshot) planner.Snapshot {
	for i := range s.Classes {
		s.Classes[i].Pods = nil
	}
	return s
}

// name returns the name of a pod of the trace. Names sort in the order of arrival.
func name(pod int) string { return fmt.Sprintf("default/p%06d", pod) }

func podOf(name string) int {
	var pod int
	if _, err := fmt.Sscanf(name, "default/p%d", &pod); err != nil {
		panic(fmt.Sprintf("pod %q is not of the trace", name))
	}
	return pod
}
