// Package records describes what the cluster has: machines with their state, labels, GPUs and slots, and what pods require of a node, with their volumes. It
// reads facts, and knows neither pools nor plans.
package records

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud/clouds"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Machine is a NodeClaim that Karve created, with its Node if there is one.
type Machine struct {
	Claim *karpv1.NodeClaim
	// Node is nil until the machine has registered.
	Node *corev1.Node
	// Type is the instance type, or nil if the catalog does not know it. Before the launch it is the planned type, and Others are the other types that the
	// NodeClaim allows.
	Type   *catalog.InstanceType
	Others []*catalog.InstanceType
	// Reservation is the ID of the reservation whose slot the machine takes, or will take. It is "" if it takes none.
	Reservation string
	// Leaves is when Karpenter deletes the machine because its reservation ends. It is zero if the machine goes on.
	Leaves time.Time
	// Pods are the pods that are bound to the Node and have not ended, including those of DaemonSets.
	Pods []*corev1.Pod
	// Promise is what the machine was launched to provide.
	Promise facts.Promise
	// MaxPerGPU is the maxReplicas of its GPUs, or 0 if its GPUNodeClass sets no range.
	MaxPerGPU int64
	// Assumed holds the assumptions of [View.WhatIf]. It is zero for a machine without assumptions.
	Assumed Assumed
	// limited is the price of the machine if it has a limit.
	limited *catalog.LimitedPrice
	// memo caches results for the machine. It is nil for machines that do not belong to a view.
	memo *machineMemo
}

// ReplicaMemory returns the device memory in bytes that a process in a replica may allocate, on a GPU with gpuMiB of memory. It is 0 if there is no limit.
func ReplicaMemory(mps nodecontract.MPS, gpuMiB, replicas int64) int64 {
	if mps == (nodecontract.MPS{}) || replicas <= 1 {
		return 0
	}
	return mps.MemoryMiB(gpuMiB, replicas) * facts.BytesPerMiB
}

// PlannerName returns the name of the machine in the planner's snapshot.
func (m *Machine) PlannerName() string {
	if m.Node != nil {
		return m.Node.Name
	}
	return m.Claim.Name
}

// Pool returns the name of the NodePool that the machine was launched for.
func (m *Machine) Pool() string { return m.status().pool }

// Deleting reports whether the NodeClaim or the Node is being deleted.
func (m *Machine) Deleting() bool { return m.status().deleting }

// Replacing returns why the machine is being replaced, or "" if it stays.
func (m *Machine) Replacing() string {
	switch why := m.status().replacing; {
	case m.Assumed.Staying:
		return ""
	case m.Assumed.Leaving && why == "":
		return "WhatIf"
	default:
		return why
	}
}

// Leaving reports whether the machine is being deleted, drained by Karpenter, or replaced. It accepts no more pods, and its pods need room elsewhere.
func (m *Machine) Leaving() bool { return m.Replacing() != "" || m.Lost() }

// Lost reports whether the machine is leaving and nothing can keep it.
func (m *Machine) Lost() bool { return m.status().lost }

// Moving returns the pods of the machine that request GPU resources and would be recreated elsewhere without it, sorted by name.
func (m *Machine) Moving() []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(m.Pods), func(pod *corev1.Pod) bool { return !facts.Moves(pod) })
}

// Launched reports whether the cloud has launched the machine.
func (m *Machine) Launched() bool { return m.status().launched }

// Registered reports whether Karpenter has found the Node and has added the NodeClaim's labels and taints. The Node must agree: it comes from a cache,
// which may still have a version without the startup taint.
func (m *Machine) Registered() bool { return m.status().registered }

// Initialized reports whether Karpenter has initialized the machine: it is ready and has no startup taints. As for Registered, NodeClaim and Node must agree.
func (m *Machine) Initialized() bool { return m.status().initialized }

// AwaitsReplicas reports whether the replicas of the machine have not appeared yet. Once the Node is registered, the startup taint shows it.
func (m *Machine) AwaitsReplicas() bool { return m.status().awaitsReplicas }

