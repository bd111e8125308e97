package snapshot

import (
	"slices"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/nodecontract/mig"
	"karve.sh/karve/pkg/nodelabels"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// room is a node with capacity that the planner can use.
type room struct {
	node planner.Node
	// machine is Karve's machine that is or will become the node. It is nil for other nodes.
	machine *records.Machine
	// nodeName is the name of the Node, or "" if there is none yet.
	nodeName string
	// starting is true if the machine is not initialized, so that its Node does not have all its labels and resources yet.
	starting bool
	gpu      corev1.ResourceName
	taints   []corev1.Taint
	labels   map[string]string
	// doubts are the labels of a node that does not show all of its labels yet.
	doubts nodelabels.Doubts
	// pods are the pods on the node, and use is what they use. daemons are the DaemonSet pods that will still start there.
	pods    []*corev1.Pod
	use     *facts.Use
	daemons []*records.Demand
	// extended returns what the node has, or will have, of resources that are not in planner.Resources.
	extended func(corev1.ResourceName) int64
	// gpus are the GPUs of which the agent chooses, of which pods hold, or will hold, held replicas. depth is how many pods that state device memory may
	// share one of them. It is 0 if no such pods wait.
	gpus        records.GPUSet
	held, depth int64
	// instances are what the node has, or will have, of each resource if it has MIG instances of several profiles.
	instances []mig.Offer
	memo      *roomMemo
}

// exposes reports whether the node has all GPU resources that a pod requests, of which gpu is one. Only Karve's machines have slots.
func (r *room) exposes(gpu corev1.ResourceName, requested corev1.ResourceList) bool {
	var slots nodecontract.Slots
	if r.machine != nil {
		slots = r.machine.Promise.Slots
	} else if facts.IsSlot(gpu) {
		return false
	}
	return records.Exposes(r.gpu, slots, r.instances, gpu, requested)
}

// roomsOf returns the rooms of Karve's machines, including those that are starting, and of all other nodes with a GPU resource. It skips those that
// accept no pods.
func roomsOf(c *facts.Cluster, machines []records.Machine) []room {
	rooms := make([]room, 0, len(machines))
	daemons, x := records.DaemonDemands(c), c.Indexed()
	ours, coming := make(map[*facts.Site]bool, len(machines)), map[string]bool{}
	for i := range machines {
		m := &machines[i]
		switch s := m.Site(); {
		case s == nil:
			coming[m.Claim.Name] = true
		case ours[s]:
			continue // Two NodeClaims with the same Node are one room.
		default:
			ours[s] = true
		}
		if m.Node != nil {
			c.BeginVisit("Node", m.Node)
		}
		if r, ok := machineRoom(c, m, daemons); ok {
			rooms = append(rooms, r)
		}
	}
	types := sync.OnceValue(c.InstanceTypes)
	for name, s := range x.WithGPU() {
		if !ours[s] && !coming[name] && facts.TakesPods(s.Node) {
			c.BeginVisit("Node", s.Node)
			rooms = append(rooms, unmanagedRoom(s, types()))
		}
	}
	slices.SortFunc(rooms, func(a, b room) int { return strings.Compare(a.node.Name, b.node.Name) })
	return rooms
}

// unmanagedRoom returns the room of a node that Karve did not launch.
func unmanagedRoom(s *facts.Site, types []catalog.InstanceType) room {
	return facts.Remember(&s.RoomSlot, facts.IdentityOf(types), func() *roomMemo {
		node, gpu, use := s.Node, facts.GPUOf(s.Node), s.Use()
		exposed := facts.ResourcesOf(node.Status.Allocatable, gpu)
		gpus := records.UnmanagedGPUs(node, catalog.Named(types, node.Labels[corev1.LabelInstanceTypeStable]), exposed.Replicas)
		all := records.GPUSetOf(gpus)
		left, _ := records.GPUsHeld(gpus, s.Pods, gpu)
		return roomMemoOf(room{
			node: planner.Node{
				Name: node.Name, Free: facts.AtLeastZero(facts.Minus(exposed, use.All.Resources(gpu))),
				GPUs: left,
			},
			gpus: all, held: use.All.Resources(gpu).Replicas,
			nodeName: node.Name, gpu: gpu, taints: node.Spec.Taints, labels: node.Labels, pods: s.Pods, use: use, instances: records.PublishedOffers(node),
			extended: func(name corev1.ResourceName) int64 { return facts.ValueOf(node.Status.Allocatable, name) },
		})
	}).room
}

// roomMemo is a room with the demands that it is known to refuse or not.
type roomMemo struct {
	room    room
	mu      sync.Mutex
	refuses map[string]bool
}

// roomInput is what the room of a machine depends on beside its NodeClaim, its node, its pods and its instance types.
type roomInput struct {
	maxPerGPU int64
	raised    bool
	settling  bool
	daemons   facts.Identity[appsv1.DaemonSet]
}

// maxRefuses limits the number of cached answers for each room.
const maxRefuses = 256

// refusesDemand reports whether a room refuses pods with a demand. The key identifies the demand.
func (m *roomMemo) refusesDemand(key string, d *records.Demand) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	refuses, known := m.refuses[key]
	if known {
		return refuses
	}
	if len(m.refuses) >= maxRefuses || m.refuses == nil {
		m.refuses = map[string]bool{}
	}
	refuses = d.Refusal(m.room.taints, m.room.nodeName, m.room.nodeLabels()) != nil
	m.refuses[key] = refuses
	return refuses
}

