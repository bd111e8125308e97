// Package plugintest provides a fake kubelet for tests of device plugins. It accepts registrations, dials back, records the lists of devices, admits pods
// as the kubelet's device manager does, and serves the pod resources API. It runs over Unix sockets, or in memory under testing/synctest.
package plugintest

import (
	"context"
	"fmt"
	"net"
	"path"
	"slices"
	"sync"
	"syscall"

	"google.golang.org/grpc/test/bufconn"
)

// Memory is a network of sockets in memory. The zero value is ready to use.
type Memory struct {
	mu       sync.Mutex
	sockets  map[string]*bufconn.Listener
	watchers map[string][]chan struct{}
	// Refuse, if set, is the error of Listen.
	Refuse error
}

const buffer = 1 << 16

// Listen listens on a socket, and replaces an existing one.
func (m *Memory) Listen(_ context.Context, path string) (net.Listener, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.Refuse != nil {
		return nil, m.Refuse
	}
	if m.sockets == nil {
		m.sockets = map[string]*bufconn.Listener{}
	}
	l := bufconn.Listen(buffer)
	m.sockets[path] = l
	for _, w := range m.watchers[path] {
		select {
		case w <- struct{}{}:
		default:
		}
	}
	return l, nil
}

// Dial connects to a socket.
func (m *Memory) Dial(ctx context.Context, path string) (net.Conn, error) {
	m.mu.Lock()
	l := m.sockets[path]
	m.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("dial %s: %w", path, syscall.ENOENT)
	}
	conn, err := l.DialContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", path, syscall.ECONNREFUSED)
	}
	return conn, nil
}

// Exists reports whether there is a socket, even if it is closed.
func (m *Memory) Exists(path string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sockets[path] != nil
}

// Remove removes a socket.
func (m *Memory) Remove(path string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sockets, path)
}

// List returns the names of the sockets in a directory, including closed ones.
func (m *Memory) List(dir string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for socket := range m.sockets {
		if path.Dir(socket) == dir {
			out = append(out, path.Base(socket))
		}
	}
	slices.Sort(out)
	return out
}

// Created returns a channel that receives when the socket is created.
func (m *Memory) Created(_ context.Context, path string) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.watchers == nil {
		m.watchers = map[string][]chan struct{}{}
	}
	c := make(chan struct{}, 1)
	m.watchers[path] = append(m.watchers[path], c)
	return c
}

// Wipe removes all sockets in a directory, as the kubelet does when it starts.
func (m *Memory) Wipe(dir string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for socket := range m.sockets {
		if path.Dir(socket) == dir {
			delete(m.sockets, socket)
		}
	}
}

// Abandon leaves a socket that nobody serves.
func (m *Memory) Abandon(ctx context.Context, path string) error {
	l, err := m.Listen(ctx, path)
	if err != nil {
		return err
	}
	return l.Close()
}

// Announce makes the watchers of a socket receive as if it had been created again.
func (m *Memory) Announce(path string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.watchers[path] {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}
