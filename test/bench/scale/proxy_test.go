package scale

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// proxy forwards connections to an API server. It can close all of them at once, which breaks watches and requests.
type proxy struct {
	url string

	mu    sync.Mutex
	conns map[net.Conn]bool
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{url: "https://" + listener.Addr().String(), conns: map[net.Conn]bool{}}
	t.Cleanup(func() {
		_ = listener.Close()
		p.cut()
	})
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			to, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(target, "https://"))
			if err != nil {
				_ = from.Close()
				continue
			}
			p.mu.Lock()
			p.conns[from], p.conns[to] = true, true
			p.mu.Unlock()
			go p.pass(from, to)
			go p.pass(to, from)
		}
	}()
	return p
}

func (p *proxy) pass(from, to net.Conn) {
	_, _ = io.Copy(to, from)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range []net.Conn{from, to} {
		_ = c.Close()
		delete(p.conns, c)
	}
}

// cut closes all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}
