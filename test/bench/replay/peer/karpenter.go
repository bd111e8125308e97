// Package peer models how other autoscalers handle machines that are not full, to the end.
package peer

import (
	"slices"

	"karve.sh/karve/pkg/planner/consolidate"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/replay"
)

// Consolidated is the result of a model of Karpenter's consolidation for a layout.
type Consolidated struct {
	Layout consolidate.Layout
	// Commands is how often machines were removed, not counting empty ones. Evictions is how many pods had to move for that.
	Commands, Evictions int
}

// Karpenter models Karpenter's consolidation to the end, with the steps of [replay.KarpenterStep]. Empty machines go first.
func Karpenter(l consolidate.Layout) Consolidated {
	l.Snapshot.Classes = slices.Clone(l.Snapshot.Classes)
	for c := range l.Snapshot.Classes {
		l.Snapshot.Classes[c].Pods = nil
	}
	k := Consolidated{Layout: l}
	for {
		k.Layout, _ = plantest.Drop(k.Layout)
		step, ok := replay.KarpenterStep(k.Layout)
		if !ok {
			return k
		}
		for _, i := range step.Leave {
			k.Evictions += len(k.Layout.Machines[i].Pods)
		}
		k.Commands++
		k.Layout = plantest.After(k.Layout, step)
	}
}
