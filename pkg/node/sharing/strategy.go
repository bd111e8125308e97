package sharing

import (
	"fmt"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/labels"
	"karve.sh/karve/pkg/nodecontract"
)

// strategy is a way to share GPUs.
type strategy struct {
	// key is the key of its configuration below "sharing".
	key string
	// label is the value of the Node's label nvidia.com/gpu.sharing-strategy.
	label labels.Strategy
	// part returns the field of its configuration, which is nil if GPUs are not shared with the strategy.
	part func(*Sharing) **Replicated
	// emptyIsAbsent reports whether a key without a value means that GPUs are not shared with the strategy. Otherwise it is an error.
	emptyIsAbsent bool
	// refuseAboveOne reports whether containers may request only one replica if failRequestsGreaterThanOne is not set.
	refuseAboveOne bool
	// maxReplicas is the largest number of replicas of a GPU.
	maxReplicas int
	// cannot returns why a GPU cannot be shared with the strategy, or nil if it can. It may be nil.
	cannot func(gpu.Device) error
}

// strategies are the strategies of NVIDIA's configuration. The first one that is configured applies.
var strategies = []*strategy{&mpsSharing, &timeSlicing}

// strategy returns the strategy of the configuration, or nil if nothing is shared.
func (c Config) strategy() *strategy {
	for _, s := range strategies {
		if s.of(c) != nil {
			return s
		}
	}
	return nil
}

func (s *strategy) of(c Config) *Replicated { return *s.part(&c.Sharing) }

// Label returns the value of the Node's label nvidia.com/gpu.sharing-strategy for the configuration.
func (c Config) Label() labels.Strategy {
	if !c.Sharing.Slots.IsZero() {
		return labels.MemorySlots
	}
	if s := c.strategy(); s != nil {
		return s.label
	}
	return labels.None
}

// timeSlicing lets the pods on a GPU take turns, which the driver does without configuration. A replica is only a name, and the pods share the memory
// without limits.
var timeSlicing = strategy{
	key:         "timeSlicing",
	label:       labels.TimeSlicing,
	part:        func(s *Sharing) **Replicated { return &s.TimeSlicing },
	maxReplicas: MaxReplicas,
}

// mpsSharing lets the pods on a GPU run at the same time. A daemon limits the memory and the threads of each process.
var mpsSharing = strategy{
	key:            "mps",
	label:          labels.MPS,
	part:           func(s *Sharing) **Replicated { return &s.MPS },
	emptyIsAbsent:  true,
	refuseAboveOne: true,
	maxReplicas:    nodecontract.MaxMPSReplicas,
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
