// Package replay measures the consolidation of Karve and of its peers by replaying pods that come and go.
package replay

import (
	"cmp"
	"slices"
	"time"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/plantest/workload"
	"karve.sh/karve/pkg/replay"
)

// Openb returns the pods of the openb trace that share GPUs and arrive at second from or later. The times between arrivals are divided by factor; the
// lifetimes of pods are not. The trace is a sample, so this is how many pods run at once. A pod runs for at least a second.
func Openb(path string, from, factor int64, types []workload.Type) (replay.Trace, error) {
	all, err := workload.Openb(path)
	if err != nil {
		return replay.Trace{}, err
	}
	pods := slices.DeleteFunc(all, func(p workload.TracePod) bool { return p.Created < from })
	slices.SortStableFunc(pods, func(a, b workload.TracePod) int { return cmp.Compare(a.Created, b.Created) })
	shapes, of := workload.ShapesOf(pods, workload.Memory)
	t := replay.Trace{Name: "openb", Snapshot: without(workload.Snapshot(shapes, types))}
	for i, p := range pods {
		at := time.Duration(p.Created-from) * time.Second / time.Duration(factor)
		t.Pods = append(t.Pods, replay.Pod{Shape: of[i], Arrives: at, Ends: at + time.Duration(max(1, p.Deleted-p.Created))*time.Second})
	}
	return t, nil
}

// without returns the snapshot without its pods.
func without(s planner.Snapshot) planner.Snapshot {
	for i := range s.Classes {
		s.Classes[i].Pods = nil
	}
	return s
}
