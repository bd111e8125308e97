package constraints

import (
	"fmt"
	"slices"
	"strings"

	"karve.sh/karve/pkg/planner"
)

// refusal explains why pods of a cohort are not placed, given the pods of the census: which rule forbids cells, and which other cells are full.
func (r *rounds) refusal(c *census, q *cohort) planner.Refusal {
	rule := -1
	var forbidden, full []string
	var why []planner.Refusal
	launches := false // why has the reason of a cell where a machine could be launched
	for _, x := range q.cells {
		i := c.forbids(q, x)
		if i >= 0 && (rule < 0 || i == rule) {
			rule = i
			forbidden = append(forbidden, r.domainName(r.problem.rules[i].Topology, x))
		}
		if i < 0 {
			no := r.whyFull(q, x)
			why = append(why, no)
			if !launches && len(x.offerings) > 0 {
				why[0], why[len(why)-1], launches = why[len(why)-1], why[0], true
			}
			full = append(full, fmt.Sprintf("%s has no machine for it: %s", r.cellName(q, x), no.Message))
		}
	}
	const most = 2
	if more := len(full) - most; more > 0 {
		full = append(full[:most], fmt.Sprintf("and so on in %d more", more))
	}
	switch {
	case len(q.cells) == 0:
		return r.unlabeled(q)
	case rule < 0:
		return why[0]
	}
	return planner.Refusal{Reason: planner.ReasonRule, Message: r.sentence(c, q, rule, slices.Compact(forbidden), full)}
}

func (r *rounds) sentence(c *census, q *cohort, i int, forbidden, full []string) string {
	rule := &r.problem.rules[i]
	where, key := strings.Join(forbidden, ", "), r.problem.Topologies[rule.Topology].Key
	tail := ""
	if len(full) > 0 {
		tail = ", and " + strings.Join(full, "; ")
	}
	switch rule.Kind {
	case planner.Spread:
		if rule.tooFew {
			return fmt.Sprintf("%s (maxSkew %d, minDomains %d): there are too few domains, so that none may have more than %d of its pods, and %s has as many%s: "+
				"allow more values of %s in the NodePool, or lower minDomains", rule.Name, rule.MaxSkew, rule.MinDomains, rule.MaxSkew, where, tail, key)
		}
		if len(full) == 0 {
			tail = ", where this pod may not go"
			for d, name := range r.problem.Topologies[rule.Topology].Domains {
				if rule.eligible[d] && c.counted[i][d] == c.fewest(i) {
					tail = fmt.Sprintf(", and %s, which has the fewest, admits no more of this pod", name)
				}
			}
		}
		return fmt.Sprintf("%s (maxSkew %d) lets no more of its pods into %s while other domains have so few%s: make room there, or raise maxSkew",
			rule.Name, rule.MaxSkew, where, tail)
	case planner.Together:
		if c.somewhere[i] == 0 && !rule.counts(q.class) {
			return fmt.Sprintf("%s: no pod that it selects runs or has a place: start one, or correct the selector", rule.Name)
		}
		return fmt.Sprintf("%s: no pod that it selects is in %s%s: make room where those pods are, or start one elsewhere", rule.Name, where, tail)
	case planner.Apart:
	}
	return fmt.Sprintf("%s: a pod that it has to be apart from is in %s already%s: allow more values of %s in the NodePool, or run fewer such pods",
		rule.Name, where, tail, key)
}

// unlabeled returns the refusal of pods if none of their machines has the labels that their rules require.
func (r *rounds) unlabeled(q *cohort) planner.Refusal {
	for _, i := range r.problem.about[q.class] {
		rule := &r.problem.rules[i]
		if rule.Topology != planner.PerNode && rule.Kind != planner.Apart && rule.binds(q.class, q.given) && len(r.arranger.given.Classes[q.class].Offerings)+len(r.arranger.given.Classes[q.class].Nodes) > 0 {
			return planner.Refusal{Reason: planner.ReasonRule, Message: fmt.Sprintf("%s: no machine that admits it is in a domain of %s that counts: give the machines of its NodePool that label",
				rule.Name, r.problem.Topologies[rule.Topology].Key)}
		}
	}
	return r.ask(q.class, q.given, nil, nil)
}

// whyFull returns why a cell has no room for another pod.
func (r *rounds) whyFull(q *cohort, x *cell) planner.Refusal {
	if x.why == nil {
		why := r.ask(q.class, q.given, x.offerings, x.nodes)
		x.why = &why
	}
	return *x.why
}

// ask plans for a single pod to get the plain solver's reason.
func (r *rounds) ask(class, given int, offerings, nodes []int) planner.Refusal {
	if r.arranger.stopped() {
		return planner.Refusal{Reason: planner.ReasonNextRound, Message: "has no place in this plan, and there was no time to find out why: planned again in the next round"}
	}
	plan := r.arranger.solve(r.problem.lowered([]portion{{class: class, given: given, offerings: offerings, nodes: nodes, pods: 1}}, false))
	if len(plan.Unplaced) > 0 {
		return r.alone(portion{class: class, given: given}, plan.Unplaced[0].Refusal)
	}
	return planner.Refusal{Reason: planner.ReasonLimitReached, Message: "the places there are taken by other pods: raise the limits of its NodePool, or wait until machines are gone"}
}

// alone returns the refusal of pods that no rule about domains concerns. It is that of the plain solver, unless a rule about machines excludes the machines.
func (r *rounds) alone(p portion, plain planner.Refusal) planner.Refusal {
	for _, i := range r.problem.about[p.class] {
		rule := &r.problem.rules[i]
		if rule.Kind != planner.Together || rule.Topology != planner.PerNode || !rule.always(p.class) {
			continue
		}
		if rule.somewhere() == 0 {
			return planner.Refusal{Reason: planner.ReasonRule, Message: rule.Name + ": no machine that admits it has, or could have, a pod that it selects: start one, or correct the selector"}
		}
		return planner.Refusal{Reason: planner.ReasonRule, Message: rule.Name + ": the machine with the pods that it selects has no room for it, and it may not be elsewhere: " +
			"ask for less, or allow larger instance types in the NodePool's requirements"}
	}
	return plain
}

func (r *rounds) domainName(topology int, x *cell) string {
	if d := x.domains[topology]; d >= 0 {
		return r.problem.Topologies[topology].Domains[d]
	}
	return "machines without " + r.problem.Topologies[topology].Key
}

func (r *rounds) cellName(q *cohort, x *cell) string {
	var names []string
	for _, t := range r.problem.topologies {
		if slices.ContainsFunc(r.problem.about[q.class], func(i int) bool {
			y := &r.problem.rules[i]
			return y.Topology == t && (y.binds(q.class, q.given) || y.counts(q.class))
		}) {
			names = append(names, r.domainName(t, x))
		}
	}
	return strings.Join(names, ", ")
}
