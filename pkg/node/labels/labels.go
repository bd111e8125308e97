// Package labels describes the GPUs of a machine with node labels. Keys and values are those of NVIDIA's GPU feature discovery, so that existing node
// selectors continue to work.
package labels

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/nodecontract/mig"
)

// Strategy is a strategy for sharing GPUs.
type Strategy string

// Strategies, as label values.
const (
	None        Strategy = "none"
	TimeSlicing Strategy = "time-slicing"
	MPS         Strategy = "mps"
	// MemorySlots is not one of NVIDIA's strategies.
	MemorySlots Strategy = "memory-slots"
)

// Sharing describes how the GPUs of the machine are shared.
type Sharing struct {
	Strategy Strategy
	// Replicas is the number of replicas of each GPU. With 0 and 1, GPUs are not shared. GPUs with slots of memory have a changing number of replicas, and
	// no label for it.
	Replicas int
	// Renamed reports whether the replicas have their own resource name, such as nvidia.com/gpu.shared.
	Renamed bool
	// MIGStrategy is how MIG instances are served: "mixed" or "single". There is no label for "" and "none".
	MIGStrategy string
	// Replication returns the number of replicas of each MIG instance of a resource, and whether they are renamed. The resource has its name from before
	// sharing. If it is nil, instances are not shared.
	Replication func(resource string) (replicas int, renamed bool)
}

// Machine holds properties of the machine other than its GPUs.
type Machine struct {
	// Type is the vendor's name of the machine, which is the instance type on EC2. It is "" if unknown.
	Type string
	// PCIClasses are the PCI classes of the GPUs.
	PCIClasses []uint32
}

// shared reports whether GPUs are shared.
func (s Sharing) shared() bool {
	return s.Strategy == MemorySlots || s.Replicas > 1 && s.Strategy != None && s.Strategy != ""
}

// For returns the labels of a machine. It returns none if there are no GPUs. All values are valid label values.
func For(devices []gpu.Device, driver gpu.Driver, sharing Sharing, machine Machine) map[string]string {
	if len(devices) == 0 {
		return map[string]string{}
	}
	d := typicalGPU(devices)
	strategy, replicas, suffix := None, 1, ""
	switch {
	case d.MIG: // All GPUs are divided. As in NVIDIA's labels, the GPUs' labels do not describe the sharing of their instances.
		replicas = 0
	case sharing.shared():
		strategy, replicas = sharing.Strategy, sharing.Replicas
		if !sharing.Renamed {
			suffix = "-SHARED"
		}
	}
	out := map[string]string{}
	set := func(key, value string) { out[nodecontract.NVIDIAPrefix+key] = labelValue(value) }
	set("gpu.present", "true")
	set("gpu.machine", cmp.Or(productName(machine.Type, ""), unknown))
	set("gpu.mode", Mode(machine.PCIClasses))
	if sharing.MIGStrategy != "" && sharing.MIGStrategy != string(None) {
		set("mig.strategy", sharing.MIGStrategy)
	}
	out[nodecontract.GPUCountLabel] = strconv.Itoa(len(devices))
	if strategy != MemorySlots {
		out[nodecontract.GPUReplicasLabel] = strconv.Itoa(replicas)
	}
	set("gpu.sharing-strategy", string(strategy))
	if product := productName(d.Product, suffix); product != "" {
		set("gpu.product", product)
	}
	if d.MemoryMiB > 0 {
		out[nodecontract.GPUMemoryLabel] = strconv.FormatInt(d.MemoryMiB, 10)
	}
	if d.ComputeMajor > 0 {
		set("gpu.family", nodecontract.Architecture(d.ComputeMajor, d.ComputeMinor))
		set("gpu.compute.major", strconv.Itoa(d.ComputeMajor))
		set("gpu.compute.minor", strconv.Itoa(d.ComputeMinor))
	}
	set("mig.capable", strconv.FormatBool(slices.ContainsFunc(devices, func(d gpu.Device) bool { return d.MIGCapable })))
	// As in NVIDIA's labels, MPS capability is only checked if the strategy is MPS.
	set("mps.capable", strconv.FormatBool(strategy == MPS && !slices.ContainsFunc(devices, func(d gpu.Device) bool { return d.MIG })))
	driverLabels(driver, set)
	instanceLabels(devices, sharing, set)
	return out
}

