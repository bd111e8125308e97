package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"karve.sh/karve/pkg/node/cdi"
	"karve.sh/karve/pkg/node/dra"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/health"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/words"
)

// draBackend is the agent as a DRA driver, on nodes whose promise requires it.
type draBackend struct {
	// driver is nil if there is no Node to publish for.
	driver *dra.Driver
	// begin is closed when the driver has something to do.
	begin chan struct{}
	begun sync.Once

	mu sync.Mutex
	// resources are those of the configuration in force if it is for a DRA driver. Otherwise it is nil. away is who else serves the GPUs.
	resources []string
	away      string
	// nvidiaGPUs maps NVIDIA's driver's names of devices to the UUIDs of GPUs.
	nvidiaGPUs map[string]string

	// nvidiaMu is locked while the agent leaves the GPUs to NVIDIA's driver or takes them back. nvidia is what is known about the driver.
	nvidiaMu sync.Mutex
	nvidia   nvidiaDriver
}

// nvidiaDriver is the state of NVIDIA's DRA driver on the agent's node.
type nvidiaDriver struct {
	// configured reports whether a configuration is in force, and promised whether the driver serves the GPUs according to it. slice is the name of one of
	// its ResourceSlices, or "" if it has none.
	configured, promised bool
	slice                string
}

// newDRA returns the backend for the options of the agent.
func (a *Agent) newDRA(ctx context.Context) *draBackend {
	b := &draBackend{begin: make(chan struct{})}
	if a.node == nil {
		return b
	}
	state := a.options.stateDir
	if state == none {
		state = ""
	}
	var err error
	b.driver, err = dra.New(dra.Config{
		API: a.node, Registry: a.options.pluginRegistry, State: state, Specs: claimSpecs(a.options.cdiDirs),
		CDIMissing: func(devices []string) error { return cdi.Read(a.options.cdiDirs...).Missing(devices) },
		Published:  func(devices int, err error) { a.report.published(devices, err) },
		Prepared:   func(took time.Duration, err error) { a.report.prepared(took, err) },
		Registered: func(err error) { a.report.draRegistered(err) },
	})
	if err != nil {
		a.report.events.tell(ctx, health.Event{Warning: true, Reason: nodecontract.ReasonClaimsUnreadable, Message: "Not all prepared ResourceClaims are known: " + err.Error()})
	}
	if len(b.driver.Claims()) > 0 {
		b.start()
	}
	return b
}

// claimSpecs returns the directory for the CDI specs of claims.
func claimSpecs(cdiDirs []string) string { return cdiDirs[len(cdiDirs)-1] }

// start makes run begin to serve.
func (b *draBackend) start() { b.begun.Do(func() { close(b.begin) }) }

// run serves the kubelet once there is something to do, until ctx ends. A node without DRA never has the driver's socket.
func (b *draBackend) run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-b.begin:
		return b.driver.Run(ctx)
	}
}

// apply puts a configuration in force with its backend.
func (a *Agent) apply(ctx context.Context, c sharing.Config, devices []gpu.Device) error {
	b, ours, nvidias := a.dra, c.Sharing.Backend == nodecontract.BackendDRA, c.Sharing.Backend == nodecontract.BackendNVIDIADRA
	if err := a.enterBackend(ctx, c.Sharing.Backend, devices); err != nil {
		return err
	}
	resources, err := c.Resources(devices)
	if err != nil {
		return err
	}
	if !nvidias { // Before the GPUs are served again.
		a.leaveToNVIDIA(ctx, false, devices)
	}
	if err := a.manager.Apply(ctx, c, devices); err != nil { // For a DRA driver, it withdraws what it has registered, and checks for others.
		return err
	}
	if ours {
		var driver gpu.Driver
		a.report.locked(func() { driver = a.report.driver })
		if err := b.driver.Apply(c, driver, devices); err != nil {
			return err
		}
	}
	b.mu.Lock()
	b.resources = nil
	if ours || nvidias {
		for _, r := range resources {
			b.resources = append(b.resources, r.Name)
		}
	}
	b.mu.Unlock()
	if ours {
		b.start()
	}
	if nvidias {
		a.leaveToNVIDIA(ctx, true, devices)
	}
	b.mu.Lock()
	away := b.away
	b.mu.Unlock()
	if away != "" && (ours || nvidias) {
		a.othersServe(ctx, away)
	}
	return nil
}

// enterBackend returns an error while the node cannot switch to a backend, because pods hold GPUs from another backend of this agent.
func (a *Agent) enterBackend(ctx context.Context, backend string, devices []gpu.Device) error {
	switch b := a.dra; {
	case backend != nodecontract.BackendDRA:
		return b.leaveBackend(backend)
	case b.driver == nil:
		return errors.New("backend DRA needs --node-name and a service account")
	case !b.driver.Active():
		return a.noDeviceHeld(ctx, devices)
	}
	return nil
}

