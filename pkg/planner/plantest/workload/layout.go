package workload

import (
	"math/rand"
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/consolidate"
	"karve.sh/karve/pkg/planner/plantest"
)

// Thinned returns the fleet that a plan launched after each pod ended with the given probability, drawn from a seed. Machines without pods are removed. move is
// the cost of moving one pod.
func Thinned(s planner.Snapshot, p planner.Plan, ended float64, move planner.MicroUSD, seed int64) consolidate.Layout {
	r := rand.New(rand.NewSource(seed))
	l := consolidate.Layout{Snapshot: plantest.Clone(s)}
	class := s.ClassByPod()
	for c := range s.Classes {
		l.Snapshot.Classes[c].Pods = nil
	}
	launches := slices.Clone(p.Launches)
	r.Shuffle(len(launches), func(i, j int) { launches[i], launches[j] = launches[j], launches[i] })
	for _, x := range launches {
		var pods []consolidate.Running
		for i, name := range x.Pods {
			pod := consolidate.Running{Name: name, Class: class[name], GPU: -1, Move: move}
			if x.GPUs != nil {
				pod.GPU = x.GPUs[i]
			}
			if r.Float64() >= ended {
				pods = append(pods, pod)
			}
		}
		if len(pods) == 0 {
			continue
		}
		m := plantest.Launched(&l.Snapshot, x.Offering)
		for _, pod := range pods {
			plantest.Run(&l.Snapshot, m.Node, pod)
		}
		m.Pods = pods
		l.Machines = append(l.Machines, m)
	}
	return l
}
