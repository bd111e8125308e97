package explain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/words"
)

// Pod explains why a pod waits or is where it is. It returns an error if there is no such pod.
func (x *Explainer) Pod(namespace, name string) (PodAnswer, error) {
	full := namespace + "/" + name
	pod := x.cluster.Index.Pod(full)
	if pod == nil {
		return PodAnswer{}, fmt.Errorf("pod %s does not exist: list pods with kubectl get pods -n %s", full, namespace)
	}
	asks := facts.GPURequestOf(pod)
	a := PodAnswer{
		Pod: full, Since: timeOrNil(pod.CreationTimestamp.Time),
		Wants: Wants{Resource: string(asks.Resource), Replicas: asks.Replicas, GPUMemoryBytes: asks.MemoryBytes},
	}
	switch {
	case karpenter.IsTerminal(pod):
		a.State, a.Summary = PodEnded, "has ended and holds no replicas"
	case asks.Resource == "":
		a.State, a.Summary = PodForeign, x.foreign(pod)
	case pod.Spec.NodeName != "":
		a.State, a.Since = PodRuns, timeOrNil(facts.StartTime(pod))
		x.running(&a, pod)
	default:
		x.waiting(&a, pod)
	}
	return a, nil
}

// foreign returns why Karve does nothing for a pod that requests no GPU resource.
func (x *Explainer) foreign(pod *corev1.Pod) string {
	if unserved := snapshot.UnservedOf(x.cluster, pod); len(unserved) > 0 {
		return unserved[0].String()
	}
	served := snapshot.ServedBy(x.view().Pools)
	if len(served) == 0 {
		return "requests no GPU resource, and none of Karve's NodePools serves one"
	}
	return fmt.Sprintf("requests no GPU resource, so Karve does nothing for it; Karve's NodePools serve %s", words.And(served))
}

func (x *Explainer) waiting(a *PodAnswer, pod *corev1.Pod) {
	now := x.planned()
	group := now.view.GroupOf(pod)
	if why := notAsked(pod); why != "" && now.view.Pods[a.Pod] == nil {
		a.State, a.Summary = PodWaits, why
		if group != nil {
			a.Rules = append(a.Rules, Rule{"group", group.String()})
			if r := group.Refusal; r != nil && !facts.IsGated(pod) {
				a.Reason, a.Message, a.Summary = r.Reason, r.Message, "waits for others: "+r.Message
			}
		}
		return
	}
	if slices.ContainsFunc(now.view.Postponed, func(p *corev1.Pod) bool { return facts.PodName(p) == a.Pod }) {
		a.State, a.Reason, a.Message, a.Summary = PodWaits, planner.NextRound.Reason, planner.NextRound.Message, "waits for its turn"
		return
	}
	a.Rules = rulesOf(pod)
	if group != nil {
		a.Rules = append(a.Rules, Rule{"group", group.String()})
	}
	if launch := now.launch(a.Pod); launch != nil {
		x.planFor(a, &now, launch)
		return
	}
	if node := now.node(a.Pod); node >= 0 {
		x.place(a, pod, &now, node)
		return
	}
	refused := now.refusal(a.Pod)
	if node := pod.Status.NominatedNodeName; refused == nil && node != "" {
		a.State, a.Machine, a.Summary = PodFits, &Machine{Name: node, Nominated: true}, fmt.Sprintf("is nominated for node %s: the scheduler binds it there when there is room", node)
		return
	}
	if refused == nil { // The view has no such pod.
		a.State = PodForeign
		a.Summary = cmp.Or(x.toOthers(pod), fmt.Sprintf("requests %s, and none of Karve's NodePools serves it", a.Wants.Resource))
		return
	}
	a.State, a.Reason, a.Message, a.Summary = PodWaits, refused.Reason, refused.Message, "has no place: "+refused.Message
	class := classOf(&now.view.Snapshot, a.Pod)
	blocked := now.view.Classes[class].Blocked
	if blocked == nil || blocked.Reason == planner.ReasonNoPool || blocked.Reason == planner.ReasonRule {
		a.Nodes = countNodes(&now, class) // Otherwise the pod would have no place on any node, whatever the node has.
	}
	if blocked != nil && blocked.Reason != planner.ReasonNoPool {
		a.Help = x.helpAnywhere(pod, *blocked)
		return
	}
	for i := range now.view.Pools {
		a.Pools = append(a.Pools, x.inPool(pod, &now, class, i, *refused))
	}
}

