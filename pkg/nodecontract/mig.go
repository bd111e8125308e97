package nodecontract

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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

// MIG defines how the GPUs of a machine are divided into instances. The zero value means that they are not divided.
type MIG struct {
	// Profile is the profile of all instances, for example "1g.5gb". It is empty if there are Groups.
	Profile string `json:"profile,omitempty"`
	// Count is the number of instances of each GPU. It is 0 if there are Groups.
	Count int64 `json:"count,omitempty"`
	// MemoryMiB is the minimum device memory of each instance, in MiB. It is 0 if there are Groups.
	MemoryMiB int64 `json:"memoryMiB,omitempty"`
	// Groups are the instances of GPUs that have several profiles, or that differ. Their naming is MIGMixed.
	Groups []MIGGroup `json:"groups,omitempty"`
	// Replicas is the number of pods that take turns on each instance of Groups. It is 0 if a pod has an instance to itself.
	Replicas int64 `json:"replicas,omitempty"`
	// Naming is MIGMixed or MIGSingle.
	Naming string `json:"naming"`
}

// MIGGroup is a number of GPUs of a machine that are divided alike.
type MIGGroup struct {
	// GPUs is the number of GPUs. It is 0 in the only group of a machine whose GPUs are all alike.
	GPUs int64 `json:"gpus,omitempty"`
	// Instances are those of each of the GPUs, sorted by profile.
	Instances []MIGInstances `json:"instances"`
}

// MIGInstances is a number of equal instances of a GPU.
type MIGInstances struct {
	Profile string `json:"profile"`
	Count   int64  `json:"count"`
	// MemoryMiB is the minimum device memory of each instance, in MiB.
	MemoryMiB int64 `json:"memoryMiB,omitempty"`
}

// IsZero reports whether the GPUs are not divided.
func (m MIG) IsZero() bool { return m.Count == 0 && len(m.Groups) == 0 }

// Mixed reports whether the instances of the machine are described by Groups.
func (m MIG) Mixed() bool { return len(m.Groups) > 0 }

// Same reports whether GPUs are divided equally. It ignores the memory, which follows from the profile.
func (m MIG) Same(other MIG) bool {
	return m.Profile == other.Profile && m.Count == other.Count && m.Replicas == other.Replicas && m.Naming == other.Naming &&
		slices.EqualFunc(m.Groups, other.Groups, func(a, b MIGGroup) bool { return a.GPUs == b.GPUs && a.key() == b.key() })
}

// Equal reports whether two values are equal, including the memory of instances.
func (m MIG) Equal(other MIG) bool {
	return m.MemoryMiB == other.MemoryMiB && m.Same(other) &&
		slices.EqualFunc(m.Groups, other.Groups, func(a, b MIGGroup) bool { return slices.Equal(a.Instances, b.Instances) })
}

// MIGOf returns the division of GPUs into groups. It merges and sorts groups and instances, so that equal divisions are the [MIG.Same]. replicas is at
// most 1 if a pod has an instance to itself.
func MIGOf(groups []MIGGroup, replicas int64) MIG {
	m := MIG{Naming: MIGMixed}
	if replicas > 1 {
		m.Replicas = replicas
	}
	for _, g := range groups {
		g.Instances = mergeInstances(g.Instances)
		if i := slices.IndexFunc(m.Groups, func(o MIGGroup) bool { return o.key() == g.key() }); i >= 0 {
			m.Groups[i].GPUs += g.GPUs
			continue
		}
		m.Groups = append(m.Groups, g)
	}
	slices.SortFunc(m.Groups, func(a, b MIGGroup) int { return strings.Compare(a.key(), b.key()) })
	return m
}

// mergeInstances returns instances with each profile once, sorted by profile.
func mergeInstances(all []MIGInstances) []MIGInstances {
	var out []MIGInstances
	for _, of := range all {
		if i := slices.IndexFunc(out, func(o MIGInstances) bool { return o.Profile == of.Profile }); i >= 0 {
			out[i].Count += of.Count
		} else if of.Count > 0 {
			out = append(out, of)
		}
	}
	slices.SortFunc(out, func(a, b MIGInstances) int { return strings.Compare(a.Profile, b.Profile) })
	return out
}

