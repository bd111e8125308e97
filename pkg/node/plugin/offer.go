package plugin

import (
	"context"

	"github.com/go-logr/logr"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"karve.sh/karve/pkg/node/alloc"
)

// lay computes the devices that the kubelet should know, and publishes them. m.mu is held.
func (m *Manager) lay(ctx context.Context) {
	targets := m.targets
	if m.others.why != "" {
		targets = nil // Keep what pods hold, and add nothing.
	}
	offered, settling := layout(targets, m.listed, m.taken.ids(m.listed), !m.mayWithdraw && !m.configured)
	m.settling = settling || !m.taken.known
	m.list(offered)
	for resource := range m.servers {
		if _, ok := offered[resource]; !ok {
			logr.FromContextOrDiscard(ctx).Info("The resource is no more", "resource", resource)
			delete(m.servers, resource)
			notify(m.wake)
		}
	}
	m.publish()
}

// list gives the servers their devices, and records which ones are listed and which were. m.mu is held.
func (m *Manager) list(offered map[string][]string) {
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
}

// publish sends the devices on all open streams if they have changed. m.mu is held.
func (m *Manager) publish() {
	for resource, s := range m.servers {
		list, unhealthy := make([]*pluginapi.Device, 0, len(s.ids)), 0
		for _, id := range s.ids {
			d := m.announced(id)
			if d.Health != pluginapi.Healthy {
				unhealthy++
			}
			list = append(list, d)
		}
		if s.set(list) && m.config.Hooks.Listed != nil {
			m.config.Hooks.Listed(resource, len(list)-unhealthy, unhealthy)
		}
	}
}

// announced returns a device as the kubelet gets it. m.mu is held.
func (m *Manager) announced(id string) *pluginapi.Device {
	uuid := alloc.UUID(id)
	d, there := m.devices[uuid]
	out := &pluginapi.Device{ID: id, Health: pluginapi.Healthy}
	if !there || m.outOfService(uuid) || m.down[uuid] || m.isCordoned(uuid) {
		out.Health = pluginapi.Unhealthy
	}
	if there && d.NUMANode >= 0 {
		out.Topology = &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: int64(d.NUMANode)}}}
	}
	return out
}
