package solve

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/internal/constraints"
	"karve.sh/karve/pkg/planner/internal/effort"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// A plan that only shows what fits gets 1/trial of the effort.
const trial = 8

// inGroups makes a plan that places each group whole or not at all. plan makes a plan for a snapshot without groups, and earlier is the plan that is being carried out.
//
// If everything fits, the groups need no attention. Otherwise they are placed one after the other: those of higher priority first, then in the order of the snapshot, and before other
// pods of the same priority. A group that does not fit into what is left is left out. All groups that fit are then planned again together with the other pods, which is cheaper.
func (with Solver) inGroups(s planner.Snapshot, earlier planner.Plan, plan func(Solver, planner.Snapshot) planner.Plan) planner.Plan {
	if len(s.Groups) == 0 {
		return plan(with, s)
	}
	with.First = nil // The first plan may have half of a group.
	groups := s.Groups
	s.Groups = nil
	quick := with
	quick.Effort = max(1, effort.New(with.Effort, with.Stop).Left/trial)
	if first := plan(quick, s); wholeIn(s, groups, first) {
		if best := plan(with, s); wholeIn(s, groups, best) {
			return best
		}
		return first
	}
	q := newQueue(s, groups, earlier, func(s planner.Snapshot) planner.Plan { return plan(quick, s) })
	best := q.oneByOne()
	for _, groupsFirst := range []bool{false, true} {
		all := q.together(groupsFirst, func(s planner.Snapshot) planner.Plan { return plan(with, s) })
		if wholeIn(s, q.fitting(), all) {
			return orBetter(s, best, all)
		}
	}
	return best
}

// wholeIn reports whether a plan places enough pods of all groups. A group without pods is whole.
func wholeIn(s planner.Snapshot, groups []planner.Group, p planner.Plan) bool {
	left := map[string]bool{}
	for _, u := range p.Unplaced {
		left[u.Pod] = true
	}
	return !slices.ContainsFunc(groups, func(g planner.Group) bool {
		pods, placed := 0, int64(0)
		for _, c := range g.Classes {
			for _, pod := range s.Classes[c].Pods {
				pods++
				if !left[pod] {
					placed++
				}
			}
		}
		return pods > 0 && placed < g.Min
	})
}

// queue places groups one after the other.
type queue struct {
	s       planner.Snapshot
	earlier planner.Plan
	plan    func(planner.Snapshot) planner.Plan
	groups  []*queued // in the order in which they are placed
	of      []*queued // by class
	taken   *constraints.Partial
	left    []planner.Unplaced
	held    []planner.Placement
	ruled   []bool // by class
}

// queued is a group in a queue.
type queued struct {
	planner.Group
	priority int32
	// needed has, by class of the snapshot, how many of the class's first pods the group needs.
	needed map[int]int
	// fits reports that the group has a place. why is the reason if it has none.
	fits bool
	why  planner.Refusal
}

func newQueue(s planner.Snapshot, groups []planner.Group, earlier planner.Plan, plan func(planner.Snapshot) planner.Plan) *queue {
	q := &queue{s: s, earlier: planner.Plan{Placements: earlier.Placements}, plan: plan, of: make([]*queued, len(s.Classes)), taken: constraints.NewPartial(s), ruled: ruled(s)}
	for _, g := range groups {
		x := &queued{Group: g, priority: math.MaxInt32, needed: map[int]int{}}
		missing, why := g.Min, ""
		x.Classes = slices.SortedFunc(slices.Values(g.Classes), func(a, b int) int { return slices.Compare(s.Classes[a].Pods, s.Classes[b].Pods) })
		for _, c := range x.Classes {
			class := &s.Classes[c]
			q.of[c] = x
			if class.Blocked != nil {
				why = ": " + class.Blocked.Message
				continue
			}
			n := min(missing, int64(len(class.Pods)))
			x.needed[c], missing = int(n), missing-n
			x.priority = min(x.priority, class.Priority)
		}
		if missing > 0 {
			x.refuse("only %d of them can be planned for%s", g.Min-missing, why)
		}
		q.groups = append(q.groups, x)
	}
	slices.SortStableFunc(q.groups, func(a, b *queued) int { return cmp.Compare(b.priority, a.priority) })
	return q
}

func (g *queued) refuse(why string, args ...any) {
	g.why = planner.Refusal{Reason: planner.ReasonGroup, Message: fmt.Sprintf("%s needs a place for %s at once, and ", g.Name, pack.Count(int(g.Min), "pod")) + fmt.Sprintf(why, args...)}
}

