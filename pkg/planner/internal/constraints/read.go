package constraints

import (
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// sanitized returns the snapshot with valid classes and rules: indices are sorted and in range, and each pod occurs once. It removes and returns pods
// for which nothing may be planned.
func sanitized(s planner.Snapshot) (planner.Snapshot, []planner.Unplaced) {
	out := s
	out.Classes = slices.Clone(s.Classes)
	seen := map[string]bool{}
	for c := range out.Classes {
		class := &out.Classes[c]
		class.Offerings, class.Nodes = pack.InRange(class.Offerings, len(s.Offerings)), pack.InRange(class.Nodes, len(s.Nodes))
		class.Preferences = slices.Clone(class.Preferences)
		for i := range class.Preferences {
			w := &class.Preferences[i]
			w.Offerings, w.Nodes = pack.InRange(w.Offerings, len(s.Offerings)), pack.InRange(w.Nodes, len(s.Nodes))
		}
	}
	for _, c := range inNameOrder(s) {
		var pods []string
		for _, pod := range s.Classes[c].Pods {
			if !seen[pod] {
				seen[pod] = true
				pods = append(pods, pod)
			}
		}
		slices.Sort(pods)
		out.Classes[c].Pods = pods
	}
	why := map[int]planner.Refusal{}
	out.Rules = make([]planner.Rule, len(s.Rules))
	for i, r := range s.Rules {
		r.Classes, r.Counted = pack.InRange(r.Classes, len(s.Classes)), pack.InRange(r.Counted, len(s.Classes))
		if !understood(s, r) {
			for _, c := range r.Classes {
				why[c] = planner.Refusal{Reason: planner.ReasonUnsupported, Message: r.Name + " makes no sense as it was read: correct it, or report this"}
			}
			r = planner.Rule{Kind: planner.Apart, Topology: planner.PerNode}
		}
		r.Elsewhere = min(max(0, r.Elsewhere), maxCount)
		r.Present = slices.Clone(r.Present)
		for d := range r.Present {
			r.Present[d] = min(max(0, r.Present[d]), maxCount)
		}
		r.MaxSkew = min(r.MaxSkew, maxCount)
		out.Rules[i] = r
	}
	var refused []planner.Unplaced
	for c := range out.Classes {
		refusal, ok := why[c]
		if b := out.Classes[c].Blocked; b != nil {
			refusal, ok = *b, true
		}
		if ok {
			for _, pod := range out.Classes[c].Pods {
				refused = append(refused, planner.Unplaced{Pod: pod, Refusal: refusal})
			}
			out.Classes[c].Pods = nil
		}
	}
	return out, refused
}

// understood reports whether a rule is valid, so that it can be kept.
func understood(s planner.Snapshot, r planner.Rule) bool {
	switch {
	case r.Topology != planner.PerNode && (r.Topology < 0 || r.Topology >= len(s.Topologies)):
		return false
	case r.Kind == planner.Spread:
		return r.MaxSkew >= 1
	}
	return r.Kind == planner.Together || r.Kind == planner.Apart
}

// withoutHopeless returns the snapshot without the rules and preferences of pods that fit on no machine even if they are alone, and without rules that a single pod
// keeps anywhere. Such pods are never placed, and such rules would only keep pods from cheap places.
func withoutHopeless(s planner.Snapshot) planner.Snapshot {
	pr := newProblem(s)
	hopeless := make([]bool, len(s.Classes))
	s.Classes = slices.Clone(s.Classes)
	for c := range s.Classes {
		if class := &s.Classes[c]; len(pr.about[c])+len(class.Preferences) > 0 && pr.hopeless(*class) {
			hopeless[c], class.Preferences = true, nil
		}
	}
	s.Rules = slices.Clone(s.Rules)
	for i := range s.Rules {
		alone := alone(s, s.Rules[i])
		s.Rules[i].Classes = slices.DeleteFunc(slices.Clone(s.Rules[i].Classes), func(c int) bool { return hopeless[c] || alone })
	}
	return s
}

// alone reports whether a rule is about a single pod, which is together with itself and apart from itself on any machine.
func alone(s planner.Snapshot, r planner.Rule) bool {
	return r.Kind != planner.Spread && r.Topology == planner.PerNode && len(r.Classes) == 1 && slices.Equal(r.Classes, r.Counted) &&
		len(s.Classes[r.Classes[0]].Pods) == 1 && len(trimmed(r.Present)) == 0 && r.Elsewhere == 0
}

func (pr *problem) hopeless(class planner.Class) bool {
	return len(class.Pods) > 0 && !slices.ContainsFunc(class.Nodes, func(v int) bool { return TimesOnNode(pr.Snapshot, class, pr.Nodes[v]) > 0 }) &&
		!slices.ContainsFunc(class.Offerings, func(i int) bool { return pr.usable[i] && offeredTimes(pr.Snapshot, class, i) > 0 })
}
