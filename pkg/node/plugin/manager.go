// Package plugin is a kubelet device plugin (v1beta1) for GPUs and their replicas. It behaves like NVIDIA's device plugin, except that it keeps its devices
// across changes: a new configuration is sent on the open stream, the devices that pods hold stay listed, and they are the same after a restart of the
// kubelet or the agent.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/node/alloc"
	"karve.sh/karve/pkg/node/cdi"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/mig"
	"karve.sh/karve/pkg/node/mps"
	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/nodecontract"
)

// InUse lists the devices that the kubelet knows, by resource.
type InUse interface {
	// InUse returns the devices that pods hold, and Registered those of all plugins.
	InUse(ctx context.Context) (map[string][]string, error)
	Registered(ctx context.Context) (map[string][]string, error)
}

// UsageReader reads the usage of a GPU.
type UsageReader interface {
	Usage(uuid string) (gpu.Usage, error)
}

// Allocatable reads how much of each resource the Node has according to the API server, for resources that are counted in devices.
type Allocatable interface {
	Allocatable(ctx context.Context) (map[string]int64, error)
}

// Network connects to the kubelet, with Unix sockets, or in memory for tests.
type Network interface {
	Listen(ctx context.Context, path string) (net.Listener, error)
	Dial(ctx context.Context, path string) (net.Conn, error)
	// Exists reports whether there is a socket, even if no one serves it.
	Exists(path string) bool
	// List returns the names of the sockets in a directory.
	List(dir string) []string
	// Remove removes a socket. If that fails, the socket stays.
	Remove(path string)
	// Created returns a channel that receives whenever the socket is created, until ctx ends.
	Created(ctx context.Context, path string) <-chan struct{}
}

// Hooks are called for events of the plugin. Each of them may be nil, and must return quickly.
type Hooks struct {
	// Registered is called when the kubelet has accepted a resource. took is the time since the agent started to register it.
	Registered func(resource string, took time.Duration)
	// Allocated is called when a container was given its devices, or with the error.
	Allocated func(resource string, devices []string, took time.Duration, err error)
	// Applied is called when a configuration was applied, or with the error. After an error, the previous configuration stays in force.
	Applied func(took time.Duration, err error)
	// StoodBack is called when someone else serves the resource, or its GPUs under another name. why is "" when that has ended.
	StoodBack func(resource, why string)
	// Others is called when someone else begins to serve the GPUs of the machine, with who that is, and with "" when that has ended.
	Others func(why string)
	// Listed is called with the numbers of devices that are sent to the kubelet.
	Listed func(resource string, healthy, unhealthy int)
}

// Config configures a Manager. Only KubeletSocket is required.
type Config struct {
	// KubeletSocket is the socket for registrations. The sockets of plugins are in the same directory.
	KubeletSocket string
	Network       Network
	InUse         InUse
	Usage         UsageReader
	Allocatable   Allocatable
	// CDIMissing returns an error if the container runtime does not know all of the CDI devices.
	CDIMissing func(devices []string) error
	// MPSDir is the directory on the node with the pipes of MPS daemons.
	MPSDir string
	// MPSWritablePipes lets containers write to that directory.
	MPSWritablePipes bool
	// GPUShareMiB gives containers with slots gpushare's variables in MiB and not in GiB.
	GPUShareMiB bool
	// Stated returns the GPU needs that the pod being admitted states, for a container with a number of devices of a resource. It may be nil. It is only
	// called for GPUs that are shared with MPS.
	Stated func(ctx context.Context, resource string, devices int) Stated
	// Capabilities has the device files of MIG instances.
	Capabilities mig.Capabilities
	// Exists reports whether a device file exists.
	Exists func(path string) bool
	// Links returns the connections of the GPUs, by which a container's GPUs are chosen. It may be nil.
	Links func() ([]gpu.Link, error)
	Hooks Hooks
	Clock clock.WithTicker
}

// Stated is the GPU needs that a pod states. A value of 0 is unknown.
type Stated struct {
	// MemoryMiB is device memory in MiB. ThreadPercent is the share of the GPU's threads.
	MemoryMiB, ThreadPercent int64
}

