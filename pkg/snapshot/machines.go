package snapshot

import (
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/planner"
)

// Machine is a NodeClaim of ours with its Node, once there is one.
type Machine struct {
	Claim *karpv1.NodeClaim
	// Node is nil until the machine has registered.
	Node *corev1.Node
	// Type is nil when the catalogue does not know the claim's instance type any more.
	Type *catalog.InstanceType
	// Pods are the pods bound to the Node that have not ended, DaemonSets' included.
	Pods []*corev1.Pod
	// Promise is what the machine was launched to expose.
	Promise Promise
}

// Promise is what a machine was launched to expose, as written on its NodeClaim and Node.
type Promise struct {
	Resource       corev1.ResourceName
	GPUs           int64
	ReplicasPerGPU int64
	// MicroUSDPerHour is the price when it was chosen.
	MicroUSDPerHour int64
}

// Replicas is the number of replicas of the whole machine.
func (p Promise) Replicas() int64 { return p.GPUs * p.ReplicasPerGPU }

// PromiseOf reads the promise from the annotations of a NodeClaim or Node; numbers that are missing or no numbers are 0.
func PromiseOf(annotations map[string]string) Promise {
	number := func(key string) int64 {
		n, err := strconv.ParseInt(annotations[key], 10, 64)
		if err != nil || n < 0 {
			return 0
		}
		return n
	}
	return Promise{
		Resource: corev1.ResourceName(annotations[v1alpha1.ResourceAnnotation]),
		GPUs:     number(v1alpha1.GPUsAnnotation), ReplicasPerGPU: number(v1alpha1.ReplicasPerGPUAnnotation),
		MicroUSDPerHour: number(v1alpha1.PriceAnnotation),
	}
}

// Pool is the name of the NodePool that the machine was launched for.
func (m *Machine) Pool() string { return m.Claim.Labels[karpv1.NodePoolLabelKey] }

// Deleting says that the machine is on its way out.
func (m *Machine) Deleting() bool {
	return !m.Claim.DeletionTimestamp.IsZero() || m.Node != nil && !m.Node.DeletionTimestamp.IsZero()
}

// Launched says whether the cloud has made the machine.
func (m *Machine) Launched() bool {
	return Condition(m.Claim.Status.Conditions, karpv1.ConditionTypeLaunched).IsTrue()
}

// AwaitsReplicas says that the machine has not exposed what it promised yet.
func (m *Machine) AwaitsReplicas() bool {
	return m.Node == nil || hasTaint(m.Node, v1alpha1.ReplicasNotReadyTaintKey)
}

// Exposed is the number of replicas that the Node has.
func (m *Machine) Exposed() int64 {
	if m.Node == nil {
		return 0
	}
	return valueOf(m.Node.Status.Allocatable, m.Promise.Resource)
}

// Broken says that the machine has had longer than timeout since it registered, and still does not expose what it promised.
func (m *Machine) Broken(now time.Time, timeout time.Duration) bool {
	if m.Node == nil || !m.AwaitsReplicas() || m.Exposed() >= m.Promise.Replicas() {
		return false
	}
	registered := Condition(m.Claim.Status.Conditions, karpv1.ConditionTypeRegistered)
	return registered.IsTrue() && !now.Before(registered.LastTransitionTime.Add(timeout))
}

// Replicas is the number of replicas that running pods hold.
func (m *Machine) ReplicasInUse() int64 {
	var n int64
	for _, pod := range m.Pods {
		n += requests(pod, m.Promise.Resource).Replicas
	}
	return n
}

// Empty says that the Node holds no pod but those that belong to it.
func (m *Machine) Empty() bool { return !slices.ContainsFunc(m.Pods, isWorkload) }

func isWorkload(pod *corev1.Pod) bool { return !karpenter.IsDaemon(pod) }

// Physical is what the machine counts against limits.
func (m *Machine) Physical() planner.Physical {
	if m.Type != nil {
		return physical(m.Type, m.Promise.ReplicasPerGPU)
	}
	capacity := m.Claim.Status.Capacity
	if m.Node != nil {
		capacity = m.Node.Status.Capacity
	}
	return planner.Physical{
		MilliCPU: capacity.Cpu().MilliValue(), MemoryBytes: capacity.Memory().Value(),
		GPUs: m.Promise.GPUs, Replicas: m.Promise.Replicas(), Nodes: 1,
	}
}

