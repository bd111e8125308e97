package cluster

import (
	"context"
	"fmt"
	"path/filepath"
)

// Program is a program that runs beside the cluster's own components, such as the controller under test.
type Program struct {
	// Name is its component name for StopComponent, KillComponent and StartComponent, and the name of its log.
	Name Component
	Path string
	Args []string
	Env  []string
	// ReadyURL answers 200 once the program is ready. For https, it has a certificate of the cluster.
	ReadyURL string
}

// StartProgram starts a program and returns when it is ready. The program ends with the cluster, and can be stopped like a component.
func (c *Cluster) StartProgram(ctx context.Context, p Program) error {
	if _, err := c.part(p.Name); err == nil {
		return fmt.Errorf("starting %s: there is one of that name", p.Name)
	}
	c.parts = append(c.parts, &part{
		name: p.Name,
		launch: func(context.Context) (running, error) {
			return startProcess(p.Path, p.Args, p.Env, filepath.Join(c.dir, string(p.Name)+".log"))
		},
		ready: httpOK(c.trusting(), p.ReadyURL),
	})
	return c.StartComponent(ctx, p.Name)
}

// FreePort returns an unused port on loopback. It stays reserved while the cluster runs.
func (c *Cluster) FreePort(ctx context.Context) (int, error) {
	port, err := freePort(ctx)
	if err != nil {
		return 0, err
	}
	c.ports = append(c.ports, port)
	return port, nil
}
