package constraints

import (
	"slices"

	"karve.sh/karve/pkg/planner"
)

// portion is a number of pods of a class that are planned alike: they have given up the same preferences, and may go to the same machines.
type portion struct {
	class, given     int
	offerings, nodes []int
	pods             int
	// first is the index of the first of these pods in the class.
	first int
}

// lowered returns the snapshot of portions in terms of the plain solver: the pods of each portion are a class, and requirements of rules on single machines
// are quotas and exclusions. If relaxed is true, those that are slightly stricter than the rules are omitted.
func (pr *problem) lowered(parts []portion, relaxed bool) planner.Snapshot {
	s := pr.Snapshot
	s.Pools = slices.Clone(s.Pools)
	for i := range s.Pools {
		s.Pools[i].Weight = 0
		if relaxed {
			s.Pools[i].MinValues = nil
		}
	}
	s.Classes, s.Rules = make([]planner.Class, len(parts)), nil
	for k, p := range parts {
		c := pr.Classes[p.class]
		s.Classes[k] = planner.Class{
			Pods: c.Pods[p.first : p.first+p.pods], Requests: c.Requests, Offerings: p.offerings, Nodes: p.nodes,
			GPUMemoryBytes: c.GPUMemoryBytes, Quotas: c.Quotas, NoOffering: c.NoOffering,
		}
		if len(c.Offerings) > 0 { // The rules leave it none.
			s.Classes[k].NoOffering = &planner.Refusal{Reason: planner.ReasonRule, Message: "its rules about other pods allow no machine that could be launched"}
		}
	}
	of := map[int][]int{} // The portions of each class.
	for k, p := range parts {
		of[p.class] = append(of[p.class], k)
	}
	s.Nodes = slices.Clone(s.Nodes)
	for i := range pr.rules {
		r := &pr.rules[i]
		if r.Topology != planner.PerNode {
			continue
		}
		var near []int // The portions that the rule concerns.
		for _, c := range r.classes() {
			near = append(near, of[c]...)
		}
		slices.Sort(near)
		switch r.Kind {
		case planner.Spread:
			pr.lowerSpread(&s, r, parts, near, relaxed)
		case planner.Together:
			if !relaxed && !pr.beginning {
				pr.lowerTogether(&s, r, parts, near)
			}
		case planner.Apart:
			pr.lowerApart(&s, r, parts, near)
		}
	}
	return s
}

// lowerSpread adds a quota on the pods of one machine that are both constrained and counted, because a new machine can always have none. Pods that are only
// constrained, or only counted, use machines without the others.
func (pr *problem) lowerSpread(s *planner.Snapshot, r *rule, parts []portion, near []int, relaxed bool) {
	var members, asking []int
	pods := int64(0)
	for _, k := range near {
		p := parts[k]
		switch {
		case !r.binds(p.class, p.given):
		case r.counts(p.class):
			members = append(members, k)
			pods += int64(p.pods)
		default:
			asking = append(asking, k)
		}
	}
	if len(members) > 0 && (pods > r.MaxSkew || len(trimmed(r.Present)) > 0) { // Otherwise all of them may be on one machine.
		q := len(s.Quotas)
		s.Quotas = append(slices.Clip(s.Quotas), planner.Quota{Name: r.Name, Each: r.MaxSkew})
		for _, k := range members {
			s.Classes[k].Quotas = append(slices.Clip(s.Classes[k].Quotas), planner.Amount{Quota: q, Count: 1})
		}
		for v := range min(len(s.Nodes), len(r.Present)) {
			if has := r.present(v); has > 0 {
				s.Nodes[v].Quotas = append(slices.Clip(s.Nodes[v].Quotas), planner.Amount{Quota: q, Count: max(0, r.MaxSkew-has)})
			}
		}
	}
	if len(trimmed(r.Present)) > 0 {
		for _, k := range asking {
			s.Classes[k].Nodes = slices.DeleteFunc(slices.Clone(s.Classes[k].Nodes), func(v int) bool { return r.present(v) > r.MaxSkew })
		}
	}
	if !relaxed {
		pr.keepApart(s, r, parts, near, append(members, asking...), func(p portion) bool { return !r.binds(p.class, p.given) })
		pr.keepApart(s, r, parts, near, asking, func(p portion) bool { return r.binds(p.class, p.given) })
	}
}

// keepApart excludes counted portions from the machines of those that the rule constrains. If the rule is a preference, it excludes only portions with
// the same preference: the scheduler may place the others later.
func (pr *problem) keepApart(s *planner.Snapshot, r *rule, parts []portion, near, asking []int, strange func(portion) bool) {
	for _, preference := range []bool{false, true} {
		var from, counted []int
		for _, k := range asking {
			if r.always(parts[k].class) != preference {
				from = append(from, k)
			}
		}
		if len(from) == 0 {
			continue
		}
		for _, k := range near {
			p := parts[k]
			if r.counts(p.class) && strange(p) && (!preference || r.binds(p.class, p.given)) {
				counted = append(counted, k)
			}
		}
		if alone := len(from) == 1 && slices.Equal(from, counted) && parts[from[0]].pods == 1; len(counted) > 0 && !alone {
			slices.Sort(from)
			s.Rules = append(s.Rules, planner.Rule{Kind: planner.Apart, Name: r.Name, Topology: planner.PerNode, Classes: from, Counted: counted})
		}
	}
}

// lowerTogether restricts the constrained pods to nodes with counted pods. The first pods of a group have been placed before.
func (pr *problem) lowerTogether(s *planner.Snapshot, r *rule, parts []portion, near []int) {
	for _, k := range near {
		if p := parts[k]; r.binds(p.class, p.given) {
			s.Classes[k].Offerings = nil
			s.Classes[k].Nodes = slices.DeleteFunc(slices.Clone(s.Classes[k].Nodes), func(v int) bool { return r.present(v) == 0 })
		}
	}
}

// lowerApart keeps the exclusion as it is.
func (pr *problem) lowerApart(s *planner.Snapshot, r *rule, parts []portion, near []int) {
	var asking []int
	for _, k := range near {
		if p := parts[k]; r.binds(p.class, p.given) {
			asking = append(asking, k)
			if len(trimmed(r.Present)) > 0 {
				s.Classes[k].Nodes = slices.DeleteFunc(slices.Clone(s.Classes[k].Nodes), func(v int) bool { return r.present(v) > 0 })
			}
		}
	}
	pr.keepApart(s, r, parts, near, asking, func(portion) bool { return true })
}
