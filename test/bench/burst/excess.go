package main

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"
)

// excess says where the price above one plan comes from, in dollars per hour.
type excess struct {
	// Unseen is what plans that were made before the last pod came cost together with one later plan for the other pods, above one plan for all. Late is what
	// the later plans cost above one plan for their pods.
	Unseen float64 `json:"unseenPodsUSDPerHour"`
	Late   float64 `json:"latePodsUSDPerHour"`
	// PlacesLost is the price of machines, or of parts of them, for pods for which a machine had been launched before.
	PlacesLost float64 `json:"placesLostUSDPerHour"`
	// Search is what plans cost above the best plan for their pods.
	Search float64 `json:"searchUSDPerHour"`
}

// planSeen is what one plan launched.
type planSeen struct {
	at     time.Time
	claims []*claimSeen
	price  float64
	// first is the number of pods of each shape for which it launched the first machine, and again the number of other pods. ofAgain is their part of the
	// price. best is the price of the best plan for the former.
	first         []int
	again         int
	ofAgain, best float64
}

// pricing is what the analysis knows about pods and machines.
type pricing struct {
	// keys has the shapes by the keys in NodeClaims, pods the number of pods of each shape, and prices the price of each instance type.
	keys   map[string]int
	pods   []int
	prices map[string]float64
	// best returns the price of the best plan for a number of pods of each shape.
	best func(pods []int) (float64, error)
}

// plans returns what the plans launched, in order. Pods of a shape are interchangeable.
func (p *pricing) plans(t *timeline) ([]*planSeen, error) {
	var plans []*planSeen
	named, planned := map[string]*planSeen{}, make([]int, len(p.pods))
	for _, c := range t.inOrder() {
		plan := named[c.Plan]
		if plan == nil {
			plan = &planSeen{at: planTime(c), first: make([]int, len(p.pods))}
			named[c.Plan], plans = plan, append(plans, plan)
		}
		all, again := 0, 0
		for key, n := range c.Planned {
			shape := p.keys[key]
			first := min(n, max(0, p.pods[shape]-planned[shape]))
			planned[shape] += n
			plan.first[shape] += first
			all, again = all+n, again+n-first
		}
		plan.claims, plan.price, plan.again = append(plan.claims, c), plan.price+p.prices[c.Type], plan.again+again
		if again > 0 {
			plan.ofAgain += p.prices[c.Type] * float64(again) / float64(all)
		}
	}
	for _, plan := range plans {
		var err error
		if plan.best, err = p.best(plan.first); err != nil {
			return nil, err
		}
	}
	return plans, nil
}

// planTime returns when the plan of a NodeClaim was made, which is in its name.
func planTime(c *claimSeen) time.Time {
	if ms, err := strconv.ParseInt(c.Plan, 36, 64); err == nil && ms > 0 {
		return time.UnixMilli(ms)
	}
	return c.Seen
}

// explain returns the causes of the price above one plan for all pods. The last pod came at the time created.
func (p *pricing) explain(plans []*planSeen, created time.Time) (e excess, err error) {
	one, err := p.best(p.pods)
	if err != nil {
		return e, err
	}
	var early, late float64
	rest := slices.Clone(p.pods)
	for _, plan := range plans {
		e.PlacesLost += plan.ofAgain
		e.Search += plan.price - plan.ofAgain - plan.best
		if !plan.at.Before(created) {
			late += plan.best
			continue
		}
		early += plan.best
		for shape, n := range plan.first {
			rest[shape] -= n
		}
	}
	then, err := p.best(rest)
	if err != nil {
		return e, err
	}
	e.Unseen, e.Late = early+then-one, late-then
	return e, nil
}

// inOrder returns the NodeClaims in the order in which they came.
func (t *timeline) inOrder() []*claimSeen {
	return slices.SortedFunc(maps.Values(t.claims), func(a, b *claimSeen) int {
		return cmp.Or(a.Seen.Compare(b.Seen), cmp.Compare(a.Name, b.Name))
	})
}
