package explain

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// A change helps if a plan with it has a place for the pod. The reason of the plan determines which changes are tried.

// helpIn returns a change that helps a pod into a pool. why is the reason why the pool launches nothing for it. helpIn returns nil if it finds none.
func (x *Explainer) helpIn(pod *corev1.Pod, now *attempt, class, pool int, why planner.Reason) *Help {
	switch why {
	case planner.ReasonLimitReached:
		return x.first(pod, x.raisedLimits(pod, now, class, pool))
	case planner.ReasonUnavailable:
		return x.first(pod, x.retries(now, class, pool))
	case planner.ReasonNoPool, planner.ReasonRequestsAboveOne:
		return x.first(pod, admitPod(pod, &now.view, pool))
	case planner.ReasonTooLarge:
		return x.first(pod, askForLess(pod, now, class, pool))
	case planner.ReasonRule:
		return x.first(pod, relaxRules(pod))
	case planner.ReasonPoolClosed:
		return x.first(pod, []Help{helpOf(Change{Action: Reopen, NodePool: now.view.Pools[pool].NodePool.Name})})
	case planner.ReasonUnsupported, planner.ReasonLeftToKarpenter, planner.ReasonVolumes, planner.ReasonNextRound, planner.ReasonSetAside, planner.ReasonLabels, planner.ReasonTaints, planner.ReasonPriority, planner.ReasonGroup: // They do not depend on the pool.
	}
	return nil
}

// helpAnywhere returns a change that helps a pod for which no pool may launch anything. It returns nil if it finds none.
func (x *Explainer) helpAnywhere(pod *corev1.Pod, why planner.Refusal) *Help {
	view := x.view()
	var tries []Help
	switch why.Reason {
	case planner.ReasonLeftToKarpenter:
		for i := range view.Pools {
			name := view.Pools[i].NodePool.Name
			if view.Admits(&view.Pools[i], pod) == nil {
				tries = append(tries, helpOf(Change{Action: SetNodeSelector, Key: karpv1.NodePoolLabelKey, Value: name}))
			}
		}
	case planner.ReasonRequestsAboveOne:
		tries = []Help{helpOf(oneReplica(pod))}
	case planner.ReasonTooLarge:
		now := x.planned()
		for i := range view.Pools {
			tries = append(tries, askForLess(pod, &now, classOf(&now.view.Snapshot, facts.PodName(pod)), i)...)
		}
	case planner.ReasonRule:
		tries = relaxRules(pod)
	case planner.ReasonUnsupported:
		if _, stated := pod.Annotations[v1alpha1.GPUMemoryAnnotation]; stated && facts.GPURequestOf(pod).MemoryBytes == 0 {
			tries = append(tries, helpOf(Change{Action: RemoveAnnotation, Key: v1alpha1.GPUMemoryAnnotation}))
		}
	case planner.ReasonVolumes, planner.ReasonNextRound, planner.ReasonSetAside, planner.ReasonLabels, planner.ReasonTaints, planner.ReasonPriority, planner.ReasonGroup: // No change of the pod or a pool helps.
	case planner.ReasonNoPool, planner.ReasonLimitReached, planner.ReasonUnavailable, planner.ReasonPoolClosed: // They depend on the pool.
	}
	return x.first(pod, tries)
}

// first returns the first of the changes that helps, with its price, or nil if none does.
func (x *Explainer) first(pod *corev1.Pod, tries []Help) *Help {
	for _, h := range tries {
		after := x.suppose(pod, &h)
		name := facts.PodName(pod)
		launch := after.launch(name)
		if launch == nil && after.node(name) < 0 {
			continue
		}
		if launch != nil {
			before := x.planned()
			h.Price = min(after.view.Snapshot.Offerings[launch.Offering].Price, max(0, after.plan.Price-before.plan.Price))
		}
		return &h
	}
	return nil
}

// raisedLimits returns the limits of a pool, raised by the machine of the pod, and by those of all pods that wait for the pool.
func (x *Explainer) raisedLimits(pod *corev1.Pod, now *attempt, class, pool int) []Help {
	if now.view.Snapshot.Pools[pool].Limited != nil {
		return nil // The limits of the NodePool are not the obstacle.
	}
	unlimited := func(s *planner.Snapshot) {
		for _, l := range now.view.Pools[pool].Limits() {
			*l.Of(&s.Pools[pool].Remaining) = planner.Unlimited
		}
	}
	var tries []Help
	view := onlyIn(now, class, pool, facts.PodName(pod))
	unlimited(&view.Snapshot)
	if alone := plan(view); len(alone.plan.Launches) == 1 {
		tries = append(tries, raiseLimits(now, pool, append(slices.Clone(now.plan.Launches), alone.plan.Launches...))...)
	}
	view = now.view
	view.Snapshot.Pools = slices.Clone(view.Snapshot.Pools)
	unlimited(&view.Snapshot)
	return append(tries, raiseLimits(now, pool, plan(view).plan.Launches)...)
}

