// Package counterfactual computes what the running pods would cost with Karpenter's packing. It is a model for comparison. No decision depends on it.
package counterfactual

import (
	"slices"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/firstfit"
	"karve.sh/karve/pkg/snapshot"
)

// limits bound the work of the model to about half a second of one core.
var limits = firstfit.Limits{Sorted: firstfit.Steps, RuledPods: 3000}

// Karpenter returns the prices, by NodePool, of the nodes that Karpenter would launch for the pods on Karve's nodes if there were no nodes and all pods
// arrived at once. It models replicas like a NodeOverlay. It ignores limits of NodePools and refusals of the cloud.
//
// It returns false if the model deviates from Karpenter: if it has no place for a pod, breaks a rule, or has too many pods with rules.
func Karpenter(view *snapshot.View) (map[string]planner.MicroUSD, bool) {
	var all []string
	for i := range view.Machines {
		all = append(all, view.Machines[i].Claim.Name)
	}
	empty := view.WhatIf(snapshot.WhatIf{Leaving: all})
	s := empty.Snapshot
	s.Nodes = nil
	s.Pools, s.Offerings, s.Classes = slices.Clone(s.Pools), slices.Clone(s.Offerings), slices.Clone(s.Classes)
	prices := map[string]planner.MicroUSD{}
	for i := range s.Pools {
		p := &s.Pools[i]
		p.Remaining, p.Limited, p.Closed, p.MinValues = unlimited, nil, nil, nil
		prices[p.Name] = 0
	}
	for i := range s.Offerings {
		s.Offerings[i].Unavailable = nil
	}
	for i := range s.Classes {
		c := &s.Classes[i]
		c.Nodes, c.Preferences, c.Blocked = nil, nil, nil
		c.Pods = slices.DeleteFunc(slices.Clone(c.Pods), func(name string) bool { return empty.Pods[name].Spec.NodeName == "" })
	}
	plan, ok := firstfit.Within(s, limits)
	if !ok || len(plan.Unplaced) > 0 || check.Plan(s, plan) != nil {
		return nil, false
	}
	for _, l := range plan.Launches {
		o := s.Offerings[l.Offering]
		prices[s.Pools[o.Pool].Name] += o.Price
	}
	return prices, true
}

var unlimited = planner.Physical{
	MilliCPU: planner.Unlimited, MemoryBytes: planner.Unlimited, GPUs: planner.Unlimited, Replicas: planner.Unlimited, Nodes: planner.Unlimited,
}
