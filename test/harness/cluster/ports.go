package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports are below 32768, where Linux begins to allocate ports for outgoing connections. A component that is restarted must find its port free.
const (
	firstPort = 20000
	lastPort  = 32000
)

var ports = struct {
	sync.Mutex
	taken map[int]io.Closer
}{taken: map[int]io.Closer{}}

// freePort returns a port of 127.0.0.1 that nothing listens on and that no other cluster has, in any process.
func freePort(ctx context.Context) (int, error) {
	ports.Lock()
	defer ports.Unlock()
	var last error
	for range 100 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		ours, err := Reserve(ctx, "port/"+strconv.Itoa(port))
		if err != nil {
			last = err
			continue
		}
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(loopback, strconv.Itoa(port)))
		if err != nil {
			_, last = ours.Close(), err
			continue
		}
		if err := l.Close(); err != nil {
			return 0, errors.Join(fmt.Errorf("finding a free port: %w", err), ours.Close())
		}
		ports.taken[port] = ours
		return port, nil
	}
	return 0, fmt.Errorf("finding a free port: %w", last)
}

func releasePorts(of []int) {
	ports.Lock()
	defer ports.Unlock()
	for _, port := range of {
		if ours, ok := ports.taken[port]; ok {
			_ = ours.Close() // The process releases it at the latest.
			delete(ports.taken, port)
		}
	}
}

// Reserve reserves a name among all processes of this network namespace until it is closed or this process ends. Test packages run in parallel.
func Reserve(ctx context.Context, name string) (io.Closer, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "unix", "@karve.sh/test/"+name)
	if err != nil {
		return nil, fmt.Errorf("%s is taken: %w", name, err)
	}
	return l, nil
}
