package snapshot

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
)

// Machine is a NodeClaim of ours with its Node, once there is one.
type Machine struct {
	Claim *karpv1.NodeClaim
	// Node is nil until the machine has registered.
	Node *corev1.Node
	// Type is nil when the catalogue does not know the claim's instance type any more. Until the cloud has made the machine it is the one that was
	// chosen, and Others are those that may come instead.
	Type   *catalog.InstanceType
	Others []*catalog.InstanceType
	// Pods are the pods bound to the Node that have not ended, DaemonSets' included.
	Pods []*corev1.Pod
	// Promise is what the machine was launched to expose.
	Promise Promise
	// MostPerGPU is how many replicas each of its GPUs may have where its class leaves a range; 0 where not.
	MostPerGPU int64
	// Assumed is what [View.WhatIf] assumes; zero for a machine as it was read.
	Assumed Assumed
}

// Promise is what a machine was launched to expose, as written on its NodeClaim and Node.
type Promise struct {
	Resource       corev1.ResourceName
	GPUs           int64
	ReplicasPerGPU int64
	// MicroUSDPerHour is the price when it was chosen; of a machine that the cloud made in the place of the chosen one, its own.
	MicroUSDPerHour int64
}

// Replicas is the number of replicas of the whole machine.
func (p Promise) Replicas() int64 { return p.GPUs * p.ReplicasPerGPU }

// PromiseOf reads the promise from the annotations of a NodeClaim or Node; numbers that are missing, no numbers, or more than a machine can have are 0.
func PromiseOf(annotations map[string]string) Promise {
	return Promise{
		Resource: corev1.ResourceName(annotations[nodecontract.ResourceAnnotation]),
		GPUs:     numberIn(annotations, nodecontract.GPUsAnnotation, catalog.MaxGPUs), ReplicasPerGPU: numberIn(annotations, nodecontract.ReplicasPerGPUAnnotation, maxReplicasPerGPU),
		MicroUSDPerHour: numberIn(annotations, v1alpha1.PriceAnnotation, planner.MaxPrice),
	}
}

// Pool is the name of the NodePool that the machine was launched for.
func (m *Machine) Pool() string { return m.Claim.Labels[karpv1.NodePoolLabelKey] }

// Deleting says that the machine is on its way out.
func (m *Machine) Deleting() bool {
	return !m.Claim.DeletionTimestamp.IsZero() || m.Node != nil && !m.Node.DeletionTimestamp.IsZero()
}

// Replacing is why the machine is about to go once its pods have a new place; "" when it stays.
func (m *Machine) Replacing() string {
	switch why := m.Claim.Annotations[v1alpha1.ReplacingAnnotation]; {
	case m.Assumed.Staying:
		return ""
	case m.Assumed.Leaving && why == "":
		return "WhatIf"
	default:
		return why
	}
}

// Leaving says that the machine is going to be lost, whoever takes it: it is being deleted, Karpenter drains it, or it is being replaced. It is no room any
// more, and its pods need a place before they wait for one.
func (m *Machine) Leaving() bool { return m.Replacing() != "" || m.lost() }

// lost says that nothing keeps the machine any more.
func (m *Machine) lost() bool {
	return m.Deleting() || m.Node != nil && HasTaint(m.Node, karpv1.DisruptedTaintKey)
}

// Moving are the pods of the machine that would come back elsewhere if it went, and that need a GPU resource there; by name.
func (m *Machine) Moving() []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(m.Pods), func(pod *corev1.Pod) bool { return !moves(pod) })
}

func moves(pod *corev1.Pod) bool { return mentionsGPU(pod) && karpenter.IsReschedulable(pod) }

// Launched says whether the cloud has made the machine.
func (m *Machine) Launched() bool {
	return Condition(m.Claim.Status.Conditions, karpv1.ConditionTypeLaunched).IsTrue()
}

// Registered says whether Karpenter has found the machine's Node and given it the labels and taints of its claim. The Node must say so
// too: the claim is read live and the Node from a cache, which may still hold it as it was before, without its startup taint.
func (m *Machine) Registered() bool {
	return m.passed(karpv1.ConditionTypeRegistered, karpv1.NodeRegisteredLabelKey)
}

// Initialized says whether the machine has started: its startup taints are gone. Claim and Node must both say so, as in Registered.
func (m *Machine) Initialized() bool {
	return m.passed(karpv1.ConditionTypeInitialized, karpv1.NodeInitializedLabelKey)
}

