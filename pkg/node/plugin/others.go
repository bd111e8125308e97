package plugin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/go-logr/logr"

	"karve.sh/karve/pkg/node/alloc"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/nodecontract"
)

// others are who else gives the machine's GPUs away. Two that do not know of each other give the same GPU to two pods, whatever they call it.
type others struct {
	// claimed is what Claim was told, found what the last looks agreed upon; why is which of them counts, "" for neither.
	claimed, found, why string
	// once is what the last look alone found.
	once string
	// told is what was said of each resource.
	told map[string]string
}

// disable says what to do about a plugin.
const disable = "disable it, or keep this agent off the node"

// Claim says who gives the GPUs away without a device plugin, as a DRA driver does; "" when nobody does.
func (m *Manager) Claim(ctx context.Context, why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.others.claimed = why
	m.settle(ctx)
}

// lookForOthers looks, and stands back or comes back. While something is served it takes two looks that agree: a resource of our own that
// was given up a moment ago is still known to the kubelet, and a plugin that starts anew is away for a moment. m.mu is not held.
func (m *Manager) lookForOthers(ctx context.Context) {
	m.mu.Lock()
	ours, devices, idle := maps.Clone(m.servers), maps.Clone(m.devices), len(m.servers) == 0
	aside := m.others.found != ""
	m.mu.Unlock()
	found, known := m.find(ctx, func(resource string) bool { return ours[resource] != nil }, devices, idle || aside)
	if !known && aside {
		return // Nothing says that they are gone.
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	same := (found == "") == (m.others.once == "")
	m.others.once = found
	if same || idle && !aside {
		m.others.found = found
	}
	m.settle(ctx)
}

// settle puts in force who else there is, and tells. m.mu is held.
func (m *Manager) settle(ctx context.Context) {
	why := cmp.Or(m.others.claimed, m.others.found)
	changed := (why == "") != (m.others.why == "")
	m.others.why = why
	for _, t := range m.targets {
		if before := m.others.told[t.resource]; (before == "") != (why == "") {
			m.others.told[t.resource] = why
			if h := m.config.Hooks.StoodBack; h != nil {
				h(t.resource, why)
			}
		}
	}
	maps.DeleteFunc(m.others.told, func(resource, _ string) bool {
		return !slices.ContainsFunc(m.targets, func(t target) bool { return t.resource == resource })
	})
	if changed {
		logr.FromContextOrDiscard(ctx).Info("Others who give these GPUs away", "why", cmp.Or(why, "there are none any more"))
		m.lay(ctx)
		m.poke()
	}
}

// find names somebody else. known is false when neither the kubelet nor the Node could be asked.
func (m *Manager) find(ctx context.Context, ours func(resource string) bool, devices map[string]gpu.Device, askNode bool) (why string, known bool) {
	dir := path.Dir(m.config.KubeletSocket)
	for _, name := range m.config.Network.List(dir) {
		resource, isNVIDIAs := resourceOf(name)
		if !isNVIDIAs || ours(resource) {
			continue
		}
		if socket := path.Join(dir, name); answers(ctx, m.config.Network, socket) {
			return answersAt(socket), true
		}
	}
	if m.config.InUse != nil {
		within, cancel := context.WithTimeout(ctx, inUseTimeout)
		defer cancel()
		registered, err := m.config.InUse.Registered(within)
		if err == nil {
			return servedAs(registered, ours, devices), true
		}
	}
	if m.config.Allocatable == nil || !askNode {
		return "", m.config.InUse == nil
	}
	return m.onNode(ctx, ours)
}

// servedAs finds the resource, of whatever name, whose devices are these GPUs or partitions of GPUs.
func servedAs(registered map[string][]string, ours func(string) bool, devices map[string]gpu.Device) string {
	for _, resource := range slices.Sorted(maps.Keys(registered)) {
		if ours(resource) {
			continue
		}
		partitions := strings.HasPrefix(resource, nodecontract.NVIDIAPrefix)
		for _, id := range registered[resource] {
			if _, same := devices[alloc.UUID(id)]; same || partitions && strings.HasPrefix(id, "MIG-") {
				return fmt.Sprintf("another device plugin serves these GPUs as %s; %s", resource, disable)
			}
		}
	}
	return ""
}

// onNode goes by what the Node has to give. Nobody but NVIDIA's plugins is known to give resources such names.
func (m *Manager) onNode(ctx context.Context, ours func(string) bool) (why string, known bool) {
	ctx, cancel := context.WithTimeout(ctx, inUseTimeout)
	defer cancel()
	all, err := m.config.Allocatable.Allocatable(ctx)
	if err != nil {
		return "", false
	}
	for _, resource := range slices.Sorted(maps.Keys(all)) {
		// A socket that nobody answers is of whoever had the resource last, and so is the number.
		if strings.HasPrefix(resource, nodecontract.NVIDIAPrefix) && all[resource] > 0 && !ours(resource) && !m.config.Network.Exists(m.socket(resource)) {
			return nodeHas(all[resource], resource), true
		}
	}
	return "", true
}

func answersAt(socket string) string {
	return fmt.Sprintf("another device plugin answers at %s; %s", socket, disable)
}

func nodeHas(n int64, resource string) string {
	return fmt.Sprintf("the Node already has %d %s from another device plugin, such as the one built into Bottlerocket; %s", n, resource, disable)
}

const socketPrefix, socketSuffix = "nvidia-", ".sock"

// resourceOf is the resource of which NVIDIA's plugin, or this one, would have a socket.
func resourceOf(socket string) (resource string, ok bool) {
	name, ok := strings.CutPrefix(socket, socketPrefix)
	if ok {
		name, ok = strings.CutSuffix(name, socketSuffix)
	}
	return nodecontract.NVIDIAPrefix + name, ok
}
