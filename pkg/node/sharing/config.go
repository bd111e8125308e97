// Package sharing reads and writes the configuration of NVIDIA's device plugin (version v1) and says which resources the GPUs of a
// machine become under it. It has no clock, no files and no Kubernetes client: bytes and values in, values out.
package sharing

import (
	"encoding/json"
	"time"

	"sigs.k8s.io/yaml"
)

// Version is the only version of the configuration that there is.
const Version = "v1"

// Resource names and what they are made of.
const (
	// SharedSuffix is what renameByDefault puts behind the name.
	SharedSuffix = ".shared"
	// MaxNameLength is how long a resource name may be, prefix included.
	MaxNameLength = 63
	// MaxReplicas bounds the replicas of one GPU, MaxDevices those of a machine: the kubelet takes the whole list in one message of at
	// most 4 MiB, and a device takes some 80 bytes of it.
	MaxReplicas = 4096
	MaxDevices  = 32768
)

// Config is one configuration. What is nil in it was not said.
type Config struct {
	Version string  `json:"version"`
	Flags   Flags   `json:"flags,omitzero"`
	Names   Names   `json:"resources,omitzero"`
	Sharing Sharing `json:"sharing,omitzero"`
	IMEX    IMEX    `json:"imex,omitzero"`
}

// Flags are the settings that can also be given as flags or in the environment.
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

// PluginFlags are the settings of the device plugin proper.
type PluginFlags struct {
	PassDeviceSpecs               *bool      `json:"passDeviceSpecs,omitempty"`
	DeviceListStrategy            Strategies `json:"deviceListStrategy,omitempty"`
	DeviceIDStrategy              *string    `json:"deviceIDStrategy,omitempty"`
	CDIAnnotationPrefix           *string    `json:"cdiAnnotationPrefix,omitempty"`
	NvidiaCTKPath                 *string    `json:"nvidiaCTKPath,omitempty"`
	ContainerDriverRoot           *string    `json:"containerDriverRoot,omitempty"`
	SharedDevicesAllocationPolicy *string    `json:"sharedDevicesAllocationPolicy,omitempty"`
}

// Strategies is a list that may be written as a single string.
type Strategies []string

// GFDFlags are the settings of NVIDIA's feature discovery. NoTimestamp and MachineTypeFile have their effect here, the others none.
type GFDFlags struct {
	Oneshot         *bool     `json:"oneshot,omitempty"`
	NoTimestamp     *bool     `json:"noTimestamp,omitempty"`
	SleepInterval   *Duration `json:"sleepInterval,omitempty"`
	OutputFile      *string   `json:"outputFile,omitempty"`
	MachineTypeFile *string   `json:"machineTypeFile,omitempty"`
}

// Duration is written as in "60s", or "infinite".
type Duration time.Duration

// Infinite is the Duration that never ends.
const Infinite = Duration(1<<63 - 1)

// MarshalJSON writes the duration as people do.
func (d Duration) MarshalJSON() ([]byte, error) {
	if d == Infinite {
		return json.Marshal("infinite")
	}
	return json.Marshal(time.Duration(d).String())
}

// Names are names by pattern of the product. NVIDIA's plugin reads them and throws them away with a warning; so does Karve.
type Names struct {
	GPUs []Pattern `json:"gpus,omitempty"`
	MIG  []Pattern `json:"mig,omitempty"`
}

// Pattern names what matches it.
type Pattern struct {
	Pattern string `json:"pattern"`
	Name    string `json:"name"`
}

// Sharing says how GPUs are shared. MPS, if it is there, wins over time-slicing.
type Sharing struct {
	TimeSlicing *Replicated `json:"timeSlicing,omitempty"`
	MPS         *Replicated `json:"mps,omitempty"`
}

// Replicated are the resources that are shared in one way.
type Replicated struct {
	RenameByDefault bool `json:"renameByDefault,omitempty"`
	// FailRequestsGreaterThanOne refuses containers that ask for more than one replica: two replicas are not twice the GPU. With MPS that is
	// so unless it is said not to be.
	FailRequestsGreaterThanOne *bool   `json:"failRequestsGreaterThanOne,omitempty"`
	Resources                  []Entry `json:"resources"`
}

// Entry shares the GPUs of one resource, or some of them.
type Entry struct {
	Name string `json:"name"`
	// Rename is the name of the replicas, if it is another; with renameByDefault it is never empty.
	Rename   string  `json:"rename,omitempty"`
	Devices  Devices `json:"devices,omitzero"`
	Replicas int     `json:"replicas"`
}

// Devices picks GPUs: all of them if it is zero, the first Count, or those of the list, each by its index, its "GPU-" UUID, or, for
// MIG devices, "gpu:mig" or a "MIG-" UUID.
type Devices struct {
	Count int
	List  []string
}

// All says whether every GPU is picked.
func (d Devices) All() bool { return d.Count == 0 && d.List == nil }

// IsZero leaves "all" out of what is written.
func (d Devices) IsZero() bool { return d.All() }

// MarshalJSON writes the three forms.
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

// IMEX are channels of multi-node NVLink.
type IMEX struct {
	ChannelIDs []int `json:"channelIDs,omitempty"`
	Required   bool  `json:"required,omitempty"`
}

// Marshal writes the configuration as YAML; Read reads it back as it was.
func Marshal(c Config) ([]byte, error) { return yaml.Marshal(c) }
