package overview

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/bill"
	"karve.sh/karve/pkg/fleet/usage"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// Build returns the overview of a cluster. It reads the NodePools, GPUNodeClasses, NodeClaims, Nodes and Pods, and the instance types of node classes
// for prices. Other objects may be missing.
func Build(c *facts.Cluster) *Overview {
	with := *c
	with.Index = c.Indexed()
	b := builder{Cluster: &with, pools: map[string]*snapshot.Pool{}}
	o := &Overview{AsOf: c.Now, Pools: []Pool{}, Nodes: []Node{}, Pods: []Pod{}, Waiting: []Waiting{}}
	for i := range c.NodePools {
		if np := &c.NodePools[i]; facts.IsOurs(np) {
			b.pools[np.Name] = &snapshot.Pool{NodePool: np, Class: b.class(np.Spec.Template.Spec.NodeClassRef.Name)}
			o.Pools = append(o.Pools, b.pool(np))
		}
	}
	known := map[string]bool{}
	for m := range b.machines() {
		if m.Node != nil {
			known[m.Node.Name] = true
		}
		b.addMachine(o, m)
	}
	for node := range b.Index.AllNodes() {
		if !known[node.Name] {
			b.addOther(o, node)
		}
	}
	for _, pod := range b.Index.Pending() {
		if facts.Waits(pod) {
			o.Waiting = append(o.Waiting, waitingOf(pod))
		}
	}
	slices.SortFunc(o.Pools, func(a, b Pool) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(o.Nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(o.Pods, func(a, b Pod) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	slices.SortFunc(o.Waiting, func(a, b Waiting) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	o.Reservations = reservationsOf(b.Cluster)
	o.sum()
	return o
}

// builder caches what is needed more than once.
type builder struct {
	*facts.Cluster
	// pools are Karve's NodePools by name. They have no offerings.
	pools map[string]*snapshot.Pool
}

func (b *builder) class(name string) *v1alpha1.GPUNodeClass {
	for i := range b.GPUNodeClasses {
		if b.GPUNodeClasses[i].Name == name {
			return &b.GPUNodeClasses[i]
		}
	}
	return nil
}

// machines returns Karve's machines and its canaries.
func (b *builder) machines() iter.Seq[*records.Machine] {
	return func(yield func(*records.Machine) bool) {
		for _, machines := range [][]records.Machine{records.Machines(b.Cluster), records.Canaries(b.Cluster)} {
			for i := range machines {
				if !yield(&machines[i]) {
					return
				}
			}
		}
	}
}

func (b *builder) pool(np *karpv1.NodePool) Pool {
	p := Pool{Name: np.Name, GPUNodeClass: np.Spec.Template.Spec.NodeClassRef.Name}
	if class := b.pools[np.Name].Class; class != nil {
		p.Resource = strings.Join(class.Spec.Sharing.Resources(), ", ")
	}
	for _, kind := range []string{"Ready", v1alpha1.ConditionReplicasHealthy, v1alpha1.ConditionNodesHealthy} {
		if c := facts.Condition(np.Status.Conditions, kind); c != nil && c.Status == "False" && p.Problem == "" {
			p.Problem = cmp.Or(c.Message, c.Reason)
		}
	}
	return p
}

func (b *builder) addMachine(o *Overview, m *records.Machine) {
	n := Node{
		Name: m.Claim.Name, NodeClaim: m.Claim.Name, Pool: m.Pool(), Resource: m.Promise.ResourceNames(), Created: m.Claim.CreationTimestamp.Time,
		Replicas: max(m.Promise.Replicas(), 0), GPUs: unknownGPUs(m.Promise.GPUs),
	}
	n.InstanceType, n.Zone, n.CapacityType = records.ShapeOf(m.Claim)
	if m.Started() {
		n.Replicas = m.Exposed()
	}
	b.describe(&n, m)
	if price := m.Promise.MicroUSDPerHour; price > 0 {
		n.MicroUSDPerHour, n.ListMicroUSDPerHour = &price, new(m.Promise.ListMicroUSDPerHour)
	}
	memory := int64(0)
	if m.Type != nil {
		memory = m.Promise.GPUs * m.Type.GPU.UsableMiB()
	}
	if m.Node != nil {
		n.Name = m.Node.Name
		memory = cmp.Or(memoryOf(m.Node, m.Promise.GPUs), memory)
	}
	if mig := m.Promise.MIG; !mig.IsZero() {
		memory = 0 // The Node's label may have the memory of an instance.
		for _, of := range mig.Instances(m.Promise.GPUs) {
			memory += of.Count * of.MemoryMiB
		}
	}
	if memory > 0 {
		n.MemoryMiB = &memory
	}
	// The price is divided by the promised replicas, as in the metric of the controller.
	parts := max(m.Promise.Replicas(), n.Replicas)
	if !m.Promise.Slots.IsZero() || m.Promise.MIG.Mixed() {
		parts = m.Shares()
	}
	b.add(o, n, m.Node, m.Pods, holdings{m.Promise.Resource, parts, m.SharesOf, m.GPUMiB()})
}

// holdings compute what the pods of a node hold.
type holdings struct {
	// resource is the resource of its replicas.
	resource corev1.ResourceName
	// parts is the number of parts into which the node's price is divided, and of returns how many of them a pod has.
	parts int64
	of    func(*corev1.Pod) int64
	// gpuMiB is the device memory of each GPU in MiB, or 0 if it is unknown.
	gpuMiB int64
}

// addOther adds a node that Karve did not launch, if it exposes shared GPUs or has an agent.
func (b *builder) addOther(o *Overview, node *corev1.Node) {
	exposed := node.Status.Allocatable[v1alpha1.ResourceGPUShared]
	n := Node{
		Name: node.Name, Pool: node.Labels[karpv1.NodePoolLabelKey], Resource: string(v1alpha1.ResourceGPUShared), Created: node.CreationTimestamp.Time,
		State: lifecycle.Started, InstanceType: node.Labels[corev1.LabelInstanceTypeStable], Zone: node.Labels[corev1.LabelTopologyZone],
		CapacityType: node.Labels[karpv1.CapacityTypeLabelKey],
	}
	if exposed.IsZero() {
		if node.Annotations[nodecontract.HoldersAnnotation] == "" {
			return
		}
		n.Resource = string(v1alpha1.ResourceGPU)
		exposed = node.Status.Allocatable[v1alpha1.ResourceGPU]
	}
	n.Replicas = amount.Value(exposed)
	count := min(numberOf(node.Labels[nodecontract.GPUCountLabel]), n.Replicas)
	n.GPUs = unknownGPUs(count)
	if memory := memoryOf(node, count); memory > 0 {
		n.MemoryMiB = &memory
	}
	n.Message, n.Severity = b.condition(node)
	_, pods := b.Index.Node(node.Name)
	gpu := corev1.ResourceName(n.Resource)
	b.add(o, n, node, pods, holdings{gpu, n.Replicas, func(pod *corev1.Pod) int64 { return facts.ResourcesOf(facts.PodRequests(pod), gpu).Replicas }, memoryOf(node, 1)})
}

func (b *builder) add(o *Overview, n Node, node *corev1.Node, pods []*corev1.Pod, has holdings) {
	unused := nodecontract.UnusedReport{}
	if node != nil {
		n.Address = addressOf(node)
		unused, _ = nodecontract.ParseUnused(node.Annotations[nodecontract.UnusedSinceAnnotation]) // A report that cannot be read is ignored.
	}
	first, held := len(o.Pods), []int64(nil)
	for _, pod := range pods {
		more := facts.ResourcesOf(facts.PodRequests(pod), has.resource).Replicas
		if more == 0 {
			continue
		}
		p := Pod{
			Namespace: pod.Namespace, Name: pod.Name, Node: n.Name, Pool: n.Pool, Replicas: more, StatedMiB: statedMemory(pod), Started: facts.StartTime(pod),
			StatedProblem: facts.MemoryProblem(pod, has.gpuMiB),
		}
		if d := usage.For(pod, unused, b.Now); d > 0 {
			p.UnusedSeconds = new(int64(d / time.Second))
		}
		if p.StatedMiB != nil {
			n.StatedMiB = amount.Add(n.StatedMiB, *p.StatedMiB)
		}
		n.ReplicasHeld = amount.Add(n.ReplicasHeld, more)
		held = append(held, has.of(pod))
		o.Pods = append(o.Pods, p)
	}
	mine := o.Pods[first:]
	if n.MicroUSDPerHour != nil {
		shares, idle := bill.Split(*n.MicroUSDPerHour, has.parts, held)
		for i := range mine {
			mine[i].MicroUSDPerHour = &shares[i]
		}
		n.IdleMicroUSDPerHour = &idle
	}
	n.Agent = Agent{Report: Missing}
	if node != nil {
		n.hear(node.Annotations[nodecontract.HoldersAnnotation], mine, b.Now)
	}
	o.Nodes = append(o.Nodes, n)
}

// waitingOf describes a pod that is bound to no node.
func waitingOf(pod *corev1.Pod) Waiting {
	requests := facts.PodRequests(pod)
	w := Waiting{
		Namespace: pod.Namespace, Name: pod.Name, Since: pod.CreationTimestamp.Time, Nominated: pod.Status.NominatedNodeName, StatedMiB: statedMemory(pod),
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			w.Reason = c.Reason
		}
	}
	for _, name := range []corev1.ResourceName{v1alpha1.ResourceGPUShared, v1alpha1.ResourceGPU} {
		if n := facts.ResourcesOf(requests, name).Replicas; n > 0 && w.Replicas == 0 {
			w.Resource, w.Replicas = string(name), n
		}
	}
	if asks := facts.GPURequestOf(pod); w.Replicas == 0 {
		w.Resource, w.Replicas = string(asks.Resource), asks.Replicas
	}
	return w
}

// addressOf returns the internal IP address of a Node.
func addressOf(node *corev1.Node) string {
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return a.Address
		}
	}
	return ""
}

// statedMemory returns the device memory in MiB, rounded up, that a pod requests or that its slots have. It returns nil if there is none or if it is invalid.
func statedMemory(pod *corev1.Pod) *int64 {
	if sizes := facts.SlotSizes(pod); len(sizes) > 0 {
		var sum int64
		for _, mib := range sizes {
			sum += mib
		}
		return &sum
	}
	text, ok := pod.Annotations[v1alpha1.GPUMemoryAnnotation]
	if !ok {
		return nil
	}
	bytes, err := amount.Memory(text)
	if err != nil {
		return nil
	}
	return new((bytes + 1<<20 - 1) >> 20)
}

// physical returns the number of physical GPUs. The MIG instances of a GPU have the same index.
func (n *Node) physical() int64 {
	indices := map[int]bool{}
	for i := range n.GPUs {
		indices[n.GPUs[i].Index] = true
	}
	return int64(len(indices))
}

func unknownGPUs(count int64) []GPU {
	gpus := make([]GPU, min(max(count, 0), maxGPUs))
	for i := range gpus {
		gpus[i].Index = i
	}
	return gpus
}

// Where returns the part of an overview that is about the nodes for which keep returns true. All waiting pods remain.
func (o *Overview) Where(keep func(*Node) bool) *Overview {
	some := &Overview{AsOf: o.AsOf, Pools: slices.Clone(o.Pools), Nodes: []Node{}, Pods: []Pod{}, Waiting: o.Waiting, Controller: o.Controller}
	kept := map[string]bool{}
	for i := range o.Nodes {
		if keep(&o.Nodes[i]) {
			some.Nodes = append(some.Nodes, o.Nodes[i])
			kept[o.Nodes[i].Name] = true
		}
	}
	for i := range o.Pods {
		if kept[o.Pods[i].Node] {
			some.Pods = append(some.Pods, o.Pods[i])
		}
	}
	for i := range some.Pools {
		some.Pools[i].Totals = Totals{}
	}
	some.sum()
	return some
}

// Of returns an overview with only some pods, by their namespace and name, among those that hold replicas and those that wait. Nodes and totals are those of all pods.
func (o *Overview) Of(keep func(namespace, name string) bool) *Overview {
	some := *o
	some.Nodes = slices.Clone(o.Nodes)
	some.Pods = slices.DeleteFunc(slices.Clone(o.Pods), func(p Pod) bool { return !keep(p.Namespace, p.Name) })
	some.Waiting = slices.DeleteFunc(slices.Clone(o.Waiting), func(w Waiting) bool { return !keep(w.Namespace, w.Name) })
	for i := range some.Nodes {
		gpus := slices.Clone(some.Nodes[i].GPUs)
		for j := range gpus {
			gpus[j].Holders = slices.DeleteFunc(slices.Clone(gpus[j].Holders), func(h Holder) bool { return !keep(h.Namespace, h.Pod) })
		}
		some.Nodes[i].GPUs = gpus
	}
	return &some
}

// Only returns the part of an overview that is about a node, by the name of its Node or NodeClaim. It returns false if there is none.
func (o *Overview) Only(name string) (*Overview, bool) {
	one := o.Where(func(n *Node) bool { return n.Name == name || n.NodeClaim == name })
	if len(one.Nodes) == 0 {
		return nil, false
	}
	one.Waiting = []Waiting{}
	one.Pools = slices.DeleteFunc(one.Pools, func(p Pool) bool { return p.Name != one.Nodes[0].Pool })
	return one, true
}

// Running reports whether the node has started, so that an agent should report on it.
func (n *Node) Running() bool {
	switch n.State {
	case lifecycle.Started, lifecycle.Unhealthy, lifecycle.Replacing, lifecycle.Disrupting:
		return true
	default:
		return false
	}
}

func (o *Overview) sum() {
	pools := map[string]*Totals{}
	for i := range o.Pools {
		pools[o.Pools[i].Name] = &o.Pools[i].Totals
	}
	for i := range o.Nodes {
		n := &o.Nodes[i]
		o.Totals.add(n)
		if t := pools[n.Pool]; t != nil {
			t.add(n)
		}
	}
}

func (t *Totals) add(n *Node) {
	t.Nodes++
	t.GPUs += n.physical()
	t.Replicas = amount.Add(t.Replicas, n.Replicas)
	t.ReplicasHeld = amount.Add(t.ReplicasHeld, n.ReplicasHeld)
	if n.MicroUSDPerHour == nil {
		t.UnpricedNodes++
		return
	}
	t.MicroUSDPerHour = amount.Add(t.MicroUSDPerHour, *n.MicroUSDPerHour)
	t.ListMicroUSDPerHour = amount.Add(t.ListMicroUSDPerHour, *n.ListMicroUSDPerHour)
	t.IdleMicroUSDPerHour = amount.Add(t.IdleMicroUSDPerHour, *n.IdleMicroUSDPerHour)
}

// Concerns reports whether the overview of a cluster depends on a pod: it requests GPUs.
func Concerns(pod *corev1.Pod) bool {
	asks := func(c corev1.Container) bool {
		for name, q := range c.Resources.Requests {
			if q.Sign() > 0 && strings.HasPrefix(string(name), nodecontract.NVIDIAPrefix) {
				return true
			}
		}
		return false
	}
	return slices.ContainsFunc(pod.Spec.Containers, asks) || slices.ContainsFunc(pod.Spec.InitContainers, asks)
}
