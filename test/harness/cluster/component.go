package cluster

import (
	"context"
	"fmt"
	"time"
)

// part is a component of this cluster, running or stopped.
type part struct {
	name    Component
	launch  func(ctx context.Context) (running, error)
	ready   func(ctx context.Context) error
	current running // nil while it is stopped; guarded by Cluster.mu
}

// running is a started component: a process or a goroutine.
type running interface {
	stop(grace time.Duration)
	kill()
	ended() (<-chan struct{}, func() error)
	waitReady(ctx context.Context, ready func(context.Context) error) error
}

// StartComponent starts a stopped component on the same ports and with the same log. It returns when the component is ready.
func (c *Cluster) StartComponent(ctx context.Context, name Component) error {
	p, err := c.part(name)
	if err != nil {
		return err
	}
	c.mu.Lock()
	if p.current != nil {
		c.mu.Unlock()
		return fmt.Errorf("starting %s: it runs", name)
	}
	// Ignore the caller's deadline: the component lives until it is stopped.
	r, err := p.launch(context.WithoutCancel(ctx))
	if err != nil {
		c.mu.Unlock()
		return fmt.Errorf("starting %s: %w", name, err)
	}
	p.current = r
	c.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := r.waitReady(ctx, p.ready); err != nil {
		if r := c.take(p); r != nil {
			r.kill()
		}
		return fmt.Errorf("starting %s: %w", name, err)
	}
	go c.watch(p, r)
	return nil
}

// StopComponent stops a component gracefully, as a rolling update does, and returns when it has ended.
func (c *Cluster) StopComponent(name Component) error {
	return c.end(name, func(r running) { r.stop(stopGrace) })
}

// KillComponent kills a component, as a crash does.
func (c *Cluster) KillComponent(name Component) error {
	return c.end(name, running.kill)
}

func (c *Cluster) end(name Component, how func(running)) error {
	p, err := c.part(name)
	if err != nil {
		return err
	}
	r := c.take(p)
	if r == nil {
		return fmt.Errorf("stopping %s: it does not run", name)
	}
	how(r)
	return nil
}

// take marks the part as stopped, so that its end is expected, and returns what ran.
func (c *Cluster) take(p *part) running {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := p.current
	p.current = nil
	return r
}

// watch reports the unexpected end of a component.
func (c *Cluster) watch(p *part, r running) {
	done, why := r.ended()
	<-done
	c.mu.Lock()
	unexpected := p.current == r
	if unexpected {
		p.current = nil
	}
	c.mu.Unlock()
	if unexpected && c.config.OnExit != nil {
		c.config.OnExit(p.name, why())
	}
}

func (c *Cluster) part(name Component) (*part, error) {
	for _, p := range c.parts {
		if p.name == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("this cluster has no component %q", name)
}