func (m *Machine) passed(conditionType, nodeLabel string) bool {
	return m.Node != nil && Condition(m.Claim.Status.Conditions, conditionType).IsTrue() && m.Node.Labels[nodeLabel] == "true"
}

// AwaitsReplicas says that the machine has not exposed what it promised yet. The startup taint, which tells, may come only with the registration.
func (m *Machine) AwaitsReplicas() bool {
	return !m.Registered() || HasTaint(m.Node, v1alpha1.ReplicasNotReadyTaintKey)
}

// Started says that the machine takes pods, or has taken them before.
func (m *Machine) Started() bool { return m.Initialized() && !m.AwaitsReplicas() }

// Exposed is the number of replicas that the Node has.
func (m *Machine) Exposed() int64 {
	if m.Node == nil {
		return 0
	}
	return valueOf(m.Node.Status.Allocatable, m.Promise.Resource)
}

// State is where the machine is in its life as far as the objects tell it: [Machine.Broken] and what ails it depend on the time as well.
func (m *Machine) State() lifecycle.State {
	conditions := m.Claim.Status.Conditions
	switch {
	case m.Deleting():
		return lifecycle.Draining
	case m.Node == nil && Condition(conditions, karpv1.ConditionTypeRegistered).IsTrue():
		return lifecycle.NodeMissing
	case !m.Registered() && m.Launched():
		return lifecycle.Launched
	case !m.Registered():
		return lifecycle.Requested
	case m.AwaitsReplicas() && !m.exposesAll():
		return lifecycle.Registered
	case !m.Started():
		return lifecycle.Initializing
	case HasTaint(m.Node, v1alpha1.DisruptingTaintKey):
		return lifecycle.Disrupting
	case m.Replacing() != "":
		return lifecycle.Replacing
	}
	return lifecycle.Started
}

func (m *Machine) exposesAll() bool {
	promised := m.Promise.Replicas()
	return promised > 0 && m.Exposed() >= promised
}

// Broken says that the machine has been in a state of starting for longer than it may, or has lost its Node.
func (m *Machine) Broken(now time.Time, timeout time.Duration) bool {
	since, ok := m.BrokenSince(timeout)
	return ok && !now.Before(since)
}

// BrokenSince is when the machine was or will be broken unless it takes its next step before; false when it cannot break: it has started, the cloud has not made
// it yet, it is on its way out, or the next step is ours and about to be taken.
func (m *Machine) BrokenSince(timeout time.Duration) (time.Time, bool) {
	state := m.State()
	switch {
	case !lifecycle.Of(state).Breaks:
		return time.Time{}, false
	case state != lifecycle.Initializing:
		return m.reached().Add(timeout), true
	case m.AwaitsReplicas(): // The startup taint is about to be taken off.
		return time.Time{}, false
	}
	since := m.reached()
	if ready := TimeOf(m.Node.Annotations[v1alpha1.ReplicasReadySinceAnnotation]); ready.After(since) {
		since = ready
	}
	return since.Add(timeout), true
}

// Uninitialized says what keeps Karpenter from initialising a machine whose replicas are there.
func Uninitialized(m *Machine) string {
	for _, c := range m.Node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return "the Node is not ready"
		}
	}
	for _, taint := range m.Node.Spec.Taints {
		if slices.ContainsFunc(m.Claim.Spec.StartupTaints, func(s corev1.Taint) bool { return s.MatchTaint(&taint) }) || scheduling.IsKnownEphemeralTaint(&taint) {
			return "has the startup taint " + taint.Key
		}
	}
	return "is not initialized"
}

// reached is when the machine registered, or was launched where it has not.
func (m *Machine) reached() time.Time {
	if at := m.since(karpv1.ConditionTypeRegistered); !at.IsZero() {
		return at
	}
	return m.since(karpv1.ConditionTypeLaunched)
}

