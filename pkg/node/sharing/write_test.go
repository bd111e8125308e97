package sharing

import (
	"encoding/json"
	"time"
)

// Only tests write configurations.

// MarshalJSON writes the duration as text.
func (d Duration) MarshalJSON() ([]byte, error) {
	if d == Infinite {
		return json.Marshal("infinite")
	}
	return json.Marshal(time.Duration(d).String())
}

// IsZero reports whether all GPUs are selected, which the output omits.
func (d Devices) IsZero() bool { return d.All() }

// MarshalJSON writes one of the three forms: a list, a count or "all".
func (d Devices) MarshalJSON() ([]byte, error) {
	switch {
	case d.List != nil:
		return json.Marshal(d.List)
	case d.Count > 0:
		return json.Marshal(d.Count)
	default:
		return json.Marshal("all")
	}
}
