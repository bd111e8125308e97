// Package dra implements the agent's DRA driver. It publishes the GPUs of the node in a ResourceSlice, and prepares ResourceClaims for the kubelet. The
// scheduler creates the claims of pods that request an extended resource, and decides which GPU each pod gets.
package dra

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/node/backoff"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/mig"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/nodecontract"
)

// Config configures a Driver. All fields but State, Capabilities and the hooks are required.
type Config struct {
	API *nodeapi.Client
	// Registry is the directory in which the kubelet looks for plugin sockets.
	Registry string
	// Specs is the directory for CDI specs, which are also the record of prepared claims. The container runtime must read it.
	Specs string
	// State is the directory in which drivers of Karve 0.1 recorded claims. It may be "".
	State string
	// Capabilities has the device files of MIG instances.
	Capabilities mig.Capabilities
	// CDIMissing returns an error if the container runtime does not know all of the CDI devices.
	CDIMissing func(devices []string) error
	// Published is called when the slice is up to date, with the error that it still has, or when updating it failed.
	Published func(devices int, err error)
	// Prepared is called when a claim was prepared, or with the error.
	Prepared func(took time.Duration, err error)
	// Registered is called when the kubelet has accepted the driver, or with the reason why it has not.
	Registered func(err error)
}

// Driver is a DRA driver for the GPUs of a node, or for their MIG instances.
type Driver struct {
	config Config
	// wake makes publishAll check the slice.
	wake chan struct{}
	// preparing is held while a claim is prepared or unprepared. mu is never held during a call to the API server.
	preparing sync.Mutex

	mu         sync.Mutex
	active     bool
	registered bool
	// retired reports whether the driver must publish nothing. Until the driver is active or retired, the slice of an earlier agent stays.
	retired bool
	// away is why the driver serves no devices, or "" if it does.
	away      string
	settings  sharing.Settings
	driver    gpu.Driver
	devices   map[string]Device // by UUID of the GPU or MIG instance
	unhealthy map[string]bool
	cordoned  map[string]bool
	claims    map[string]Claim // by UID
}

// New returns a driver with the claims that an earlier one has prepared. After an error, the driver can be used, and lacks claims whose CDI specs cannot be
// read.
func New(config Config) (*Driver, error) {
	d := &Driver{config: config, wake: make(chan struct{}, 1), devices: map[string]Device{}, unhealthy: map[string]bool{}, cordoned: map[string]bool{}}
	var err error
	d.claims, err = ClaimsOf(config.Specs)
	return d, err
}

// asCDI returns the settings that CDI specs can express. They cannot express annotations of containers, which name the same devices as the runtime's
// API.
func asCDI(s sharing.Settings) sharing.Settings {
	s.DeviceLists = slices.Clone(s.DeviceLists)
	for i, list := range s.DeviceLists {
		if list == sharing.ListCDIAnnotations {
			s.DeviceLists[i] = sharing.ListCDICRI
		}
	}
	return s
}

// Active reports whether the driver serves the GPUs.
func (d *Driver) Active() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.active
}

// Claims returns the prepared claims, as namespace/name, sorted.
func (d *Driver) Claims() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var names []string
	for _, c := range d.claims {
		names = append(names, c.Namespace+"/"+c.Name)
	}
	slices.Sort(names)
	return names
}

// Apply makes the driver serve GPUs according to a configuration.
func (d *Driver) Apply(c sharing.Config, driver gpu.Driver, devices []gpu.Device) error {
	settings, err := c.Settings()
	if err != nil {
		return err
	}
	settings = asCDI(settings)
	resources, err := c.Resources(devices)
	if err != nil {
		return err
	}
	known := map[string]Device{}
	for _, r := range resources {
		for _, g := range r.GPUs {
			if g.Instance == nil && g.MIG {
				return fmt.Errorf("GPU %d (%s) is divided into MIG instances, which were not promised; take them away", g.Index, g.Product)
			}
			if _, twice := known[g.ID()]; twice {
				return fmt.Errorf("there are two GPUs with the UUID %q", g.ID())
			}
			known[g.ID()] = Device{GPU: g, Resource: r.Name}
		}
	}
	for _, g := range known { // The runtime must know each of them.
		if _, err := plugin.Answer(settings, []sharing.GPU{g.GPU}, d.config.Capabilities, d.config.CDIMissing); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.active, d.retired, d.settings, d.driver, d.devices = true, false, settings, driver, known
	d.poke()
	return nil
}

// Retire makes the driver publish nothing. Claims that pods hold stay prepared.
func (d *Driver) Retire() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.active || !d.retired {
		d.active, d.retired = false, true
		d.poke()
	}
}

