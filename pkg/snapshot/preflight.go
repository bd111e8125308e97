package snapshot

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
)

// Reasons why a node class cannot launch machines of some types or in some zones.
const (
	reasonNoImage  = "NoImage"
	reasonNoSubnet = "NoSubnet"
)

// impossible says why an offering would certainly be refused with the cloud's node class as it is: the class has found no image that is for the
// type, or no subnet in the zone. Karpenter's AWS provider would try such a claim for five minutes and do nothing else meanwhile. It says
// "" where nothing speaks against it, as for node classes that tell neither.
func impossible(ref v1alpha1.NodeClassReference, state NodeClassState, o *Offering) (reason, message string) {
	name := fmt.Sprintf("%s %q", ref.Kind, ref.Name)
	if len(state.Subnets) > 0 && !slices.Contains(slices.Collect(maps.Values(state.Subnets)), o.Zone) {
		return reasonNoSubnet, fmt.Sprintf("%s has no subnet in zone %s: add one to what its spec.subnetSelectorTerms select, or leave the zone out of the NodePool's requirements", name, o.Zone)
	}
	if len(state.Images) > 0 && !slices.ContainsFunc(state.Images, func(i Image) bool { return isFor(i, o) }) {
		return reasonNoImage, fmt.Sprintf("%s has no image for %s (%s, with GPUs): see that its spec.amiSelectorTerms select one, or leave the type out of the NodePool's requirements",
			name, o.Type.Name, cmp.Or(o.Labels[corev1.LabelArchStable], "of unknown architecture"))
	}
	return "", ""
}

// isFor says whether machines of the offering's type are launched with the image, by Karpenter's own algebra (MapToInstanceTypes in the AWS provider's
// pkg/providers/amifamily, v1.14.1).
func isFor(i Image, o *Offering) bool {
	return scheduling.NewLabelRequirements(o.Type.Labels).Compatible(scheduling.NewNodeSelectorRequirements(i.Requirements...)) == nil
}

// unavailable says why an offering is not to be tried at present; nil when it may be.
func (c *Cluster) unavailable(p *Pool, o *Offering) *planner.Refusal {
	if _, message := impossible(p.Class.Spec.NodeClassRef, c.NodeClasses[p.Class.Spec.NodeClassRef], o); message != "" {
		return &planner.Refusal{Reason: planner.ReasonUnavailable, Message: message}
	}
	return c.refused(p, o)
}

// launchProblem is why nothing of the pool could be launched; nil where something can.
func (c *Cluster) launchProblem(p *Pool) *Problem {
	var first *Problem
	for i := range p.Offerings {
		reason, message := impossible(p.Class.Spec.NodeClassRef, c.NodeClasses[p.Class.Spec.NodeClassRef], &p.Offerings[i])
		if reason == "" {
			return nil
		}
		if first == nil {
			first = &Problem{karpv1.ConditionTypeNodeClassReady, reason, message}
		}
	}
	return first
}
