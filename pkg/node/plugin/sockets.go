package plugin

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	"karve.sh/karve/pkg/nodecontract"
)

// A server listens on a socket with a name of its own, karve-<resource>-<start of the agent>-<number>.sock, and never reuses one. Kubelets since 1.37 keep the
// connections of all plugins of a resource, by path: they refuse a registration on a path that they still know, forget the connection that had it, and so do not
// see its end. The resource then keeps its last devices, and no registration on the path succeeds, until the kubelet restarts. With a path of its own, an agent
// can also register before its predecessor ends.
//
// A socket outlives its server. If no one serves it, it shows that the devices that the Node still counts are those of a former agent. Its successor removes it.
const agentPrefix = "karve-"

// maxShort limits the resource in the name of a socket, because the path of a socket has at most 107 bytes.
const maxShort = 40

// shortName returns a resource as it is in the names of sockets.
func shortName(resource string) string {
	name := strings.TrimPrefix(resource, nodecontract.NVIDIAPrefix)
	if len(name) <= maxShort {
		return name
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // It never fails.
	return fmt.Sprintf("%s.%08x", name[:maxShort-9], h.Sum32())
}

// startOf returns the start of an agent as it is in the names of its sockets, with a random end. The later of two starts is the greater string.
func startOf(t time.Time) string {
	s := strconv.FormatInt(max(0, t.UnixMilli()), 36)
	return strings.Repeat("0", max(0, timeDigits-len(s))) + s + strings.ToLower(rand.Text()[:startDigits-timeDigits])
}

const timeDigits, startDigits = 9, 12

func (m *Manager) newSocket(resource string) string {
	return path.Join(m.dir(), fmt.Sprintf("%s%s-%s-%d%s", agentPrefix, shortName(resource), m.start, m.sockets.Add(1), socketSuffix))
}

// nvidiaSocket returns the path of the socket that NVIDIA's plugin has for a resource.
func (m *Manager) nvidiaSocket(resource string) string {
	return path.Join(m.dir(), socketPrefix+strings.TrimPrefix(resource, nodecontract.NVIDIAPrefix)+socketSuffix)
}

func (m *Manager) dir() string { return path.Dir(m.config.KubeletSocket) }

// agentSocket is a socket of this or another agent.
type agentSocket struct{ path, start string }

// agentSockets returns the sockets of all agents for a resource, served or not.
func (m *Manager) agentSockets(resource string) []agentSocket {
	var out []agentSocket
	for _, name := range m.config.Network.List(m.dir()) {
		rest, ok := strings.CutPrefix(name, agentPrefix+shortName(resource)+"-")
		if !ok {
			continue
		}
		start, number, ok := strings.Cut(strings.TrimSuffix(rest, socketSuffix), "-")
		if _, err := strconv.Atoi(number); ok && err == nil && len(start) == startDigits && strings.HasSuffix(rest, socketSuffix) {
			out = append(out, agentSocket{path.Join(m.dir(), name), start})
		}
	}
	return out
}

// isAgents reports whether an agent serves a resource, or did before it ended.
func (m *Manager) isAgents(resource string) bool { return len(m.agentSockets(resource)) > 0 }

// removeIfStale removes a socket on which nobody listens.
func (m *Manager) removeIfStale(ctx context.Context, path string) {
	conn, err := m.config.Network.Dial(ctx, path)
	if err == nil {
		_ = conn.Close()
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		m.config.Network.Remove(path)
	}
}

const socketPrefix, socketSuffix = "nvidia-", ".sock"

// resourceOf returns the resource for the name of a socket of NVIDIA's plugin, or of an agent from before agents had sockets with names of their own.
func resourceOf(socket string) (resource string, ok bool) {
	name, ok := strings.CutPrefix(socket, socketPrefix)
	if ok {
		name, ok = strings.CutSuffix(name, socketSuffix)
	}
	return nodecontract.NVIDIAPrefix + name, ok
}
