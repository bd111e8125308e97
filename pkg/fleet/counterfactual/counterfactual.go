// Package counterfactual computes what the running pods would cost on new nodes: with Karpenter's packing, and with one plan of Karve's. They are models for
// comparison. No decision depends on them.
package counterfactual

import (
	"slices"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/firstfit"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
)

// limits bound the work of the model to about half a second of one core.
var limits = firstfit.Limits{Sorted: firstfit.Steps, RuledPods: 3000}

// Karpenter returns the prices, by NodePool, of the nodes that Karpenter would launch for the pods on Karve's nodes if there were no nodes and all pods
// arrived at once. It models replicas like a NodeOverlay. It ignores limits of NodePools and refusals of the cloud.
//
// It returns false if the model deviates from Karpenter: if it has no place for a pod, breaks a rule, or has too many pods with rules, or if pods state their throughput.
func Karpenter(view *snapshot.View) (map[string]planner.MicroUSD, bool) {
	s, ok := withoutNodes(view)
	if !ok {
		return nil, false
	}
	prices := map[string]planner.MicroUSD{}
	for i := range s.Pools {
		prices[s.Pools[i].Name] = 0
	}
	plan, ok := firstfit.Within(s, limits)
	if !ok || len(plan.Unplaced) > 0 || check.Plan(s, plan) != nil {
		return nil, false
	}
	for _, l := range plan.Launches {
		o := s.Offerings[l.Offering]
		prices[s.Pools[o.Pool].Name] += price(o)
	}
	return prices, true
}

// price returns what reports say that a machine costs: the slot of a reservation has its list price.
func price(o planner.Offering) planner.MicroUSD {
	if o.CapacityType == karpv1.CapacityTypeReserved {
		return o.ListPrice
	}
	return o.Paid()
}

// OverOnePlan returns the price of the nodes over the price of one plan of Karve's for their pods, if there were no nodes and all pods arrived at once. The plan
// ignores limits, preferences and refusals of the cloud. OverOnePlan returns false while pods wait or nodes start, if no pods run, if the plan has no place for a
// pod, and if pods state their throughput: the plan with the lowest price of work may have a higher hourly price.
func OverOnePlan(view *snapshot.View, search solve.Solver) (float64, bool) {
	if len(view.Waiting()) > 0 {
		return 0, false
	}
	var nodes planner.MicroUSD
	for i := range view.Machines {
		m := &view.Machines[i]
		if !view.Decided(m) {
			return 0, false
		}
		if m.Node != nil {
			nodes += planner.MicroUSD(m.Promise.MicroUSDPerHour)
		}
	}
	s, ok := withoutNodes(view)
	if !ok {
		return 0, false
	}
	// A class that is left out makes the plan useless. But nobody else recovers from a panic, and a bug must not end the controller for the sake of a metric.
	_, plan, _, err := solve.Contain(s, nil, search.Plan, func() bool { return false }, nil)
	var one planner.MicroUSD
	for _, l := range plan.Launches {
		one += price(s.Offerings[l.Offering])
	}
	if one == 0 || len(plan.Unplaced) > 0 || err != nil {
		return 0, false
	}
	return float64(nodes) / float64(one), true
}

// withoutNodes returns a snapshot of the pods on Karve's nodes in which there are no nodes, no limits and no refusals. It returns false if the snapshot is not
// valid, or if plans for it minimize the price of work.
func withoutNodes(view *snapshot.View) (planner.Snapshot, bool) {
	var all []string
	for i := range view.Machines {
		all = append(all, view.Machines[i].Claim.Name)
	}
	empty := view.WhatIf(snapshot.WhatIf{Leaving: all, Refilled: true})
	s := empty.Snapshot
	s.Nodes = nil
	s.Pools, s.Offerings, s.Classes = slices.Clone(s.Pools), slices.Clone(s.Offerings), slices.Clone(s.Classes)
	for i := range s.Pools {
		p := &s.Pools[i]
		p.Remaining, p.Limited, p.Closed, p.MinValues = planner.NoLimits, nil, nil, nil
	}
	for i := range s.Offerings {
		s.Offerings[i].Unavailable = nil
	}
	for i := range s.Classes {
		c := &s.Classes[i]
		c.Nodes, c.Preferences, c.Blocked = nil, nil, nil
		c.Pods = slices.DeleteFunc(slices.Clone(c.Pods), func(name string) bool { return empty.Pods[name].Spec.NodeName == "" })
	}
	return s, !empty.PricesWork() && planner.Validate(s) == nil
}