// oneByOne places the groups, and between them the other pods by priority.
func (q *queue) oneByOne() planner.Plan {
	last := int64(math.MaxInt64)
	for rest := q.groups; len(rest) > 0; {
		at := rest[0].priority
		n := slices.IndexFunc(append(rest, &queued{priority: at - 1}), func(g *queued) bool { return g.priority != at })
		q.others(int64(at), last)
		q.place(slices.DeleteFunc(slices.Clone(rest[:n]), func(g *queued) bool { return g.why.Reason != "" }))
		rest, last = rest[n:], int64(at)
	}
	q.others(math.MinInt64, last)
	q.taken.Plan.Unplaced = q.left
	return q.finished(q.taken.Plan)
}

// place places as many groups of one priority as possible, the first ones first.
func (q *queue) place(groups []*queued) {
	before := q.taken.Clone()
	var refused []*queued
	for n := len(groups); len(groups) > 0; n = min(n, len(groups)) {
		some, g := groups[:n], groups[0]
		if n == 1 && q.refusedLike(g, refused) {
			groups = groups[1:]
			continue
		}
		left, ok := q.fit(some, before)
		switch {
		case ok:
			for _, g := range some {
				g.fits = true
			}
			groups, n = groups[n:], 2*n
		case n > 1:
			n = max(1, q.wholeFirst(some, left)) // These probably fit. If all are too large, this tries the first one alone at once.
		default:
			g.refuse("there is room for %d; beside these: %s", g.Min-int64(len(left)), left[0].Message)
			refused, groups = append(refused, g), groups[1:]
		}
	}
	for _, g := range refused {
		q.hold(g)
	}
}

// fit places groups in what is left, or if they do not fit there, in what was left before groups of the same priority, together with those. It returns the pods without a place if
// neither is possible.
func (q *queue) fit(groups []*queued, before *constraints.Partial) (left []planner.Unplaced, ok bool) {
	now := func(g *queued) bool { return slices.Contains(groups, g) }
	plan := q.planOf(q.taken, now, func(c int) int { return q.of[c].needed[c] })
	if len(plan.Unplaced) == 0 {
		q.taken.Fix(plan)
		return nil, true
	}
	placed := func(g *queued) bool { return g.fits && g.priority == groups[0].priority }
	if slices.ContainsFunc(q.groups, placed) {
		together := func(g *queued) bool { return now(g) || placed(g) }
		if all := q.planOf(before, together, func(c int) int { return q.of[c].needed[c] }); len(all.Unplaced) == 0 {
			q.taken = before.Clone()
			q.taken.Fix(all)
			return nil, true
		}
	}
	if len(groups) > 1 {
		return plan.Unplaced, false
	}
	// Perhaps other pods of the group fit.
	if others := q.planOf(q.taken, now, func(int) int { return math.MaxInt }); int64(podsIn(others)) >= groups[0].Min {
		q.taken.Fix(others)
		return nil, true
	}
	return plan.Unplaced, false
}

// wholeFirst returns how many of the first groups have no pod among those without a place.
func (q *queue) wholeFirst(groups []*queued, left []planner.Unplaced) int {
	without := map[string]bool{}
	for _, u := range left {
		without[u.Pod] = true
	}
	return slices.IndexFunc(groups, func(g *queued) bool {
		return slices.ContainsFunc(g.Classes, func(c int) bool {
			return slices.ContainsFunc(q.s.Classes[c].Pods, func(pod string) bool { return without[pod] })
		})
	})
}

// planOf makes a plan for at most so many pods of each class of some groups.
func (q *queue) planOf(from *constraints.Partial, chosen func(*queued) bool, maxPods func(class int) int) planner.Plan {
	return q.plan(q.limitedTo(from.Snapshot, func(c int) int {
		if g := q.of[c]; g != nil && chosen(g) && q.s.Classes[c].Blocked == nil {
			return maxPods(c)
		}
		return 0
	}))
}

// refusedLike reports whether a group with the same needs has just been refused, and refuses this one for the same reason.
func (q *queue) refusedLike(g *queued, refused []*queued) bool {
	i := slices.IndexFunc(refused, func(x *queued) bool {
		return x.Min == g.Min && slices.EqualFunc(x.Classes, g.Classes, func(a, b int) bool {
			return x.needed[a] == g.needed[b] && !q.ruled[a] && !q.ruled[b] && alike(q.s.Classes[a], q.s.Classes[b])
		})
	})
	if i >= 0 {
		g.why = refused[i].why
		g.why.Message = g.Name + strings.TrimPrefix(g.why.Message, refused[i].Name)
	}
	return i >= 0
}

// alike reports whether the pods of two classes differ only in their names.
func alike(a, b planner.Class) bool {
	return a.Requests == b.Requests && a.GPUMemoryBytes == b.GPUMemoryBytes && slices.Equal(a.Quotas, b.Quotas) && slices.Equal(a.Offerings, b.Offerings) && slices.Equal(a.Nodes, b.Nodes)
}