// raiseLimits returns the change of a pool's limits that allows the launches, or none if the limits allow them.
func raiseLimits(now *attempt, pool int, launches []planner.Launch) []Help {
	p := &now.view.Pools[pool]
	var used planner.Physical
	for _, launch := range launches {
		if o := &now.view.Snapshot.Offerings[launch.Offering]; o.Pool == pool {
			for _, l := range p.Limits() {
				*l.Of(&used) += *l.Of(&o.Physical)
			}
		}
	}
	more := now.view.Snapshot.Pools[pool].Remaining
	var changes []Change
	for _, l := range p.Limits() {
		left := l.Of(&more)
		missing := *l.Of(&used) - *left
		if *left == planner.Unlimited || missing <= 0 {
			continue
		}
		changes = append(changes, Change{
			Action: SetLimit, NodePool: p.NodePool.Name, Key: string(l.Name), Value: amount.Text(amount.Sum(l.Quantity(missing), p.NodePool.Spec.Limits[l.Name])),
		})
	}
	if len(changes) == 0 {
		return nil
	}
	return []Help{helpOf(changes...)}
}

// maxRetries limits the number of retry times that are tried.
const maxRetries = 4

// retries returns when offerings of a pool that admit the pod are tried again, the earliest first.
func (x *Explainer) retries(now *attempt, class, pool int) []Help {
	s := &now.view.Snapshot
	times := map[time.Time]*v1alpha1.RefusedOffering{}
	for _, i := range s.Classes[class].Offerings {
		if o := &s.Offerings[i]; o.Pool == pool && o.Unavailable != nil {
			if r := snapshot.RefusalOf(x.cluster, &now.view.Pools[pool], now.view.Offerings[i]); r != nil {
				times[r.NotBefore.UTC()] = r
			}
		}
	}
	var tries []Help
	for _, t := range slices.SortedFunc(maps.Keys(times), time.Time.Compare) {
		if len(tries) == maxRetries {
			break
		}
		r := times[t]
		tries = append(tries, Help{Change: fmt.Sprintf("retry %s (%s ×%d)", t.Format("15:04:05Z"), r.Reason, r.Failures), At: timeOrNil(t)})
	}
	return tries
}

// refusedAfter returns the refusals that remain at the time of a retry.
func (x *Explainer) refusedAfter(h *Help) map[string][]v1alpha1.RefusedOffering {
	left := map[string][]v1alpha1.RefusedOffering{}
	for class, all := range x.cluster.Refused {
		left[class] = slices.DeleteFunc(slices.Clone(all), func(r v1alpha1.RefusedOffering) bool { return !r.NotBefore.After(*h.At) })
	}
	return left
}

// maxChanges is the largest number of changes of a pod that are proposed together.
const maxChanges = 6

// admitPod returns the change of a pod that makes a pool admit it, or none if there is no such change.
func admitPod(pod *corev1.Pod, view *snapshot.View, pool int) []Help {
	p, changes := pod.DeepCopy(), []Change(nil)
	target := &view.Pools[pool]
	if target.Class == nil || len(target.Offerings) == 0 {
		return nil
	}
	add := func(c Change) {
		c.ApplyTo(p)
		changes = append(changes, c)
	}
	for range maxChanges {
		err := view.Admits(target, p)
		if err == nil {
			break
		}
		change, ok := adapt(target, err)
		if !ok {
			return nil
		}
		add(change)
	}
	if target.Class.Spec.Sharing.MemorySlots().IsZero() && target.RefusesReplicas(facts.GPURequestOf(p)) {
		add(oneReplica(p))
	}
	if len(changes) == 0 || view.Admits(target, p) != nil {
		return nil
	}
	return []Help{helpOf(changes...)}
}

// adapt returns the change to a pod after which a pool does not refuse it for the first cause of an error. It returns false if there is none.
func adapt(pool *snapshot.Pool, err error) (Change, bool) {
	if other, ok := errors.AsType[snapshot.OtherResourceError](err); ok {
		return Change{Action: RenameRequest, Key: string(other.Offers[0]), Value: string(other.Wants)}, true
	}
	var refused *snapshot.NotAdmittedError
	if !errors.As(err, &refused) {
		return Change{}, false
	}
	for _, cause := range refused.Causes {
		var taint records.UntoleratedTaintError
		var label records.OtherLabelError
		switch {
		case errors.As(cause, &taint):
			return Change{Action: Tolerate, Key: taint.Taint.Key, Value: string(taint.Taint.Effect)}, true
		case errors.As(cause, &label):
			if has := labelOf(pool, label.Key); has != "" {
				return Change{Action: SetNodeSelector, Key: label.Key, Value: has}, true
			}
			return Change{Action: RemoveNodeSelector, Key: label.Key}, true
		case errors.Is(cause, records.ErrNodeAffinity):
			return Change{Action: RemoveNodeAffinity}, true
		}
	}
	return Change{}, false
}

