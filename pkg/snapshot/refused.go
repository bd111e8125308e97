package snapshot

import (
	"fmt"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud/clouds"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/words"
)

// RefusalOf returns the current refusal of an offering of the pool, or nil if there is none. If there are several, it is the one that ends last.
func RefusalOf(c *facts.Cluster, p *Pool, o *Offering) *v1alpha1.RefusedOffering {
	if p.Class == nil {
		return nil
	}
	var last *v1alpha1.RefusedOffering
	refused := c.Refused[p.Class.Name]
	for i := range refused {
		r := &refused[i]
		if c.Now.Before(r.NotBefore.Time) && (last == nil || last.NotBefore.Before(&r.NotBefore)) && refusalsAbout(c, r, p, o) {
			last = r
		}
	}
	return last
}

// refusedAs returns why the offering must not be launched now because of an earlier refusal, or nil if it may be.
func refusedAs(c *facts.Cluster, p *Pool, o *Offering) *planner.Refusal {
	switch r := RefusalOf(c, p, o); {
	case r == nil:
		return nil
	case r.PausesLaunches():
		return &planner.Refusal{
			Reason: planner.ReasonUnavailable,
			Message: fmt.Sprintf("launches of NodePool %s are paused until %s after %d failed in a row (%s): %s", p.NodePool.Name,
				r.NotBefore.UTC().Format("15:04:05Z"), r.Failures, r.Reason, r.Message),
		}
	default:
		return &planner.Refusal{
			Reason: planner.ReasonUnavailable,
			Message: fmt.Sprintf("%s in %s (%s) was refused %s, next try after %s: %s", o.Type.Name, o.Zone, o.Capacity(),
				words.Count(r.Failures, "time"), r.NotBefore.UTC().Format("15:04:05Z"), r.Message),
		}
	}
}

func refusalsAbout(c *facts.Cluster, r *v1alpha1.RefusedOffering, p *Pool, o *Offering) bool {
	state := c.NodeClasses[p.Class.Spec.NodeClassRef]
	if r.NodeClassGeneration != 0 && r.NodeClassGeneration != state.Generation {
		return false // The node class has changed since then.
	}
	if r.Reservation != "" && r.Reservation != o.Reservation {
		return false
	}
	if !covers(r.Zone, o.Zone) || !covers(r.CapacityType, o.CapacityType) {
		return false
	}
	if r.Reason != v1alpha1.RefusalVCPULimit && r.Reason != v1alpha1.RefusalSpotQuota {
		return covers(r.InstanceType, o.Type.Name)
	}
	named := catalog.Named(state.InstanceTypes, r.InstanceType)
	ref := p.Class.Spec.NodeClassRef
	cloud := clouds.OfRef(ref)
	return cloud.Group(r.InstanceType) == cloud.Group(o.Type.Name) && (named == nil || o.Type.Capacity.MilliCPU >= named.Capacity.MilliCPU)
}

// covers reports whether an instance type, zone or capacity type of a refusal includes that of the offering.
func covers(refused, offered string) bool { return refused == v1alpha1.Any || refused == offered }
