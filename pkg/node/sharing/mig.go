package sharing

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/mig"
	"karve.sh/karve/pkg/nodecontract"
	profiles "karve.sh/karve/pkg/nodecontract/mig"
)

// Values of flags.migStrategy.
const (
	// migNone serves whole GPUs, whether they are divided or not.
	migNone = "none"
	// migSingle serves MIG instances as GPUs, and migMixed names them after their profile.
	migSingle, migMixed = "single", "mixed"
)

// migStrategy returns how MIG instances are named. A promise takes precedence over the flag.
func (c Config) migStrategy() string {
	switch {
	case c.Sharing.MIG.IsZero():
		return c.text(keyMIGStrategy, migNone)
	case c.Sharing.MIG.Naming == nodecontract.MIGSingle:
		return migSingle
	default:
		return migMixed
	}
}

// unit is a GPU or a MIG instance, and its resource before sharing.
type unit struct {
	gpu.Device
	instance *gpu.Instance
	resource string
}

// named reports whether a reference in a configuration names the unit: by UUID or index.
func (u unit) named(ref string) bool {
	if u.instance == nil {
		return ref == u.UUID || ref == strconv.Itoa(u.Index)
	}
	return ref == u.instance.UUID || ref == fmt.Sprintf("%d:%d", u.Index, u.instance.Index) ||
		ref == fmt.Sprintf("MIG-%s/%d/%d", u.UUID, u.instance.GPUInstance, u.instance.ComputeInstance)
}

func (u unit) String() string { return GPU{Device: u.Device, Instance: u.instance}.String() }

// units returns the units of the GPUs, in order. It returns an error if the GPUs are not divided as promised, or if their instances are served as GPUs
// but they are divided differently.
func (c Config) units(devices []gpu.Device) ([]unit, error) {
	strategy := c.migStrategy()
	var units []unit
	profile := "" // With migSingle.
	if promised := c.Sharing.MIG; !promised.IsZero() {
		if err := mig.Check(devices, promised); err != nil {
			return nil, fmt.Errorf("%w; when no pod holds it, delete the agent's pod on this node, whose init container divides it", err)
		}
	}
	for i := range devices {
		d := &devices[i]
		if strategy == migSingle {
			if err := checkSameInstances(devices[0], *d, &profile); err != nil {
				return nil, err
			}
		}
		if strategy == migNone || !d.MIG {
			units = append(units, unit{Device: *d, resource: nodecontract.ResourceGPU})
			continue
		}
		for j := range d.Instances {
			p := &d.Instances[j]
			resource := nodecontract.ResourceGPU
			if strategy == migMixed {
				resource = profiles.Resource(p.Profile)
			}
			name, err := resourceName(resource)
			if err != nil {
				return nil, fmt.Errorf("flags.migStrategy: is %q, and MIG instance %d:%d has the profile %q: %w", strategy, d.Index, p.Index, p.Profile, err)
			}
			units = append(units, unit{Device: *d, instance: p, resource: name})
		}
	}
	if len(units) == 0 && len(devices) > 0 {
		return nil, errors.New("flags.migStrategy: all GPUs are divided, and there are no MIG instances, or this container was started before they were made")
	}
	return units, nil
}

// checkSameInstances returns an error if a GPU is not divided like the first one. profile is the profile of all instances so far.
func checkSameInstances(first, d gpu.Device, profile *string) error {
	const advice = `with "single" all instances have the name of GPUs and are alike; use "mixed"`
	switch {
	case d.MIG != first.MIG:
		return fmt.Errorf("flags.migStrategy: GPU %d is divided and GPU %d is not, or the other way round: %s", first.Index, d.Index, advice)
	case d.MIG && len(d.Instances) == 0:
		return fmt.Errorf("flags.migStrategy: GPU %d is divided and has no MIG instances: %s", d.Index, advice)
	}
	for _, p := range d.Instances {
		if *profile = cmp.Or(*profile, p.Profile); p.Profile != *profile {
			return fmt.Errorf("flags.migStrategy: there are instances %s and %s: %s", *profile, p.Profile, advice)
		}
	}
	return nil
}
