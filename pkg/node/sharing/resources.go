package sharing

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/mps"
	"karve.sh/karve/pkg/nodecontract"
)

// Resource is an extended resource of a machine.
type Resource struct {
	// Name is the name of the resource, for instance "nvidia.com/gpu.shared".
	Name string
	// GPUs are the GPUs of the resource, sorted by index.
	GPUs []GPU
	// FailRequestsGreaterThanOne refuses containers that request more than one replica.
	FailRequestsGreaterThanOne bool
}

// GPU is a GPU with its number of replicas, which is 1 if it is not shared.
type GPU struct {
	gpu.Device
	Replicas int
	// MPS are the limits of each replica if the GPU is shared with MPS, and nil otherwise.
	MPS *mps.Limits
}

// Count returns the number of devices of the resource.
func (r Resource) Count() int {
	n := 0
	for _, g := range r.GPUs {
		n += g.Replicas
	}
	return n
}

// Resources returns the resources of a machine with these GPUs, sorted by name. Each GPU is in exactly one resource. GPUs that no entry selects are not
// shared.
func (c Config) Resources(devices []gpu.Device) ([]Resource, error) {
	if _, err := c.Settings(); err != nil {
		return nil, err
	}
	by := c.strategy()
	devices = slices.Clone(devices)
	slices.SortStableFunc(devices, func(a, b gpu.Device) int { return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID)) })
	if err := c.refuseMIG(devices); err != nil {
		return nil, err
	}
	picked, err := c.pick(by, devices)
	if err != nil {
		return nil, err
	}
	var out []Resource
	total := 0
	for i, d := range devices {
		name, replicas, fail := nodecontract.ResourceGPU, 1, false
		var limited *mps.Limits
		if e := picked[i]; e != nil {
			if by.cannot != nil {
				if err := by.cannot(d); err != nil {
					return nil, fmt.Errorf("sharing.%s: %w", by.key, err)
				}
			}
			if settings := c.mps(); settings != (nodecontract.MPS{}) {
				limited = limits(settings, d, e.Replicas)
			}
			name, replicas, fail = cmp.Or(e.Rename, e.Name), e.Replicas, or(by.of(c).FailRequestsGreaterThanOne, false)
		}
		at := slices.IndexFunc(out, func(r Resource) bool { return r.Name == name })
		if at < 0 {
			at, out = len(out), append(out, Resource{Name: name})
		}
		out[at].GPUs = append(out[at].GPUs, GPU{Device: d, Replicas: replicas, MPS: limited})
		out[at].FailRequestsGreaterThanOne = out[at].FailRequestsGreaterThanOne || fail
		total += replicas
	}
	if total > MaxDevices {
		return nil, fmt.Errorf("sharing.%s: makes %d replicas, and a machine can have at most %d", by.key, total, MaxDevices)
	}
	slices.SortFunc(out, func(a, b Resource) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// pick returns the entry for each GPU in the configuration of a strategy. It returns an error if two entries select the same GPU.
func (c Config) pick(by *strategy, devices []gpu.Device) ([]*Entry, error) {
	picked := make([]*Entry, len(devices))
	if by == nil {
		return picked, nil
	}
	said := make([]string, len(devices))
	part := by.of(c)
	for i := range part.Resources {
		e := &part.Resources[i]
		path := fmt.Sprintf("sharing.%s.resources[%d]", by.key, i)
		if e.Replicas < 2 || e.Replicas > by.most {
			return nil, fmt.Errorf("%s.replicas: is %d, and must be from 2 to %d", path, e.Replicas, by.most)
		}
		if e.Name != nodecontract.ResourceGPU {
			continue
		}
		of, err := e.Devices.of(devices)
		if err != nil {
			return nil, fmt.Errorf("%s.devices: %w", path, err)
		}
		for _, at := range of {
			if picked[at] != nil && picked[at] != e {
				return nil, fmt.Errorf("%s and %s both share GPU %d (%s); say in \"devices\" which one is for it", said[at], path, devices[at].Index, devices[at].UUID)
			}
			picked[at], said[at] = e, path
		}
	}
	return picked, nil
}

// of returns the positions of the selected GPUs.
func (d Devices) of(devices []gpu.Device) ([]int, error) {
	var out []int
	switch {
	case d.List != nil:
		for _, ref := range d.List {
			if isMIG(ref) {
				return nil, fmt.Errorf("%q is a MIG device, and these cannot be shared yet", ref)
			}
			at := slices.IndexFunc(devices, func(g gpu.Device) bool {
				n, err := strconv.Atoi(ref)
				return g.UUID == ref || err == nil && g.Index == n
			})
			if at < 0 {
				return nil, fmt.Errorf("there is no GPU %q on this machine", ref)
			}
			out = append(out, at)
		}
	default:
		n := len(devices)
		if d.Count > 0 {
			n = d.Count
		}
		if n > len(devices) {
			return nil, fmt.Errorf("%d GPUs are to be shared, and there are %d", n, len(devices))
		}
		for i := range n {
			out = append(out, i)
		}
	}
	return out, nil
}

// Promise is what a machine was chosen for: a number of replicas of a resource on each GPU.
type Promise struct {
	Resource string
	Replicas int
	// MPS says how the GPUs are shared with MPS. It is zero if they are not.
	MPS nodecontract.MPS
}

// String returns the promise for messages, for instance "10 nvidia.com/gpu.shared".
func (p Promise) String() string {
	text := fmt.Sprintf("%d %s", p.Replicas, p.Resource)
	if p.MPS != (nodecontract.MPS{}) {
		text += " with MPS"
	}
	return text
}

// FromPromise returns the configuration that keeps a promise.
func FromPromise(p Promise) (Config, error) {
	c := Config{Version: Version}
	resource, replicas := p.Resource, p.Replicas
	name, err := resourceName(resource)
	switch {
	case err != nil:
		return Config{}, err
	case name != resource:
		return Config{}, fmt.Errorf("%q is not in %s", resource, nodecontract.NVIDIAPrefix)
	case replicas < 1 || replicas > MaxReplicas:
		return Config{}, fmt.Errorf("%d replicas of %s on each GPU were promised; possible are 1 to %d", replicas, resource, MaxReplicas)
	case replicas == 1 && name != nodecontract.ResourceGPU:
		return Config{}, fmt.Errorf("one replica of %s on each GPU was promised, and a GPU that is not shared is %s", resource, nodecontract.ResourceGPU)
	case replicas == 1:
		return c, nil
	}
	e := Entry{Name: nodecontract.ResourceGPU, Replicas: replicas}
	if name != nodecontract.ResourceGPU {
		e.Rename = name
	}
	by, shared := &timeSlicing, &Replicated{RenameByDefault: name == nodecontract.ResourceGPUShared, Resources: []Entry{e}}
	if p.MPS != (nodecontract.MPS{}) {
		by, shared.FailRequestsGreaterThanOne, c.Sharing.Settings = &mpsSharing, new(true), p.MPS
	}
	*by.part(&c.Sharing) = shared
	return c, nil
}

// Promise returns the resource and replicas of all GPUs. ok is false if the configuration treats GPUs differently.
func (c Config) Promise() (p Promise, ok bool) {
	p = Promise{Resource: nodecontract.ResourceGPU, Replicas: 1}
	by := c.strategy()
	if by == nil {
		return p, true
	}
	for _, e := range by.of(c).Resources {
		switch {
		case e.Name != nodecontract.ResourceGPU:
		case !e.Devices.All() || p.Replicas > 1:
			return Promise{}, false
		default:
			p = Promise{Resource: cmp.Or(e.Rename, e.Name), Replicas: e.Replicas, MPS: c.mps()}
		}
	}
	return p, true
}
