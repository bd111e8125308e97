package workload

import (
	"fmt"
	"math/rand"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// Beside returns the snapshot with a number of partly used nodes, drawn from a seed. Each is a machine of an offering that has a part of its CPU, of
// its memory and of each GPU left. It admits the pods that the offering admits.
func Beside(s planner.Snapshot, nodes int, seed int64) planner.Snapshot {
	r := rand.New(rand.NewSource(seed))
	s.Classes = slices.Clone(s.Classes)
	for range nodes {
		at := r.Intn(len(s.Offerings))
		o := s.Offerings[at]
		n := planner.Node{Name: fmt.Sprintf("node-%03d", len(s.Nodes)), Free: o.Free, GPUs: slices.Clone(o.GPUs)}
		left := func() int64 { return int64(20 + r.Intn(81)) }
		n.Free.MilliCPU, n.Free.MemoryBytes = n.Free.MilliCPU*left()/100, n.Free.MemoryBytes/100*left()
		n.Free.Replicas = 0
		for g := range n.GPUs {
			part := left()
			n.GPUs[g].Replicas, n.GPUs[g].MemoryBytes = n.GPUs[g].Replicas*part/100, n.GPUs[g].MemoryBytes/100*part
			n.Free.Replicas += n.GPUs[g].Replicas
		}
		for c := range s.Classes {
			if slices.Contains(s.Classes[c].Offerings, at) {
				s.Classes[c].Nodes = append(slices.Clip(s.Classes[c].Nodes), len(s.Nodes))
			}
		}
		s.Nodes = append(slices.Clip(s.Nodes), n)
	}
	return s
}
