package sharing

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/mps"
	"karve.sh/karve/pkg/nodecontract"
	profiles "karve.sh/karve/pkg/nodecontract/mig"
)

// Resource is an extended resource of a machine.
type Resource struct {
	// Name is the name of the resource, for example "nvidia.com/gpu.shared".
	Name string
	// GPUs are the GPUs of the resource, sorted by index.
	GPUs []GPU
	// FailRequestsGreaterThanOne refuses containers that request more than one replica.
	FailRequestsGreaterThanOne bool
}

// Count returns the number of devices of the resource.
func (r Resource) Count() int {
	n := 0
	for _, g := range r.GPUs {
		n += g.Replicas
	}
	return n
}

// Resources returns the resources of a machine with these GPUs, sorted by name. Each GPU, or each of its MIG instances, is in exactly one resource,
// unless it is divided into slots. Units that no entry selects are not shared.
func (c Config) Resources(devices []gpu.Device) ([]Resource, error) {
	if _, err := c.Settings(); err != nil {
		return nil, err
	}
	by := c.strategy()
	devices = slices.Clone(devices)
	slices.SortStableFunc(devices, func(a, b gpu.Device) int { return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID)) })
	units, err := c.units(devices)
	if err != nil {
		return nil, err
	}
	if !c.Sharing.Slots.IsZero() {
		return c.slotResources(devices)
	}
	picked, err := c.pick(by, units)
	if err != nil {
		return nil, err
	}
	var out []Resource
	total := 0
	for i, u := range units {
		d := u.Device
		name, replicas, fail := u.resource, 1, false
		var limited *mps.Limits
		if e := picked[i]; e != nil {
			if by.cannot != nil {
				if err := by.cannot(d); err != nil {
					return nil, fmt.Errorf("sharing.%s: %w", by.key, err)
				}
			}
			if settings := c.mps(); settings != (nodecontract.MPS{}) {
				limited = mpsLimits(settings, d, e.Replicas)
			}
			name, replicas, fail = cmp.Or(e.Rename, e.Name), e.Replicas, or(by.of(c).FailRequestsGreaterThanOne, false)
		}
		at := slices.IndexFunc(out, func(r Resource) bool { return r.Name == name })
		if at < 0 {
			at, out = len(out), append(out, Resource{Name: name})
		}
		out[at].GPUs = append(out[at].GPUs, GPU{Device: d, Instance: u.instance, Replicas: replicas, MPS: limited})
		out[at].FailRequestsGreaterThanOne = out[at].FailRequestsGreaterThanOne || fail
		total += replicas
	}
	if total > MaxDevices {
		return nil, fmt.Errorf("sharing.%s: makes %d replicas, and a machine can have at most %d", by.key, total, MaxDevices)
	}
	slices.SortFunc(out, func(a, b Resource) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// pick returns the entry for each unit in the configuration of a strategy. It returns an error if two entries select the same one.
func (c Config) pick(by *strategy, units []unit) ([]*Entry, error) {
	picked := make([]*Entry, len(units))
	if by == nil {
		return picked, nil
	}
	said := make([]string, len(units))
	part := by.of(c)
	for i := range part.Resources {
		e := &part.Resources[i]
		path := fmt.Sprintf("sharing.%s.resources[%d]", by.key, i)
		if e.Replicas < 2 || e.Replicas > by.maxReplicas {
			return nil, fmt.Errorf("%s.replicas: is %d, and must be from 2 to %d", path, e.Replicas, by.maxReplicas)
		}
		of, err := e.of(units)
		if err != nil {
			return nil, fmt.Errorf("%s.devices: %w", path, err)
		}
		for _, at := range of {
			if picked[at] != nil && picked[at] != e {
				return nil, fmt.Errorf("%s and %s both share %s; say in \"devices\" which one is for it", said[at], path, units[at])
			}
			picked[at], said[at] = e, path
		}
	}
	return picked, nil
}

// of returns the positions of the units that the entry selects among those with its name. An entry whose name no unit has selects none.
func (e *Entry) of(units []unit) ([]int, error) {
	var named, out []int
	for at := range units {
		if units[at].resource == e.Name {
			named = append(named, at)
		}
	}
	switch d := e.Devices; {
	case len(named) == 0 || d.All():
		return named, nil
	case d.List != nil:
		for _, ref := range d.List {
			i := slices.IndexFunc(named, func(at int) bool { return units[at].named(ref) })
			if i < 0 {
				return nil, fmt.Errorf("there is no %s %q on this machine", e.Name, ref)
			}
			out = append(out, named[i])
		}
		return out, nil
	case d.Count > len(named):
		return nil, fmt.Errorf("%d of %s are to be shared, and there are %d", d.Count, e.Name, len(named))
	default:
		return named[:d.Count], nil
	}
}

// Promise is what a machine was launched to provide: a number of replicas of a resource on each GPU.
type Promise struct {
	Resource string
	// Replicas is the number of replicas of a GPU, over all its MIG instances.
	Replicas int
	// MPS describes how the GPUs are shared with MPS. It is zero if they are not.
	MPS nodecontract.MPS
	// MIG describes the instances into which each GPU is divided. It is zero if it is not divided.
	MIG nodecontract.MIG
	// Slots are the slots of memory of the GPUs. If they are not zero, Resource and Replicas do not apply.
	Slots nodecontract.Slots
	// Backend is nodecontract.BackendDRA or BackendNVIDIADRA, or "" for the device plugin.
	Backend string
}

// Equal reports whether two promises are equal.
func (p Promise) Equal(other Promise) bool {
	if p.Backend != other.Backend {
		return false
	}
	if !p.Slots.IsZero() || !other.Slots.IsZero() {
		return p.Slots.Equal(other.Slots)
	}
	if p.MIG.Mixed() { // Resource and Replicas follow from it.
		return p.MIG.Equal(other.MIG)
	}
	return p.Resource == other.Resource && p.Replicas == other.Replicas && p.MPS == other.MPS && p.MIG.Equal(other.MIG)
}

// String returns the promise for messages, for example "10 nvidia.com/gpu.shared".
func (p Promise) String() string {
	if !p.Slots.IsZero() {
		return "slots of device memory"
	}
	if p.MIG.Mixed() {
		return p.MIG.Describe()
	}
	text := fmt.Sprintf("%d %s", p.Replicas, p.Resource)
	if p.MPS != (nodecontract.MPS{}) {
		text += " with MPS"
	}
	if !p.MIG.IsZero() {
		text += " on " + p.MIG.Describe()
	}
	if p.Backend != "" {
		text += " by " + p.Backend
	}
	return text
}

// FromPromise returns the configuration that keeps a promise.
func FromPromise(p Promise) (Config, error) {
	var c Config
	if err := p.checkBackend(); err != nil {
		return Config{}, err
	}
	c.Sharing.Backend = p.Backend
	if !p.Slots.IsZero() {
		c.Sharing.Slots = p.Slots
		return c, nil
	}
	if p.MIG.Mixed() {
		return p.ofGroups(c)
	}
	replicas, whole, what := p.Replicas, nodecontract.ResourceGPU, "GPU"
	if !p.MIG.IsZero() {
		count := int(p.MIG.Count)
		switch {
		case p.MPS != nodecontract.MPS{}:
			return Config{}, errors.New("MPS over MIG instances is not supported")
		case replicas < count || replicas%count != 0:
			return Config{}, fmt.Errorf("%d replicas on %d MIG instances of each GPU were promised, and all instances have equally many", replicas, count)
		}
		c.Sharing.MIG, replicas, what = p.MIG, replicas/count, "MIG instance"
		if p.MIG.Naming == nodecontract.MIGMixed {
			whole = profiles.Resource(p.MIG.Profile)
		}
	}
	name, err := resourceName(p.Resource)
	switch {
	case err != nil:
		return Config{}, err
	case name != p.Resource:
		return Config{}, fmt.Errorf("%q is not in %s", p.Resource, nodecontract.NVIDIAPrefix)
	case replicas < 1 || replicas > MaxReplicas:
		return Config{}, fmt.Errorf("%d replicas of %s on each %s were promised; possible are 1 to %d", replicas, name, what, MaxReplicas)
	case replicas == 1 && name != whole:
		return Config{}, fmt.Errorf("one replica of %s on each %s was promised, and a %s that is not shared is %s", name, what, what, whole)
	case replicas == 1:
		return c, nil
	}
	e := Entry{Name: whole, Replicas: replicas}
	if name != whole {
		e.Rename = name
	}
	by, shared := &timeSlicing, &Replicated{RenameByDefault: name == whole+SharedSuffix, Resources: []Entry{e}}
	if p.MPS != (nodecontract.MPS{}) {
		by, shared.FailRequestsGreaterThanOne, c.Sharing.Settings = &mpsSharing, new(true), p.MPS
	}
	*by.part(&c.Sharing) = shared
	return c, nil
}

// ofGroups returns the configuration of GPUs with instances of several profiles. Their resources and replicas follow from the promised instances.
func (p Promise) ofGroups(c Config) (Config, error) {
	if p.MPS != (nodecontract.MPS{}) {
		return Config{}, errors.New("MPS over MIG instances is not supported")
	}
	c.Sharing.MIG = p.MIG
	replicas := int(p.MIG.PerInstance())
	shared := &Replicated{RenameByDefault: true}
	for _, of := range p.MIG.Instances(1) {
		whole := profiles.Resource(of.Profile)
		name, err := resourceName(whole)
		if err != nil {
			return Config{}, err
		}
		shared.Resources = append(shared.Resources, Entry{Name: name, Rename: name + SharedSuffix, Replicas: replicas})
	}
	if replicas > 1 {
		*timeSlicing.part(&c.Sharing) = shared
	}
	return c, nil
}

// checkBackend returns an error if the backend cannot keep the promise.
func (p Promise) checkBackend() error {
	divided, other := !p.MIG.IsZero(), p.MPS != nodecontract.MPS{} || !p.Slots.IsZero()
	switch p.Backend {
	case "":
		return nil
	case nodecontract.BackendDRA:
		if other || p.Replicas < 2 && !divided {
			return fmt.Errorf("%s was promised, and the DRA driver shares GPUs and MIG instances by time-slicing only", p)
		}
		if p.MIG.PerInstance() > 1 {
			return fmt.Errorf("%s was promised, and the DRA driver does not share instances of several profiles", p)
		}
		return nil
	case nodecontract.BackendNVIDIADRA:
		if other || divided {
			return fmt.Errorf("%s was promised, and NVIDIA's DRA driver gives away whole GPUs and shares of them", p)
		}
		return nil
	default:
		return fmt.Errorf("the backend %.64q was promised in %s, and this agent knows %s and %s; without the annotation it is a device plugin",
			p.Backend, nodecontract.BackendAnnotation, nodecontract.BackendDRA, nodecontract.BackendNVIDIADRA)
	}
}

// Promise returns the resource and replicas of all GPUs. ok is false if the configuration treats GPUs differently.
func (c Config) Promise() (p Promise, ok bool) {
	if !c.Sharing.Slots.IsZero() {
		return Promise{Slots: c.Sharing.Slots}, true
	}
	p = Promise{Resource: nodecontract.ResourceGPU, Replicas: 1, MIG: c.Sharing.MIG, Backend: c.Sharing.Backend}
	each := 1
	if p.MIG.Mixed() {
		first := p.MIG.Instances(1)[0].Profile
		p.Resource, p.Replicas = profiles.SharedResource(first, p.MIG.PerInstance()), int(p.MIG.InstancesOf(max(1, p.MIG.GPUs()))*p.MIG.PerInstance())
		return p, true
	}
	if !p.MIG.IsZero() {
		each = int(p.MIG.Count)
		p.Replicas = each
		if p.MIG.Naming == nodecontract.MIGMixed {
			p.Resource = profiles.Resource(p.MIG.Profile)
		}
	}
	by := c.strategy()
	if by == nil {
		return p, true
	}
	whole := p.Resource
	for _, e := range by.of(c).Resources {
		switch {
		case e.Name != whole:
		case !e.Devices.All() || p.Replicas > each:
			return Promise{}, false
		default:
			p.Resource, p.Replicas, p.MPS = cmp.Or(e.Rename, e.Name), e.Replicas*each, c.mps()
		}
	}
	return p, true
}

// Replication returns the number of replicas of each unit of a resource, given the resource's name before sharing, and whether the replicas are
// renamed. The number is 1 if units are not shared, or differ.
func (c Config) Replication(resource string) (replicas int, renamed bool) {
	if !c.Sharing.Slots.IsZero() {
		return 1, true // Slots have resource names of their own.
	}
	by := c.strategy()
	if by == nil {
		return 1, false
	}
	replicas = 1
	for _, e := range by.of(c).Resources {
		if e.Name == resource {
			if !e.Devices.All() || replicas > 1 {
				return 1, false
			}
			replicas, renamed = e.Replicas, e.Rename != "" && e.Rename != e.Name
		}
	}
	return replicas, renamed
}

// Limits returns the limits that the MPS daemons of a machine enforce, sorted by the index of the GPU. It is empty if no GPU is shared with MPS.
func (c Config) Limits(devices []gpu.Device) ([]mps.Limits, error) {
	resources, err := c.Resources(devices)
	if err != nil {
		return nil, err
	}
	var all []mps.Limits
	for _, r := range resources {
		for _, g := range r.GPUs {
			if g.MPS != nil && !slices.Contains(all, *g.MPS) { // A GPU with slots is in several resources.
				all = append(all, *g.MPS)
			}
		}
	}
	return all, nil
}