// Started reports whether the machine has started: it is initialized and has its replicas.
func (m *Machine) Started() bool { return m.Initialized() && !m.AwaitsReplicas() }

// Exposed returns the number of replicas that the Node reports. Slots count if the machine promises them.
func (m *Machine) Exposed() int64 {
	if m.Node == nil {
		return 0
	}
	if !m.Promise.Slots.IsZero() {
		return m.exposedSlots()
	}
	if m.Promise.MIG.Mixed() {
		return m.exposedInstances()
	}
	return facts.ValueOf(m.Node.Status.Allocatable, m.Promise.Resource)
}

// State returns the state of the machine according to its objects. Broken and Unhealthy also depend on the time: see [Machine.Broken].
func (m *Machine) State() lifecycle.State {
	if state := m.status().state; state != lifecycle.Started || m.Replacing() == "" {
		return state
	}
	return lifecycle.Replacing
}

func (m *Machine) ExposesAll() bool {
	exposed, promised := m.Exposed(), m.Promise.Replicas()
	return promised > 0 && (exposed >= promised || exposed > 0 && m.GPUsCordoned())
}

// GPUsCordoned reports whether the agent keeps pods off GPUs of the machine because somebody has requested it. The machine then exposes fewer replicas
// than promised.
func (m *Machine) GPUsCordoned() bool { return m.Node != nil && facts.GPUsCordoned(m.Node) }

// Broken reports whether the machine did not start in time, or has lost its Node.
func (m *Machine) Broken(now time.Time, timeout time.Duration) bool {
	since, ok := m.BrokenSince(timeout)
	return ok && !now.Before(since)
}

// BrokenSince returns when the machine became or will become broken, unless it takes its next step before. It returns false for a machine that cannot
// become broken now: one that has started, was not launched yet, is leaving, or waits for Karve.
func (m *Machine) BrokenSince(timeout time.Duration) (time.Time, bool) {
	f := m.status()
	if !f.breaks {
		return time.Time{}, false
	}
	return f.waitsSince.Add(timeout), true
}

// NotReady reports whether the kubelet of a Node says that it is not ready, or says nothing. No pod starts there.
func NotReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue
	})
}

// Uninitialized returns what keeps Karpenter from initializing a machine that has its replicas.
func Uninitialized(m *Machine) string {
	if NotReady(m.Node) {
		return "the Node is not ready"
	}
	for _, taint := range m.Node.Spec.Taints {
		if slices.ContainsFunc(m.Claim.Spec.StartupTaints, func(s corev1.Taint) bool { return s.MatchTaint(&taint) }) || scheduling.IsKnownEphemeralTaint(&taint) {
			return "has the startup taint " + taint.Key
		}
	}
	return "is not initialized"
}

// lastStepTime returns when the machine registered, or when it was launched if it has not registered.
func (m *Machine) lastStepTime() time.Time {
	if at := m.since(karpv1.ConditionTypeRegistered); !at.IsZero() {
		return at
	}
	return m.since(karpv1.ConditionTypeLaunched)
}

