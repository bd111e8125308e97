// Package sharing reads the configuration of NVIDIA's device plugin (version v1), and computes the resources of a machine with GPUs from it. It does no
// I/O.
package sharing

import (
	"time"

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

// Config is a configuration. Fields that were not set are nil.
type Config struct {
	Version string  `json:"version"`
	Flags   Flags   `json:"flags,omitzero"`
	Names   Names   `json:"resources,omitzero"`
	Sharing Sharing `json:"sharing,omitzero"`
	IMEX    IMEX    `json:"imex,omitzero"`
}

// Flags are the settings that can also be set by flags or environment variables.
type Flags struct {
	MIGStrategy             *string      `json:"migStrategy,omitempty"`
	FailOnInitError         *bool        `json:"failOnInitError,omitempty"`
	MPSRoot                 *string      `json:"mpsRoot,omitempty"`
	NvidiaDriverRoot        *string      `json:"nvidiaDriverRoot,omitempty"`
	NvidiaDevRoot           *string      `json:"nvidiaDevRoot,omitempty"`
	GDRCopyEnabled          *bool        `json:"gdrcopyEnabled,omitempty"`
	GDSEnabled              *bool        `json:"gdsEnabled,omitempty"`
	MOFEDEnabled            *bool        `json:"mofedEnabled,omitempty"`
	UseNodeFeatureAPI       *bool        `json:"useNodeFeatureAPI,omitempty"`
	DeviceDiscoveryStrategy *string      `json:"deviceDiscoveryStrategy,omitempty"`
	Plugin                  *PluginFlags `json:"plugin,omitempty"`
	GFD                     *GFDFlags    `json:"gfd,omitempty"`
}

// PluginFlags are the settings of the device plugin.
type PluginFlags struct {
	PassDeviceSpecs               *bool      `json:"passDeviceSpecs,omitempty"`
	DeviceListStrategy            Strategies `json:"deviceListStrategy,omitempty"`
	DeviceIDStrategy              *string    `json:"deviceIDStrategy,omitempty"`
	CDIAnnotationPrefix           *string    `json:"cdiAnnotationPrefix,omitempty"`
	NvidiaCTKPath                 *string    `json:"nvidiaCTKPath,omitempty"`
	ContainerDriverRoot           *string    `json:"containerDriverRoot,omitempty"`
	SharedDevicesAllocationPolicy *string    `json:"sharedDevicesAllocationPolicy,omitempty"`
}

// Strategies is a list that may also be written as a single string.
type Strategies []string

// GFDFlags are the settings of NVIDIA's GPU feature discovery. Only NoTimestamp and MachineTypeFile have an effect here.
type GFDFlags struct {
	Oneshot         *bool     `json:"oneshot,omitempty"`
	NoTimestamp     *bool     `json:"noTimestamp,omitempty"`
	SleepInterval   *Duration `json:"sleepInterval,omitempty"`
	OutputFile      *string   `json:"outputFile,omitempty"`
	MachineTypeFile *string   `json:"machineTypeFile,omitempty"`
}

// Duration is written as "60s" or "infinite".
type Duration time.Duration

// Infinite is the Duration that never ends.
const Infinite = Duration(1<<63 - 1)

// Names are names for products that match a pattern. As in NVIDIA's plugin, they are ignored with a warning.
type Names struct {
	GPUs []Pattern `json:"gpus,omitempty"`
	MIG  []Pattern `json:"mig,omitempty"`
}

// Pattern is a name for the products that match a pattern.
type Pattern struct {
	Pattern string `json:"pattern"`
	Name    string `json:"name"`
}

// Sharing is how GPUs are shared. MPS takes precedence over time-slicing.
type Sharing struct {
	TimeSlicing *Replicated `json:"timeSlicing,omitempty"`
	MPS         *Replicated `json:"mps,omitempty"`
	// Settings are MPS settings that NVIDIA's configuration does not have. With the zero value, MPS has its defaults.
	Settings nodecontract.MPS `json:"-"`
	// MIG describes the promised MIG instances. With the zero value, none are promised, and flags.migStrategy determines how existing instances are
	// served.
	MIG nodecontract.MIG `json:"-"`
	// Slots are slots of device memory. Unless they are zero, the other fields do not apply. Those of MemorySlots are for the first GPU.
	Slots nodecontract.Slots `json:"-"`
	// MemorySlots are the same slots on each GPU, on a node without a promise. NVIDIA's configuration does not have them.
	MemorySlots *MemorySlots `json:"memorySlots,omitempty"`
	// Backend is nodecontract.BackendDRA if the agent is a DRA driver, BackendNVIDIADRA if NVIDIA's driver serves the GPUs, and "" if the agent is a
	// device plugin. NVIDIA's configuration does not have it.
	Backend string `json:"-"`
}

// MemorySlots are slots of device memory on each GPU.
type MemorySlots struct {
	Slots []SlotCount `json:"slots"`
	// ReserveMiB is the device memory of a GPU in MiB that has no slots.
	ReserveMiB  int64  `json:"reserveMiB,omitempty"`
	Enforcement string `json:"enforcement"`
}

// SlotCount is a number of slots of a size.
type SlotCount struct {
	SizeMiB int64 `json:"sizeMiB"`
	Count   int64 `json:"count"`
}

// Replicated lists the resources that are shared with one strategy.
type Replicated struct {
	RenameByDefault bool `json:"renameByDefault,omitempty"`
	// FailRequestsGreaterThanOne refuses containers that request more than one replica, because two replicas do not have twice the performance. For MPS, it
	// defaults to true.
	FailRequestsGreaterThanOne *bool   `json:"failRequestsGreaterThanOne,omitempty"`
	Resources                  []Entry `json:"resources"`
}

// Entry shares some or all GPUs of a resource.
type Entry struct {
	Name string `json:"name"`
	// Rename is the name of the replicas if they are renamed. It is never empty with renameByDefault.
	Rename   string  `json:"rename,omitempty"`
	Devices  Devices `json:"devices,omitzero"`
	Replicas int     `json:"replicas"`
}

// Devices selects GPUs: all of them if it is zero, the first Count, or those in the list. The list has indices, "GPU-" UUIDs, and for MIG devices "gpu:mig"
// or "MIG-" UUIDs.
type Devices struct {
	Count int
	List  []string
}

// All reports whether all GPUs are selected.
func (d Devices) All() bool { return d.Count == 0 && d.List == nil }

// IMEX holds the channels of multi-node NVLink.
type IMEX struct {
	ChannelIDs []int `json:"channelIDs,omitempty"`
	Required   bool  `json:"required,omitempty"`
}