// notAsked returns why Karve does not plan for a pod at present, or "" if it does.
func notAsked(pod *corev1.Pod) string {
	switch {
	case pod.DeletionTimestamp != nil:
		return "is being deleted, so nothing is launched for it"
	case len(pod.Spec.SchedulingGates) > 0:
		return fmt.Sprintf("has the scheduling gate %s, and nothing is launched for it until the gate is removed", pod.Spec.SchedulingGates[0].Name)
	case karpenter.IsDaemon(pod):
		return "belongs to a DaemonSet or to its node, for which nothing is launched"
	case facts.Waits(pod), pod.Status.NominatedNodeName != "":
		return ""
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason != corev1.PodReasonUnschedulable {
			return fmt.Sprintf("is not reported as unschedulable but as %s, so nothing is launched for it", c.Reason)
		}
	}
	return fmt.Sprintf("has not been tried by scheduler %s yet: Karve acts when the condition PodScheduled says that it is unschedulable", cmp.Or(pod.Spec.SchedulerName, corev1.DefaultSchedulerName))
}

// toOthers names Karpenter's own pool to which a pod is left, or returns "" if there is none.
func (x *Explainer) toOthers(pod *corev1.Pod) string {
	view := x.view()
	if name := view.KarpenterPool(pod); name != "" {
		return fmt.Sprintf("is left to Karpenter: its NodePool %s serves the pod, and none of Karve's does", name)
	}
	return ""
}

// planFor explains a pod for which a machine is launched.
func (x *Explainer) planFor(a *PodAnswer, now *attempt, launch *planner.Launch) {
	o := now.view.Snapshot.Offerings[launch.Offering]
	a.State = PodPlanned
	a.Machine = &Machine{NodePool: now.view.Snapshot.Pools[o.Pool].Name, InstanceType: o.InstanceType, Zone: o.Zone, CapacityType: o.CapacityType, Price: o.Paid(), ListPrice: o.ListPrice}
	where := "NodePool " + a.Machine.NodePool
	if id := now.view.Offerings[launch.Offering].Reservation; id != "" {
		a.Machine.Price = o.ListPrice
		where += " in reservation " + id
	}
	a.Summary = fmt.Sprintf("gets a new %s of %s: Karve creates its NodeClaim when the batch of pods is complete", o.InstanceType, where)
}

// place explains a pod that is planned on a node.
func (x *Explainer) place(a *PodAnswer, pod *corev1.Pod, now *attempt, node int) {
	name := now.view.Nodes[node].Name
	a.Machine = &Machine{Name: name, Nominated: pod.Status.NominatedNodeName == name}
	a.State, a.Summary = PodFits, fmt.Sprintf("has room on node %s: the scheduler binds it there if it finds no other node", name)
	if a.Machine.Nominated {
		a.Summary = fmt.Sprintf("is nominated for node %s, which has room for it: the scheduler binds it there", name)
	}
	m := now.view.MachineOn(node)
	if m == nil {
		return
	}
	a.Machine.NodePool, a.Machine.Since = m.Pool(), timeOrNil(m.Claim.CreationTimestamp.Time)
	if own, list := priceOf(m); own != nil {
		a.Machine.Price, a.Machine.ListPrice = *own, *list
	}
	a.Machine.InstanceType, a.Machine.Zone, a.Machine.CapacityType = records.ShapeOf(m.Claim)
	a.Machine.State = m.State()
	if !now.view.Starting(node) {
		return
	}
	a.State = PodComing
	if until, ok := m.BrokenSince(x.cluster.ReplicasTimeout); ok {
		a.Machine.Until = timeOrNil(until)
	}
	a.Summary = fmt.Sprintf("waits for %s, which is %s (%s), %s after its NodeClaim was created", name, m.State(), lifecycle.Of(m.State()).Means, age(x.cluster.Now, m.Claim.CreationTimestamp.Time))
}

