package sharing

import "karve.sh/karve/pkg/node/labels"

// strategy is a way to share GPUs. Each is in a file of its own.
type strategy struct {
	// key names its part of the configuration, below "sharing".
	key string
	// label is what the Node's label nvidia.com/gpu.sharing-strategy says.
	label labels.Strategy
	// part is where its part of the configuration is; nil in there where the GPUs are not shared in this way.
	part func(*Sharing) **Replicated
	// emptyIsAbsent says that a key with nothing behind it means that GPUs are not shared in this way; else it means "shared, without saying what", an error.
	emptyIsAbsent bool
	// refuseAboveOne says that containers may ask for one replica only where failRequestsGreaterThanOne does not say otherwise.
	refuseAboveOne bool
	// unsupported is why the strategy cannot be put in force, and what to do instead; "" when it can.
	unsupported string
}

// strategies are all that NVIDIA's configuration has. The first of them that is configured counts.
var strategies = []*strategy{&mps, &timeSlicing}

// strategy is that of the configuration; nil when nothing is shared.
func (c Config) strategy() *strategy {
	for _, s := range strategies {
		if s.of(c) != nil {
			return s
		}
	}
	return nil
}

func (s *strategy) of(c Config) *Replicated { return *s.part(&c.Sharing) }

// Label is what the Node's label nvidia.com/gpu.sharing-strategy says of the configuration.
func (c Config) Label() labels.Strategy {
	if s := c.strategy(); s != nil {
		return s.label
	}
	return labels.None
}
