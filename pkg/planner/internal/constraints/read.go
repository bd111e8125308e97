package constraints

import (
	"slices"

	"karve.sh/karve/pkg/planner"
)

// withoutBlocked returns a valid snapshot without the pods for which nothing may be planned, and these pods. It limits the numbers of rules, so that no sum of them
// overflows.
func withoutBlocked(s planner.Snapshot) (planner.Snapshot, []planner.Unplaced) {
	s.Rules = slices.Clone(s.Rules)
	for i := range s.Rules {
		r := &s.Rules[i]
		r.Elsewhere, r.MaxSkew = min(r.Elsewhere, maxCount), min(r.MaxSkew, maxCount)
		r.Present = slices.Clone(r.Present)
		for d := range r.Present {
			r.Present[d] = min(r.Present[d], maxCount)
		}
	}
	var refused []planner.Unplaced
	s.Classes = slices.Clone(s.Classes)
	for c := range s.Classes {
		if class := &s.Classes[c]; class.Blocked != nil {
			for _, pod := range class.Pods {
				refused = append(refused, planner.Unplaced{Pod: pod, Refusal: *class.Blocked})
			}
			class.Pods = nil
		}
	}
	return s, refused
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
