package snapshot

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/nodecontract/mig"
	"karve.sh/karve/pkg/nodelabels"
	"karve.sh/karve/pkg/planner"
)

// room is a node with capacity that the planner can use.
type room struct {
	node planner.Node
	// machine is Karve's machine that is or will become the node. It is nil for other nodes.
	machine *Machine
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
	use     *use
	daemons []*demand
	// extended returns what the node has, or will have, of resources that are not in planner.Resources.
	extended func(corev1.ResourceName) int64
	// gpus are the GPUs of which the agent chooses, of which pods hold, or will hold, held replicas. depth is how many pods that state device memory may
	// share one of them. It is 0 if no such pods wait.
	gpus        gpuSet
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
	} else if isSlot(gpu) {
		return false
	}
	return exposes(r.gpu, slots, r.instances, gpu, requested)
}

// rooms returns the rooms of Karve's machines, including those that are starting, and of all other nodes with a GPU resource. It skips those that
// accept no pods.
func (c *Cluster) rooms(machines []Machine) []room {
	rooms := make([]room, 0, len(machines))
	daemons, x := c.daemonDemands(), c.Indexed()
	ours, coming := make(map[*site]bool, len(machines)), map[string]bool{}
	for i := range machines {
		m := &machines[i]
		switch s := m.site(); {
		case s == nil:
			coming[m.Claim.Name] = true
		case ours[s]:
			continue // Two NodeClaims with the same Node are one room.
		default:
			ours[s] = true
		}
		if m.Node != nil {
			c.visit("Node", m.Node)
		}
		if r, ok := c.machineRoom(m, daemons); ok {
			rooms = append(rooms, r)
		}
	}
	types := sync.OnceValue(c.InstanceTypes)
	for name, s := range x.withGPU() {
		if !ours[s] && !coming[name] && TakesPods(s.node) {
			c.visit("Node", s.node)
			rooms = append(rooms, s.unmanagedRoom(types()))
		}
	}
	slices.SortFunc(rooms, func(a, b room) int { return strings.Compare(a.node.Name, b.node.Name) })
	return rooms
}

