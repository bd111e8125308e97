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
	"karve.sh/karve/pkg/nodecontract"
)

// others records who else serves the GPUs of the machine. If two plugins do not know about each other, they give the same GPU to two pods, even under
// different resource names.
type others struct {
	// claimed is the argument of the last Claim, and found is the result on which the last checks agreed. why is the one that applies, or "" if no one
	// else serves the GPUs.
	claimed, found, why string
	// latest is the result of the last check.
	latest string
	// reported is what was reported for each resource.
	reported map[string]string
}

// disable is what to do about another plugin.
const disable = "disable it, or keep this agent off the node"

// Claim sets who serves the GPUs without a device plugin, such as a DRA driver. It is "" if no one does.
func (m *Manager) Claim(ctx context.Context, why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.others.claimed = why
	m.standBackOrServe(ctx)
}

// checkOthers checks for others, and stops or resumes serving. While resources are served, two checks must agree, because the kubelet still knows a
// resource for a moment after it was removed, and a plugin that restarts is gone for a moment. m.mu is not held.
func (m *Manager) checkOthers(ctx context.Context) {
	m.mu.Lock()
	ours, uuids, idle := maps.Clone(m.servers), map[string]bool{}, len(m.servers) == 0
	for uuid, d := range m.devices {
		uuids[uuid], uuids[d.UUID] = true, true
	}
	wanted := map[string]bool{}
	for _, t := range m.targets {
		for _, resource := range t.resources() {
			wanted[resource] = true
		}
	}
	aside := m.others.found != ""
	m.mu.Unlock()
	// A resource of another agent is taken over from it, during an upgrade.
	found, known := m.find(ctx, func(resource string) bool { return ours[resource] != nil || wanted[resource] && m.isAgents(resource) }, uuids, idle || aside)
	if !known && aside {
		return // They may still be there.
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	same := (found == "") == (m.others.latest == "")
	m.others.latest = found
	if same || idle && !aside {
		m.others.found = found
	}
	m.standBackOrServe(ctx)
}

// standBackOrServe applies the result of the checks for others, and reports changes. m.mu is held.
func (m *Manager) standBackOrServe(ctx context.Context) {
	why := cmp.Or(m.others.claimed, m.others.found)
	changed := (why == "") != (m.others.why == "")
	m.others.why = why
	for _, t := range m.targets {
		for _, resource := range t.resources() {
			if before := m.others.reported[resource]; (before == "") != (why == "") {
				m.others.reported[resource] = why
				if h := m.config.Hooks.StoodBack; h != nil {
					h(resource, why)
				}
			}
		}
	}
	maps.DeleteFunc(m.others.reported, func(resource, _ string) bool {
		return !slices.ContainsFunc(m.targets, func(t target) bool { return slices.Contains(t.resources(), resource) })
	})
	if changed {
		logr.FromContextOrDiscard(ctx).Info("Others who give these GPUs away", "why", cmp.Or(why, "there are none any more"))
		if h := m.config.Hooks.Others; h != nil {
			h(why)
		}
		m.lay(ctx)
		notify(m.wake)
	}
}

// find returns who else serves the GPUs, or "" if no one does. known is false if neither the kubelet nor the Node could be read.
func (m *Manager) find(ctx context.Context, ours func(resource string) bool, uuids map[string]bool, askNode bool) (why string, known bool) {
	dir := m.dir()
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
			return servedAs(registered, ours, uuids), true
		}
	}
	if m.config.Allocatable == nil || !askNode {
		return "", m.config.InUse == nil
	}
	return m.onNode(ctx, ours)
}

// servedAs returns a message if another resource, of any name, has these GPUs or partitions of GPUs as devices. Otherwise it returns "".
func servedAs(registered map[string][]string, ours func(string) bool, uuids map[string]bool) string {
	for _, resource := range slices.Sorted(maps.Keys(registered)) {
		if ours(resource) {
			continue
		}
		partitions := strings.HasPrefix(resource, nodecontract.NVIDIAPrefix)
		for _, id := range registered[resource] {
			if uuids[alloc.UUID(id)] || partitions && strings.HasPrefix(id, "MIG-") {
				return fmt.Sprintf("another device plugin serves these GPUs as %s; %s", resource, disable)
			}
		}
	}
	return ""
}

// onNode finds others by the Node's allocatable resources. Only NVIDIA's plugins are known to use resources with this prefix.
func (m *Manager) onNode(ctx context.Context, ours func(string) bool) (why string, known bool) {
	ctx, cancel := context.WithTimeout(ctx, inUseTimeout)
	defer cancel()
	all, err := m.config.Allocatable.Allocatable(ctx)
	if err != nil {
		return "", false
	}
	for _, resource := range slices.Sorted(maps.Keys(all)) {
		// A socket that no one serves belongs to a plugin that has ended, and so does the number on the Node.
		if strings.HasPrefix(resource, nodecontract.NVIDIAPrefix) && all[resource] > 0 && !ours(resource) && !m.isAgents(resource) && !m.config.Network.Exists(m.nvidiaSocket(resource)) {
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