// Machines are the NodeClaims of ours, by name.
func (c *Cluster) Machines() []Machine {
	byName, byProvider := map[string]*corev1.Node{}, map[string]*corev1.Node{}
	for i := range c.Nodes {
		byName[c.Nodes[i].Name] = &c.Nodes[i]
		if id := c.Nodes[i].Spec.ProviderID; id != "" {
			byProvider[id] = &c.Nodes[i]
		}
	}
	pods := c.podsByNode()
	var machines []Machine
	for i := range c.NodeClaims {
		claim := &c.NodeClaims[i]
		if !IsOurClaim(claim) {
			continue
		}
		m := Machine{Claim: claim, Promise: PromiseOf(claim.Annotations), Type: c.instanceType(instanceTypeOf(claim))}
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

func (c *Cluster) podsByNode() map[string][]*corev1.Pod {
	pods := map[string][]*corev1.Pod{}
	for i := range c.Pods {
		if pod := &c.Pods[i]; pod.Spec.NodeName != "" && !karpenter.IsTerminal(pod) {
			pods[pod.Spec.NodeName] = append(pods[pod.Spec.NodeName], pod)
		}
	}
	return pods
}

func instanceTypeOf(claim *karpv1.NodeClaim) string {
	return claimValue(claim, corev1.LabelInstanceTypeStable)
}

// claimValue is the value of a label that the claim has or will have: its requirement names one value.
func claimValue(claim *karpv1.NodeClaim, key string) string {
	if v := claim.Labels[key]; v != "" {
		return v
	}
	for _, req := range claim.Spec.Requirements {
		if req.Key == key && req.Operator == corev1.NodeSelectorOpIn && len(req.Values) == 1 {
			return req.Values[0]
		}
	}
	return ""
}

// ShapeOf is the offering that a claim of ours asks for.
func ShapeOf(claim *karpv1.NodeClaim) (instanceType, zone, capacityType string) {
	return instanceTypeOf(claim), claimValue(claim, corev1.LabelTopologyZone), claimValue(claim, karpv1.CapacityTypeLabelKey)
}

// room is a node that waiting pods may find a place on.
type room struct {
	node   planner.Node
	gpu    corev1.ResourceName
	taints []corev1.Taint
	labels scheduling.Requirements
}

// rooms are the machines of ours, those on their way included, and any other nodes that have a GPU resource.
func (c *Cluster) rooms(machines []Machine) []room {
	var rooms []room
	ours := map[string]bool{}
	for i := range machines {
		m := &machines[i]
		if m.Node != nil {
			ours[m.Node.Name] = true
		}
		if r, ok := c.machineRoom(m); ok {
			rooms = append(rooms, r)
		}
	}
	pods := c.podsByNode()
	for i := range c.Nodes {
		node := &c.Nodes[i]
		if ours[node.Name] || !takesPods(node) {
			continue
		}
		for _, gpu := range []corev1.ResourceName{v1alpha1.ResourceGPU, v1alpha1.ResourceGPUShared} {
			if valueOf(node.Status.Allocatable, gpu) > 0 {
				free := minus(amounts(node.Status.Allocatable, gpu), sum(pods[node.Name], gpu))
				rooms = append(rooms, room{
					planner.Node{Name: node.Name, Free: atLeastZero(free)}, gpu, node.Spec.Taints, scheduling.NewLabelRequirements(node.Labels),
				})
				break
			}
		}
	}
	return rooms
}

func takesPods(node *corev1.Node) bool {
	return node.DeletionTimestamp.IsZero() && !node.Spec.Unschedulable &&
		!hasTaint(node, v1alpha1.DisruptingTaintKey) && !hasTaint(node, karpv1.DisruptedTaintKey)
}

func (c *Cluster) machineRoom(m *Machine) (room, bool) {
	if m.Deleting() || m.Broken(c.Now, c.ReplicasTimeout) || m.Node != nil && !takesPods(m.Node) {
		return room{}, false
	}
	gpu := m.Promise.Resource
	if m.Node == nil {
		return c.inFlightRoom(m)
	}
	labels := scheduling.NewLabelRequirements(m.Node.Labels)
	r := room{node: planner.Node{Name: m.Node.Name}, gpu: gpu, labels: labels, taints: m.Node.Spec.Taints}
	free := minus(amounts(m.Node.Status.Allocatable, gpu), sum(m.Pods, gpu))
	if !Condition(m.Claim.Status.Conditions, karpv1.ConditionTypeInitialized).IsTrue() {
		// The node is still starting: its startup taints will go, its replicas and DaemonSets will come.
		r.taints = lasting(m.Node.Spec.Taints, m.Claim.Spec.StartupTaints)
		daemons := minus(c.daemons(m.Claim.Spec.Taints, labels, gpu), sum(daemonsOf(m.Pods), gpu))
		free = minus(free, atLeastZero(daemons))
		if m.AwaitsReplicas() {
			free.Replicas += max(0, m.Promise.Replicas()-m.Exposed())
		}
	}
	r.node.Free = atLeastZero(free)
	return r, true
}

// inFlightRoom is the room of a machine that has no Node yet, as its promise and the catalogue say.
func (c *Cluster) inFlightRoom(m *Machine) (room, bool) {
	if m.Type == nil {
		return room{}, false
	}
	values := map[string]string{}
	for k, v := range m.Type.Labels {
		values[k] = v
	}
	_, zone, capacityType := ShapeOf(m.Claim)
	for _, o := range m.Type.Offerings {
		if o.Zone == zone && o.CapacityType == capacityType {
			for k, v := range o.Labels {
				values[k] = v
			}
		}
	}
	for k, v := range m.Claim.Labels {
		values[k] = v
	}
	labels := scheduling.NewLabelRequirements(values)
	free := minus(allocatable(m.Type), c.daemons(m.Claim.Spec.Taints, labels, m.Promise.Resource))
	free.Replicas += m.Promise.Replicas()
	return room{planner.Node{Name: m.Claim.Name, Free: atLeastZero(free)}, m.Promise.Resource, m.Claim.Spec.Taints, labels}, true
}

// lasting are the taints that will still be there when the node has started.
func lasting(taints, startup []corev1.Taint) []corev1.Taint {
	return slices.DeleteFunc(slices.Clone(taints), func(t corev1.Taint) bool {
		return t.Key == v1alpha1.ReplicasNotReadyTaintKey || scheduling.IsKnownEphemeralTaint(&t) ||
			slices.ContainsFunc(startup, func(s corev1.Taint) bool { return s.MatchTaint(&t) })
	})
}

func hasTaint(node *corev1.Node, key string) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

func daemonsOf(pods []*corev1.Pod) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), isWorkload)
}

func sum(pods []*corev1.Pod, gpu corev1.ResourceName) planner.Resources {
	var total planner.Resources
	for _, pod := range pods {
		total = plus(total, requests(pod, gpu))
	}
	return total
}