// Manager serves all resources of the machine.
type Manager struct {
	config Config
	loads  *loads
	// wake makes Run check the servers and the held devices.
	wake chan struct{}
	// start is when the agent started, and sockets counts its sockets, for their names.
	start   string
	sockets atomic.Int64

	mu        sync.Mutex
	settings  sharing.Settings
	channels  []int
	devices   map[string]device // by UUID
	targets   []target
	unhealthy map[string]bool // GPUs and MIG instances
	// down are GPUs that are healthy but cannot be used now, because their MPS daemons do not answer.
	down map[string]bool
	// cordoned are GPUs that accept no new pods because somebody requested it.
	cordoned map[string]bool
	// mayWithdraw reports whether the scheduler currently binds no pods to the Node, so that free slots may be withdrawn.
	mayWithdraw bool
	// configured reports whether slots of memory are those of the agent's own configuration, in which nobody promises them to the scheduler.
	configured bool
	limits     map[string]mps.Limits // of GPUs that are shared with MPS
	// scores are the connection scores of unshared GPUs, by pairs of UUIDs. It is nil if they are unknown or make no difference.
	scores   map[[2]string]int
	failMany map[string]bool
	// used holds the devices that pods hold, with the time of the allocation. It is the zero time if the kubelet lists the device.
	used map[string]map[string]time.Time
	// usedKnown reports whether the kubelet has listed the devices of pods. Until then, all listed devices count as held.
	usedKnown bool
	settling  bool
	listed    idSet
	// withdrawn are devices that were listed before. The kubelet may choose one of them before it has received the new list.
	withdrawn idSet
	servers   map[string]*server
	others    others
}

const (
	// settleEvery is how often Run checks whether pods are gone while held devices delay a change.
	settleEvery = 5 * time.Second
	// settleInUse is how long a device counts as held after Allocate although the kubelet does not list it. The kubelet lists a pod once it is admitted.
	settleInUse  = time.Minute
	inUseTimeout = 2 * time.Second
)

// New returns a Manager. It serves once Run runs and Apply has been called, in any order.
func New(config Config) *Manager {
	if config.Network == nil {
		config.Network = Unix{}
	}
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	if config.CDIMissing == nil {
		config.CDIMissing = func(devices []string) error { return cdi.Read(cdi.Dirs...).Missing(devices) }
	}
	if config.Exists == nil {
		config.Exists = exists
	}
	return &Manager{
		config: config, loads: newLoads(config.Usage, config.Clock), wake: make(chan struct{}, 1), start: startOf(config.Clock.Now()),
		devices: map[string]device{}, unhealthy: map[string]bool{}, down: map[string]bool{}, failMany: map[string]bool{}, used: map[string]map[string]time.Time{},
		listed: idSet{}, withdrawn: idSet{}, servers: map[string]*server{}, others: others{reported: map[string]string{}},
	}
}

// Apply applies a configuration to GPUs. If it returns an error, nothing has changed and the previous configuration stays in force.
func (m *Manager) Apply(ctx context.Context, c sharing.Config, devices []gpu.Device) error {
	start := m.config.Clock.Now()
	err := m.apply(ctx, c, devices)
	if h := m.config.Hooks.Applied; h != nil {
		h(m.config.Clock.Since(start), err)
	}
	return err
}

func (m *Manager) apply(ctx context.Context, c sharing.Config, devices []gpu.Device) error {
	settings, err := c.Settings()
	if err != nil {
		return err
	}
	resources, err := c.Resources(devices)
	if err != nil {
		return err
	}
	targets, known, err := m.targetsOf(resources, settings.PassDeviceSpecs)
	if err != nil {
		return err
	}
	gpus := slices.SortedFunc(maps.Values(known), device.compare)
	fail, limits := map[string]bool{}, map[string]mps.Limits{}
	for _, r := range resources {
		fail[r.Name] = r.FailRequestsGreaterThanOne
		for _, g := range r.GPUs {
			if g.MPS != nil {
				limits[g.UUID] = *g.MPS
			}
		}
	}
	for _, t := range targets {
		gpus = append(gpus, known[t.uuid])
	}
	if c.Sharing.Backend != "" {
		targets = nil // A DRA driver serves the GPUs, and checks who else does.
	}
	channels, err := channels(settings, m.config.Exists)
	if err != nil {
		return err
	}
	if err := resolvable(settings, channels, gpus, m.config.CDIMissing); err != nil {
		return err
	}
	slices.SortStableFunc(targets, func(a, b target) int { return known[a.uuid].compare(known[b.uuid]) })

	scores := m.readLinks(ctx, targets, known)
	used, usedErr := m.askInUse(ctx)
	m.mu.Lock()
	m.configured = c.Sharing.MemorySlots != nil
	m.settings, m.channels, m.targets, m.devices, m.failMany, m.limits, m.scores = settings, channels, targets, known, fail, limits, scores
	m.learn(ctx, used, usedErr)
	m.mu.Unlock()
	m.checkOthers(ctx)
	m.mu.Lock()
	m.lay(ctx)
	m.mu.Unlock()
	m.poke()
	return nil
}

