package planner

import (
	"fmt"
	"slices"
)

// validateRules returns the violations of topologies, rules, preferences and minValues.
func validateRules(s Snapshot) []error {
	var errs []error
	for t, x := range s.Topologies {
		bad := about(&errs, Violation{})
		if !ascending(x.Domains) {
			bad("topology %d: domains are not sorted or repeat", t)
		}
	}
	for i, r := range s.Rules {
		bad := about(&errs, Violation{Classes: r.Classes, Rules: []int{i}})
		for _, problem := range validateRule(s, r) {
			bad("rule %d: %s", i, problem)
		}
	}
	return append(errs, validatePreferences(s)...)
}

func validatePreferences(s Snapshot) []error {
	var errs []error
	for i, c := range s.Classes {
		bad := about(&errs, Violation{Classes: []int{i}})
		for k, w := range c.Preferences {
			if w.Rule >= len(s.Rules) || !indices(w.Offerings, len(s.Offerings)) || !indices(w.Nodes, len(s.Nodes)) {
				bad("class %d: preference %d has a rule, offerings or nodes that are not sorted, repeat, or are out of range", i, k)
			}
		}
	}
	for i, p := range s.Pools {
		bad := about(&errs, Violation{Pools: []int{i}})
		for _, m := range p.MinValues {
			if m.Min < 1 || len(m.Values) > len(s.Offerings) {
				bad("pool %d: minValues of %s are less than 1, or of more offerings than there are", i, m.Key)
			}
		}
	}
	return errs
}

func validateRule(s Snapshot, r Rule) []string {
	var problems []string
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if !slices.Contains([]RuleKind{Spread, Together, Apart}, r.Kind) {
		bad("there is no kind %q", r.Kind)
	}
	if r.Topology < PerNode || r.Topology >= len(s.Topologies) {
		return append(problems, fmt.Sprintf("there is no topology %d", r.Topology))
	}
	if !indices(r.Classes, len(s.Classes)) || !indices(r.Counted, len(s.Classes)) {
		bad("classes are not sorted, repeat, or are out of range")
	}
	domains := len(s.Nodes)
	if r.Topology != PerNode {
		domains = len(s.Topologies[r.Topology].Domains)
	}
	negative := slices.ContainsFunc(r.Present, func(n int64) bool { return n < 0 })
	if len(r.Present) > domains || r.Elsewhere < 0 || negative {
		bad("pods that are present are fewer than none, or in domains that there are not")
	}
	if senseless := min(r.MaxSkew, r.MinDomains+1) < 1 || !indices(r.Eligible, domains); r.Kind == Spread && senseless {
		bad("maxSkew is less than 1, minDomains less than 0, or eligible domains are not sorted, repeat, or are out of range")
	}
	if r.Kind == Apart && slices.ContainsFunc(r.Present, func(n int64) bool { return n > 0 }) {
		bad("pods to be apart from are present: the classes list no place that those forbid")
	}
	return problems
}
