// Package plugin is a kubelet device plugin (v1beta1) for GPUs and their replicas, to the letter of NVIDIA's, except that it never lets go:
// a new configuration is sent on the stream that is there, what pods hold stays listed, and whoever restarts, kubelet or agent, finds it as
// it was.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/node/alloc"
	"karve.sh/karve/pkg/node/cdi"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/nodecontract"
)

// InUse tells what the kubelet knows of devices, by resource.
type InUse interface {
	// InUse are those that pods hold, Registered those that plugins have.
	InUse(ctx context.Context) (map[string][]string, error)
	Registered(ctx context.Context) (map[string][]string, error)
}

// UsageReader tells what a GPU does.
type UsageReader interface {
	Usage(uuid string) (gpu.Usage, error)
}

// Allocatable tells how much of each resource that is counted in devices the Node has to give, as the API server knows it.
type Allocatable interface {
	Allocatable(ctx context.Context) (map[string]int64, error)
}

// Network is how the kubelet is reached: Unix sockets, or memory in tests.
type Network interface {
	Listen(ctx context.Context, path string) (net.Listener, error)
	Dial(ctx context.Context, path string) (net.Conn, error)
	// Exists says whether there is a socket, answered or not.
	Exists(path string) bool
	// List names the sockets of a folder.
	List(dir string) []string
	// Created is sent to whenever the socket is made, until ctx ends.
	Created(ctx context.Context, path string) <-chan struct{}
}

// Hooks are told what happens. Each may be nil, and must be quick.
type Hooks struct {
	// Registered: the kubelet took the resource, so long after the agent wanted it.
	Registered func(resource string, took time.Duration)
	// Allocated: a container was answered.
	Allocated func(resource string, devices []string, took time.Duration, err error)
	// Applied: a configuration was taken, or not; then the one before is still in force.
	Applied func(took time.Duration, err error)
	// StoodBack: somebody else has the resource, or the GPUs under another name; why is "" when they have it no more.
	StoodBack func(resource, why string)
	// Listed: what the kubelet is told there is.
	Listed func(resource string, healthy, unhealthy int)
}

// Config is what a Manager needs. Only KubeletSocket has no default.
type Config struct {
	// KubeletSocket is where the kubelet takes registrations; plugins' sockets are beside it.
	KubeletSocket string
	Network       Network
	InUse         InUse
	Usage         UsageReader
	Allocatable   Allocatable
	// CDIMissing says which CDI devices the container runtime does not know; nil when it knows them all.
	CDIMissing func(devices []string) error
	// Exists looks for a device file.
	Exists func(path string) bool
	Hooks  Hooks
	Clock  clock.WithTicker
}

// Manager serves every resource of the machine.
type Manager struct {
	config Config
	loads  *loads
	// wake has Run look at servers and drains again.
	wake chan struct{}

	mu        sync.Mutex
	settings  sharing.Settings
	channels  []int
	devices   map[string]gpu.Device
	targets   []target
	unhealthy map[string]bool
	failMany  map[string]bool
	// used is what pods hold, and since when; the zero time when the kubelet said so.
	used map[string]map[string]time.Time
	// usedKnown: the kubelet has said so. Until then everything that was listed counts as held.
	usedKnown bool
	settling  bool
	listed    idSet
	// withdrawn were listed once. The kubelet may have chosen one of them before it heard.
	withdrawn idSet
	servers   map[string]*server
	others    others
}

const (
	// settleEvery is how often a shrink looks whether pods are gone; nothing is asked while there is nothing to wait for.
	settleEvery = 5 * time.Second
	// settleInUse is how long a device counts as held after Allocate without the kubelet saying so: a pod is listed once it is admitted.
	settleInUse  = time.Minute
	inUseTimeout = 2 * time.Second
)

// New makes a Manager. It serves when Run runs and Apply has been called, in either order.
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
		config: config, loads: newLoads(config.Usage, config.Clock), wake: make(chan struct{}, 1),
		devices: map[string]gpu.Device{}, unhealthy: map[string]bool{}, failMany: map[string]bool{}, used: map[string]map[string]time.Time{},
		listed: idSet{}, withdrawn: idSet{}, servers: map[string]*server{}, others: others{told: map[string]string{}},
	}
}

