package dra

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/nodecontract"
)

// Device is a GPU or a MIG instance that the driver serves.
type Device struct {
	sharing.GPU
	// Resource is the extended resource that serves it.
	Resource string
	// Unhealthy reports whether the device or its GPU is out of service. Cordoned reports whether it accepts no new pods because somebody requested it.
	Unhealthy, Cordoned bool
}

// Limits of the API server: the length of the name of a ResourceSlice and of an attribute, and the number of devices of a slice, with taints and without.
const maxName, maxText, maxTainted, maxDevices = 253, 64, 64, 128

var deviceName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// nameOf returns the name of a GPU or MIG instance in the slice. It is the UUID, so that it stays the same when other devices are lost.
func nameOf(uuid string) string { return strings.ToLower(uuid) }

func sliceName(node string) string {
	name := nodecontract.DRADriver + "-" + node
	if len(name) <= maxName {
		return name
	}
	sum := sha256.Sum256([]byte(node))
	digest := hex.EncodeToString(sum[:8])
	return name[:maxName-len(digest)-1] + "-" + digest
}

// SliceOf returns the ResourceSlice of a Node without its generation. The scheduler takes the first device that fits, so the devices are in the order
// of the GPUs' indices. If there are more devices than a slice with taints can have, those with taints are left out.
func SliceOf(node nodeapi.Metadata, driver gpu.Driver, devices []Device) (nodeapi.ResourceSlice, error) {
	s := nodeapi.ResourceSlice{
		Metadata: nodeapi.SliceMetadata{Name: sliceName(node.Name)},
		Spec: nodeapi.SliceSpec{
			Driver: nodecontract.DRADriver, NodeName: node.Name, Pool: nodeapi.SlicePool{Name: node.Name, ResourceSliceCount: 1},
		},
	}
	if node.UID != "" {
		s.Metadata.OwnerReferences = []nodeapi.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
	}
	if len(devices) > maxDevices {
		return nodeapi.ResourceSlice{}, fmt.Errorf("there are %d devices, and a ResourceSlice can have %d: use backend DevicePlugin", len(devices), maxDevices)
	}
	for _, d := range slices.SortedFunc(slices.Values(devices), func(a, b Device) int { return a.Compare(b.GPU) }) {
		if !deviceName.MatchString(nameOf(d.ID())) {
			return nodeapi.ResourceSlice{}, fmt.Errorf("GPU %d has the UUID %q, which cannot be the name of a device in a ResourceSlice", d.Index, d.ID())
		}
		s.Spec.Devices = append(s.Spec.Devices, sliceDevice(d, driver))
	}
	if len(devices) > maxTainted {
		s = withoutTainted(s)
	}
	return s, nil
}

func sliceDevice(d Device, driver gpu.Driver) nodeapi.SliceDevice {
	out := nodeapi.SliceDevice{Name: nameOf(d.ID()), Attributes: map[string]nodeapi.SliceAttribute{}, AllowMultipleAllocations: true}
	text := func(name, value string) {
		if value != "" && len(value) <= maxText {
			out.Attributes[name] = nodeapi.SliceAttribute{String: &value}
		}
	}
	version := func(name string, known bool, numbers ...int) {
		if known {
			value := strconv.Itoa(numbers[0]) + "." + strconv.Itoa(numbers[1]) + "." + strconv.Itoa(numbers[2])
			out.Attributes[name] = nodeapi.SliceAttribute{Version: &value}
		}
	}
	memoryMiB := d.MemoryMiB
	text(nodecontract.DRAUUID, d.ID())
	text(nodecontract.DRAResource, d.Resource)
	if d.Instance != nil {
		memoryMiB = d.Instance.MemoryMiB
		text(nodecontract.DRAProfile, d.Instance.Profile)
		text(nodecontract.DRAParentUUID, d.UUID)
	}
	text(nodecontract.DRAProductName, d.Product)
	out.Attributes[nodecontract.DRAIndex] = nodeapi.SliceAttribute{Int: new(int64(d.Index))}
	if d.ComputeMajor > 0 {
		text(nodecontract.DRAArchitecture, nodecontract.Architecture(d.ComputeMajor, d.ComputeMinor))
		out.Attributes[nodecontract.DRAComputeCapability] = nodeapi.SliceAttribute{Version: new(nodecontract.ComputeCapability(d.ComputeMajor, d.ComputeMinor))}
	}
	version(nodecontract.DRACUDADriverVersion, driver.CUDAMajor > 0, driver.CUDAMajor, driver.CUDAMinor, 0)
	numbers, ok := versionNumbers(driver.Version)
	version(nodecontract.DRADriverVersion, ok, numbers[0], numbers[1], numbers[2])
	text(nodecontract.DRAPCIeRoot, d.PCIeRoot)

	// A validRange limits a request. Without it, any amount would be consumed as written, such as half a replica.
	out.Capacity = map[string]nodeapi.SliceCapacity{nodecontract.DRAReplicas: {
		Value: quantityText(int64(d.Replicas), 1000, "", "k"), RequestPolicy: &nodeapi.RequestPolicy{Default: "1", ValidRange: &nodeapi.ValidRange{Min: "1"}},
	}}
	if d.Replicas > 1 { // One step above the minimum must fit into the capacity.
		out.Capacity[nodecontract.DRAReplicas].RequestPolicy.ValidRange.Step = "1"
	}
	if memoryMiB > 0 {
		out.Capacity[nodecontract.DRAMemory] = nodeapi.SliceCapacity{
			Value: quantityText(memoryMiB, 1024, "Mi", "Gi", "Ti"), RequestPolicy: &nodeapi.RequestPolicy{Default: "0", ValidRange: &nodeapi.ValidRange{Min: "0", Step: "1Mi"}},
		}
	}
	for _, t := range []struct {
		on  bool
		key string
	}{{d.Unhealthy, nodecontract.DRAUnhealthyTaint}, {d.Cordoned, nodecontract.DRACordonedTaint}} {
		if t.on {
			out.Taints = append(out.Taints, nodeapi.SliceTaint{Key: t.key, Effect: "NoSchedule"})
		}
	}
	return out
}

