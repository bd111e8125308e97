package snapshot

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/awslabs/operatorpkg/status"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodelabels"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// offer adds the pools and their offerings. It returns the index of each pool's first offering.
func (v *View) offer(c *facts.Cluster) []int {
	first, machines := make([]int, len(v.Pools)), v.machinesByPool()
	v.addStocks(c)
	for i := range v.Pools {
		pool := &v.Pools[i]
		v.Snapshot.Pools = append(v.Snapshot.Pools, planner.Pool{
			Name: pool.NodePool.Name, Remaining: v.remainingOf(pool, machines[pool.NodePool.Name]), Limited: probeRefusal(pool),
			Closed: closedRefusal(pool, machines[pool.NodePool.Name], c.Now, c.ReplicasTimeout),
			Weight: weightOf(pool), MaxPremium: maxPremiumOf(pool),
		})
		first[i] = len(v.Offerings)
		for j := range pool.Offerings {
			o := &pool.Offerings[j]
			v.Offerings = append(v.Offerings, o)
			v.Snapshot.Offerings = append(v.Snapshot.Offerings, planner.Offering{
				Pool: i, InstanceType: o.Type.Name, Zone: o.Zone, CapacityType: o.CapacityType,
				Price: planner.MicroUSD(o.MicroUSDPerHour), ListPrice: planner.MicroUSD(o.ListMicroUSDPerHour), Free: o.Free(), Physical: o.Physical(), Unavailable: unavailableRefusal(c, pool, o),
				GPUs: o.GPUs(), Choice: o.choice(), Draws: v.drawnAt(o.limited),
			})
		}
	}
	return first
}

// weightOf returns the spec.weight of the pool. The default is 0.
func weightOf(pool *Pool) int32 {
	if w := pool.NodePool.Spec.Weight; w != nil {
		return *w
	}
	return 0
}

// maxPremiumOf returns the maxPremiumPercent of the GPUNodeClass, in percent.
func maxPremiumOf(pool *Pool) int64 {
	if pool.Class == nil {
		return 0
	}
	return max(0, pool.Class.Spec.Launch.MaxPremium())
}

// minValues returns how many values each NodeClaim of the pool must allow, by key. If a key has several requirements, the largest number applies, as in Karpenter.
func (v *View) minValues(pool *Pool) []planner.MinValues {
	least := map[string]int{}
	for _, req := range pool.NodePool.Spec.Template.Spec.Requirements {
		if req.MinValues != nil {
			key := nodelabels.Current(req.Key)
			least[key] = max(least[key], *req.MinValues)
		}
	}
	var all []planner.MinValues
	for _, key := range slices.Sorted(maps.Keys(least)) {
		values := make([]string, len(v.Offerings))
		for i, o := range v.Offerings {
			values[i] = o.Labels[key]
		}
		all = append(all, planner.MinValues{Key: key, Min: least[key], Values: values})
	}
	return all
}

// machinesByPool returns the machines of each pool, without canaries.
func (v *View) machinesByPool() map[string][]*records.Machine {
	all := map[string][]*records.Machine{}
	for i := range v.Machines {
		name := v.Machines[i].Pool()
		all[name] = append(all[name], &v.Machines[i])
	}
	return all
}

// remainingOf returns what the pool's limits leave beside its machines and canaries.
func (v *View) remainingOf(pool *Pool, machines []*records.Machine) planner.Physical {
	for i := range v.canaries {
		if v.canaries[i].Pool() == pool.NodePool.Name {
			machines = append(slices.Clip(machines), &v.canaries[i])
		}
	}
	return pool.remaining(records.HardwareOf(slices.Values(machines)))
}

// closedRefusal returns why a pool with the machines launches nothing now, or nil if it may launch.
func closedRefusal(pool *Pool, machines []*records.Machine, now time.Time, timeout time.Duration) *planner.Refusal {
	np := pool.NodePool
	if !np.DeletionTimestamp.IsZero() {
		return &planner.Refusal{Reason: planner.ReasonPoolClosed, Message: fmt.Sprintf("NodePool %s is being deleted", np.Name)}
	}
	if len(pool.Problems) > 0 {
		p := pool.Problems[0]
		return &planner.Refusal{Reason: planner.ReasonPoolClosed, Message: fmt.Sprintf("NodePool %s is not ready (%s): %s", np.Name, p.Reason, p.Message)}
	}
	healthy := facts.Condition(np.Status.Conditions, v1alpha1.ConditionReplicasHealthy)
	if healthy.IsFalse() {
		return &planner.Refusal{Reason: planner.ReasonPoolClosed, Message: fmt.Sprintf("NodePool %s launches nothing at present: %s", np.Name, healthy.Message)}
	}
	for _, m := range machines {
		if m.Deleting() {
			continue
		}
		// A broken machine closes the pool immediately, even before the condition shows it. A machine that the condition has already counted does not keep
		// the pool closed.
		if m.Fresh(transitionTime(healthy), now, timeout) || pool.Probing() && !m.Started() && !m.Broken(now, timeout) {
			return &planner.Refusal{Reason: planner.ReasonPoolClosed, Message: fmt.Sprintf(
				"NodePool %s launches nothing more until it is seen whether %s starts and exposes its replicas", np.Name, m.Claim.Name)}
		}
	}
	return nil
}

// transitionTime returns the transition time of a condition, or the zero time if there is no condition.
func transitionTime(c *status.Condition) time.Time {
	if c == nil {
		return time.Time{}
	}
	return c.LastTransitionTime.Time
}