// Apply puts a configuration in force for these GPUs. On an error nothing has changed: the configuration before goes on.
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
	var targets []target
	var gpus []gpu.Device
	fail, known := map[string]bool{}, map[string]gpu.Device{}
	for _, r := range resources {
		fail[r.Name] = r.FailRequestsGreaterThanOne
		for _, g := range r.GPUs {
			if _, twice := known[g.UUID]; twice || g.UUID == "" {
				return fmt.Errorf("there are two GPUs with the UUID %q", g.UUID)
			}
			known[g.UUID] = g.Device
			gpus = append(gpus, g.Device)
			targets = append(targets, target{uuid: g.UUID, resource: r.Name, replicas: g.Replicas})
		}
	}
	channels, err := channels(settings, m.config.Exists)
	if err != nil {
		return err
	}
	if err := resolvable(settings, channels, gpus, m.config.CDIMissing); err != nil {
		return err
	}
	slices.SortStableFunc(targets, func(a, b target) int { return known[a.uuid].Index - known[b.uuid].Index })

	used, usedErr := m.askInUse(ctx)
	m.mu.Lock()
	m.settings, m.channels, m.targets, m.devices, m.failMany = settings, channels, targets, known, fail
	m.learn(ctx, used, usedErr)
	m.mu.Unlock()
	m.lookForOthers(ctx)
	m.mu.Lock()
	m.lay(ctx)
	m.mu.Unlock()
	m.poke()
	return nil
}

// SetHealth says how a GPU is; it reaches all its replicas at once.
func (m *Manager) SetHealth(uuid string, healthy bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.unhealthy[uuid] == !healthy {
		return
	}
	m.unhealthy[uuid] = !healthy
	m.publish()
}

// Share is how much of a GPU there is, in replicas, and how much of it pods hold.
type Share struct {
	Total, Allocated int
}

// Shares says how the GPUs are shared, by UUID.
func (m *Manager) Shares() map[string]Share {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make(map[string]Share, len(m.targets))
	for _, t := range m.targets {
		out[t.uuid] = Share{Total: t.replicas}
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
		var again <-chan time.Time // never, while there is nothing to wait for
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
			m.lookForOthers(ctx)
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

// learn takes over what the kubelet says that pods hold. m.mu is held.
func (m *Manager) learn(ctx context.Context, used map[string][]string, err error) {
	switch {
	case errors.Is(err, errNotAsked):
		m.usedKnown = true // There is nothing better than what was allocated.
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

// lay works out what the kubelet is to know, and has it told. m.mu is held.
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
		targets = nil // What pods hold stays. Nothing is added to it.
	}
	offered, settling := layout(targets, m.listed, inUse)
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

// publish tells the kubelet, over whatever streams there are, when something is other than before. m.mu is held.
func (m *Manager) publish() {
	for resource, s := range m.servers {
		list := make([]*pluginapi.Device, 0, len(s.ids))
		unhealthy := 0
		for _, id := range s.ids {
			uuid := alloc.UUID(id)
			d, there := m.devices[uuid]
			health := pluginapi.Healthy
			if !there || m.unhealthy[uuid] {
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

// allocate answers one container of a pod.
func (m *Manager) allocate(ctx context.Context, resource string, ids []string) (*pluginapi.ContainerAllocateResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	replica, revived := false, false
	seen := map[string]bool{}
	var gpus []gpu.Device
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
	slices.SortFunc(gpus, func(a, b gpu.Device) int { return a.Index - b.Index })
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
	return answer(m.settings, m.channels, gpus, m.config.Exists), nil
}

func (m *Manager) packed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.settings.AllocationPolicy == sharing.PolicyPacked
}

// socket is where a resource is served; the names are NVIDIA's, so that two plugins for the same GPUs meet.
func (m *Manager) socket(resource string) string {
	return path.Join(path.Dir(m.config.KubeletSocket), socketPrefix+strings.TrimPrefix(resource, nodecontract.NVIDIAPrefix)+socketSuffix)
}