// since is when a condition of the claim became True; the zero time where it is not.
func (m *Machine) since(conditionType string) time.Time {
	if c := Condition(m.Claim.Status.Conditions, conditionType); c.IsTrue() {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

// Fresh says that the machine is broken and that its pool's condition ReplicasHealthy, which changed last at the time, does not account for it yet: it was made
// or broke later. What the condition accounts for does not close the pool again. A machine that has lost its Node tells nothing of those to come.
func (m *Machine) Fresh(changed, now time.Time, timeout time.Duration) bool {
	since, ok := m.BrokenSince(timeout)
	if !ok || now.Before(since) || m.State() == lifecycle.NodeMissing {
		return false
	}
	// Times in the API are whole seconds, and the claim that a change lets through is made at once. When it broke tells a new one where the clocks of the API
	// server and ours do not agree.
	return !m.Claim.CreationTimestamp.Time.Before(changed.Truncate(time.Second)) || since.After(changed)
}

// ReplicasInUse is the number of replicas that running pods hold.
func (m *Machine) ReplicasInUse() int64 {
	var n int64
	for _, pod := range m.Pods {
		n = amount.Add(n, requests(pod, m.Promise.Resource).Replicas)
	}
	return min(amount.Most, n)
}

// Empty says that the Node holds no pod but those that belong to it.
func (m *Machine) Empty() bool { return !slices.ContainsFunc(m.Pods, IsWorkload) }

// IsWorkload says whether a pod does not belong to its node, as those of DaemonSets do.
func IsWorkload(pod *corev1.Pod) bool { return !karpenter.IsDaemon(pod) }

// Holders are the pods that hold replicas of the machine; by name.
func (m *Machine) Holders() []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(m.Pods), func(pod *corev1.Pod) bool { return requests(pod, m.Promise.Resource).Replicas == 0 })
}

// ForeignPods are the pods of the machine that ask for no GPU and would come back elsewhere if it went; by name.
func (m *Machine) ForeignPods() []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(m.Pods), func(pod *corev1.Pod) bool { return !IsForeign(pod) })
}

// Unused says that the machine holds no replica for anybody: its pods, if there are any, belong to it or are foreign.
func (m *Machine) Unused() bool {
	return !slices.ContainsFunc(m.Pods, func(pod *corev1.Pod) bool { return IsWorkload(pod) && !IsForeign(pod) })
}

// Physical is what the machine counts against limits: while it is not known which one comes, what the largest does.
func (m *Machine) Physical() planner.Physical {
	if m.Type != nil {
		p := physical(m.Type, m.Promise.ReplicasPerGPU)
		for _, t := range m.Others {
			p = larger(p, physical(t, m.Promise.ReplicasPerGPU))
		}
		return p
	}
	capacity := m.Claim.Status.Capacity
	if len(capacity) == 0 && m.Node != nil {
		capacity = m.Node.Status.Capacity
	}
	if len(capacity) == 0 {
		capacity = m.Claim.Spec.Resources.Requests
	}
	return planner.Physical{
		MilliCPU: amountOf(capacity, corev1.ResourceCPU), MemoryBytes: amountOf(capacity, corev1.ResourceMemory),
		GPUs: m.Promise.GPUs, Replicas: m.Promise.Replicas(), Nodes: 1,
	}
}

func larger(a, b planner.Physical) planner.Physical {
	return planner.Physical{
		MilliCPU: max(a.MilliCPU, b.MilliCPU), MemoryBytes: max(a.MemoryBytes, b.MemoryBytes), GPUs: max(a.GPUs, b.GPUs),
		Replicas: max(a.Replicas, b.Replicas), Nodes: max(a.Nodes, b.Nodes),
	}
}

// Hardware is what the machines count against limits together, those on their way in and out included.
func Hardware(machines []Machine) planner.Physical {
	var sum planner.Physical
	for i := range machines {
		p := machines[i].Physical()
		sum.MilliCPU = amount.Add(sum.MilliCPU, p.MilliCPU)
		sum.MemoryBytes = amount.Add(sum.MemoryBytes, p.MemoryBytes)
		sum.GPUs += p.GPUs
		sum.Replicas += p.Replicas
		sum.Nodes += p.Nodes
	}
	return sum
}

// Machines are the NodeClaims of ours, by name.
func (c *Cluster) Machines() []Machine { return c.machines(IsOurClaim) }

// Canaries are the machines that try images, by name. They count against the limits of their pools.
func (c *Cluster) Canaries() []Machine { return c.machines(IsCanary) }

