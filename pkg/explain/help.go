package explain

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
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
		return x.first(pod, admitted(pod, &now.view, pool))
	case planner.ReasonTooLarge:
		return x.first(pod, smaller(pod, now, class, pool))
	case planner.ReasonRule:
		return x.first(pod, relaxed(pod))
	case planner.ReasonPoolClosed:
		return x.first(pod, []Help{{Change: "once the NodePool launches again", edit: edit{snapshot: func(s *planner.Snapshot) { s.Pools[pool].Closed = nil }}}})
	case planner.ReasonUnsupported, planner.ReasonLeftToKarpenter, planner.ReasonVolumes, planner.ReasonNextRound, planner.ReasonSetAside, planner.ReasonLabels, planner.ReasonTaints: // They do not depend on the pool.
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
				tries = append(tries, changed(pod, fmt.Sprintf("nodeSelector %s: %s", karpv1.NodePoolLabelKey, name), func(p *corev1.Pod) { selectLabel(p, karpv1.NodePoolLabelKey, name) }))
			}
		}
	case planner.ReasonRequestsAboveOne:
		tries = []Help{oneReplica(pod)}
	case planner.ReasonTooLarge:
		now := x.planned()
		for i := range view.Pools {
			tries = append(tries, smaller(pod, &now, classOf(&now.view.Snapshot, snapshot.PodName(pod)), i)...)
		}
	case planner.ReasonRule:
		tries = relaxed(pod)
	case planner.ReasonUnsupported:
		if _, stated := pod.Annotations[v1alpha1.GPUMemoryAnnotation]; stated && snapshot.GPURequestOf(pod).MemoryBytes == 0 {
			tries = append(tries, changed(pod, "remove the annotation "+v1alpha1.GPUMemoryAnnotation, func(p *corev1.Pod) { delete(p.Annotations, v1alpha1.GPUMemoryAnnotation) }))
		}
	case planner.ReasonVolumes, planner.ReasonNextRound, planner.ReasonSetAside, planner.ReasonLabels, planner.ReasonTaints: // No change of the pod or a pool helps.
	case planner.ReasonNoPool, planner.ReasonLimitReached, planner.ReasonUnavailable, planner.ReasonPoolClosed: // They depend on the pool.
	}
	return x.first(pod, tries)
}

