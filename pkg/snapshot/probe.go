package snapshot

import (
	"fmt"
	"slices"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Probing reports whether the pool may launch one machine, to test whether its machines report their replicas again.
func (p *Pool) Probing() bool {
	healthy := facts.Condition(p.NodePool.Status.Conditions, v1alpha1.ConditionReplicasHealthy)
	return healthy != nil && healthy.IsUnknown()
}

// probeRefusal returns the refusal for pods that do not fit on the one machine of a pool that is being tested. It returns nil for other pools.
func probeRefusal(pool *Pool) *planner.Refusal {
	if !pool.Probing() {
		return nil
	}
	return &planner.Refusal{Reason: planner.ReasonPoolClosed, Message: fmt.Sprintf(
		"NodePool %s launches one machine to see whether it exposes its replicas, and more once it does", pool.NodePool.Name)}
}

// limitProbes limits each pool that is being tested to one machine, or to one for each pod of the group that needs the most, because nothing less would be
// launched for a group. It makes all but one of its offerings unavailable. The remaining one is the cheapest offering that can hold a pod of
// the view's classes. If there is none, it is the cheapest one that can hold headroom. Otherwise the planner would put as many pods as possible on the one
// machine that the pool may launch, and choose the largest one for a pool that is probably broken.
func (v *View) limitProbes() {
	for i := range v.Pools {
		if !v.Pools[i].Probing() {
			continue
		}
		probe := v.cheapestUseful(i, v.Classes)
		if probe < 0 {
			probe = v.cheapestUseful(i, v.HeadroomClasses())
		}
		nodes := &v.Snapshot.Pools[i].Remaining.Nodes
		*nodes = min(*nodes, v.maxPlacesNeeded(probe))
		for j := range v.Snapshot.Offerings {
			o := &v.Snapshot.Offerings[j]
			if o.Pool != i || j == probe || o.Unavailable != nil {
				continue
			}
			o.Unavailable = probeRefusal(&v.Pools[i])
		}
	}
}

// maxPlacesNeeded returns the largest number of pods that a group needs at once and an offering admits, and 1 if there is no such group.
func (v *View) maxPlacesNeeded(offering int) int64 {
	need := int64(1)
	for i := range v.Groups {
		if slices.ContainsFunc(v.Groups[i].Classes, func(c int) bool {
			return v.Classes[c].Blocked == nil && slices.Contains(v.Classes[c].Offerings, offering)
		}) {
			need = max(need, v.Groups[i].Min)
		}
	}
	return need
}

// cheapestUseful returns the index of the pool's cheapest offering that can hold a pod of the classes, or -1 if there is none. With equal prices the
// first one wins.
func (v *View) cheapestUseful(pool int, classes []planner.Class) int {
	best := -1
	for j := range v.Snapshot.Offerings {
		o := &v.Snapshot.Offerings[j]
		if o.Pool != pool || o.Unavailable != nil || best >= 0 && o.Price >= v.Snapshot.Offerings[best].Price {
			continue
		}
		if slices.ContainsFunc(classes, func(c planner.Class) bool {
			return c.Blocked == nil && slices.Contains(c.Offerings, j) && v.holdsPodOf(o, &c)
		}) {
			best = j
		}
	}
	return best
}

// holdsPodOf reports whether an empty machine of the offering has what one pod of the class requests.
func (v *View) holdsPodOf(o *planner.Offering, c *planner.Class) bool {
	if !o.Free.Covers(c.Requests) {
		return false
	}
	if c.GPUMemoryBytes > 0 && !slices.ContainsFunc(o.GPUs, func(g planner.GPU) bool {
		return g.Replicas >= c.Requests.Replicas && g.MemoryBytes >= c.GPUMemoryBytes
	}) {
		return false
	}
	return !slices.ContainsFunc(c.Quotas, func(q planner.Amount) bool { return v.QuotaOf(o.Quotas, q.Quota) < q.Count })
}