// key names the instances as NVIDIA's mig-parted does, for example "3x1g.5gb_2x2g.10gb".
func (g *MIGGroup) key() string {
	parts := make([]string, 0, len(g.Instances))
	for _, of := range g.Instances {
		parts = append(parts, fmt.Sprintf("%dx%s", of.Count, of.Profile))
	}
	return strings.Join(parts, "_")
}

// Key returns a short name of the division. It is the profile if all instances have the same profile and the GPU has no room for more of them. Otherwise
// it is, for example, "3x1g.5gb_2x2g.10gb", and for GPUs that differ "4:2x3g.20gb;4:7x1g.5gb".
func (m MIG) Key() string {
	if !m.Mixed() {
		return m.Profile
	}
	parts := make([]string, 0, len(m.Groups))
	for i := range m.Groups {
		part := m.Groups[i].key()
		if n := m.Groups[i].GPUs; n > 0 {
			part = fmt.Sprintf("%d:%s", n, part)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ";")
}

// Describe returns what each GPU is divided into, for messages: "7 MIG instances 1g.5gb", "3 MIG instances 1g.5gb and 2 of 2g.10gb", or "2 MIG
// instances 3g.20gb on 4 GPUs, 7 MIG instances 1g.5gb on 4 GPUs".
func (m MIG) Describe() string {
	if !m.Mixed() {
		return DescribeInstances([]MIGInstances{{Profile: m.Profile, Count: m.Count}})
	}
	parts := make([]string, 0, len(m.Groups))
	for _, g := range m.Groups {
		part := DescribeInstances(g.Instances)
		switch {
		case g.GPUs == 1:
			part += " on 1 GPU"
		case g.GPUs > 1:
			part += fmt.Sprintf(" on %d GPUs", g.GPUs)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

// DescribeInstances returns the instances of a GPU for messages, for example "3 MIG instances 1g.5gb and 2 of 2g.10gb".
func DescribeInstances(all []MIGInstances) string {
	parts := make([]string, 0, len(all))
	for i, of := range all {
		what := "of "
		if i == 0 {
			what = "MIG instances "
		}
		parts = append(parts, fmt.Sprintf("%d %s%s", of.Count, what, of.Profile))
	}
	if n := len(parts); n > 1 {
		return strings.Join(parts[:n-1], ", ") + " and " + parts[n-1]
	}
	return strings.Join(parts, "")
}

// GPUs returns the number of GPUs that a machine with this division has, or 0 if all GPUs are divided alike, however many there are.
func (m MIG) GPUs() int64 {
	n := int64(0)
	for _, g := range m.Groups {
		n += g.GPUs
	}
	return n
}

// groups returns the groups of a machine with a number of GPUs.
func (m MIG) groups(gpus int64) []MIGGroup {
	switch {
	case m.IsZero():
		return nil
	case !m.Mixed():
		return []MIGGroup{{GPUs: gpus, Instances: []MIGInstances{{Profile: m.Profile, Count: m.Count, MemoryMiB: m.MemoryMiB}}}}
	case m.GPUs() == 0:
		return []MIGGroup{{GPUs: gpus, Instances: m.Groups[0].Instances}}
	}
	return m.Groups
}

// Instances returns the instances of a machine with a number of GPUs, by profile.
func (m MIG) Instances(gpus int64) []MIGInstances {
	var all []MIGInstances
	for _, g := range m.groups(gpus) {
		for _, of := range g.Instances {
			of.Count *= g.GPUs
			all = append(all, of)
		}
	}
	return mergeInstances(all)
}

// InstancesOf returns the number of instances of a machine with a number of GPUs.
func (m MIG) InstancesOf(gpus int64) int64 {
	n := int64(0)
	for _, of := range m.Instances(gpus) {
		n += of.Count
	}
	return n
}

// PerInstance returns the number of replicas of an instance of Groups.
func (m MIG) PerInstance() int64 { return max(1, m.Replicas) }

// Assign returns the instances that each of the GPUs of a machine is to have. has returns the number of instances that a GPU has now, by profile. A GPU
// that has what a group wants stays as it is. The others belong to the groups in order. It returns an error if there are more GPUs than groups have.
func (m MIG) Assign(gpus int, has func(gpu int) map[string]int64) ([][]MIGInstances, error) {
	groups := slices.Clone(m.groups(int64(gpus)))
	wanted := make([][]MIGInstances, gpus)
	give := func(gpu int, fits func(*MIGGroup) bool) {
		for i := range groups {
			if g := &groups[i]; wanted[gpu] == nil && g.GPUs > 0 && fits(g) {
				wanted[gpu] = g.Instances
				g.GPUs--
			}
		}
	}
	for gpu := range gpus {
		now := has(gpu)
		give(gpu, func(g *MIGGroup) bool { return len(groups) == 1 || g.matches(now) })
	}
	for gpu := range gpus {
		if give(gpu, func(*MIGGroup) bool { return true }); wanted[gpu] == nil {
			return nil, fmt.Errorf("there are %d GPUs, and %s were promised", gpus, m.Describe())
		}
	}
	return wanted, nil
}

// matches reports whether a GPU has exactly the instances of the group.
func (g *MIGGroup) matches(has map[string]int64) bool { return SameInstances(g.Instances, has) }

// SameInstances reports whether a GPU that has a number of instances of each profile has exactly the wanted ones.
func SameInstances(wanted []MIGInstances, has map[string]int64) bool {
	for _, of := range wanted {
		if has[of.Profile] != of.Count {
			return false
		}
	}
	return len(has) == len(wanted)
}

const (
	// MaxMIGInstances is more than any GPU has, and maxMIGGPUs more than any machine has. Larger numbers are invalid.
	MaxMIGInstances = 64
	maxMIGGPUs      = 1024
	// maxMIGReplicas is what a GPUNodeClass allows.
	maxMIGReplicas = 128
)

// String returns the value of the annotation, or "" if m is zero.
func (m MIG) String() string {
	if m.IsZero() {
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
	err := d.Decode(&m)
	if err == nil {
		err = m.check()
	}
	if err != nil {
		return MIG{}, fmt.Errorf("reading %s: %w", MIGAnnotation, err)
	}
	return m, nil
}

func (m MIG) check() error {
	if m.Mixed() {
		return m.checkGroups()
	}
	if err := (MIGInstances{m.Profile, m.Count, m.MemoryMiB}).check(); err != nil {
		return err
	}
	switch {
	case m.Naming != MIGMixed && m.Naming != MIGSingle:
		return fmt.Errorf("naming is %.64q, and can be %s or %s", m.Naming, MIGMixed, MIGSingle)
	case m.Replicas != 0:
		return fmt.Errorf("replicas is %d, and is only for groups", m.Replicas)
	}
	return nil
}

func (m MIG) checkGroups() error {
	if m.Profile != "" || m.Count != 0 || m.MemoryMiB != 0 || m.Naming != MIGMixed {
		return fmt.Errorf("there are groups, so profile, count and memoryMiB are to be empty and naming %s", MIGMixed)
	}
	if m.Replicas < 0 || m.Replicas > maxMIGReplicas {
		return fmt.Errorf("replicas is %d, and can be up to %d", m.Replicas, maxMIGReplicas)
	}
	for _, g := range m.Groups {
		if g.GPUs < 0 || g.GPUs > maxMIGGPUs || g.GPUs == 0 && len(m.Groups) > 1 {
			return fmt.Errorf("a group has %d GPUs, and can have 1 to %d", g.GPUs, maxMIGGPUs)
		}
		if len(g.Instances) == 0 {
			return errors.New("a group has no instances")
		}
		for _, of := range g.Instances {
			if err := of.check(); err != nil {
				return err
			}
		}
	}
	if !m.Equal(MIGOf(m.Groups, m.Replicas)) {
		return errors.New("groups or instances are not sorted, or repeat")
	}
	return nil
}

func (i MIGInstances) check() error {
	switch {
	case i.Profile == "":
		return errors.New("profile is empty")
	case i.Count < 1 || i.Count > MaxMIGInstances:
		return fmt.Errorf("count is %d, and can be 1 to %d", i.Count, MaxMIGInstances)
	case i.MemoryMiB < 0:
		return fmt.Errorf("memoryMiB is %d", i.MemoryMiB)
	}
	return nil
}
