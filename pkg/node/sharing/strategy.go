package sharing

import (
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/labels"
)

// strategy is a way to share GPUs. Each strategy has its own file.
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
	// most is the largest number of replicas of a GPU.
	most int
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
