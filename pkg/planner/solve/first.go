package solve

import (
	"fmt"
	"slices"
	"strings"

	"karve.sh/karve/pkg/planner"
)

// SayWhoWentFirst returns the plan with messages that say how many pods of higher priority it places where a pod has no place because a limit is reached or a stock is used up.
func SayWhoWentFirst(s planner.Snapshot, p planner.Plan) planner.Plan {
	byPod := map[string]int{}
	for c := range s.Classes {
		for _, pod := range s.Classes[c].Pods {
			byPod[pod] = c
		}
	}
	said := map[int]string{}
	p.Unplaced = slices.Clone(p.Unplaced)
	for i := range p.Unplaced {
		u := &p.Unplaced[i]
		c, ok := byPod[u.Pod]
		if !ok || u.Reason != planner.ReasonLimitReached && u.Reason != planner.ReasonUnavailable {
			continue
		}
		if _, ok := said[c]; !ok {
			said[c] = ""
			if n := placedBefore(s, p, c, byPod); n == 1 {
				said[c] = "; 1 pod of higher priority was placed first"
			} else if n > 1 {
				said[c] = fmt.Sprintf("; %d pods of higher priority were placed first", n)
			}
		}
		if !strings.HasSuffix(u.Message, said[c]) {
			u.Message += said[c]
		}
	}
	return p
}

// placedBefore returns how many pods of a higher priority than a class the plan places on machines of the pools, and on nodes, that admit the class.
func placedBefore(s planner.Snapshot, p planner.Plan, c int, byPod map[string]int) int {
	class, n := s.Classes[c], 0
	count := func(pods []string) {
		for _, pod := range pods {
			if other, ok := byPod[pod]; ok && s.Classes[other].Priority > class.Priority {
				n++
			}
		}
	}
	pools := map[int]bool{}
	for _, i := range class.Offerings {
		pools[s.Offerings[i].Pool] = true
	}
	for _, l := range p.Launches {
		if pools[s.Offerings[l.Offering].Pool] {
			count(l.Pods)
		}
	}
	for _, on := range p.Placements {
		if _, admits := slices.BinarySearch(class.Nodes, on.Node); admits {
			count(on.Pods)
		}
	}
	return n
}
