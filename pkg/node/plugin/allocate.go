package plugin

import (
	"context"
	"fmt"
	"slices"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"karve.sh/karve/pkg/node/alloc"
)

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
	for _, id := range ids {
		m.taken.add(resource, id, m.config.Clock.Now())
	}
	if revived {
		m.lay(ctx)
		notify(m.wake)
	}
	response := answer(m.settings, m.channels, gpus, m.config.Exists)
	if slot > 0 {
		withSlot(response, gpus[0], slot, m.config.GPUShareMiB)
		stated.MemoryMiB = smallerAmount(stated.MemoryMiB, slot)
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