// inPool explains why one pool launches nothing for a pod without a place. whole is the refusal of the plan.
func (x *Explainer) inPool(pod *corev1.Pod, now *attempt, class, pool int, whole planner.Refusal) PoolAnswer {
	p := &now.view.Pools[pool]
	a := PoolAnswer{NodePool: p.NodePool.Name}
	if err := now.view.Admits(p, pod); err != nil {
		a.Reason, a.Message = planner.ReasonNoPool, err.Error()
		if closed := now.view.Snapshot.Pools[pool].Closed; closed != nil && len(p.Offerings) == 0 {
			a.Reason, a.Message = closed.Reason, closed.Message
		}
	} else if excluded := excludedFrom(now, class, pool, pod); excluded != nil {
		a.Reason, a.Message = excluded.Reason, excluded.Message
	} else {
		refused := whole
		if alone := plan(onlyIn(now, class, pool, facts.PodName(pod))); len(alone.plan.Unplaced) > 0 {
			refused = alone.plan.Unplaced[0].Refusal
		}
		a.Reason, a.Message = refused.Reason, refused.Message
	}
	a.Help = x.helpIn(pod, now, class, pool, a.Reason)
	return a
}

// excludedFrom returns why the class of a pod lists no offering of a pool that admits the pod. It returns nil if it lists one.
func excludedFrom(now *attempt, class, pool int, pod *corev1.Pod) *planner.Refusal {
	s := &now.view.Snapshot
	if slices.ContainsFunc(s.Classes[class].Offerings, func(i int) bool { return s.Offerings[i].Pool == pool }) {
		return nil
	}
	target, asks := &now.view.Pools[pool], facts.GPURequestOf(pod)
	switch {
	case target.RefusesReplicas(asks):
		return &planner.Refusal{Reason: planner.ReasonRequestsAboveOne, Message: fmt.Sprintf("requests %d replicas, and %s %s refuses more than one", asks.Replicas, v1alpha1.Kind, target.Class.Name)}
	case asks.MemoryBytes > 0 && target.Class.Spec.Sharing.Strategy == v1alpha1.StrategyMPS:
		return &planner.Refusal{Reason: planner.ReasonTooLarge, Message: fmt.Sprintf("states %s of GPU memory, and a replica of %s %s has less", bytesText(asks.MemoryBytes), v1alpha1.Kind, target.Class.Name)}
	case len(pod.Spec.ResourceClaims) > 0:
		return &planner.Refusal{Reason: planner.ReasonUnsupported, Message: "no GPU of its machines satisfies the ResourceClaim"}
	}
	return &planner.Refusal{Reason: planner.ReasonRule, Message: "a rule about other pods, its own or the podAntiAffinity of pods that run or of a DaemonSet, keeps it off all machines of the NodePool"}
}

// onlyIn returns the view in which one pod of a class waits, only one pool may launch something for it, and the machines of the plan are already
// launched.
func onlyIn(now *attempt, class, pool int, pod string) snapshot.View {
	view := now.view
	s := &view.Snapshot
	s.Classes, s.Pools = slices.Clone(s.Classes), slices.Clone(s.Pools)
	for i := range s.Classes {
		s.Classes[i].Pods = nil
	}
	c := &s.Classes[class]
	c.Pods, c.Nodes = []string{pod}, nil
	ofPool := func(i int) bool { return s.Offerings[i].Pool != pool }
	c.Offerings = slices.DeleteFunc(slices.Clone(c.Offerings), ofPool)
	c.Preferences = slices.Clone(c.Preferences)
	for i := range c.Preferences {
		c.Preferences[i].Nodes = nil
		c.Preferences[i].Offerings = slices.DeleteFunc(slices.Clone(c.Preferences[i].Offerings), ofPool)
	}
	for _, launch := range now.plan.Launches {
		o := &s.Offerings[launch.Offering]
		for _, l := range view.Pools[o.Pool].Limits() {
			if left := l.Of(&s.Pools[o.Pool].Remaining); *left != planner.Unlimited {
				*left -= *l.Of(&o.Physical)
			}
		}
	}
	return view
}

