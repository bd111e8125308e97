package planner

// BuildByMix is Build without its exact methods, so that the heuristics and their bound meet the oracle, which is only good for
// problems so small that Build never leaves them to the heuristics.
func BuildByMix(s Snapshot) Plan {
	p := compile(s)
	best, bound, shown := priceAndBranch(p, newEffort(0, nil), nil)
	plan := planOf(p, best)
	plan.Bound = MicroUSD(bound)
	plan.Proof = showProof(p, shown)
	return plan
}