// first returns the first of the changes that helps, with its price, or nil if none does.
func (x *Explainer) first(pod *corev1.Pod, tries []Help) *Help {
	for _, h := range tries {
		after := x.suppose(h.edit)
		name := snapshot.PodName(pod)
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

// changed returns a change of a copy of the pod.
func changed(pod *corev1.Pod, change string, edits ...func(*corev1.Pod)) Help {
	p := pod.DeepCopy()
	for _, e := range edits {
		e(p)
	}
	return Help{Change: change, On: "pod", edit: edit{pod: p}}
}

func selectLabel(p *corev1.Pod, key, value string) {
	if p.Spec.NodeSelector == nil {
		p.Spec.NodeSelector = map[string]string{}
	}
	p.Spec.NodeSelector[key] = value
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
	view := onlyIn(now, class, pool, snapshot.PodName(pod))
	unlimited(&view.Snapshot)
	if alone := plan(view); len(alone.plan.Launches) == 1 {
		tries = append(tries, raised(now, pool, append(slices.Clone(now.plan.Launches), alone.plan.Launches...)))
	}
	all := x.suppose(edit{snapshot: unlimited})
	return append(tries, raised(now, pool, all.plan.Launches))
}

// raised returns the change of a pool's limits that allows the launches.
func raised(now *attempt, pool int, launches []planner.Launch) Help {
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
	var words []string
	for _, l := range p.Limits() {
		left := l.Of(&more)
		missing := *l.Of(&used) - *left
		if *left == planner.Unlimited || missing <= 0 {
			continue
		}
		*left += missing
		words = append(words, fmt.Sprintf("%s: %s", l.Name, amount.Text(amount.Sum(l.Quantity(missing), p.NodePool.Spec.Limits[l.Name]))))
	}
	return Help{
		Change: "limits " + strings.Join(words, ", "), On: "NodePool " + p.NodePool.Name,
		edit: edit{snapshot: func(s *planner.Snapshot) { s.Pools[pool].Remaining = more }},
	}
}

// mostRetries limits the number of retry times that are tried.
const mostRetries = 4

// retries returns when offerings of a pool that admit the pod are tried again, the earliest first.
func (x *Explainer) retries(now *attempt, class, pool int) []Help {
	s := &now.view.Snapshot
	times := map[time.Time]*v1alpha1.RefusedOffering{}
	for _, i := range s.Classes[class].Offerings {
		if o := &s.Offerings[i]; o.Pool == pool && o.Unavailable != nil {
			if r := x.cluster.RefusalOf(&now.view.Pools[pool], now.view.Offerings[i]); r != nil {
				times[r.NotBefore.UTC()] = r
			}
		}
	}
	var tries []Help
	for _, t := range slices.SortedFunc(maps.Keys(times), time.Time.Compare) {
		if len(tries) == mostRetries {
			break
		}
		r := times[t]
		tries = append(tries, Help{
			Change: fmt.Sprintf("retry %s (%s ×%d)", t.Format("15:04:05Z"), r.Reason, r.Failures), At: at(t),
			edit: edit{snapshot: func(s *planner.Snapshot) { x.retried(&now.view, s, t) }},
		})
	}
	return tries
}

// retried makes the offerings available whose refusals have ended at a time.
func (x *Explainer) retried(view *snapshot.View, s *planner.Snapshot, t time.Time) {
	for i := range s.Offerings {
		if s.Offerings[i].Unavailable == nil {
			continue
		}
		if r := x.cluster.RefusalOf(&view.Pools[s.Offerings[i].Pool], view.Offerings[i]); r != nil && !r.NotBefore.After(t) {
			s.Offerings[i].Unavailable = nil
		}
	}
}

// mostChanges is the largest number of changes of a pod that are proposed together.
const mostChanges = 6

// admitted returns the change of a pod that makes a pool admit it, or none if there is no such change.
func admitted(pod *corev1.Pod, view *snapshot.View, pool int) []Help {
	p, words := pod.DeepCopy(), []string(nil)
	target := &view.Pools[pool]
	if target.Class == nil || len(target.Offerings) == 0 {
		return nil
	}
	for range mostChanges {
		err := view.Admits(target, p)
		if err == nil {
			break
		}
		word := adapt(p, target, err)
		if word == "" {
			return nil
		}
		words = append(words, word)
	}
	if target.Class.Spec.Sharing.RefusesAboveOne() && target.Class.Spec.Sharing.MemorySlots().IsZero() && snapshot.GPURequestOf(p).Replicas > 1 {
		one := oneReplica(p)
		p, words = one.edit.pod, append(words, one.Change)
	}
	if len(words) == 0 || view.Admits(target, p) != nil {
		return nil
	}
	return []Help{{Change: strings.Join(words, ", "), On: "pod", edit: edit{pod: p}}}
}

// adapt changes a pod so that a pool does not refuse it for the first cause of an error. It returns a description of the change, or "" if there is
// none.
func adapt(p *corev1.Pod, pool *snapshot.Pool, err error) string {
	var other snapshot.OtherResourceError
	if errors.As(err, &other) {
		rename(p, other.Wants, other.Offers[0])
		return fmt.Sprintf("request %s instead of %s", other.Offers[0], other.Wants)
	}
	var refused *snapshot.NotAdmittedError
	if !errors.As(err, &refused) {
		return ""
	}
	for _, cause := range refused.Causes {
		var taint snapshot.UntoleratedTaintError
		var label snapshot.OtherLabelError
		switch {
		case errors.As(cause, &taint):
			t := taint.Taint
			p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: t.Key, Operator: corev1.TolerationOpExists, Effect: t.Effect})
			return "tolerate " + t.Key
		case errors.As(cause, &label):
			if has := labelOf(pool, label.Key); has != "" {
				p.Spec.NodeSelector[label.Key] = has
				return fmt.Sprintf("nodeSelector %s: %s", label.Key, has)
			}
			delete(p.Spec.NodeSelector, label.Key)
			return fmt.Sprintf("remove nodeSelector %s", label.Key)
		case errors.Is(cause, snapshot.ErrNodeAffinity):
			p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = nil
			return "remove the required node affinity"
		}
	}
	return ""
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

// rename changes the name of a resource in all containers of a pod.
func rename(p *corev1.Pod, from, to corev1.ResourceName) {
	eachList(p, func(list corev1.ResourceList) {
		if q, ok := list[from]; ok {
			delete(list, from)
			list[to] = q
		}
	})
}

func eachList(p *corev1.Pod, f func(corev1.ResourceList)) {
	for _, containers := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range containers {
			f(containers[i].Resources.Requests)
			f(containers[i].Resources.Limits)
		}
	}
}

// oneReplica returns the change to request one replica.
func oneReplica(pod *corev1.Pod) Help {
	gpu := snapshot.GPURequestOf(pod).Resource
	return changed(pod, fmt.Sprintf("%s: 1", gpu), func(p *corev1.Pod) {
		eachList(p, func(list corev1.ResourceList) {
			if _, ok := list[gpu]; ok {
				list[gpu] = resource.MustParse("1")
			}
		})
	})
}