// instanceLabels sets labels for each profile of MIG instances, and the labels of GPUs if instances are served as GPUs.
func instanceLabels(devices []gpu.Device, sharing Sharing, set func(key, value string)) {
	if sharing.MIGStrategy == "" || sharing.MIGStrategy == string(None) {
		return
	}
	counts := map[string]int{}
	for i := range devices {
		for _, p := range devices[i].Instances {
			counts[p.Profile]++
		}
	}
	done := map[string]bool{}
	for i := range devices {
		for _, p := range devices[i].Instances {
			if done[p.Profile] {
				continue
			}
			done[p.Profile] = true
			resource, prefix := mig.Resource(p.Profile), strings.TrimPrefix(mig.Resource(p.Profile), nodecontract.NVIDIAPrefix)
			if sharing.MIGStrategy == single {
				resource, prefix = nodecontract.ResourceGPU, "gpu"
			}
			replicas, strategy, suffix := 1, None, ""
			if sharing.Replication != nil {
				if n, renamed := sharing.Replication(resource); n > 1 {
					replicas, strategy = n, sharing.Strategy
					if !renamed {
						suffix = "-SHARED"
					}
				}
			}
			set(prefix+".product", productName(devices[i].Product+" MIG "+strings.ReplaceAll(p.Profile, "+", "."), suffix))
			set(prefix+".sharing-strategy", string(strategy))
			for key, n := range map[string]int{
				"count": counts[p.Profile], "replicas": replicas, "memory": int(p.MemoryMiB), "multiprocessors": p.Multiprocessors, "slices.gi": p.GPUSlices,
				"slices.ci": p.ComputeSlices, "engines.copy": p.CopyEngines, "engines.decoder": p.Decoders, "engines.encoder": p.Encoders, "engines.jpeg": p.JPEGEngines,
				"engines.ofa": p.OFAEngines,
			} {
				set(prefix+"."+key, strconv.Itoa(n))
			}
		}
	}
}

// driverLabels sets the versions with the old and the new keys.
func driverLabels(driver gpu.Driver, set func(key, value string)) {
	if driver.Version != "" {
		parts := append(strings.SplitN(driver.Version, ".", 3), "", "")
		set("cuda.driver-version.full", driver.Version)
		for i, keys := range [][2]string{{"major", "major"}, {"minor", "minor"}, {"revision", "rev"}} {
			set("cuda.driver-version."+keys[0], parts[i])
			set("cuda.driver."+keys[1], parts[i])
		}
	}
	if driver.CUDAMajor > 0 {
		major, minor := strconv.Itoa(driver.CUDAMajor), strconv.Itoa(driver.CUDAMinor)
		set("cuda.runtime-version.full", major+"."+minor)
		set("cuda.runtime-version.major", major)
		set("cuda.runtime-version.minor", minor)
		set("cuda.runtime.major", major)
		set("cuda.runtime.minor", minor)
	}
}

const (
	unknown = "unknown"
	// single is the MIG strategy with which instances are served as GPUs.
	single = "single"
)

// Mode returns the mode of GPUs with the PCI classes. It is unknown if the classes differ.
func Mode(classes []uint32) string {
	const vga, threeD = 0x030000, 0x030200
	switch classes = slices.Compact(slices.Sorted(slices.Values(classes))); {
	case slices.Equal(classes, []uint32{vga}):
		return "graphics"
	case slices.Equal(classes, []uint32{threeD}):
		return "compute"
	default:
		return unknown
	}
}

// typicalGPU returns the GPU that the labels describe if the GPUs differ. It has the most frequent product. It is the first such GPU that is not
// partitioned, or else the first one.
func typicalGPU(devices []gpu.Device) gpu.Device {
	count := map[string]int{}
	for _, d := range devices {
		count[d.Product]++
	}
	partitioned := func(d gpu.Device) int {
		if d.MIG {
			return 1
		}
		return 0
	}
	return slices.MinFunc(devices, func(a, b gpu.Device) int {
		return cmp.Or(cmp.Compare(count[b.Product], count[a.Product]), cmp.Compare(partitioned(a), partitioned(b)), cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID))
	})
}

// maxValue is the largest length of a label value.
const maxValue = 63

// productName returns the product with dashes instead of spaces. If it is too long, it is shortened before the suffix.
func productName(product, suffix string) string {
	name := strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if r == ' ' || r == '\t' {
			return ' '
		}
		return labelRune(r)
	}, product)), "-")
	name = strings.Trim(name, "-_.")
	if name == "" {
		return ""
	}
	if room := maxValue - len(suffix); len(name) > room {
		name = strings.TrimRight(name[:room], "-_.")
	}
	return name + suffix
}

// labelValue converts a string to a valid label value: letters, digits, '-', '_' and '.', with a letter or digit at both ends, and at most 63 characters.
func labelValue(value string) string {
	value = strings.TrimLeft(strings.Map(labelRune, value), "-_.")
	return strings.TrimRight(value[:min(len(value), maxValue)], "-_.")
}

// labelRune drops characters that a label value cannot have.
func labelRune(r rune) rune {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '-', r == '_', r == '.':
		return r
	default:
		return -1
	}
}
