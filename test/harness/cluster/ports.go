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

// Ports are taken from below 32768, where Linux begins to hand out ports to outgoing connections: a component that is
// stopped and started again must find its port as it left it.
const (
	firstPort = 20000
	lastPort  = 32000
)

var ports = struct {
	sync.Mutex
	taken map[int]io.Closer
}{taken: map[int]io.Closer{}}

// freePort is a port of 127.0.0.1 that nobody listens on and that no other cluster was given, whatever process it is of.
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
			_ = ours.Close() // It ends with the process at the latest.
			delete(ports.taken, port)
		}
	}
}

// Reserve keeps a name from all other processes of this network namespace until it is closed, or until this process ends: test packages run side by side.
func Reserve(ctx context.Context, name string) (io.Closer, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "unix", "@karve.sh/test/"+name)
	if err != nil {
		return nil, fmt.Errorf("%s is taken: %w", name, err)
	}
	return l, nil
}