// smaller returns the requests of a pod with one container, lowered to the capacity of an offering of a pool. The offering for which the fewest
// requests change is tried first, and among equals the cheapest.
func smaller(pod *corev1.Pod, now *attempt, class, pool int) []Help {
	if class < 0 || len(pod.Spec.Containers) != 1 || len(pod.Spec.InitContainers) > 0 {
		return nil
	}
	s := &now.view.Snapshot
	c := &s.Classes[class]
	var best *Help
	var fewest int
	var price planner.MicroUSD
	for _, i := range c.Offerings {
		o := &s.Offerings[i]
		if o.Pool != pool {
			continue
		}
		if h, n := lowered(pod, c, o); n > 0 && (best == nil || n < fewest || n == fewest && o.Price < price) {
			best, fewest, price = &h, n, o.Price
		}
	}
	if best == nil {
		return nil
	}
	return []Help{*best}
}

// lowered returns the change that makes a pod fit on an offering, and how many requests it lowers.
func lowered(pod *corev1.Pod, c *planner.Class, o *planner.Offering) (Help, int) {
	gpu := snapshot.GPURequestOf(pod).Resource
	p := pod.DeepCopy()
	var words []string
	lower := func(name corev1.ResourceName, q resource.Quantity) {
		eachList(p, func(list corev1.ResourceList) {
			if _, ok := list[name]; ok {
				list[name] = q
			}
		})
		words = append(words, fmt.Sprintf("%s: %s", name, amount.Text(q)))
	}
	if c.Requests.MilliCPU > o.Free.MilliCPU {
		lower(corev1.ResourceCPU, *resource.NewMilliQuantity(o.Free.MilliCPU, resource.DecimalSI))
	}
	if c.Requests.MemoryBytes > o.Free.MemoryBytes {
		lower(corev1.ResourceMemory, resource.MustParse(strconv.FormatInt(o.Free.MemoryBytes>>20, 10)+"Mi"))
	}
	if c.Requests.EphemeralBytes > o.Free.EphemeralBytes {
		lower(corev1.ResourceEphemeralStorage, resource.MustParse(strconv.FormatInt(o.Free.EphemeralBytes>>20, 10)+"Mi"))
	}
	replicas, memory := o.Free.Replicas, int64(0)
	for _, g := range o.GPUs {
		if memory = max(memory, g.MemoryBytes); c.GPUMemoryBytes > 0 { // All replicas of the pod are on one GPU.
			replicas = min(o.Free.Replicas, g.Replicas)
		}
	}
	if c.Requests.Replicas > replicas {
		lower(gpu, *resource.NewQuantity(replicas, resource.DecimalSI))
	}
	if c.GPUMemoryBytes > memory && memory > 0 {
		value := strconv.FormatInt(memory>>20, 10) + "Mi"
		p.Annotations[v1alpha1.GPUMemoryAnnotation] = value
		words = append(words, fmt.Sprintf("%s: %s", v1alpha1.GPUMemoryAnnotation, value))
	}
	return Help{Change: strings.Join(words, ", "), On: "pod", edit: edit{pod: p}}, len(words)
}

// relaxed returns the pod without one of its rules about other pods.
func relaxed(pod *corev1.Pod) []Help {
	var tries []Help
	for i, c := range pod.Spec.TopologySpreadConstraints {
		if c.WhenUnsatisfiable == corev1.DoNotSchedule {
			tries = append(tries, changed(pod, fmt.Sprintf("whenUnsatisfiable: ScheduleAnyway for the spread over %s", c.TopologyKey),
				func(p *corev1.Pod) { p.Spec.TopologySpreadConstraints[i].WhenUnsatisfiable = corev1.ScheduleAnyway }))
		}
	}
	if pod.Spec.Affinity == nil {
		return tries
	}
	if a := pod.Spec.Affinity.PodAntiAffinity; a != nil {
		for i, term := range a.RequiredDuringSchedulingIgnoredDuringExecution {
			tries = append(tries, changed(pod, "remove required podAntiAffinity on "+term.TopologyKey, func(p *corev1.Pod) {
				all := &p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
				*all = slices.Delete(*all, i, i+1)
			}))
		}
	}
	if a := pod.Spec.Affinity.PodAffinity; a != nil {
		for i, term := range a.RequiredDuringSchedulingIgnoredDuringExecution {
			tries = append(tries, changed(pod, "remove required podAffinity on "+term.TopologyKey, func(p *corev1.Pod) {
				all := &p.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
				*all = slices.Delete(*all, i, i+1)
			}))
		}
	}
	return tries
}
