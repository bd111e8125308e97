package solve

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
)

// Contain makes up to minPlans plans regardless of time, which is enough to find one bad class among a thousand. It makes up to maxPlans plans
// while there is time.
const (
	minPlans = 24
	maxPlans = 96
)

// Contain returns a plan that passes [check.Plan] for as many classes as possible, the classes that are left out, and the snapshot of the plan, in which these
// are blocked. It returns an error if there is no correct plan for any class.
//
//   - first is an existing plan that is checked before any other, or nil.
//   - build makes a plan.
//   - more reports whether there is time for another plan.
//   - endsInTime calls a function that makes and checks a plan, and reports whether it ended in time. If not, it may still run. Classes with which no plan ends are
//     left out too. If endsInTime is nil, each plan ends.
//
// Invalid classes are left out first: nothing else makes an invalid snapshot valid, and the methods of [Solver] take only valid ones. If a plan violates a rule,
// all classes that the violations concern are left out, until a plan is correct. They are then added back by bisection as long as plans stay correct. If there is no
// time for that, some of them wait for the next plan.
func Contain(
	s planner.Snapshot, first *planner.Plan, build func(planner.Snapshot) planner.Plan, more func() bool, endsInTime func(plan func()) bool,
) (planner.Snapshot, planner.Plan, []Aside, error) {
	if endsInTime == nil {
		endsInTime = func(plan func()) bool { plan(); return true }
	}
	c := container{first: first, build: build, more: more, endsInTime: endsInTime}
	given, out, err := mended(s)
	if err != nil {
		return s, planner.Plan{}, nil, fmt.Errorf("the snapshot is not valid: %w", err)
	}
	c.given = given
	violations := c.try(out)
	var suspects []int
	for len(violations) > 0 {
		named := c.suspects(out, violations)
		if len(named) == 0 || !c.again() {
			named = c.suspects(out, nil)
		}
		if len(named) == 0 {
			return s, planner.Plan{}, nil, fmt.Errorf("a plan without pods breaks a rule: %w", violations[0])
		}
		out = maps.Clone(out)
		for _, i := range named {
			out[i] = unsound(i, violations[0])
		}
		suspects = append(named, suspects...)
		violations = c.try(out)
	}
	c.takeBack(suspects)
	return c.without(c.out), c.plan, slices.SortedFunc(maps.Values(c.out), func(a, b Aside) int { return cmp.Compare(a.Class, b.Class) }), nil
}

// container is a search for the classes for which a correct plan can be made.
type container struct {
	given      planner.Snapshot
	first      *planner.Plan
	build      func(planner.Snapshot) planner.Plan
	more       func() bool
	endsInTime func(plan func()) bool
	plans      int
	// plan is the last correct plan, and out are the classes that it leaves out.
	plan planner.Plan
	out  map[int]Aside
}

// without returns the snapshot in which the classes are blocked.
func (c *container) without(out map[int]Aside) planner.Snapshot {
	s := c.given
	s.Classes = slices.Clone(s.Classes)
	for i, a := range out {
		s.Classes[i].Blocked = &a.Refusal
	}
	return s
}

// endless is the violation of a plan that did not end in time. It concerns no particular object.
var endless = &planner.Violation{Message: "planning does not end"}

// try makes a plan without some classes and returns its violations.
func (c *container) try(out map[int]Aside) []*planner.Violation {
	c.plans++
	s, build := c.without(out), c.build
	if first := c.first; first != nil {
		c.first = nil
		build = func(planner.Snapshot) planner.Plan { return *first }
	}
	var plan planner.Plan
	var violations []*planner.Violation
	if !c.endsInTime(func() { plan, violations = tried(s, build) }) {
		return []*planner.Violation{endless}
	}
	if len(violations) == 0 {
		c.plan, c.out = plan, out
	}
	return violations
}

// tried makes a plan and returns its violations. A panic of build counts as a violation that concerns no particular object.
func tried(s planner.Snapshot, build func(planner.Snapshot) planner.Plan) (plan planner.Plan, violations []*planner.Violation) {
	defer func() {
		if r := recover(); r != nil {
			violations = []*planner.Violation{{Message: fmt.Sprintf("planning panics: %v", r)}}
		}
	}()
	plan = build(s)
	return plan, planner.Violations(check.Plan(s, plan))
}

// again reports whether another plan may be made.
func (c *container) again() bool {
	return c.plans < minPlans || c.plans < maxPlans && c.more()
}

// suspects returns the classes that are planned for and that violations concern, those with the most violations last. Without violations, it returns all
// classes that are planned for.
func (c *container) suspects(out map[int]Aside, violations []*planner.Violation) []int {
	times := map[int]int{}
	for _, v := range violations {
		for _, i := range v.Classes {
			times[i]++
		}
	}
	var all []int
	for i := range c.given.Classes {
		_, gone := out[i]
		if class := &c.given.Classes[i]; !gone && class.Blocked == nil && len(class.Pods) > 0 && (len(violations) == 0 || times[i] > 0) {
			all = append(all, i)
		}
	}
	slices.SortStableFunc(all, func(i, j int) int { return cmp.Compare(times[i], times[j]) })
	return all
}

// takeBack adds back those of the classes with which a plan stays correct.
func (c *container) takeBack(classes []int) {
	if len(classes) == 0 || !c.again() {
		return
	}
	out := maps.Clone(c.out)
	for _, i := range classes {
		delete(out, i)
	}
	violations := c.try(out)
	switch half := len(classes) / 2; {
	case len(violations) == 0:
	case half == 0:
		c.out = maps.Clone(c.out)
		c.out[classes[0]] = unsound(classes[0], violations[0])
	default:
		c.takeBack(classes[:half])
		c.takeBack(classes[half:])
	}
}

func unsound(class int, v *planner.Violation) Aside {
	why := fmt.Sprintf("no plan with it keeps all rules (%.200s)", v.Message)
	if v == endless {
		why = "planning with it takes too long"
	}
	return Aside{Class: class, Late: v == endless, Refusal: planner.Refusal{Reason: planner.ReasonSetAside, Message: why +
		", so the others are planned without it: this is a bug of Karve's, please report it with the pod's manifest"}}
}