// targetsOf returns the target of each GPU and MIG instance of the resources, and the devices by UUID.
func (m *Manager) targetsOf(resources []sharing.Resource, passFiles bool) ([]target, map[string]device, error) {
	var targets []target
	known := map[string]device{}
	for _, r := range resources {
		for _, g := range r.GPUs {
			d, err := deviceOf(g, passFiles, m.config.Capabilities)
			if err != nil {
				return nil, nil, err
			}
			id := d.id()
			i := slices.IndexFunc(targets, func(t target) bool { return t.uuid == id })
			switch {
			case id == "" || i >= 0 && (targets[i].slots == nil || known[id].Index != g.Index || targets[i].slots.has(g.SlotMiB)):
				return nil, nil, fmt.Errorf("there are two GPUs with the UUID %q", id)
			case i >= 0:
				targets[i].slots.wanted[g.SlotMiB] = g.Replicas
			case g.SlotMiB > 0:
				targets = append(targets, target{uuid: id, slots: &slotted{capacityMiB: max(0, g.MemoryMiB-g.ReserveMiB), wanted: map[int64]int{g.SlotMiB: g.Replicas}}})
			default:
				targets = append(targets, target{uuid: id, resource: r.Name, replicas: g.Replicas})
			}
			known[id] = d
		}
	}
	return targets, known, nil
}

// readLinks returns the scores of the connections of GPUs if a container can have several of them.
func (m *Manager) readLinks(ctx context.Context, targets []target, known map[string]device) map[[2]string]int {
	whole := slices.DeleteFunc(slices.Clone(targets), func(t target) bool { return t.replicas != 1 || known[t.uuid].instance != nil })
	if m.config.Links == nil || len(whole) < 3 {
		return nil // There is nothing to choose.
	}
	links, err := m.config.Links()
	if err != nil {
		logr.FromContextOrDiscard(ctx).Info("How the GPUs are connected cannot be read; they are chosen without it", "error", err.Error())
		return nil
	}
	scores := make(map[[2]string]int, 2*len(links))
	for _, l := range links {
		scores[[2]string{l.A, l.B}], scores[[2]string{l.B, l.A}] = l.Score(), l.Score()
	}
	return scores
}

// score returns a function that rates the connection of two GPUs, by UUID, or nil if the scores are unknown.
func (m *Manager) score() func(a, b string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	scores := m.scores
	if scores == nil {
		return nil
	}
	return func(a, b string) int { return scores[[2]string{a, b}] }
}

// SetMayWithdraw sets whether the scheduler currently binds no pods to the Node. Free slots of memory are withdrawn only then.
func (m *Manager) SetMayWithdraw(ctx context.Context, may bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mayWithdraw == may {
		return
	}
	m.mayWithdraw = may
	if may && slices.ContainsFunc(m.targets, func(t target) bool { return t.slots != nil }) {
		m.lay(ctx)
		m.poke()
	}
}

// SetHealth sets the health of a GPU or a MIG instance, and of all its replicas. An instance is healthy only if its GPU is.
func (m *Manager) SetHealth(uuid string, healthy bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.unhealthy[uuid] == !healthy {
		return
	}
	m.unhealthy[uuid] = !healthy
	m.publish()
}

// SetDown sets the GPUs that cannot be used now although they are healthy.
func (m *Manager) SetDown(down map[string]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = maps.Clone(down)
	m.publish()
}

// SetCordoned sets the GPUs that accept no new pods on themselves or their MIG instances. All their replicas become unhealthy to the kubelet, including
// those that pods hold. Otherwise the kubelet would give a replica to the next pod as soon as its pod ends.
func (m *Manager) SetCordoned(cordoned map[string]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cordoned = maps.Clone(cordoned)
	m.publish()
}

// Share is the number of replicas of a GPU or a MIG instance, and how many of them pods hold.
type Share struct {
	Total, Allocated int
	// Slots are the slots that make up the replicas, the smallest first. It is nil if the GPU is not divided into slots.
	Slots []Slots
	// Unhealthy reports whether the GPU is out of service. Cordoned reports whether it accepts no new pods because somebody requested it.
	Unhealthy, Cordoned bool
}

