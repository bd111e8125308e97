// Package sharing reads the configuration of NVIDIA's device plugin (version v1), and computes the resources of a machine with GPUs from it. It does no
// I/O.
package sharing

import (
	"fmt"
	"regexp"
	"strings"

	"karve.sh/karve/pkg/nodecontract"
)

// Version is the only supported version of the configuration.
const Version = "v1"

// Parts and limits of resource names.
const (
	// SharedSuffix is the suffix that renameByDefault adds to the name.
	SharedSuffix = ".shared"
	// MaxNameLength is the largest length of a resource name, including its prefix.
	MaxNameLength = 63
	// MaxReplicas is the largest number of replicas of one GPU. MaxDevices is that of a machine. The kubelet receives the list of devices in one message
	// of at most 4 MiB, in which a device takes about 80 bytes.
	MaxReplicas = 4096
	MaxDevices  = 32768
)

// Config is a configuration.
type Config struct {
	// Given has the values of the settings that were given, by their key in the file, for example "flags.migStrategy". A setting that is not a list has one.
	Given   map[string][]string
	Sharing Sharing
}

// Sharing is how GPUs are shared. MPS takes precedence over time-slicing.
type Sharing struct {
	TimeSlicing *Replicated
	MPS         *Replicated
	// Settings are MPS settings that NVIDIA's configuration does not have. With the zero value, MPS has its defaults.
	Settings nodecontract.MPS
	// MIG describes the promised MIG instances. With the zero value, none are promised, and flags.migStrategy determines how existing instances are
	// served.
	MIG nodecontract.MIG
	// Slots are slots of device memory. Unless they are zero, the other fields do not apply. Those of MemorySlots are for the first GPU.
	Slots nodecontract.Slots
	// MemorySlots are the same slots on each GPU, on a node without a promise. NVIDIA's configuration does not have them.
	MemorySlots *MemorySlots
	// Backend is nodecontract.BackendDRA if the agent is a DRA driver, BackendNVIDIADRA if NVIDIA's driver serves the GPUs, and "" if the agent is a
	// device plugin. NVIDIA's configuration does not have it.
	Backend string
}

// MemorySlots are slots of device memory on each GPU.
type MemorySlots struct {
	Slots []SlotCount
	// ReserveMiB is the device memory of a GPU in MiB that has no slots.
	ReserveMiB  int64
	Enforcement string
}

// SlotCount is a number of slots of a size.
type SlotCount struct {
	SizeMiB int64
	Count   int64
}

// Replicated lists the resources that are shared with one strategy.
type Replicated struct {
	RenameByDefault bool
	// FailRequestsGreaterThanOne refuses containers that request more than one replica, because two replicas do not have twice the performance. For MPS, it
	// defaults to true.
	FailRequestsGreaterThanOne *bool
	Resources                  []Entry
}

// Entry shares some or all GPUs of a resource.
type Entry struct {
	Name string
	// Rename is the name of the replicas if they are renamed. It is never empty with renameByDefault.
	Rename   string
	Devices  Devices
	Replicas int
}

// Devices selects GPUs: all of them if it is zero, the first Count, or those in the list. The list has indices, "GPU-" UUIDs, and for MIG devices "gpu:mig"
// or "MIG-" UUIDs.
type Devices struct {
	Count int
	List  []string
}

// All reports whether all GPUs are selected.
func (d Devices) All() bool { return d.Count == 0 && d.List == nil }

// validName matches the part of a resource name after NVIDIA's domain.
var validName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// resourceName returns a name of a configuration with NVIDIA's domain.
func resourceName(name string) (string, error) {
	short := strings.TrimPrefix(name, nodecontract.NVIDIAPrefix)
	name = nodecontract.NVIDIAPrefix + short
	if len(name) > MaxNameLength {
		return "", fmt.Errorf("%q is longer than the %d characters that a resource name can have", name, MaxNameLength)
	}
	if !validName.MatchString(short) {
		return "", fmt.Errorf("%q cannot be a resource name: after %q come lower case letters, digits, '-' and '.', beginning and ending with a letter or digit", name, nodecontract.NVIDIAPrefix)
	}
	return name, nil
}