// since returns when a condition of the NodeClaim became True, or the zero time if it is not True.
func (m *Machine) since(conditionType string) time.Time {
	if c := facts.Condition(m.Claim.Status.Conditions, conditionType); c.IsTrue() {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

// Fresh reports whether the machine is broken and was created or broke after the pool's condition ReplicasHealthy changed. Machines that broke before
// are already counted and do not close the pool again. A machine that lost its Node is no evidence about new machines.
func (m *Machine) Fresh(changed, now time.Time, timeout time.Duration) bool {
	since, ok := m.BrokenSince(timeout)
	if !ok || now.Before(since) || m.State() == lifecycle.NodeMissing {
		return false
	}
	// Times in the API are whole seconds, and the NodeClaim that a change permits is created immediately. The time at which it broke identifies a new
	// machine even if the clocks of the API server and the controller differ.
	return !m.Claim.CreationTimestamp.Time.Before(changed.Truncate(time.Second)) || since.After(changed)
}

// ReplicasInUse returns the number of replicas that running pods hold. It is computed once for each machine of a view.
func (m *Machine) ReplicasInUse() int64 {
	known := m.memo
	if known == nil || known.machine.Claim != m.Claim || facts.IdentityOf(known.machine.Pods) != facts.IdentityOf(m.Pods) {
		return m.sumReplicas()
	}
	known.summed.Do(func() { known.inUse = m.sumReplicas() })
	return known.inUse
}

func (m *Machine) sumReplicas() int64 {
	var n int64
	for _, pod := range m.Pods {
		n = amount.Add(n, m.ReplicasOf(pod))
	}
	return min(amount.Max, n)
}

// Empty reports whether only DaemonSets have pods on the Node.
func (m *Machine) Empty() bool { return !slices.ContainsFunc(m.Pods, facts.IsWorkload) }

// ReplicasOf returns the number of replicas that a pod of the machine holds.
func (m *Machine) ReplicasOf(pod *corev1.Pod) int64 {
	return facts.RequestsOf(pod, m.Promise.Resource).Replicas
}

// Holders returns the pods that hold replicas of the machine, sorted by name.
func (m *Machine) Holders() []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(m.Pods), func(pod *corev1.Pod) bool { return m.ReplicasOf(pod) == 0 })
}

// ForeignPods returns the pods of the machine that request no GPU and would be recreated elsewhere without it, sorted by name.
func (m *Machine) ForeignPods() []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(m.Pods), func(pod *corev1.Pod) bool { return !facts.IsForeign(pod) })
}

// NoReplicasHeld reports whether no pod holds a replica of the machine.
func (m *Machine) NoReplicasHeld() bool {
	return !slices.ContainsFunc(m.Pods, func(pod *corev1.Pod) bool { return facts.IsWorkload(pod) && !facts.IsForeign(pod) })
}

