// Package booking decides about ProvisioningRequests: whether a request has failed, has room, keeps it, or has lost it. [Observe] reads what a plan has for the
// pods that stand for a request, and [Next] is a function of that. The package has no clock and no client.
package booking

import (
	"maps"
	"slices"
	"time"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planning/checked"
	"karve.sh/karve/pkg/provreq"
	"karve.sh/karve/pkg/snapshot"
)

// Facts are what is known of a request.
type Facts struct {
	Request *provreq.Request
	Now     time.Time
	// Missing is the name of a PodTemplate that does not exist, and NoGPU that of one that requests no shared GPU. They are "" if there is none.
	Missing, NoGPU string
	// Later reports that the requests before it use up what one plan may have.
	Later bool
	// Wants is the number of pods that it asks for, and Taken how many of them exist.
	Wants, Taken int64
	// Ready is how many of the others have room on nodes that have started, and Coming how many on nodes that start or are to be launched.
	Ready, Coming int64
	// Nodes are the names of the nodes with that room, sorted. Launches is how many nodes are still to be launched.
	Nodes    []string
	Launches int
	// Price is what all these nodes cost per hour.
	Price planner.MicroUSD
	// Refused is why pods have no room. It is nil if all have.
	Refused *planner.Refusal
	// Never is why it will have no room on any machine that may be launched. It is nil if it may have. If the reason is a limit, Within is how many of its
	// pods the limits of the NodePools in Limited allow.
	Never   *planner.Refusal
	Within  int64
	Limited []string
	// Alone is what its nodes would cost per hour without limits if there were no others, and AloneNodes how many there would be. They are 0 if that is not
	// known, or if no machine fits.
	Alone      planner.MicroUSD
	AloneNodes int
}

// Observe returns what a plan has for each request, in the order of the requests. search plans for a request alone.
func Observe(plan *checked.Plan, search checked.Search) []Facts {
	all := make([]Facts, len(plan.View.Requested))
	for i, r := range plan.View.Requested {
		f := Facts{Request: r.Request, Now: plan.View.Now(), NoGPU: r.NoGPU, Later: r.Later, Wants: r.Wants, Taken: r.Taken}
		for _, set := range r.Sets {
			if set.Missing && f.Missing == "" {
				f.Missing = set.TemplateName
			}
		}
		f.place(plan, r)
		if f.Refused != nil && !r.Is(provreq.Provisioned) {
			f.alone(&plan.View, r, search)
		}
		all[i] = f
	}
	return all
}

// place sets where the plan has room for the pods.
func (f *Facts) place(plan *checked.Plan, r *snapshot.Requested) {
	its := map[string]bool{}
	for _, pod := range r.Pods {
		its[pod] = true
	}
	count := func(pods []string) (n int64) {
		for _, pod := range pods {
			if its[pod] {
				n++
			}
		}
		return n
	}
	v, nodes := &plan.View, map[string]bool{}
	for _, p := range plan.Placements {
		n := count(p.Pods)
		if n == 0 {
			continue
		}
		if v.Starting(p.Node) {
			f.Coming += n
		} else {
			f.Ready += n
		}
		if name := v.Nodes[p.Node].Name; !nodes[name] {
			nodes[name] = true
			if m := v.MachineOn(p.Node); m != nil {
				f.Price += planner.MicroUSD(m.MicroUSDPerHour())
			}
		}
	}
	f.Nodes = slices.Sorted(maps.Keys(nodes))
	for _, l := range plan.Launches {
		if n := count(l.Pods); n > 0 {
			f.Coming, f.Launches, f.Price = f.Coming+n, f.Launches+1, f.Price+v.Snapshot.Offerings[l.Offering].Paid()
		}
	}
	for _, u := range plan.Unplaced {
		if its[u.Pod] && f.Refused == nil {
			f.Refused = &u.Refusal
		}
	}
}

// alone sets whether the request can have room at all, and at what price.
func (f *Facts) alone(v *snapshot.View, r *snapshot.Requested, search checked.Search) {
	s, plan, _ := search.Plan(v.Alone(r, false), nil)
	if plan := planner.Paid(s, plan); len(plan.Unplaced) == 0 {
		f.Alone, f.AloneNodes = plan.Price, len(plan.Launches)
	} else if stays(plan.Unplaced[0].Reason) && !v.MayChange(r) {
		f.Never = &plan.Unplaced[0].Refusal
		return
	}
	if _, plan, _ := search.Plan(v.Alone(r, true), nil); len(plan.Unplaced) > 0 && stays(plan.Unplaced[0].Reason) && !v.MayChange(r) {
		f.Never, f.Within, f.Limited = &plan.Unplaced[0].Refusal, int64(len(r.Pods)-len(plan.Unplaced)), v.LimitedPools(r)
	}
}

// stays reports whether a refusal without nodes and refusals of the cloud stays until somebody changes a NodePool or the request.
func stays(reason planner.Reason) bool {
	switch reason {
	case planner.ReasonNoPool, planner.ReasonTooLarge, planner.ReasonLimitReached, planner.ReasonUnsupported, planner.ReasonLeftToKarpenter, planner.ReasonRequestsAboveOne:
		return true
	case planner.ReasonUnavailable, planner.ReasonPoolClosed, planner.ReasonRule, planner.ReasonVolumes, planner.ReasonNextRound, planner.ReasonSetAside, planner.ReasonPriority,
		planner.ReasonGroup, planner.ReasonLabels, planner.ReasonTaints:
	}
	return false
}