func roomMemoOf(r room) *roomMemo {
	m := &roomMemo{room: r}
	m.room.memo = m
	return m
}

// machineRoom returns the room of one of Karve's machines, and false if it takes no pods.
func machineRoom(c *facts.Cluster, m *records.Machine, daemons []records.Demand) (room, bool) {
	state := m.State()
	if m.Broken(c.Now, c.ReplicasTimeout) {
		state = lifecycle.Broken
	}
	if m.Leaving() || lifecycle.Of(state).Room == lifecycle.NoRoom || m.Assumed.Cordoned || m.Closed() {
		return room{}, false
	}
	given := roomInput{maxPerGPU: m.MaxPerGPU, raised: m.Raised(c.Now), settling: m.Settling(c.Now)}
	if given.settling {
		given.daemons = facts.IdentityOf(c.DaemonSets)
	}
	r := facts.Remember(m.RoomSlot(), given, func() *roomMemo {
		if !m.Initialized() {
			return roomMemoOf(startingRoom(m, daemons, given.raised))
		}
		started := startedRoom(m, given.raised)
		if given.settling {
			started.expectLabels(m, daemons)
		}
		return roomMemoOf(started)
	}).room
	r.machine = m
	return r, true
}

func startedRoom(m *records.Machine, raised bool) room {
	// A node that Karve is about to remove is a room too. If pods are placed there, Karve keeps the node and removes its taint.
	taints := slices.DeleteFunc(slices.Clone(m.Node.Spec.Taints), func(t corev1.Taint) bool {
		// These taints only guide the scheduler. No machine is launched because of them.
		return t.Key == v1alpha1.DisruptingTaintKey || t.Key == v1alpha1.SurplusTaintKey || t.Key == nodecontract.SlotsChangingTaintKey
	})
	gpu, use := m.Promise.Resource, m.Site().Use()
	exposed := facts.ResourcesOf(m.Node.Status.Allocatable, gpu)
	var more int64
	exposed.Replicas, more = m.HasOrGets(exposed.Replicas, raised)
	machine := *m
	if !m.Promise.Slots.IsZero() {
		gpus := m.SlotsLeft(raised || m.ExposesAll())
		free := facts.AtLeastZero(facts.Minus(exposed, use.All.Resources(gpu)))
		free.Replicas = records.FreeSlots(gpus)
		return room{
			node: planner.Node{Name: m.Node.Name, Free: free, GPUs: gpus}, nodeName: m.Node.Name, gpu: gpu, taints: taints, labels: m.Node.Labels, pods: m.Pods, use: use,
			extended: machine.Extended,
		}
	}
	return room{
		node: planner.Node{
			Name: m.Node.Name, Free: facts.AtLeastZero(facts.Minus(exposed, use.All.Resources(gpu))),
			GPUs: m.GPUsLeft(m.Promise.ReplicasPerGPU+more, exposed.Replicas, m.Node.Labels),
		},
		nodeName: m.Node.Name, gpu: gpu, taints: taints, labels: m.Node.Labels, pods: m.Pods, use: use, extended: machine.Extended,
		gpus: m.GPUSet(m.Promise.ReplicasPerGPU+more, exposed.Replicas, m.Node.Labels), held: use.All.Resources(gpu).Replicas, instances: m.Promise.Offers(),
	}
}