// rulesOf returns the rules in the pod's spec that constrain where it may be.
func rulesOf(pod *corev1.Pod) []Rule {
	var rules []Rule
	add := func(kind, format string, args ...any) {
		rules = append(rules, Rule{kind, fmt.Sprintf(format, args...)})
	}
	for _, key := range slices.Sorted(maps.Keys(pod.Spec.NodeSelector)) {
		add("nodeSelector", "%s: %s", key, pod.Spec.NodeSelector[key])
	}
	if affinity := pod.Spec.Affinity; affinity != nil {
		if n := affinity.NodeAffinity; n != nil && n.RequiredDuringSchedulingIgnoredDuringExecution != nil {
			add("nodeAffinity", "%s", termsText(n.RequiredDuringSchedulingIgnoredDuringExecution))
		}
		if p := affinity.PodAffinity; p != nil {
			for _, term := range p.RequiredDuringSchedulingIgnoredDuringExecution {
				add("podAffinity", "on %s with pods %s", term.TopologyKey, metav1.FormatLabelSelector(term.LabelSelector))
			}
		}
		if p := affinity.PodAntiAffinity; p != nil {
			for _, term := range p.RequiredDuringSchedulingIgnoredDuringExecution {
				add("podAntiAffinity", "on %s with pods %s", term.TopologyKey, metav1.FormatLabelSelector(term.LabelSelector))
			}
		}
	}
	for _, c := range pod.Spec.TopologySpreadConstraints {
		if c.WhenUnsatisfiable == corev1.DoNotSchedule {
			add("topologySpreadConstraint", "over %s, maxSkew %d, pods %s", c.TopologyKey, c.MaxSkew, metav1.FormatLabelSelector(c.LabelSelector))
		}
	}
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			add("volume", "PersistentVolumeClaim %s", v.PersistentVolumeClaim.ClaimName)
		}
	}
	for _, ctr := range pod.Spec.Containers {
		for _, port := range ctr.Ports {
			if port.HostPort > 0 {
				add("hostPort", "%d", port.HostPort)
			}
		}
	}
	if memory := pod.Annotations[v1alpha1.GPUMemoryAnnotation]; memory != "" {
		add(v1alpha1.GPUMemoryAnnotation, "%s on each GPU that it gets", memory)
	}
	if text := pod.Annotations[v1alpha1.ThroughputAnnotation]; text != "" {
		if _, err := facts.ThroughputOf(pod); err != nil {
			text = err.Error()
		}
		add(v1alpha1.ThroughputAnnotation, "%s", text)
	}
	if _, err := facts.MembershipOf(pod); err != nil {
		add("group", "%s", err.Error())
	}
	return rules
}

func termsText(selector *corev1.NodeSelector) string {
	var terms []string
	for _, term := range selector.NodeSelectorTerms {
		var parts []string
		for _, e := range slices.Concat(term.MatchExpressions, term.MatchFields) {
			parts = append(parts, strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Key, e.Operator, strings.Join(e.Values, ","))))
		}
		terms = append(terms, strings.Join(parts, " and "))
	}
	return strings.Join(terms, ", or ")
}

// age formats the time from then until now, or returns - if then is unknown.
func age(now, then time.Time) string {
	if then.IsZero() {
		return "-"
	}
	return words.Age(now.Sub(then))
}