func (c *Cluster) machines(wanted func(*karpv1.NodeClaim) bool) []Machine {
	byName, byProvider := map[string]*corev1.Node{}, map[string]*corev1.Node{}
	for i := range c.Nodes {
		byName[c.Nodes[i].Name] = &c.Nodes[i]
		if id := c.Nodes[i].Spec.ProviderID; id != "" {
			byProvider[id] = &c.Nodes[i]
		}
	}
	pods := c.PodsByNode()
	var machines []Machine
	for i := range c.NodeClaims {
		claim := &c.NodeClaims[i]
		if !wanted(claim) {
			continue
		}
		m := Machine{Claim: claim, Promise: PromiseOf(claim.Annotations)}
		m.know(c.typesOf(claim.Spec.NodeClassRef))
		if m.Node = byName[claim.Status.NodeName]; m.Node == nil && claim.Status.ProviderID != "" {
			m.Node = byProvider[claim.Status.ProviderID]
		}
		if m.Node != nil {
			m.Pods = pods[m.Node.Name]
		}
		machines = append(machines, m)
	}
	slices.SortFunc(machines, func(a, b Machine) int { return strings.Compare(a.Claim.Name, b.Claim.Name) })
	return machines
}

// know looks the machine up in the catalogue: what it is, or may be, and what it costs when it is not the one that was chosen.
func (m *Machine) know(types []catalog.InstanceType) {
	made := m.Claim.Labels[corev1.LabelInstanceTypeStable]
	named := claimValues(m.Claim, corev1.LabelInstanceTypeStable)
	if made == "" && len(named) > 0 {
		m.Type = catalog.Named(types, named[0])
		for _, name := range named[1:] {
			if t := catalog.Named(types, name); t != nil {
				m.Others = append(m.Others, t)
			}
		}
		return
	}
	m.Type = catalog.Named(types, made)
	zone := m.Claim.Labels[corev1.LabelTopologyZone]
	if m.Type == nil || len(named) == 0 || zone == "" || made == named[0] && slices.Index(claimValues(m.Claim, corev1.LabelTopologyZone), zone) == 0 {
		return
	}
	for _, o := range m.Type.Offerings {
		if o.Zone == zone && o.CapacityType == claimValue(m.Claim, karpv1.CapacityTypeLabelKey) {
			m.Promise.MicroUSDPerHour = o.MicroUSDPerHour
		}
	}
}

// PodsByNode are the pods that have not ended by the names of their nodes, in the order of their names.
func (c *Cluster) PodsByNode() map[string][]*corev1.Pod {
	pods := map[string][]*corev1.Pod{}
	for i := range c.Pods {
		if pod := &c.Pods[i]; pod.Spec.NodeName != "" && !karpenter.IsTerminal(pod) {
			pods[pod.Spec.NodeName] = append(pods[pod.Spec.NodeName], pod)
		}
	}
	for _, bound := range pods {
		slices.SortFunc(bound, comparePods)
	}
	return pods
}

// claimValue is the value of a label that the claim has, or will have unless the cloud makes another machine than the one that was chosen: its requirement
// names the value that was chosen first.
func claimValue(claim *karpv1.NodeClaim, key string) string {
	if v := claim.Labels[key]; v != "" {
		return v
	}
	if values := claimValues(claim, key); len(values) > 0 {
		return values[0]
	}
	return ""
}

// claimValues are the values that the claim leaves to a label, the chosen one first.
func claimValues(claim *karpv1.NodeClaim, key string) []string {
	for _, req := range claim.Spec.Requirements {
		if req.Key == key && req.Operator == corev1.NodeSelectorOpIn {
			return req.Values
		}
	}
	return nil
}

// ShapeOf is the offering that a claim of ours has, or that was chosen for it.
func ShapeOf(claim *karpv1.NodeClaim) (instanceType, zone, capacityType string) {
	return claimValue(claim, corev1.LabelInstanceTypeStable), claimValue(claim, corev1.LabelTopologyZone), claimValue(claim, karpv1.CapacityTypeLabelKey)
}

// RequestedOfferings are the instance types and zones that a claim of ours leaves to the cloud, at its capacity type; what was chosen first.
func RequestedOfferings(claim *karpv1.NodeClaim) (instanceTypes, zones []string, capacityType string) {
	return claimValues(claim, corev1.LabelInstanceTypeStable), claimValues(claim, corev1.LabelTopologyZone), claimValue(claim, karpv1.CapacityTypeLabelKey)
}

// MicroUSDPerHour is what the machine costs today, where the catalogue knows: prices of spot capacity come and go. Else it is the price when it was chosen.
func (m *Machine) MicroUSDPerHour() int64 {
	_, zone, capacityType := ShapeOf(m.Claim)
	if m.Type != nil {
		for _, o := range m.Type.Offerings {
			if o.Zone == zone && o.CapacityType == capacityType {
				return o.MicroUSDPerHour
			}
		}
	}
	return m.Promise.MicroUSDPerHour
}
