package sharing

import (
	"fmt"
	"slices"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/labels"
	"karve.sh/karve/pkg/node/mps"
	"karve.sh/karve/pkg/nodecontract"
)

// mpsSharing lets the pods on a GPU run at the same time. A daemon limits the memory and the threads of each process.
var mpsSharing = strategy{
	key:            "mps",
	label:          labels.MPS,
	part:           func(s *Sharing) **Replicated { return &s.MPS },
	emptyIsAbsent:  true,
	refuseAboveOne: true,
	most:           nodecontract.MaxMPSReplicas,
	cannot: func(d gpu.Device) error {
		switch {
		case d.MIG:
			return fmt.Errorf("GPU %d (%s) is partitioned, and MPS over MIG is not supported; take the partitions away", d.Index, d.Product)
		case d.ComputeMajor < 7:
			return fmt.Errorf("GPU %d (%s) has the compute capability %d.%d, and MPS limits memory and threads from 7.0 on; use sharing.timeSlicing",
				d.Index, d.Product, d.ComputeMajor, d.ComputeMinor)
		}
		return nil
	},
}

// mps returns the MPS settings. They are zero if the configuration does not share GPUs with MPS.
func (c Config) mps() nodecontract.MPS {
	switch {
	case c.strategy() != &mpsSharing || !c.Sharing.Slots.IsZero():
		return nodecontract.MPS{}
	case c.Sharing.Settings == nodecontract.MPS{}:
		return nodecontract.DefaultMPS
	default:
		return c.Sharing.Settings
	}
}

// mpsLimits returns the limits that the MPS daemon of a GPU with a number of replicas enforces.
func mpsLimits(m nodecontract.MPS, d gpu.Device, replicas int) *mps.Limits {
	return &mps.Limits{
		UUID: d.UUID, MemoryMiB: m.MemoryMiB(d.MemoryMiB, int64(replicas)), ThreadPercent: m.Threads(int64(replicas)), MultiUser: m.Users == nodecontract.MPSUsersAny,
	}
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
