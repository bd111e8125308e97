package cluster

import (
	"context"
	"fmt"
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
	taken map[int]bool
}{taken: map[int]bool{}}

// freePort is a port of 127.0.0.1 that nobody listens on and that no other cluster of this process was given.
func freePort(ctx context.Context) (int, error) {
	ports.Lock()
	defer ports.Unlock()
	var last error
	for range 100 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if ports.taken[port] {
			continue
		}
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(loopback, strconv.Itoa(port)))
		if err != nil {
			last = err
			continue
		}
		if err := l.Close(); err != nil {
			return 0, fmt.Errorf("finding a free port: %w", err)
		}
		ports.taken[port] = true
		return port, nil
	}
	return 0, fmt.Errorf("finding a free port: %w", last)
}

func releasePorts(of []int) {
	ports.Lock()
	defer ports.Unlock()
	for _, port := range of {
		delete(ports.taken, port)
	}
}
