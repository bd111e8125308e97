package solve

import (
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/effort"
	"karve.sh/karve/pkg/planner/internal/pack"
	"karve.sh/karve/pkg/planner/internal/search"
)

// BuildByMix is Build without its exact methods. It lets tests compare the heuristics and their bound with the oracle, which handles only problems that Build
// always solves exactly.
func BuildByMix(s planner.Snapshot) planner.Plan {
	p := pack.Compile(s)
	best, bound := search.PriceAndBranch(p, effort.New(0, nil), nil)
	plan := search.PlanOf(p, best)
	plan.Bound = planner.MicroUSD(bound)
	return plan
}
