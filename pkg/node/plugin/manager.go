// Package plugin is a kubelet device plugin (v1beta1) for GPUs and their replicas. It behaves like NVIDIA's device plugin, except that it keeps its devices
// across changes: a new configuration is sent on the open stream, the devices that pods hold stay listed, and they are the same after a restart of the
// kubelet or the agent.
//
// What the kubelet gets is computed in the same steps for each change:
//
//	Apply        the configuration: which resource and how many replicas each GPU should have (apply.go)
//	   │
//	   ▼
//	learn        which devices pods hold, from the kubelet's list and the agent's own answers (taken.go, inuse.go)
//	   │
//	   ▼
//	checkOthers  whether someone else serves the GPUs: then nothing is added (others.go)
//	   │
//	   ▼
//	lay          which devices the kubelet should know: held ones stay, and the rest follow the configuration (layout.go, slots.go, offer.go)
//	   │
//	   ▼
//	publish      the devices and their health, on the open stream of each resource's server (offer.go, service.go, server.go)
//	   │
//	   ▼
//	settling     while held devices delay the configuration, Run learns and lays again every settleEvery (manager.go)
//
// allocate answers the kubelet for one container, and adds its devices to those that pods hold (allocate.go, answer.go).
package plugin

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/node/cdi"
	"karve.sh/karve/pkg/node/mps"
	"karve.sh/karve/pkg/node/sharing"
)

// Manager serves all resources of the machine.
type Manager struct {
	config Config
	loads  *loads
	// wake makes Run check the servers and the held devices.
	wake chan struct{}
	// start is when the agent started, and sockets counts its sockets, for their names.
	start   string
	sockets atomic.Int64

	// mu guards the rest. A method that expects it to be held says so.
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
	taken    taken
	// settling reports whether devices that pods hold delay the targets.
	settling bool
	listed   idSet
	// withdrawn are devices that were listed before. The kubelet may choose one of them before it has received the new list.
	withdrawn idSet
	servers   map[string]*server
	others    others
}

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
		devices: map[string]device{}, unhealthy: map[string]bool{}, down: map[string]bool{}, failMany: map[string]bool{}, taken: taken{by: map[string]map[string]time.Time{}},
		listed: idSet{}, withdrawn: idSet{}, servers: map[string]*server{}, others: others{reported: map[string]string{}},
	}
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
				own, running[s] = context.WithCancel(ctx)
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
				notify(s.started)
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
