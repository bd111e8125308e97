package sharing

import (
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/mps"
	"karve.sh/karve/pkg/nodecontract"
)

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
