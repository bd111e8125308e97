package sharing

import (
	"fmt"

	"karve.sh/karve/pkg/node/gpu"
)

// refuseMIG returns an error if a GPU is partitioned and its partitions should be exposed. With migStrategy "none", a partitioned GPU is treated like any
// other.
func (c Config) refuseMIG(devices []gpu.Device) error {
	for _, d := range devices {
		if d.MIG && or(c.Flags.MIGStrategy, migNone) != migNone {
			return fmt.Errorf("flags.migStrategy: is %q and GPU %d is partitioned, but MIG devices are not supported yet; use \"none\", or take the partitions away", *c.Flags.MIGStrategy, d.Index)
		}
	}
	return nil
}