// hold keeps the room of a group without a place on the machines that were launched for it.
func (q *queue) hold(g *queued) {
	if !g.Holds {
		return
	}
	kept := keep(q.limitedTo(q.taken.Snapshot, func(c int) int {
		if q.of[c] == g {
			return math.MaxInt
		}
		return 0
	}), q.earlier, nil)
	q.taken.Fix(kept)
	q.held = append(q.held, kept.Placements...)
}

// others places the pods of a priority above one number and up to another that no group needs.
func (q *queue) others(above, upTo int64) {
	plan := q.plan(q.limitedTo(q.taken.Snapshot, func(c int) int {
		priority := int64(q.s.Classes[c].Priority)
		if g := q.of[c]; g != nil {
			if !g.fits && q.s.Classes[c].Blocked == nil {
				return 0
			}
			priority = min(priority, int64(g.priority))
		}
		if priority > above && priority <= upTo {
			return math.MaxInt
		}
		return 0
	}))
	q.left = append(q.left, plan.Unplaced...)
	q.taken.Fix(plan)
}

// limitedTo returns a snapshot with at most so many pods of each class.
func (q *queue) limitedTo(s planner.Snapshot, maxPods func(class int) int) planner.Snapshot {
	s.Classes = slices.Clone(s.Classes)
	for c := range s.Classes {
		pods := s.Classes[c].Pods
		s.Classes[c].Pods = pods[:min(len(pods), maxPods(c))]
	}
	return s
}

// together places the groups that fit and all other pods with one plan. If groupsFirst is true, the groups come first among the pods of their priority.
func (q *queue) together(groupsFirst bool, plan func(planner.Snapshot) planner.Plan) planner.Plan {
	s := q.s
	if groupsFirst {
		s.Classes = q.ranked()
	}
	g := constraints.NewPartial(s)
	g.Fix(planner.Plan{Placements: q.held})
	all := plan(q.limitedTo(g.Snapshot, func(c int) int {
		if g := q.of[c]; g != nil && !g.fits && q.s.Classes[c].Blocked == nil {
			return 0
		}
		return math.MaxInt
	}))
	g.Add(all)
	g.Plan.Bound = all.Bound
	return q.finished(g.Plan)
}

// ranked returns the classes with priorities in the same order, except that those of groups that fit are above the others of their priority.
func (q *queue) ranked() []planner.Class {
	var priorities []int32
	for _, c := range q.s.Classes {
		priorities = append(priorities, c.Priority)
	}
	slices.Sort(priorities)
	priorities = slices.Compact(priorities)
	classes := slices.Clone(q.s.Classes)
	for c := range classes {
		class, first := &classes[c], 0
		if g := q.of[c]; g != nil && g.fits {
			class.Priority, first = min(class.Priority, g.priority), 1
		}
		rank, _ := slices.BinarySearch(priorities, class.Priority)
		class.Priority = int32(2*rank + first)
	}
	return classes
}

// fitting returns the groups that have a place.
func (q *queue) fitting() []planner.Group {
	var all []planner.Group
	for _, g := range q.groups {
		if g.fits {
			all = append(all, g.Group)
		}
	}
	return all
}

// finished returns a plan that gives the reason for groups without a place, and no place to the pods for which room is held.
func (q *queue) finished(p planner.Plan) planner.Plan {
	p.Placements, p.Held = withoutPods(p.Placements, q.held), q.held
	for _, g := range q.groups {
		for _, c := range g.Classes {
			if g.fits || q.s.Classes[c].Blocked != nil {
				continue
			}
			for _, pod := range q.s.Classes[c].Pods {
				p.Unplaced = append(p.Unplaced, planner.Unplaced{Pod: pod, Refusal: g.why})
			}
		}
	}
	constraints.Sort(q.s, &p)
	return p
}

// withoutPods returns placements without the pods of others.
func withoutPods(placements, others []planner.Placement) []planner.Placement {
	gone := map[string]bool{}
	for _, x := range others {
		for _, pod := range x.Pods {
			gone[pod] = true
		}
	}
	if len(gone) == 0 {
		return placements
	}
	var rest []planner.Placement
	for _, x := range placements {
		some := planner.Placement{Node: x.Node}
		for i, pod := range x.Pods {
			if gone[pod] {
				continue
			}
			some.Pods = append(some.Pods, pod)
			if i < len(x.GPUs) {
				some.GPUs = append(some.GPUs, x.GPUs[i])
			}
		}
		if len(some.Pods) > 0 {
			rest = append(rest, some)
		}
	}
	return rest
}
