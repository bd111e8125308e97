package planner

// BuildByMix is Build without its exact methods, so that the heuristics and their bound meet the oracle, which is only good for
// problems so small that Build never leaves them to the heuristics.
func BuildByMix(s Snapshot) Plan {
	p := compile(s)
	best, bound, shown := p.mix(Search{}.effort(), nil)
	plan := p.plan(best)
	plan.Bound = MicroUSD(bound)
	plan.Proof = p.show(shown)
	return plan
}