// unmanagedRoom returns the room of a node that Karve did not launch.
func (s *site) unmanagedRoom(types []catalog.InstanceType) room {
	return Remember(&s.room, IdentityOf(types), func() *roomMemo {
		node, gpu, use := s.node, gpuOf(s.node), s.use()
		exposed := ResourcesOf(node.Status.Allocatable, gpu)
		gpus := unmanagedGPUs(node, catalog.Named(types, node.Labels[corev1.LabelInstanceTypeStable]), exposed.Replicas)
		all := gpuSetOf(gpus)
		left, _ := gpusHeld(gpus, s.pods, gpu)
		return roomMemoOf(room{
			node: planner.Node{
				Name: node.Name, Free: atLeastZero(minus(exposed, use.all.resources(gpu))),
				GPUs: left,
			},
			gpus: all, held: use.all.resources(gpu).Replicas,
			nodeName: node.Name, gpu: gpu, taints: node.Spec.Taints, labels: node.Labels, pods: s.pods, use: use, instances: publishedOffers(node),
			extended: func(name corev1.ResourceName) int64 { return valueOf(node.Status.Allocatable, name) },
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
	mostPerGPU int64
	raised     bool
	settling   bool
	daemons    Identity[appsv1.DaemonSet]
}

// maxRefuses limits the number of cached answers for each room.
const maxRefuses = 256

// refusing reports whether a room refuses pods with a demand. The key identifies the demand.
func (m *roomMemo) refusing(key string, d *demand) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	refuses, known := m.refuses[key]
	if known {
		return refuses
	}
	if len(m.refuses) >= maxRefuses || m.refuses == nil {
		m.refuses = map[string]bool{}
	}
	refuses = d.refusal(m.room.taints, m.room.nodeName, m.room.shown()) != nil
	m.refuses[key] = refuses
	return refuses
}

func roomMemoOf(r room) *roomMemo {
	m := &roomMemo{room: r}
	m.room.memo = m
	return m
}

// TakesPods reports whether the scheduler may place pods on the node and the node is not about to be removed.
func TakesPods(node *corev1.Node) bool {
	return node.DeletionTimestamp.IsZero() && !node.Spec.Unschedulable && node.Labels[v1alpha1.CanaryLabel] == "" && !HasTaint(node, karpv1.DisruptedTaintKey)
}

// machineRoom returns the room of one of Karve's machines, and false if it takes no pods.
func (c *Cluster) machineRoom(m *Machine, daemons []demand) (room, bool) {
	state := m.State()
	if m.Broken(c.Now, c.ReplicasTimeout) {
		state = lifecycle.Broken
	}
	if m.Leaving() || lifecycle.Of(state).Room == lifecycle.NoRoom || m.Assumed.Cordoned || m.closed() {
		return room{}, false
	}
	given := roomInput{mostPerGPU: m.MostPerGPU, raised: m.raised(c.Now), settling: m.settling(c.Now)}
	if given.settling {
		given.daemons = IdentityOf(c.DaemonSets)
	}
	r := Remember(m.roomSlot(), given, func() *roomMemo {
		if !m.Initialized() {
			return roomMemoOf(m.startingRoom(daemons, given.raised))
		}
		started := m.startedRoom(given.raised)
		if given.settling {
			started.expectLabels(m, daemons)
		}
		return roomMemoOf(started)
	}).room
	r.machine = m
	return r, true
}

// startedRoom returns the room of a machine that has started.
func (m *Machine) startedRoom(raised bool) room {
	// A node that Karve is about to remove is a room too. If pods are placed there, Karve keeps the node and removes its taint.
	taints := slices.DeleteFunc(slices.Clone(m.Node.Spec.Taints), func(t corev1.Taint) bool {
		// These taints only guide the scheduler. No machine is launched because of them.
		return t.Key == v1alpha1.DisruptingTaintKey || t.Key == v1alpha1.SurplusTaintKey || t.Key == nodecontract.SlotsChangingTaintKey
	})
	gpu, use := m.Promise.Resource, m.site().use()
	exposed := ResourcesOf(m.Node.Status.Allocatable, gpu)
	var more int64
	exposed.Replicas, more = m.hasOrGets(exposed.Replicas, raised)
	machine := *m
	if !m.Promise.Slots.IsZero() {
		gpus := m.slotsLeft(raised || m.exposesAll())
		free := atLeastZero(minus(exposed, use.all.resources(gpu)))
		free.Replicas = freeSlots(gpus)
		return room{
			node: planner.Node{Name: m.Node.Name, Free: free, GPUs: gpus}, nodeName: m.Node.Name, gpu: gpu, taints: taints, labels: m.Node.Labels, pods: m.Pods, use: use,
			extended: machine.extended,
		}
	}
	return room{
		node: planner.Node{
			Name: m.Node.Name, Free: atLeastZero(minus(exposed, use.all.resources(gpu))),
			GPUs: m.gpusLeft(m.Promise.ReplicasPerGPU+more, exposed.Replicas, m.Node.Labels),
		},
		nodeName: m.Node.Name, gpu: gpu, taints: taints, labels: m.Node.Labels, pods: m.Pods, use: use, extended: machine.extended,
		gpus: m.gpuSet(m.Promise.ReplicasPerGPU+more, exposed.Replicas, m.Node.Labels), held: use.all.resources(gpu).Replicas, instances: m.Promise.offers(),
	}
}

// startingRoom returns the room of a machine that has not started, as it will be later. Before it has registered, its Node may lack labels and taints.
// Afterwards its startup taints are removed, and its replicas and DaemonSet pods appear.
func (m *Machine) startingRoom(daemons []demand, raised bool) room {
	gpu, machine := m.Promise.Resource, *m
	r := room{node: planner.Node{Name: m.Claim.Name}, starting: true, gpu: gpu, taints: m.Claim.Spec.Taints, use: &use{}, instances: m.Promise.offers()}
	shown := m.expectedLabels()
	r.labels, r.doubts = shown.Known, shown.Doubts
	if m.Node != nil {
		r.node.Name, r.nodeName, r.use = m.Node.Name, m.Node.Name, m.site().use()
		if m.Registered() {
			r.taints = lasting(m.Node.Spec.Taints, m.Claim.Spec.StartupTaints)
		}
	}
	expected := m.expected()
	var more int64
	expected.Replicas, more = m.hasOrGets(expected.Replicas, raised)
	r.pods, r.extended, r.daemons = m.Pods, machine.extended, daemonsOn(daemons, m.Claim.Spec.Taints, r.nodeName, shown, expected, gpu)
	toCome := atLeastZero(minus(overhead(r.daemons, gpu), r.use.daemons.resources(gpu)))
	r.node.Free = atLeastZero(minus(minus(expected, r.use.all.resources(gpu)), toCome))
	if !m.Promise.Slots.IsZero() {
		r.node.GPUs = m.slotsLeft(true)
		r.node.Free.Replicas = freeSlots(r.node.GPUs)
		return r
	}
	r.node.GPUs = m.gpusLeft(m.Promise.ReplicasPerGPU+more, expected.Replicas, r.labels)
	hold(r.node.GPUs, toCome.Replicas, 0)
	r.gpus, r.held = m.gpuSet(m.Promise.ReplicasPerGPU+more, expected.Replicas, r.labels), r.use.all.resources(gpu).Replicas+toCome.Replicas
	return r
}

// extended returns what the machine has, or will have, of a resource that is not in planner.Resources. It uses the Node, then the NodeClaim, then the
// catalog.
func (m *Machine) extended(name corev1.ResourceName) int64 {
	if m.Node != nil {
		if n := valueOf(m.Node.Status.Allocatable, name); n > 0 || m.Initialized() {
			return n
		}
	}
	if n := valueOf(m.Claim.Status.Allocatable, name); n > 0 {
		return n
	}
	if m.Type != nil {
		return m.Type.Extended[string(name)]
	}
	return 0
}

// expected returns what a machine that has not started will have for pods and DaemonSets. Amounts that its Node does not report yet come from its NodeClaim,
// which has them after the launch, then from the catalog. If the catalog does not have the type, the requests of the NodeClaim are the minimum.
func (m *Machine) expected() planner.Resources {
	gpu := m.Promise.Resource
	var e planner.Resources
	if m.Node != nil {
		e = ResourcesOf(m.Node.Status.Allocatable, gpu)
	}
	e = orElse(e, ResourcesOf(m.Claim.Status.Allocatable, gpu))
	if m.Type != nil {
		e = orElse(e, allocatable(m.Type))
	}
	e = orElse(orElse(e, ResourcesOf(m.Claim.Spec.Resources.Requests, gpu)), planner.Resources{Pods: assumedPods, EphemeralBytes: assumedEphemeralBytes})
	e.Replicas = m.Exposed()
	if m.AwaitsReplicas() && (e.Replicas <= 0 || !m.GPUsCordoned()) {
		e.Replicas = max(e.Replicas, m.Promise.Replicas())
	}
	return e
}

// These amounts are assumed for machines of unknown type. They suffice for the pods for which the machine was launched, so that these do not get a
// second one.
const (
	assumedPods           = 110
	assumedEphemeralBytes = 1 << 40
)

// ExpectedLabels returns the labels that the machine's Node has or will have, as far as they are known.
func (m *Machine) ExpectedLabels() map[string]string { return m.expectedLabels().Known }

// PlannedLabels are like ExpectedLabels, with the values that were planned of labels that others write.
func (m *Machine) PlannedLabels() map[string]string {
	labels := maps.Clone(m.ExpectedLabels())
	maps.DeleteFunc(labels, func(key, _ string) bool { return nodelabels.Written(key) })
	maps.Copy(labels, m.foretold().Known)
	return labels
}

// expectedLabels returns the labels that the machine's Node has or will have. They are in this order of precedence: those of the Node, those that others will
// write, those of the NodeClaim, and those of the catalog.
func (m *Machine) expectedLabels() nodelabels.Labels {
	instanceType, zone, capacityType := ShapeOf(m.Claim)
	labels := map[string]string{}
	if m.Type != nil {
		labels = merged(m.Type.Labels)
		for _, o := range m.Type.Offerings {
			if o.Zone == zone && o.CapacityType == capacityType {
				maps.Copy(labels, o.Labels)
			}
		}
	}
	for key, value := range map[string]string{
		corev1.LabelInstanceTypeStable: instanceType, corev1.LabelTopologyZone: zone, karpv1.CapacityTypeLabelKey: capacityType,
	} {
		if value != "" {
			labels[key] = value
		}
	}
	maps.Copy(labels, m.Claim.Labels)
	foretold := m.foretold()
	maps.Copy(labels, foretold.Known)
	if m.Node != nil {
		maps.Copy(labels, m.Node.Labels)
	}
	return nodelabels.Labels{Known: whenStarted(labels), Doubts: foretold.Doubts}
}

// settling reports whether the Node of a machine may still lack labels that others write: it has not started, or only just.
func (m *Machine) settling(now time.Time) bool {
	initialized := m.since(karpv1.ConditionTypeInitialized)
	return !m.Initialized() || !initialized.IsZero() && now.Before(initialized.Add(settleTime))
}

// expectLabels adds the labels that the Node of a started machine still lacks, and keeps room for the DaemonSet pods that come with them.
func (r *room) expectLabels(m *Machine, daemons []demand) {
	shown := m.expectedLabels()
	r.daemons = slices.DeleteFunc(daemonsOn(daemons, r.taints, r.nodeName, shown, ResourcesOf(m.Node.Status.Allocatable, r.gpu), r.gpu), func(d *demand) bool {
		return !d.later || d.refusal(r.taints, r.nodeName, r.shown()) == nil
	})
	r.labels, r.doubts = shown.Known, shown.Doubts
	coming := overhead(r.daemons, r.gpu)
	r.node.Free, r.held = atLeastZero(minus(r.node.Free, coming)), r.held+coming.Replicas
}

// shown returns the labels of the room.
func (r *room) shown() nodelabels.Labels { return nodelabels.Labels{Known: r.labels, Doubts: r.doubts} }

// lasting returns the taints that will remain once the node has started.
func lasting(taints, startup []corev1.Taint) []corev1.Taint {
	return slices.DeleteFunc(slices.Clone(taints), func(t corev1.Taint) bool {
		return t.Key == v1alpha1.ReplicasNotReadyTaintKey || scheduling.IsKnownEphemeralTaint(&t) ||
			slices.ContainsFunc(startup, func(s corev1.Taint) bool { return s.MatchTaint(&t) })
	})
}

// HasTaint reports whether a node has a taint with the key.
func HasTaint(node *corev1.Node, key string) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}