// leaveBackend makes the driver serve no devices, for another backend. A node is not converted while pods hold claims.
func (b *draBackend) leaveBackend(backend string) error {
	if b.driver == nil {
		return nil
	}
	if claims := b.driver.Claims(); len(claims) > 0 {
		return fmt.Errorf("backend %s was promised, and pods of this node hold GPUs by %s of this agent, such as %s: delete the pods, or replace the node",
			cmp.Or(backend, "DevicePlugin"), words.Count(len(claims), "ResourceClaim"), claims[0])
	}
	b.driver.Retire()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.resources = nil
	return nil
}

// watchNVIDIA follows the ResourceSlices of NVIDIA's DRA driver for the node.
func (a *Agent) watchNVIDIA(ctx context.Context) {
	a.node.WatchSlices(ctx, nodecontract.NVIDIADRADriver, func(names []string) {
		a.besideNVIDIA(ctx, func(d *nvidiaDriver) {
			d.slice = ""
			if len(names) > 0 {
				d.slice = names[0]
			}
		})
	})
}

// leaveToNVIDIA leaves the GPUs to NVIDIA's DRA driver, or takes them back.
func (a *Agent) leaveToNVIDIA(ctx context.Context, promised bool, devices []gpu.Device) {
	gpus := map[string]string{}
	for _, d := range devices {
		gpus["gpu-"+strconv.Itoa(d.Minor)] = d.UUID
	}
	a.dra.mu.Lock()
	a.dra.nvidiaGPUs = gpus
	a.dra.mu.Unlock()
	a.besideNVIDIA(ctx, func(d *nvidiaDriver) { d.configured, d.promised = true, promised })
}

// besideNVIDIA updates what is known about NVIDIA's DRA driver, and stands back while that driver serves GPUs that belong to this agent.
func (a *Agent) besideNVIDIA(ctx context.Context, change func(*nvidiaDriver)) {
	b := a.dra
	b.nvidiaMu.Lock()
	defer b.nvidiaMu.Unlock()
	change(&b.nvidia)
	why := ""
	if b.nvidia.slice != "" && b.nvidia.configured && !b.nvidia.promised {
		why = fmt.Sprintf("the DRA driver %s gives the node's GPUs away (ResourceSlice %s); take it off the node, keep this agent off it, or use backend %s in the GPUNodeClass",
			nodecontract.NVIDIADRADriver, b.nvidia.slice, nodecontract.BackendNVIDIADRA)
	}
	a.report.locked(func() { a.report.nvidia = b.nvidia })
	a.manager.Claim(ctx, why)
	a.report.sharingCondition()
}

// noDeviceHeld returns an error if a pod holds a device of the device plugin.
func (a *Agent) noDeviceHeld(ctx context.Context, devices []gpu.Device) error {
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
func (a *Agent) othersServe(ctx context.Context, why string) {
	b := a.dra
	if b == nil {
		return
	}
	if b.driver != nil {
		b.driver.StandBack(why)
	}
	b.mu.Lock()
	b.away = why
	resources := slices.Clone(b.resources)
	b.mu.Unlock()
	for _, resource := range resources {
		a.report.stoodBack(ctx, resource, why)
	}
}

// setHealth sets the health of a GPU in whichever backend serves it.
func (a *Agent) setHealth(uuid string, healthy bool) {
	a.manager.SetHealth(uuid, healthy)
	if a.dra.driver != nil {
		a.dra.driver.SetHealth(uuid, healthy)
	}
}

// shares returns the shares of the GPUs by UUID.
func (a *Agent) shares() map[string]plugin.Share {
	if d := a.dra.driver; d != nil && d.Active() {
		return d.Shares()
	}
	return a.manager.Shares()
}

// claimed returns the replicas that a share of a ResourceClaim holds, or the GPU if NVIDIA's driver has allocated it.
func (a *Agent) claimed(driver, namespace, name, device, shareID string) []string {
	switch {
	case driver == nodecontract.NVIDIADRADriver:
		a.dra.mu.Lock()
		defer a.dra.mu.Unlock()
		if uuid, ok := a.dra.nvidiaGPUs[device]; ok {
			return []string{uuid}
		}
	case driver == nodecontract.DRADriver && a.dra.driver != nil:
		return a.dra.driver.IDs(namespace, name, device, shareID)
	}
	return nil
}

// published records the number of devices in the ResourceSlice, and why it is not up to date.
func (r *report) published(devices int, err error) {
	why := ""
	if err != nil {
		why = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	r.locked(func() { r.listed[nodecontract.DRADriver] = [2]int{devices, 0} })
	r.notSharing(&r.unpublished, why)
}

// prepared records how long preparing a claim took.
func (r *report) prepared(took time.Duration, err error) {
	r.locked(func() {
		r.allocated[err == nil]++
		r.maxAllocation = max(r.maxAllocation, took)
	})
}

// draRegistered records whether the kubelet has accepted the driver.
func (r *report) draRegistered(err error) {
	r.locked(func() {
		delete(r.registered, nodecontract.DRADriver)
		if err == nil {
			r.registered[nodecontract.DRADriver] = 0
		}
	})
}