// quantityText returns an amount in the largest unit in which it is a whole number, as the API server writes it. Any other form would differ from the
// published one.
func quantityText(n, scale int64, units ...string) string {
	for len(units) > 1 && n > 0 && n%scale == 0 {
		n, units = n/scale, units[1:]
	}
	return strconv.FormatInt(n, 10) + units[0]
}

var driverVersion = regexp.MustCompile(`^(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?$`)

// versionNumbers returns the three numbers of a driver version, of which the last may be missing. Leading zeros, as in 580.65.06, are not part of a
// semantic version.
func versionNumbers(version string) (numbers [3]int, ok bool) {
	match := driverVersion.FindStringSubmatch(version)
	if match == nil {
		return numbers, false
	}
	for i, part := range match[1:] {
		numbers[i], _ = strconv.Atoi(part) // It has digits or nothing.
	}
	return numbers, true
}

// withoutTainted returns the slice without devices that have taints.
func withoutTainted(s nodeapi.ResourceSlice) nodeapi.ResourceSlice {
	s.Spec.Devices = slices.DeleteFunc(slices.Clone(s.Spec.Devices), func(d nodeapi.SliceDevice) bool { return len(d.Taints) > 0 })
	return s
}

// Change is a change of the slices of a Node.
type Change struct {
	// Write is the slice to create or update, or nil if it is up to date.
	Write *nodeapi.ResourceSlice
	// Remove are the names of slices to delete afterwards.
	Remove []string
}

// ChangeTo returns the change from the existing slices to the desired one, or to none if want is nil. The new generation is higher than all existing
// ones, so that the scheduler ignores the other slices until they are gone.
func ChangeTo(want *nodeapi.ResourceSlice, have []nodeapi.ResourceSlice) Change {
	var c Change
	var same *nodeapi.ResourceSlice
	generation := int64(0)
	for i := range have {
		generation = max(generation, have[i].Spec.Pool.Generation)
		if want != nil && have[i].Metadata.Name == want.Metadata.Name {
			same = &have[i]
		} else {
			c.Remove = append(c.Remove, have[i].Metadata.Name)
		}
	}
	slices.Sort(c.Remove)
	if want == nil || same != nil && same.Spec.Pool.Generation == generation && equalSlices(*want, *same) {
		return c
	}
	next := *want
	next.Spec.Pool.Generation = generation + 1
	if same != nil {
		next.Metadata.ResourceVersion = same.Metadata.ResourceVersion
	}
	c.Write = &next
	return c
}

// equalSlices reports whether two slices are equal apart from fields that the API server sets.
func equalSlices(a, b nodeapi.ResourceSlice) bool {
	plain := func(s nodeapi.ResourceSlice) nodeapi.ResourceSlice {
		s.APIVersion, s.Kind, s.Metadata.ResourceVersion, s.Spec.Pool.Generation = "", "", "", 0
		s.Spec.Devices = slices.Clone(s.Spec.Devices)
		for i := range s.Spec.Devices {
			d := &s.Spec.Devices[i]
			d.Attributes, d.Capacity = orEmpty(d.Attributes), orEmpty(d.Capacity)
			taints := make([]nodeapi.SliceTaint, 0, len(d.Taints))
			for _, t := range d.Taints {
				t.TimeAdded = ""
				taints = append(taints, t)
			}
			d.Taints = taints
		}
		if len(s.Spec.Devices) == 0 {
			s.Spec.Devices = nil
		}
		return s
	}
	return reflect.DeepEqual(plain(a), plain(b))
}

func orEmpty[T any](m map[string]T) map[string]T {
	if m == nil {
		return map[string]T{}
	}
	return maps.Clone(m)
}

// countTaints returns the number of taints of all devices of a slice.
func countTaints(s nodeapi.ResourceSlice) int {
	n := 0
	for _, d := range s.Spec.Devices {
		n += len(d.Taints)
	}
	return n
}

// sharesDevices reports whether pods can share the devices of a slice.
func sharesDevices(s nodeapi.ResourceSlice) bool {
	return !slices.ContainsFunc(s.Spec.Devices, func(d nodeapi.SliceDevice) bool {
		return !d.AllowMultipleAllocations || d.Capacity[nodecontract.DRAReplicas].RequestPolicy == nil
	})
}
