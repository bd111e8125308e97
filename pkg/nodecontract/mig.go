package nodecontract

import (
	"encoding/json"
	"fmt"
	"strings"
)

// MIGAnnotation is part of the promise of a machine: each of its GPUs is divided into instances, and its value is a [MIG]. The controller writes it to
// NodeClaims and Karpenter syncs it to the Node. The controller and the agent read it.
const MIGAnnotation = domain + "/mig"

// MIGConfigLabel is the label that tells NVIDIA's MIG manager to divide the GPUs of a Node. The agent does not divide the GPUs of such a Node.
const MIGConfigLabel = NVIDIAPrefix + "mig.config"

// Values of MIG.Naming.
const (
	// MIGMixed names the resource of instances after their profile, for example nvidia.com/mig-1g.5gb.
	MIGMixed = "Mixed"
	// MIGSingle names the resource of instances like that of whole GPUs.
	MIGSingle = "Single"
)

// MIG defines how each GPU of a machine is divided into instances. The zero value means that it is not divided.
type MIG struct {
	// Profile is the profile of all instances, for example "1g.5gb".
	Profile string `json:"profile"`
	// Count is the number of instances of each GPU.
	Count int64 `json:"count"`
	// MemoryMiB is the minimum device memory of each instance, in MiB.
	MemoryMiB int64 `json:"memoryMiB,omitempty"`
	// Naming is MIGMixed or MIGSingle.
	Naming string `json:"naming"`
}

// Same reports whether GPUs are divided equally. It ignores the memory, which follows from the profile.
func (m MIG) Same(other MIG) bool {
	m.MemoryMiB, other.MemoryMiB = 0, 0
	return m == other
}

// MaxMIGInstances is more than any GPU has. Larger numbers are invalid.
const MaxMIGInstances = 64

// String returns the value of the annotation, or "" if m is zero.
func (m MIG) String() string {
	if m == (MIG{}) {
		return ""
	}
	data, err := json.Marshal(m)
	if err != nil {
		return "" // It has only numbers and text.
	}
	return string(data)
}

// ParseMIG parses the value of the annotation. An empty value is a zero MIG.
func ParseMIG(annotation string) (MIG, error) {
	if annotation == "" {
		return MIG{}, nil
	}
	var m MIG
	d := json.NewDecoder(strings.NewReader(annotation))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return MIG{}, fmt.Errorf("reading %s: %w", MIGAnnotation, err)
	}
	switch {
	case m.Profile == "":
		return MIG{}, fmt.Errorf("reading %s: profile is empty", MIGAnnotation)
	case m.Count < 1 || m.Count > MaxMIGInstances:
		return MIG{}, fmt.Errorf("reading %s: count is %d, and can be 1 to %d", MIGAnnotation, m.Count, MaxMIGInstances)
	case m.MemoryMiB < 0:
		return MIG{}, fmt.Errorf("reading %s: memoryMiB is %d", MIGAnnotation, m.MemoryMiB)
	case m.Naming != MIGMixed && m.Naming != MIGSingle:
		return MIG{}, fmt.Errorf("reading %s: naming is %.64q, and can be %s or %s", MIGAnnotation, m.Naming, MIGMixed, MIGSingle)
	}
	return m, nil
}