// Physical returns what the machine counts against limits. Before the launch, it is the maximum over the instance types that the NodeClaim allows.
func (m *Machine) Physical() planner.Physical {
	if m.Type != nil {
		p := PhysicalOf(m.Type, m.Promise.ReplicasPerGPU)
		for _, t := range m.Others {
			p = p.Max(PhysicalOf(t, m.Promise.ReplicasPerGPU))
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
		MilliCPU: facts.AmountOf(capacity, corev1.ResourceCPU), MemoryBytes: facts.AmountOf(capacity, corev1.ResourceMemory),
		GPUs: m.Promise.GPUs, Replicas: m.Promise.Replicas(), Nodes: 1,
	}
}

// Hardware returns the total that the machines count against limits, including machines that are starting or leaving.
func Hardware(machines []Machine) planner.Physical {
	return HardwareOf(func(yield func(*Machine) bool) {
		for i := range machines {
			if !yield(&machines[i]) {
				return
			}
		}
	})
}

func HardwareOf(machines iter.Seq[*Machine]) planner.Physical {
	var sum planner.Physical
	for m := range machines {
		sum = sum.Each(m.Physical(), amount.Add)
	}
	return sum
}

// Machines returns the machines of Karve's pools, sorted by name, without canaries.
func Machines(c *facts.Cluster) []Machine {
	ours, canaries := c.Indexed().Claimed()
	machines := machinesOf(c, ours)
	if len(c.PriceLimits) > 0 {
		limitPrices(c, machines, machinesOf(c, canaries))
	}
	return machines
}

// Canaries returns the machines that test images, sorted by name. They count against the limits of their pools.
func Canaries(c *facts.Cluster) []Machine {
	ours, canaries := c.Indexed().Claimed()
	machines := machinesOf(c, canaries)
	if len(c.PriceLimits) > 0 {
		limitPrices(c, machinesOf(c, ours), machines)
	}
	return machines
}

func machinesOf(c *facts.Cluster, claims []*facts.Claimed) []Machine {
	x, machines := c.Indexed(), make([]Machine, len(claims))
	all, leaves := sync.OnceValue(c.InstanceTypes), sync.OnceValue(func() map[string]time.Time { return leaveTimes(c) })
	for i, claim := range claims {
		c.BeginVisit("NodeClaim", claim.Claim)
		machines[i] = machineOf(claim, x.SiteOf(claim.Claim), c.TypesOf(claim.Claim.Spec.NodeClassRef, all))
		if id := machines[i].Reservation; id != "" {
			machines[i].Leaves = leaves()[id]
		}
	}
	return machines
}

// machineMemo is what is remembered of a machine of a cluster, until its objects or its instance types change.
type machineMemo struct {
	// machine is the machine without assumptions.
	machine Machine
	status  machineStatus
	site    *facts.Site
	// room is for the room of the machine.
	room facts.Slot
	// inUse is the number of replicas that the pods hold, once summed.
	summed sync.Once
	inUse  int64
}

// Site returns the index's entry of the machine's Node, or nil if it has none.
func (m *Machine) Site() *facts.Site { return m.memo.site }

// RoomSlot returns the slot for the room of the machine.
func (m *Machine) RoomSlot() *facts.Slot { return &m.memo.room }

// machineInput is what a machine depends on beside its NodeClaim. The site is nil if it has no Node.
type machineInput struct {
	site  *facts.Site
	types facts.Identity[catalog.InstanceType]
}

func machineOf(c *facts.Claimed, s *facts.Site, types []catalog.InstanceType) Machine {
	return facts.Remember(&c.MachineSlot, machineInput{s, facts.IdentityOf(types)}, func() *machineMemo {
		m := &machineMemo{machine: Machine{Claim: c.Claim, Promise: facts.PromiseOf(c.Claim.Annotations), Reservation: ReservationOf(c.Claim)}, site: s}
		m.machine.memo = m
		m.machine.setType(types)
		if o := m.machine.offering(); o != nil && o.Reservation != "" {
			m.machine.Promise.MicroUSDPerHour, m.machine.Promise.ListMicroUSDPerHour = o.ListPrice(), o.ListPrice() // The slot is paid, and reports say what it costs.
		}
		if s != nil {
			m.machine.Node, m.machine.Pods = s.Node, s.Pods
		}
		m.status = *m.machine.readStatus()
		return m
	}).machine
}

// setType sets the instance type, or those that the NodeClaim allows. If the cloud launched another offering than planned, it also sets the price.
func (m *Machine) setType(types []catalog.InstanceType) {
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
	if m.Type == nil || len(named) == 0 || zone == "" {
		return
	}
	planned := made == named[0] && slices.Index(claimValues(m.Claim, corev1.LabelTopologyZone), zone) == 0 && !m.outlivesReservation()
	if o := m.offering(); o != nil && !planned {
		m.Promise.MicroUSDPerHour, m.Promise.ListMicroUSDPerHour = o.MicroUSDPerHour, o.ListPrice()
	}
}

// outlivesReservation reports whether the machine was launched into a reservation that has ended since. Karpenter has then changed its capacity type.
func (m *Machine) outlivesReservation() bool {
	return m.Reservation == "" && slices.Contains(claimValues(m.Claim, karpv1.CapacityTypeLabelKey), karpv1.CapacityTypeReserved)
}

// ReservationOf returns the ID of the reservation whose slot the machine of a NodeClaim takes, or will take, or "" if it takes none.
func ReservationOf(claim *karpv1.NodeClaim) string {
	if claimValue(claim, karpv1.CapacityTypeLabelKey) != karpv1.CapacityTypeReserved {
		return "" // After the end of a reservation, the NodeClaim still requires it.
	}
	for _, key := range clouds.ReservationLabels() {
		if id := claimValue(claim, key); id != "" {
			return id
		}
	}
	return ""
}

// claimValue returns the value of a label of the NodeClaim. Before the launch it is the planned value, which is the first one of the requirement.
func claimValue(claim *karpv1.NodeClaim, key string) string {
	if v := claim.Labels[key]; v != "" {
		return v
	}
	if values := claimValues(claim, key); len(values) > 0 {
		return values[0]
	}
	return ""
}

// claimValues returns the values that the NodeClaim allows for a label, the planned one first.
func claimValues(claim *karpv1.NodeClaim, key string) []string {
	for _, req := range claim.Spec.Requirements {
		if req.Key == key && req.Operator == corev1.NodeSelectorOpIn {
			return req.Values
		}
	}
	return nil
}

// ShapeOf returns the offering of a NodeClaim. Before the launch, it is the planned one.
func ShapeOf(claim *karpv1.NodeClaim) (instanceType, zone, capacityType string) {
	return claimValue(claim, corev1.LabelInstanceTypeStable), claimValue(claim, corev1.LabelTopologyZone), claimValue(claim, karpv1.CapacityTypeLabelKey)
}

// RequestedOfferings returns the instance types and zones that a NodeClaim allows, the planned ones first, and its capacity type. [ReservationOf] returns the
// reservation.
func RequestedOfferings(claim *karpv1.NodeClaim) (instanceTypes, zones []string, capacityType string) {
	return claimValues(claim, corev1.LabelInstanceTypeStable), claimValues(claim, corev1.LabelTopologyZone), claimValue(claim, karpv1.CapacityTypeLabelKey)
}

// MicroUSDPerHour returns the current price of the machine, or the price at the time of planning if the catalog has none. The slot of a reservation is paid anyway, so
// it costs nearly nothing. Promise has its list price.
func (m *Machine) MicroUSDPerHour() int64 {
	if m.limited != nil {
		return m.limited.MicroUSDPerHour
	}
	if o := m.offering(); o != nil {
		return o.MicroUSDPerHour
	}
	return m.Promise.MicroUSDPerHour
}

// ListMicroUSDPerHour returns the current price of the machine in the cloud's list, or that at the time of planning if the catalog has none.
func (m *Machine) ListMicroUSDPerHour() int64 {
	if o := m.offering(); o != nil {
		return o.ListPrice()
	}
	return m.Promise.ListMicroUSDPerHour
}

// offering returns the offering of the machine in the catalog, or nil if it has none.
func (m *Machine) offering() *catalog.Offering {
	_, zone, capacityType := ShapeOf(m.Claim)
	if m.Type != nil {
		for i := range m.Type.Offerings {
			if o := &m.Type.Offerings[i]; o.Zone == zone && o.CapacityType == capacityType && o.Reservation == m.Reservation {
				return o
			}
		}
	}
	return nil
}

// Limited returns the limited price that the machine has, or nil if its price has no limit.
func (m *Machine) Limited() *catalog.LimitedPrice { return m.limited }

// limitPrices gives machines the lowest of their limited prices of whose limit enough is left, the oldest machines first.
func limitPrices(c *facts.Cluster, lists ...[]Machine) {
	left := map[string]int64{}
	for _, l := range c.PriceLimits {
		left[l.Name] = l.Amount
	}
	var all []*Machine
	for _, machines := range lists {
		for i := range machines {
			all = append(all, &machines[i])
		}
	}
	slices.SortFunc(all, func(a, b *Machine) int {
		return cmp.Or(a.Claim.CreationTimestamp.Compare(b.Claim.CreationTimestamp.Time), strings.Compare(a.Claim.Name, b.Claim.Name))
	})
	for _, m := range all {
		o := m.offering()
		if o == nil || m.Reservation != "" {
			continue
		}
		for i := range o.Limited {
			if p := &o.Limited[i]; p.Draws <= left[p.Limit] && (m.limited == nil || p.MicroUSDPerHour < m.limited.MicroUSDPerHour) {
				m.limited = p
			}
		}
		if m.limited != nil {
			left[m.limited.Limit] -= m.limited.Draws
		}
	}
}

// Assumed is how a machine in a WhatIf view differs from its objects.
type Assumed struct {
	Leaving, Staying, Cordoned bool
	// Refilled reports whether the slot of its reservation is free for another machine, as it will be once this one is gone.
	Refilled bool
}