// Shares returns the shares of GPUs and MIG instances by UUID.
func (m *Manager) Shares() map[string]Share {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make(map[string]Share, len(m.targets))
	for _, t := range m.targets {
		out[t.uuid] = Share{Total: t.replicas, Unhealthy: m.outOfService(t.uuid), Cordoned: m.isCordoned(t.uuid)}
		if t.slots != nil {
			out[t.uuid] = m.slotShare(t)
		}
	}
	for _, ids := range m.used {
		for id := range ids {
			if share, ok := out[alloc.UUID(id)]; ok {
				share.Allocated++
				out[alloc.UUID(id)] = share
			}
		}
	}
	return out
}

// outOfService reports whether a device or its GPU is unhealthy. m.mu is held.
func (m *Manager) outOfService(uuid string) bool {
	return m.unhealthy[uuid] || m.unhealthy[m.devices[uuid].UUID]
}

// isCordoned reports whether a device or its GPU accepts no new pods. m.mu is held.
func (m *Manager) isCordoned(uuid string) bool {
	return m.cordoned[uuid] || m.cordoned[m.devices[uuid].UUID]
}

// Run serves until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()
	created := m.config.Network.Created(ctx, m.config.KubeletSocket)
	running := map[*server]context.CancelFunc{}
	looks := m.config.Clock.NewTicker(standBack)
	defer looks.Stop()
	defer func() {
		for _, cancel := range running {
			cancel()
		}
	}()
	for {
		servers, settling := m.state()
		for s, cancel := range running {
			if !slices.Contains(servers, s) {
				cancel()
				delete(running, s)
			}
		}
		for _, s := range servers {
			if running[s] == nil {
				var own context.Context
				own, running[s] = context.WithCancel(ctx) //nolint:gosec // G118: it is called when the server is no more.
				group.Go(func() { s.run(own) })
			}
		}
		var again <-chan time.Time // It is nil if there is nothing to wait for.
		timer := m.config.Clock.NewTimer(settleEvery)
		if settling {
			again = timer.C()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
		case <-created:
			logr.FromContextOrDiscard(ctx).Info("The kubelet has started", "socket", m.config.KubeletSocket)
			for _, s := range servers {
				s.kubeletStarted()
			}
		case <-looks.C():
			m.checkOthers(ctx)
		case <-again:
			used, err := m.askInUse(ctx)
			m.mu.Lock()
			m.learn(ctx, used, err)
			m.lay(ctx)
			m.mu.Unlock()
		}
		timer.Stop()
	}
}

func (m *Manager) state() (servers []*server, settling bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(m.servers)) {
		servers = append(servers, m.servers[name])
	}
	return servers, m.settling
}

func (m *Manager) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

var errNotAsked = errors.New("nobody to ask which devices pods hold")

func (m *Manager) askInUse(ctx context.Context) (map[string][]string, error) {
	if m.config.InUse == nil {
		return nil, errNotAsked
	}
	ctx, cancel := context.WithTimeout(ctx, inUseTimeout)
	defer cancel()
	return m.config.InUse.InUse(ctx)
}

// learn updates used from the devices that the kubelet lists. m.mu is held.
func (m *Manager) learn(ctx context.Context, used map[string][]string, err error) {
	switch {
	case errors.Is(err, errNotAsked):
		m.usedKnown = true // Only the agent's own allocations are known.
		return
	case err != nil:
		logr.FromContextOrDiscard(ctx).Info("The kubelet does not say which devices pods hold; nothing is taken away before it does", "error", err.Error())
		m.usedKnown = false
		return
	}
	m.usedKnown = true
	now := m.config.Clock.Now()
	next := map[string]map[string]time.Time{}
	put := func(resource, id string, since time.Time) {
		if next[resource] == nil {
			next[resource] = map[string]time.Time{}
		}
		next[resource][id] = since
	}
	for resource, ids := range m.used {
		for id, since := range ids {
			if !since.IsZero() && now.Sub(since) < settleInUse {
				put(resource, id, since)
			}
		}
	}
	for resource, ids := range used {
		for _, id := range ids {
			if _, ours := m.devices[alloc.UUID(id)]; strings.HasPrefix(resource, nodecontract.NVIDIAPrefix) && (ours || m.listed.has(resource, id)) {
				put(resource, id, time.Time{})
			}
		}
	}
	m.used = next
}

