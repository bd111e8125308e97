package constraints

import (
	"slices"

	"karve.sh/karve/pkg/planner"
)

// Solver plans for snapshots without constraints between machines.
type Solver struct {
	// Plain makes a plan with 1/share of the effort.
	Plain func(s planner.Snapshot, share int64) planner.Plan
	// Steps is the whole effort.
	Steps int64
	// Stop, if not nil, ends planning early once it returns true.
	Stop func() bool
}

// arranger plans for snapshots without blocked pods.
type arranger struct {
	solver Solver
	given  planner.Snapshot
	// favored is the domain to which pods go first, at any price. It is nil if they go where they are cheap.
	favored *domain
	// hint is the plan for the given snapshot without the constraints that only this package handles. It is nil until needed.
	hint *planner.Plan
	// hintBinds reports whether pods of the hint are bound to domains. Its bound is then that of plans for all pods.
	hintBinds bool
	// moves is how many plans may still be made to move pods between domains.
	moves *int
}

type domain struct{ topology, index int }

// stopped reports whether the search has to end. Remaining work is then done in the quickest way.
func (a *arranger) stopped() bool { return a.solver.Stop != nil && a.solver.Stop() }

func (a *arranger) plain(s planner.Snapshot) planner.Plan { return a.solver.Plain(s, 1) }

// without returns the snapshot without the pods for which gone returns true.
func without(s planner.Snapshot, gone func(class int, pod string) bool) planner.Snapshot {
	s.Classes = slices.Clone(s.Classes)
	for c := range s.Classes {
		var pods []string
		for _, pod := range s.Classes[c].Pods {
			if !gone(c, pod) {
				pods = append(pods, pod)
			}
		}
		s.Classes[c].Pods = pods
	}
	return s
}

// IsPlain reports whether a snapshot has none of the constraints that this package handles.
func IsPlain(s planner.Snapshot) bool {
	for _, r := range s.Rules {
		if r.Kind != planner.Apart || r.Topology != planner.PerNode {
			return false
		}
	}
	return OnlyPrice(s)
}

// OnlyPrice reports whether the cheaper of two plans for equally many pods is always better: there are no preferences and no minValues, and all priorities and all
// weights are equal.
func OnlyPrice(s planner.Snapshot) bool {
	for _, p := range s.Pools {
		if len(p.MinValues) > 0 || p.Weight != s.Pools[0].Weight {
			return false
		}
	}
	for _, c := range s.Classes {
		if len(c.Preferences) > 0 || c.Priority != s.Classes[0].Priority {
			return false
		}
	}
	return true
}
