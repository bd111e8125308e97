package solve

import (
	"fmt"
	"slices"
	"strings"

	"karve.sh/karve/pkg/planner"
)

// SayWhoWentFirst returns the plan with messages that say how many pods of higher priority it places where a pod has no place because a limit is reached or a stock is used up.
func SayWhoWentFirst(s planner.Snapshot, p planner.Plan) planner.Plan {
	if len(p.Unplaced) == 0 {
		return p
	}
	byPod := s.ClassByPod()
	said, all := map[int]string{}, placedBy(s, p, byPod)
	p.Unplaced = slices.Clone(p.Unplaced)
	for i := range p.Unplaced {
		u := &p.Unplaced[i]
		c, ok := byPod[u.Pod]
		if !ok || u.Reason != planner.ReasonLimitReached && u.Reason != planner.ReasonUnavailable {
			continue
		}
		if _, ok := said[c]; !ok {
			said[c] = ""
			if n := all.before(s, &s.Classes[c]); n == 1 {
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

// placedPods counts the pods of a plan by their priority.
type placedPods struct {
	// inPools are on new machines of the pools, and onNodes on nodes, both by index.
	inPools, onNodes map[int]map[int32]int
}

func placedBy(s planner.Snapshot, p planner.Plan, byPod map[string]int) placedPods {
	all := placedPods{map[int]map[int32]int{}, map[int]map[int32]int{}}
	add := func(to map[int]map[int32]int, at int, pods []string) {
		if to[at] == nil {
			to[at] = map[int32]int{}
		}
		for _, pod := range pods {
			if c, ok := byPod[pod]; ok {
				to[at][s.Classes[c].Priority]++
			}
		}
	}
	for _, l := range p.Launches {
		add(all.inPools, s.Offerings[l.Offering].Pool, l.Pods)
	}
	for _, on := range p.Placements {
		add(all.onNodes, on.Node, on.Pods)
	}
	return all
}

// before returns how many pods of a higher priority than a class are on machines of the pools, and on nodes, that admit the class.
func (p placedPods) before(s planner.Snapshot, class *planner.Class) (n int) {
	count := func(byPriority map[int32]int) {
		for priority, pods := range byPriority {
			if priority > class.Priority {
				n += pods
			}
		}
	}
	counted := map[int]bool{}
	for _, i := range class.Offerings {
		if pool := s.Offerings[i].Pool; !counted[pool] {
			counted[pool] = true
			count(p.inPools[pool])
		}
	}
	for _, node := range class.Nodes {
		count(p.onNodes[node])
	}
	return n
}
