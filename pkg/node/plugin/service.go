package plugin

import (
	"maps"

	"karve.sh/karve/pkg/node/alloc"
)

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
	if !maps.Equal(m.cordoned, cordoned) {
		m.cordoned = maps.Clone(cordoned)
		m.publish()
	}
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
	for _, ids := range m.taken.by {
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