// lay computes the devices that the kubelet should know, and publishes them. m.mu is held.
func (m *Manager) lay(ctx context.Context) {
	inUse := idSet{}
	for resource, ids := range m.used {
		for id := range ids {
			inUse.add(resource, id)
		}
	}
	if !m.usedKnown {
		for resource, ids := range m.listed {
			for id := range ids {
				inUse.add(resource, id)
			}
		}
	}
	targets := m.targets
	if m.others.why != "" {
		targets = nil // Keep what pods hold, and add nothing.
	}
	offered, settling := layout(targets, m.listed, inUse, !m.mayWithdraw && !m.configured)
	m.settling = settling || !m.usedKnown
	listed := idSet{}
	for resource, ids := range offered {
		if m.servers[resource] == nil {
			m.servers[resource] = newServer(m, resource)
		}
		m.servers[resource].ids = ids
		for _, id := range ids {
			listed.add(resource, id)
			delete(m.withdrawn[resource], id)
		}
	}
	for resource, ids := range m.listed {
		for id := range ids {
			if !listed.has(resource, id) {
				m.withdrawn.add(resource, id)
			}
		}
	}
	m.listed = listed
	for resource := range m.servers {
		if _, ok := offered[resource]; !ok {
			logr.FromContextOrDiscard(ctx).Info("The resource is no more", "resource", resource)
			delete(m.servers, resource)
			m.poke()
		}
	}
	m.publish()
}

// publish sends the devices on all open streams if they have changed. m.mu is held.
func (m *Manager) publish() {
	for resource, s := range m.servers {
		list := make([]*pluginapi.Device, 0, len(s.ids))
		unhealthy := 0
		for _, id := range s.ids {
			uuid := alloc.UUID(id)
			d, there := m.devices[uuid]
			health := pluginapi.Healthy
			if !there || m.outOfService(uuid) || m.down[uuid] || m.isCordoned(uuid) {
				health = pluginapi.Unhealthy
				unhealthy++
			}
			device := &pluginapi.Device{ID: id, Health: health}
			if there && d.NUMANode >= 0 {
				device.Topology = &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: int64(d.NUMANode)}}}
			}
			list = append(list, device)
		}
		if s.set(list) && m.config.Hooks.Listed != nil {
			m.config.Hooks.Listed(resource, len(list)-unhealthy, unhealthy)
		}
	}
}

// allocate returns the Allocate response for one container.
func (m *Manager) allocate(ctx context.Context, resource string, ids []string) (*pluginapi.ContainerAllocateResponse, error) {
	stated := m.stated(ctx, resource, ids)
	m.mu.Lock()
	defer m.mu.Unlock()
	replica, revived := false, false
	seen := map[string]bool{}
	var gpus []device
	for _, id := range ids {
		uuid, _, isReplica := alloc.Parse(id)
		d, there := m.devices[uuid]
		listed := m.listed.has(resource, id)
		if !there || !listed && !m.withdrawn.has(resource, id) {
			return nil, fmt.Errorf("unknown device: %s", id)
		}
		replica, revived = replica || isReplica, revived || !listed
		if !seen[uuid] {
			seen[uuid] = true
			gpus = append(gpus, d)
		}
	}
	if replica && len(ids) > 1 && m.failMany[resource] {
		return nil, fmt.Errorf("maximum request size for shared resources is 1; found %d", len(ids))
	}
	slot, err := m.slotFor(resource, ids)
	if err != nil { // Pods may have ended.
		m.mu.Unlock()
		used, asked := m.askInUse(ctx)
		m.mu.Lock()
		m.learn(ctx, used, asked)
		slot, err = m.slotFor(resource, ids)
	}
	if err != nil {
		return nil, err
	}
	slices.SortFunc(gpus, device.compare)
	if m.used[resource] == nil {
		m.used[resource] = map[string]time.Time{}
	}
	for _, id := range ids {
		m.used[resource][id] = m.config.Clock.Now()
	}
	if revived {
		m.lay(ctx)
		m.poke()
	}
	response := answer(m.settings, m.channels, gpus, m.config.Exists)
	if slot > 0 {
		withSlot(response, gpus[0], slot, m.config.GPUShareMiB)
		stated.MemoryMiB = least(stated.MemoryMiB, slot)
	}
	if len(gpus) == 1 {
		if limits, ok := m.limits[gpus[0].UUID]; ok {
			withMPS(response, m.config, limits, stated)
		}
	}
	return response, nil
}

// stated returns the needs that the pod requesting the devices states, if they matter. It may call the API server.
func (m *Manager) stated(ctx context.Context, resource string, ids []string) Stated {
	m.mu.Lock()
	shared := slices.ContainsFunc(ids, func(id string) bool { _, ok := m.limits[alloc.UUID(id)]; return ok })
	m.mu.Unlock()
	if !shared || m.config.Stated == nil {
		return Stated{}
	}
	return m.config.Stated(ctx, resource, len(ids))
}

func (m *Manager) packed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.settings.AllocationPolicy == sharing.PolicyPacked
}
