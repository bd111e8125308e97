package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"karve.sh/karve/pkg/node/cdi"
	"karve.sh/karve/pkg/node/dra"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/health"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/nodecontract"
)

// draBackend is the agent as a DRA driver, on nodes that were promised for it.
type draBackend struct {
	// driver is nil if there is no Node to publish for, or no folder to record claims in.
	driver *dra.Driver
	// begin is closed when the driver has something to do.
	begin chan struct{}
	begun sync.Once

	mu sync.Mutex
	// resources are those of the configuration in force, and nil unless it is for the driver. away is who else serves the GPUs.
	resources []string
	away      string
}

// newDRA returns the backend for the options of the agent.
func (a *agent) newDRA(ctx context.Context) *draBackend {
	b := &draBackend{begin: make(chan struct{})}
	if a.node == nil || a.options.stateDir == none {
		return b
	}
	var err error
	b.driver, err = dra.New(dra.Config{
		API: a.node, Registry: a.options.pluginRegistry, State: a.options.stateDir, Specs: a.options.cdiDirs[len(a.options.cdiDirs)-1],
		CDIMissing: func(devices []string) error { return cdi.Read(a.options.cdiDirs...).Missing(devices) },
		Published:  func(devices int, err error) { a.report.published(devices, err) },
		Prepared:   func(took time.Duration, err error) { a.report.prepared(took, err) },
		Registered: func(err error) { a.report.draRegistered(err) },
	})
	if err != nil {
		logr.FromContextOrDiscard(ctx).Error(err, "The record of prepared ResourceClaims was made anew")
		a.report.events.tell(ctx, health.Event{Warning: true, Reason: nodecontract.ReasonClaimsUnreadable, Message: "The record of prepared ResourceClaims was made anew: " + err.Error()})
	}
	if len(b.driver.Claims()) > 0 {
		b.start()
	}
	return b
}

// start makes run serve.
func (b *draBackend) start() { b.begun.Do(func() { close(b.begin) }) }

// run serves the kubelet once there is something to do, until ctx ends. A node without DRA never has its socket.
func (b *draBackend) run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-b.begin:
		return b.driver.Run(ctx)
	}
}

// apply puts a configuration in force with the backend that it is for.
func (a *agent) apply(ctx context.Context, c sharing.Config, devices []gpu.Device) error {
	b := a.dra
	if c.Sharing.Backend != nodecontract.BackendDRA {
		if err := b.leave(); err != nil {
			return err
		}
		return a.manager.Apply(ctx, c, devices)
	}
	if b.driver == nil {
		return errors.New("backend DRA needs --node-name, a service account and --state-dir")
	}
	if !b.driver.Active() {
		if err := a.noDeviceHeld(ctx, devices); err != nil {
			return err
		}
	}
	resources, err := c.Resources(devices)
	if err != nil {
		return err
	}
	if err := a.manager.Apply(ctx, c, devices); err != nil { // It withdraws what it has registered, and looks for others.
		return err
	}
	var driver gpu.Driver
	a.report.with(func() { driver = a.report.driver })
	if err := b.driver.Apply(c, driver, devices); err != nil {
		return err
	}
	b.mu.Lock()
	b.resources = nil
	for _, r := range resources {
		b.resources = append(b.resources, r.Name)
	}
	away := b.away
	b.mu.Unlock()
	b.start()
	if away != "" {
		a.othersServe(ctx, away)
	}
	return nil
}

// leave makes the driver hand out nothing. A node is not converted while pods hold claims.
func (b *draBackend) leave() error {
	if b.driver == nil {
		return nil
	}
	if claims := b.driver.Claims(); len(claims) > 0 {
		return fmt.Errorf("backend DevicePlugin was promised, and pods of this node hold GPUs by %d ResourceClaims, such as %s: delete the pods, or replace the node", len(claims), claims[0])
	}
	b.driver.Retire()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.resources = nil
	return nil
}

// noDeviceHeld returns an error if a pod holds a device of the device plugin.
func (a *agent) noDeviceHeld(ctx context.Context, devices []gpu.Device) error {
	if a.options.podResourcesSocket == none {
		return nil
	}
	used, err := plugin.PodResources{Socket: a.options.podResourcesSocket}.Holders(ctx)
	if err != nil {
		return fmt.Errorf("backend DRA was promised, and the kubelet does not say whether pods hold GPUs of the device plugin: %w", err)
	}
	for pod, gpus := range gpusOf(used, devices) {
		if len(gpus) > 0 {
			return fmt.Errorf("backend DRA was promised, and %s holds %s from the device plugin: delete the pod, or replace the node", pod, gpus[0])
		}
	}
	return nil
}

// othersServe makes the driver stand back while someone else serves the GPUs, and serve again when why is "". It must not call the manager.
func (a *agent) othersServe(ctx context.Context, why string) {
	b := a.dra
	if b == nil || b.driver == nil {
		return
	}
	b.driver.StandBack(why)
	b.mu.Lock()
	b.away = why
	resources := slices.Clone(b.resources)
	b.mu.Unlock()
	for _, resource := range resources {
		a.report.stoodBack(ctx, resource, why)
	}
}

// setHealth sets the health of a GPU for whoever hands it out.
func (a *agent) setHealth(uuid string, healthy bool) {
	a.manager.SetHealth(uuid, healthy)
	if a.dra.driver != nil {
		a.dra.driver.SetHealth(uuid, healthy)
	}
}

// shares returns the shares of the GPUs by UUID.
func (a *agent) shares() map[string]plugin.Share {
	if d := a.dra.driver; d != nil && d.Active() {
		return d.Shares()
	}
	return a.manager.Shares()
}

// claimed returns the replicas that a share of a ResourceClaim holds.
func (a *agent) claimed(namespace, name, device, shareID string) []string {
	if a.dra.driver == nil {
		return nil
	}
	return a.dra.driver.IDs(namespace, name, device, shareID)
}

// published records what the ResourceSlice offers, and why it is not as it should be.
func (r *report) published(devices int, err error) {
	why := ""
	if err != nil {
		why = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	r.with(func() { r.listed[nodecontract.DRADriver] = [2]int{devices, 0} })
	r.notSharing(&r.unpublished, why)
}

// prepared records how long a claim took.
func (r *report) prepared(took time.Duration, err error) {
	r.with(func() {
		r.allocated[err == nil]++
		r.slowest = max(r.slowest, took)
	})
}

// draRegistered records whether the kubelet has accepted the driver.
func (r *report) draRegistered(err error) {
	r.with(func() {
		delete(r.registered, nodecontract.DRADriver)
		if err == nil {
			r.registered[nodecontract.DRADriver] = 0
		}
	})
}
