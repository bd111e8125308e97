package snapshot

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud/clouds"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Reasons why a node class cannot launch machines of some types or in some zones.
const (
	reasonNoImage  = "NoImage"
	reasonNoSubnet = "NoSubnet"
)

// whyUnlaunchable returns why the cloud would certainly refuse an offering with the current node class: it has no image for the instance type, or no subnet
// in the zone. Karpenter's AWS provider would retry such a NodeClaim for five minutes and do nothing else meanwhile. It returns "" if no problem is
// known, which includes node classes without images and subnets in their status.
func whyUnlaunchable(ref v1alpha1.NodeClassReference, state facts.NodeClassState, o *Offering) (reason, message string) {
	name := fmt.Sprintf("%s %q", ref.Kind, ref.Name)
	if len(state.Subnets) > 0 && !slices.Contains(slices.Collect(maps.Values(state.Subnets)), o.Zone) {
		return reasonNoSubnet, fmt.Sprintf("%s has no subnet in zone %s: add one to what its %s select, or leave the zone out of the NodePool's requirements", name, o.Zone, clouds.OfRef(ref).SubnetField)
	}
	if len(state.Images) > 0 && !slices.ContainsFunc(state.Images, func(i facts.Image) bool { return imageFits(i, o) }) {
		return reasonNoImage, fmt.Sprintf("%s has no image for %s (%s, with GPUs): see that its %s select one, or leave the type out of the NodePool's requirements",
			name, o.Type.Name, cmp.Or(o.Labels[corev1.LabelArchStable], "of unknown architecture"), clouds.OfRef(ref).ImageField)
	}
	return "", ""
}

// imageFits reports whether the image is used for machines of the offering's type. It matches as Karpenter does (MapToInstanceTypes in the AWS provider's
// pkg/providers/amifamily, v1.15.0).
func imageFits(i facts.Image, o *Offering) bool {
	return scheduling.NewLabelRequirements(o.Type.Labels).Compatible(scheduling.NewNodeSelectorRequirements(i.Requirements...)) == nil
}

// unavailableRefusal returns why an offering must not be launched now, or nil if it may be.
func unavailableRefusal(c *facts.Cluster, p *Pool, o *Offering) *planner.Refusal {
	if _, message := whyUnlaunchable(p.Class.Spec.NodeClassRef, c.NodeClasses[p.Class.Spec.NodeClassRef], o); message != "" {
		return &planner.Refusal{Reason: planner.ReasonUnavailable, Message: message}
	}
	if message := o.whyEnding(c.Now); message != "" {
		return &planner.Refusal{Reason: planner.ReasonUnavailable, Message: message}
	}
	return earlierRefusal(c, p, o)
}

// LastLaunch is how long before its machines leave, or cost more, nothing is launched into a reservation. It is time to start a machine, and to work a little before the
// replacement of the machine is prepared.
const LastLaunch = 30 * time.Minute

// whyEnding returns why nothing is launched into the reservation of an offering any more because it ends. It returns "" if it does not end soon.
func (o *Offering) whyEnding(now time.Time) string {
	if o.reservation == nil || o.reservation.Until().IsZero() || now.Before(o.reservation.Until().Add(-LastLaunch)) {
		return ""
	}
	if !o.reservation.Leaves.IsZero() {
		return fmt.Sprintf("capacity block %s ends at %s, and Karpenter deletes its machines at %s: reserve another block, or allow other capacity",
			o.Reservation, o.reservation.End.UTC().Format(time.RFC3339), o.reservation.Leaves.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("capacity reservation %s ends at %s, and its machines cost the price on demand after that: extend it, or allow on-demand", o.Reservation, o.reservation.End.UTC().Format(time.RFC3339))
}

// launchProblem returns why no offering of the pool can be launched. It returns nil if one can, or if the pool has no offerings.
func launchProblem(c *facts.Cluster, p *Pool) *Problem {
	var first *Problem
	for i := range p.Offerings {
		reason, message := whyUnlaunchable(p.Class.Spec.NodeClassRef, c.NodeClasses[p.Class.Spec.NodeClassRef], &p.Offerings[i])
		if reason == "" {
			return nil
		}
		if first == nil {
			first = &Problem{karpv1.ConditionTypeNodeClassReady, reason, message}
		}
	}
	return first
}