// startingRoom returns the room of a machine that has not started, as it will be later. Before it has registered, its Node may lack labels and taints.
// Afterwards its startup taints are removed, and its replicas and DaemonSet pods appear.
func startingRoom(m *records.Machine, daemons []records.Demand, raised bool) room {
	gpu, machine := m.Promise.Resource, *m
	r := room{node: planner.Node{Name: m.Claim.Name}, starting: true, gpu: gpu, taints: m.Claim.Spec.Taints, use: &facts.Use{}, instances: m.Promise.Offers()}
	shown := m.LabelsWithDoubts()
	r.labels, r.doubts = shown.Known, shown.Doubts
	if m.Node != nil {
		r.node.Name, r.nodeName, r.use = m.Node.Name, m.Node.Name, m.Site().Use()
		if m.Registered() {
			r.taints = records.LastingTaints(m.Node.Spec.Taints, m.Claim.Spec.StartupTaints)
		}
	}
	expected := m.Expected()
	var more int64
	expected.Replicas, more = m.HasOrGets(expected.Replicas, raised)
	r.pods, r.extended, r.daemons = m.Pods, machine.Extended, records.DaemonsOn(daemons, m.Claim.Spec.Taints, r.nodeName, shown, expected, gpu)
	toCome := facts.AtLeastZero(facts.Minus(records.Overhead(r.daemons, gpu), r.use.Daemons.Resources(gpu)))
	r.node.Free = facts.AtLeastZero(facts.Minus(facts.Minus(expected, r.use.All.Resources(gpu)), toCome))
	if !m.Promise.Slots.IsZero() {
		r.node.GPUs = m.SlotsLeft(true)
		r.node.Free.Replicas = records.FreeSlots(r.node.GPUs)
		return r
	}
	r.node.GPUs = m.GPUsLeft(m.Promise.ReplicasPerGPU+more, expected.Replicas, r.labels)
	records.Hold(r.node.GPUs, toCome.Replicas, 0)
	r.gpus, r.held = m.GPUSet(m.Promise.ReplicasPerGPU+more, expected.Replicas, r.labels), r.use.All.Resources(gpu).Replicas+toCome.Replicas
	return r
}

// expectLabels adds the labels that the Node of a started machine still lacks, and keeps room for the DaemonSet pods that come with them.
func (r *room) expectLabels(m *records.Machine, daemons []records.Demand) {
	shown := m.LabelsWithDoubts()
	r.daemons = slices.DeleteFunc(records.DaemonsOn(daemons, r.taints, r.nodeName, shown, facts.ResourcesOf(m.Node.Status.Allocatable, r.gpu), r.gpu), func(d *records.Demand) bool {
		return !d.Later || d.Refusal(r.taints, r.nodeName, r.nodeLabels()) == nil
	})
	r.labels, r.doubts = shown.Known, shown.Doubts
	coming := records.Overhead(r.daemons, r.gpu)
	r.node.Free, r.held = facts.AtLeastZero(facts.Minus(r.node.Free, coming)), r.held+coming.Replicas
}

func (r *room) nodeLabels() nodelabels.Labels {
	return nodelabels.Labels{Known: r.labels, Doubts: r.doubts}
}

// resources returns the GPU resources of the room. Slots have one name for all sizes.
func (r *room) resources() []corev1.ResourceName {
	if r.instances == nil {
		return []corev1.ResourceName{r.gpu}
	}
	var names []corev1.ResourceName
	for _, o := range r.instances {
		names = append(names, corev1.ResourceName(o.Resource))
	}
	return names
}