// labelOf returns the value that a label has on the cheapest offering of a pool, or "" if no offering has it.
func labelOf(pool *snapshot.Pool, key string) string {
	best := ""
	var price int64
	for i := range pool.Offerings {
		if o := &pool.Offerings[i]; o.Labels[key] != "" && (best == "" || o.MicroUSDPerHour < price) {
			best, price = o.Labels[key], o.MicroUSDPerHour
		}
	}
	return best
}

func oneReplica(pod *corev1.Pod) Change {
	return Change{Action: SetRequest, Key: string(facts.GPURequestOf(pod).Resource), Value: "1"}
}

// maxSizes is the largest number of machine sizes that are tried for a pod that is too large.
const maxSizes = 4

// size is a change that makes a pod fit on an offering.
type size struct {
	changes []Change
	// kept is how much of the lowered requests is left, in permille, summed over them.
	kept  int64
	price planner.MicroUSD
}

// askForLess returns the requests of a pod with one container, lowered to the capacity of offerings of a pool. Those for which the fewest requests change
// come first, then those that keep most of them, and then the cheapest.
func askForLess(pod *corev1.Pod, now *attempt, class, pool int) []Help {
	if class < 0 || len(pod.Spec.Containers) != 1 || len(pod.Spec.InitContainers) > 0 {
		return nil
	}
	s := &now.view.Snapshot
	c := &s.Classes[class]
	var sizes []size
	for _, i := range c.Offerings {
		if o := &s.Offerings[i]; o.Pool == pool {
			if changes, kept := loweredRequests(pod, c, o); len(changes) > 0 {
				sizes = append(sizes, size{changes, kept, o.Price})
			}
		}
	}
	slices.SortStableFunc(sizes, func(a, b size) int {
		return cmp.Or(cmp.Compare(len(a.changes), len(b.changes)), cmp.Compare(b.kept, a.kept), cmp.Compare(a.price, b.price))
	})
	sizes = slices.CompactFunc(sizes, func(a, b size) bool { return slices.Equal(a.changes, b.changes) })
	var tries []Help
	for _, z := range sizes[:min(len(sizes), maxSizes)] {
		tries = append(tries, helpOf(z.changes...))
	}
	return tries
}

// loweredRequests returns the changes that make a pod fit on an offering, and how much of the lowered requests they keep, in permille.
func loweredRequests(pod *corev1.Pod, c *planner.Class, o *planner.Offering) (changes []Change, kept int64) {
	lower := func(action Action, name, value string, asked, left int64) {
		changes = append(changes, Change{Action: action, Key: name, Value: value})
		kept += amount.Times(max(left, 0), 1000) / asked
	}
	if asked, free := c.Requests.MilliCPU, o.Free.MilliCPU; asked > free {
		lower(SetRequest, string(corev1.ResourceCPU), amount.Text(*resource.NewMilliQuantity(free, resource.DecimalSI)), asked, free)
	}
	if asked, free := c.Requests.MemoryBytes, o.Free.MemoryBytes; asked > free {
		lower(SetRequest, string(corev1.ResourceMemory), mebibytes(free), asked, free)
	}
	if asked, free := c.Requests.EphemeralBytes, o.Free.EphemeralBytes; asked > free {
		lower(SetRequest, string(corev1.ResourceEphemeralStorage), mebibytes(free), asked, free)
	}
	replicas, memory := o.Free.Replicas, int64(0)
	for _, g := range o.GPUs {
		if memory = max(memory, g.MemoryBytes); c.GPUMemoryBytes > 0 { // All replicas of the pod are on one GPU.
			replicas = min(o.Free.Replicas, g.Replicas)
		}
	}
	if asked := c.Requests.Replicas; asked > replicas {
		lower(SetRequest, string(facts.GPURequestOf(pod).Resource), strconv.FormatInt(replicas, 10), asked, replicas)
	}
	if asked := c.GPUMemoryBytes; asked > memory && memory > 0 {
		lower(SetAnnotation, v1alpha1.GPUMemoryAnnotation, strconv.FormatInt(memory>>20, 10)+"Mi", asked, memory)
	}
	return changes, kept
}

func mebibytes(bytes int64) string {
	return amount.Text(resource.MustParse(strconv.FormatInt(bytes>>20, 10) + "Mi"))
}

// relaxRules returns the pod without one of its rules about other pods.
func relaxRules(pod *corev1.Pod) []Help {
	var tries []Help
	for i, c := range pod.Spec.TopologySpreadConstraints {
		if c.WhenUnsatisfiable == corev1.DoNotSchedule {
			tries = append(tries, helpOf(Change{Action: RelaxSpread, Key: c.TopologyKey, Index: i}))
		}
	}
	remove := func(action Action, terms []corev1.PodAffinityTerm) {
		for i, term := range terms {
			tries = append(tries, helpOf(Change{Action: action, Key: term.TopologyKey, Index: i}))
		}
	}
	if a := pod.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		remove(RemovePodAntiAffinity, a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	}
	if a := pod.Spec.Affinity; a != nil && a.PodAffinity != nil {
		remove(RemovePodAffinity, a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	}
	return tries
}