// SetHealth sets the health of a GPU or MIG instance. The instances of a GPU that is out of service are also out of service.
func (d *Driver) SetHealth(uuid string, healthy bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.unhealthy[uuid] == healthy {
		d.unhealthy[uuid] = !healthy
		d.poke()
	}
}

// outOfService reports whether a device or its GPU is unhealthy. d.mu is held.
func (d *Driver) outOfService(g Device) bool { return d.unhealthy[g.ID()] || d.unhealthy[g.UUID] }

// isCordoned reports whether a device or its GPU accepts no new pods. d.mu is held.
func (d *Driver) isCordoned(g Device) bool { return d.cordoned[g.ID()] || d.cordoned[g.UUID] }

// SetCordoned sets the GPUs and MIG instances that accept no new pods. The instances of such a GPU accept none either.
func (d *Driver) SetCordoned(cordoned map[string]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !maps.Equal(d.cordoned, cordoned) {
		d.cordoned = maps.Clone(cordoned)
		d.poke()
	}
}

// StandBack sets who else serves the GPUs. While why is not "", the driver publishes nothing. Claims that pods hold stay prepared.
func (d *Driver) StandBack(why string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.away != why {
		d.away = why
		d.poke()
	}
}

// Shares returns the shares of the GPUs and MIG instances by UUID.
func (d *Driver) Shares() map[string]plugin.Share {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make(map[string]plugin.Share, len(d.devices))
	for uuid, g := range d.devices {
		out[uuid] = plugin.Share{Total: g.Replicas, Unhealthy: d.outOfService(g), Cordoned: d.isCordoned(g)}
	}
	for _, c := range d.claims {
		for _, p := range c.Devices {
			if share, ok := out[p.UUID]; ok {
				share.Allocated += len(p.Replicas)
				out[p.UUID] = share
			}
		}
	}
	return out
}

// IDs returns the replicas that a share of a claim holds, with the device plugin's IDs. It is empty if the claim is not prepared.
func (d *Driver) IDs(namespace, name, device, shareID string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return idsIn(d.claims, namespace, name, device, shareID, func(uuid string) bool { return d.devices[uuid].Replicas != 1 })
}

