package constraints

import (
	"slices"

	"karve.sh/karve/pkg/planner"
)

// withoutHopeless returns the snapshot without the rules and preferences of pods that fit on no machine even if they are alone. These pods are never placed, and
// their rules would only keep others from cheap places.
func withoutHopeless(s planner.Snapshot) planner.Snapshot {
	pr := newProblem(s)
	hopeless := make([]bool, len(s.Classes))
	s.Classes = slices.Clone(s.Classes)
	for c := range s.Classes {
		if class := &s.Classes[c]; len(pr.about[c])+len(class.Preferences) > 0 && pr.hopeless(*class) {
			hopeless[c], class.Preferences = true, nil
		}
	}
	if !slices.Contains(hopeless, true) {
		return s
	}
	s.Rules = slices.Clone(s.Rules)
	for i := range s.Rules {
		s.Rules[i].Classes = slices.DeleteFunc(slices.Clone(s.Rules[i].Classes), func(c int) bool { return hopeless[c] })
	}
	return s
}

func (pr *problem) hopeless(class planner.Class) bool {
	return len(class.Pods) > 0 && !slices.ContainsFunc(class.Nodes, func(v int) bool { return TimesOnNode(pr.Snapshot, class, pr.Nodes[v]) > 0 }) &&
		!slices.ContainsFunc(class.Offerings, func(i int) bool { return pr.usable[i] && offeredTimes(pr.Snapshot, class, i) > 0 })
}
