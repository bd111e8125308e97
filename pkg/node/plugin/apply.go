package plugin

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/go-logr/logr"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/mps"
	"karve.sh/karve/pkg/node/sharing"
)

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
	if c.Sharing.Backend != "" {
		targets = nil // A DRA driver serves the GPUs, and checks who else does.
	}
	channels, err := channels(settings, m.config.Exists)
	if err != nil {
		return err
	}
	if err := checkResolvable(settings, channels, gpus, m.config.CDIMissing); err != nil {
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
	notify(m.wake)
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
			id := d.ID()
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
	whole := slices.DeleteFunc(slices.Clone(targets), func(t target) bool { return t.replicas != 1 || known[t.uuid].Instance != nil })
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
		notify(m.wake)
	}
}
