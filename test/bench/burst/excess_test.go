package main

import (
	"math"
	"testing"
	"time"
)

// Machines cost a dollar for each ten pods, and a plan for both shapes costs a dollar less than two plans.
func TestPriceAboveOnePlanIsExplained(t *testing.T) {
	t.Parallel()
	p := &pricing{keys: map[string]int{"a": 0, "b": 1}, pods: []int{20, 10}, prices: map[string]float64{"small": 1, "large": 2, "odd": 2.5}, best: func(pods []int) (float64, error) {
		price := float64(pods[0]+pods[1]) / 10
		if pods[0] > 0 && pods[1] > 0 {
			price--
		}
		return price, nil
	}}
	created := time.UnixMilli(10_000)
	claim := func(plan string, kind string, planned map[string]int) *claimSeen {
		return &claimSeen{Plan: plan, Type: kind, Planned: planned, Seen: created}
	}
	const early, late, last = "1s", "dw0", "w3b" // 64 ms, 18 s and 41.6 s
	for name, c := range map[string]struct {
		claims []*claimSeen
		want   excess
	}{
		"one plan":                         {[]*claimSeen{claim(late, "large", map[string]int{"a": 20, "b": 10})}, excess{}},
		"a plan that is not the best":      {[]*claimSeen{claim(late, "odd", map[string]int{"a": 20, "b": 10})}, excess{Search: 0.5}},
		"a plan before all pods came":      {[]*claimSeen{claim(early, "large", map[string]int{"a": 20}), claim(late, "small", map[string]int{"b": 10})}, excess{Unseen: 1}},
		"two plans after all pods came":    {[]*claimSeen{claim(late, "large", map[string]int{"a": 20}), claim(last, "small", map[string]int{"b": 10})}, excess{Late: 1}},
		"pods that lost their places":      {[]*claimSeen{claim(late, "large", map[string]int{"a": 20, "b": 10}), claim(last, "small", map[string]int{"a": 3})}, excess{PlacesLost: 1}},
		"a machine for pods of both kinds": {[]*claimSeen{claim(late, "large", map[string]int{"a": 20}), claim(last, "large", map[string]int{"a": 10, "b": 10})}, excess{Late: 1, PlacesLost: 1}},
	} {
		seen := newTimeline()
		var price float64
		for i, claim := range c.claims {
			claim.Name, claim.Seen = string(rune('a'+i)), claim.Seen.Add(time.Duration(i))
			seen.claims[claim.Name] = claim
			price += p.prices[claim.Type]
		}
		plans, err := p.plans(&seen)
		if err != nil {
			t.Fatal(err)
		}
		got, err := p.explain(plans, created)
		if err != nil {
			t.Fatal(err)
		}
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		if sum := got.Unseen + got.Late + got.PlacesLost + got.Search; math.Abs(sum-(price-2)) > 1e-9 {
			t.Errorf("%s: the parts add up to %.2f of %.2f", name, sum, price-2)
		}
	}
}
