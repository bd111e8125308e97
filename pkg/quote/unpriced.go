package quote

import (
	"slices"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Unpriced returns the pools that allow spot machines if the catalog has no spot offerings. Their plans cost more than they could.
func Unpriced(c *facts.Cluster) []string {
	if slices.ContainsFunc(c.InstanceTypes(), func(t catalog.InstanceType) bool {
		return slices.ContainsFunc(t.Offerings, func(o catalog.Offering) bool { return o.CapacityType == karpv1.CapacityTypeSpot })
	}) {
		return nil
	}
	var pools []string
	for i := range c.NodePools {
		np := &c.NodePools[i]
		requirements := scheduling.NewNodeSelectorRequirementsWithMinValues(np.Spec.Template.Spec.Requirements...)
		// A pool without a requirement for the capacity type gets only on-demand machines.
		if facts.IsOurs(np) && requirements.Has(karpv1.CapacityTypeLabelKey) && requirements.Get(karpv1.CapacityTypeLabelKey).Has(karpv1.CapacityTypeSpot) {
			pools = append(pools, np.Name)
		}
	}
	return pools
}