// poke makes Run check the slice.
func (d *Driver) poke() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// prepare prepares a claim and returns it with the CDI devices of each request. A claim that is already prepared stays as it is.
func (d *Driver) prepare(ctx context.Context, uid, namespace, name string) (Claim, map[string][]string, error) {
	d.preparing.Lock()
	defer d.preparing.Unlock()
	if !validUID.MatchString(uid) {
		return Claim{}, nil, fmt.Errorf("ResourceClaim %s/%s has the UID %.64q, which cannot be in the name of a file", namespace, name, uid)
	}
	d.mu.Lock()
	claim, done := d.claims[uid]
	d.mu.Unlock()
	if !done {
		allocated, err := d.config.API.Claim(ctx, namespace, name)
		if err != nil {
			return Claim{}, nil, err
		}
		if claim, err = d.take(allocated, uid, namespace, name); err != nil {
			return Claim{}, nil, err
		}
	}
	devices, err := d.inject(claim)
	if err != nil {
		return Claim{}, nil, fmt.Errorf("ResourceClaim %s/%s: %w", namespace, name, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.claims[uid] = claim
	return claim, devices, nil
}

// take returns the record of a claim that is about to be prepared.
func (d *Driver) take(c nodeapi.ResourceClaim, uid, namespace, name string) (Claim, error) {
	if c.Metadata.UID != uid {
		return Claim{}, fmt.Errorf("ResourceClaim %s/%s has the UID %s, and %s is to be prepared: it was deleted and created again", namespace, name, c.Metadata.UID, uid)
	}
	if c.Status.Allocation == nil {
		return Claim{}, fmt.Errorf("ResourceClaim %s/%s is not allocated", namespace, name)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	claim := Claim{UID: uid, Namespace: namespace, Name: name}
	taken := d.taken()
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver != nodecontract.DRADriver {
			continue
		}
		g, err := d.allocated(r)
		if err != nil {
			return Claim{}, fmt.Errorf("ResourceClaim %s/%s: %w", namespace, name, err)
		}
		p := Prepared{Request: r.Request, Device: r.Device, ShareID: r.ShareID, UUID: g.ID()}
		for n := 0; len(p.Replicas) < replicasOf(r); n++ {
			if !taken[g.ID()][n] {
				p.Replicas = append(p.Replicas, n)
			}
		}
		if taken[g.ID()] == nil {
			taken[g.ID()] = map[int]bool{}
		}
		for _, n := range p.Replicas {
			taken[g.ID()][n] = true
		}
		claim.Devices = append(claim.Devices, p)
	}
	if len(claim.Devices) == 0 {
		return Claim{}, fmt.Errorf("ResourceClaim %s/%s has no device of driver %s", namespace, name, nodecontract.DRADriver)
	}
	return claim, nil
}

// allocated returns the GPU or MIG instance of an allocation. d.mu is held.
func (d *Driver) allocated(r nodeapi.AllocatedDevice) (Device, error) {
	if r.Pool != d.config.API.Name {
		return Device{}, fmt.Errorf("device %s is in the pool %s, and this is node %s", r.Device, r.Pool, d.config.API.Name)
	}
	for uuid, g := range d.devices {
		if nameOf(uuid) != r.Device {
			continue
		}
		if d.outOfService(g) {
			return Device{}, fmt.Errorf("%s is out of service: see the condition %s of the Node", g, nodecontract.HardwareCondition)
		}
		return g, nil
	}
	return Device{}, fmt.Errorf("node %s has no GPU %s now", d.config.API.Name, r.Device)
}

// taken returns the replicas that claims hold, by the UUID of the GPU or MIG instance. d.mu is held.
func (d *Driver) taken() map[string]map[int]bool {
	taken := map[string]map[int]bool{}
	for _, c := range d.claims {
		for _, p := range c.Devices {
			if taken[p.UUID] == nil {
				taken[p.UUID] = map[int]bool{}
			}
			for _, n := range p.Replicas {
				taken[p.UUID][n] = true
			}
		}
	}
	return taken
}

// replicasOf returns how many replicas an allocation consumes.
func replicasOf(r nodeapi.AllocatedDevice) int {
	q, err := amount.Parse(r.ConsumedCapacity[nodecontract.DRAReplicas])
	if n := amount.Value(q); err == nil && n >= 1 && n <= sharing.MaxReplicas {
		return int(n)
	}
	return 1
}

// wholeClaim stands for all requests of a claim. No request can have this name.
const wholeClaim = nodecontract.DRADriver + "/whole-claim"

// inject writes the CDI spec of a claim and returns the CDI devices of its requests. The container runtime merges the edits of all devices of a
// container, and keeps the last of two values of a variable. So if a variable differs between requests, there is also a device for the whole claim.
func (d *Driver) inject(c Claim) (map[string][]string, error) {
	d.mu.Lock()
	settings, known := d.settings, maps.Clone(d.devices)
	d.mu.Unlock()
	var all []edits
	devices := map[string][]string{}
	add := func(request string) error {
		var gpus []sharing.GPU
		for _, p := range c.Devices {
			g, there := known[p.UUID]
			if !there {
				return fmt.Errorf("the node has no GPU %s now", p.UUID)
			}
			if (p.Request == request || request == wholeClaim) && !slices.ContainsFunc(gpus, func(g sharing.GPU) bool { return g.ID() == p.UUID }) {
				gpus = append(gpus, g.GPU)
			}
		}
		answer, err := plugin.Answer(settings, gpus, d.config.Capabilities, d.config.CDIMissing)
		if err != nil {
			return err
		}
		devices[request] = []string{cdiKind + "=" + cdiName(c.UID, len(all))}
		all = append(all, editsOf(answer))
		for _, named := range answer.GetCdiDevices() {
			devices[request] = append(devices[request], named.GetName())
		}
		return nil
	}
	for _, request := range requestsOf(c) {
		if err := add(request); err != nil {
			return nil, err
		}
	}
	if slices.ContainsFunc(all, func(e edits) bool { return !slices.Equal(e.Env, all[0].Env) }) {
		if err := add(wholeClaim); err != nil {
			return nil, err
		}
	}
	return devices, writeSpec(d.config.Specs, c, all)
}

// Run serves until ctx ends.
func (d *Driver) Run(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if d.config.State != "" {
		if err := writeFile(d.config.State, formerRecord, []byte(formerContent)); err != nil {
			logr.FromContextOrDiscard(ctx).Info("An agent of Karve 0.1 would not know the prepared ResourceClaims", "error", err.Error())
		}
	}
	group.Go(func() { d.forget(ctx) })
	group.Go(func() { d.publishAll(ctx) })
	group.Go(func() {
		d.config.API.WatchSlices(ctx, nodecontract.DRADriver, func([]string) { d.poke() })
	})
	return d.serve(ctx)
}

// forget drops claims that no longer exist. The kubelet unprepares a claim before it is deleted, unless it has lost its own record.
func (d *Driver) forget(ctx context.Context) {
	d.mu.Lock()
	claims := slices.Collect(maps.Values(d.claims))
	d.mu.Unlock()
	for _, c := range claims {
		now, err := d.config.API.Claim(ctx, c.Namespace, c.Name)
		if gone := nodeapi.IsNotFound(err) || err == nil && now.Metadata.UID != c.UID; !gone {
			continue
		}
		if err := d.unprepare(c.UID); err != nil {
			logr.FromContextOrDiscard(ctx).Error(err, "The record of a ResourceClaim that is gone stays", "claim", c.Namespace+"/"+c.Name)
		}
	}
}

const (
	// changeAfter is the pause before a change is published after a failure.
	changeAfter = 200 * time.Millisecond
	// reportAfter is the number of consecutive publishing failures that is reported. Fewer may be conflicts with another writer of the slice.
	reportAfter = 3
	// lookAgain is how often the slice is compared with the desired one without a known change.
	lookAgain = time.Minute
)

// publishAll keeps the slice up to date until ctx ends.
func (d *Driver) publishAll(ctx context.Context) {
	log := logr.FromContextOrDiscard(ctx)
	said, failures := "", 0
	var retry backoff.Backoff
	var p publication
	for ctx.Err() == nil {
		devices, err := d.publish(ctx, &p)
		again := lookAgain
		if err != nil {
			again, failures = retry.Next(), failures+1
		} else {
			failures = 0
			retry.Reset()
		}
		if ctx.Err() != nil {
			return
		}
		now := ""
		if err != nil {
			now = err.Error()
		}
		if now != "" && now != said {
			log.Info("The ResourceSlice is not as it should be; trying again", "error", now)
		}
		said = now
		if d.config.Published != nil && (err == nil || failures >= reportAfter) {
			d.config.Published(devices, err)
		}
		timer := time.NewTimer(again)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-d.wake:
			if err != nil { // A change that fails is not retried immediately.
				select {
				case <-ctx.Done():
				case <-time.After(changeAfter):
				}
			}
		}
		timer.Stop()
	}
}

// publication is what is known about the API server.
type publication struct {
	// dropsTaints reports whether the API server drops device taints. Devices with taints are then left out.
	dropsTaints bool
}

// Errors of an API server that drops fields of slices.
var errNoSharing = errors.New("the API server drops allowMultipleAllocations from ResourceSlices: turn on its feature gate DRAConsumableCapacity, which is on from Kubernetes 1.36, or use backend DevicePlugin")

// publish updates the slice and returns the number of its devices that accept pods. The driver publishes nothing before the kubelet has accepted it.
func (d *Driver) publish(ctx context.Context, p *publication) (int, error) {
	d.mu.Lock()
	wanted, known := d.active && d.registered && d.away == "", d.retired || d.away != ""
	driver, devices := d.driver, make([]Device, 0, len(d.devices))
	for _, g := range d.devices {
		g.Unhealthy, g.Cordoned = d.outOfService(g), d.isCordoned(g)
		devices = append(devices, g)
	}
	d.mu.Unlock()
	if !wanted && !known {
		return 0, nil
	}
	have, err := d.config.API.Slices(ctx, nodecontract.DRADriver)
	if err != nil {
		return 0, err
	}
	var want *nodeapi.ResourceSlice
	if wanted {
		node, err := d.config.API.Get(ctx)
		if err != nil {
			return 0, err
		}
		s, err := SliceOf(nodeapi.Metadata{Name: d.config.API.Name, UID: node.Metadata.UID}, driver, devices)
		if err != nil {
			return 0, err
		}
		if p.dropsTaints {
			s = withoutTainted(s)
		}
		want = &s
	}
	c := ChangeTo(want, have)
	if c.Write != nil {
		now, err := d.config.API.WriteSlice(ctx, *c.Write)
		switch {
		case err != nil:
			return 0, err
		case !sharesDevices(now): // Each GPU would be for one pod alone.
			return 0, errors.Join(errNoSharing, d.config.API.DeleteSlice(ctx, now.Metadata.Name))
		case countTaints(now) < countTaints(*c.Write):
			p.dropsTaints = true
			return 0, errors.New("the API server drops taints of devices (feature gate DRADeviceTaints): GPUs that take no pods are left out of the ResourceSlice")
		}
		logr.FromContextOrDiscard(ctx).Info("Published", "slice", now.Metadata.Name, "devices", len(now.Spec.Devices), "generation", now.Spec.Pool.Generation)
	}
	for _, name := range c.Remove {
		if err := d.config.API.DeleteSlice(ctx, name); err != nil {
			return 0, err
		}
	}
	if want == nil {
		return 0, nil
	}
	return len(withoutTainted(*want).Spec.Devices), nil
}
