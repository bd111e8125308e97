// Package gpu describes the GPUs of a machine and the library that reads them, which is NVML, or a fake in tests.
package gpu

import (
	"errors"
	"time"
)

// Errors of a Library, for errors.Is. Their text says what to do.
var (
	// ErrLost means that the GPU no longer answers.
	ErrLost = errors.New("the GPU is lost")
	// ErrUnknown means that there is no GPU with the UUID.
	ErrUnknown = errors.New("there is no such GPU")
	// ErrClosed means that Init has not succeeded, or that Shutdown was called after it.
	ErrClosed = errors.New("the GPU library is not open")
	// ErrRestart means that only a new process can read the GPUs, because the driver was replaced.
	ErrRestart = errors.New("the process must be restarted")
	// ErrHung means that a call to the driver does not return.
	ErrHung = errors.New("the driver hangs: it does not return from a call")
	// ErrInUse means that a process has the GPU open, or uses one of its MIG instances.
	ErrInUse = errors.New("the GPU is in use")
	// ErrResetRequired means that the GPU applies a change only when the GPU is reset or the machine is rebooted.
	ErrResetRequired = errors.New("the GPU must be reset")
)

// Device is one physical GPU.
type Device struct {
	// UUID is the UUID that NVML reports, for example "GPU-2d1f...".
	UUID string
	// Index is the index in NVML, from 0.
	Index int
	// Product is the product name with spaces, for example "Tesla T4".
	Product string
	// MemoryMiB is the device memory that the driver reports, in MiB.
	MemoryMiB int64
	// ComputeMajor and ComputeMinor are the CUDA compute capability, for example 7 and 5.
	ComputeMajor, ComputeMinor int
	// NUMANode is the NUMA node of the GPU, or -1 if unknown.
	NUMANode int
	// PCIeRoot is the PCIe root complex of the GPU as the kernel names it, for example "pci0000:00", or "" if unknown.
	PCIeRoot string
	// Minor is the number of the device file: /dev/nvidia<Minor>.
	Minor int
	// MIG is the MIG mode: whether the GPU is divided into instances.
	MIG bool
	// MIGCapable reports whether the GPU can be divided.
	MIGCapable bool
	// Instances are the MIG instances of the GPU, sorted by index. Those to which this process has no access are missing.
	Instances []Instance
	// ComputeMode defines which processes may use the GPU.
	ComputeMode ComputeMode
}

// Instance is a MIG instance: a part of a GPU with memory and compute of its own.
type Instance struct {
	// UUID is the UUID that NVML reports, for example "MIG-41ab...".
	UUID string
	// Index is the index of the instance on its GPU, from 0.
	Index int
	// Profile is the name of its profile, for example "1g.5gb".
	Profile string
	// MemoryMiB is the device memory of the instance, in MiB.
	MemoryMiB int64
	// GPUInstance and ComputeInstance are the driver's numbers of the instance on its GPU.
	GPUInstance, ComputeInstance int
	// Multiprocessors and the fields below are the parts of the GPU that the instance has.
	Multiprocessors, GPUSlices, ComputeSlices                int
	CopyEngines, Decoders, Encoders, JPEGEngines, OFAEngines int
}

// GPUInstance is a GPU instance as an administrator sees it, with its place on the GPU.
type GPUInstance struct {
	// ID is the driver's number.
	ID      int
	Profile string
	// Start is the first of its memory slices, and Size their number.
	Start, Size int
	// Whole reports whether it has one compute instance with all of its compute slices.
	Whole bool
}

// Find returns the GPU with the UUID, or the GPU that has the MIG instance with the UUID. The instance is nil for a whole GPU.
func Find(devices []Device, uuid string) (d *Device, instance *Instance) {
	for i := range devices {
		if devices[i].UUID == uuid {
			return &devices[i], nil
		}
		for j := range devices[i].Instances {
			if devices[i].Instances[j].UUID == uuid {
				return &devices[i], &devices[i].Instances[j]
			}
		}
	}
	return nil, nil
}

// ComputeMode defines which processes may use a GPU, with NVML's numbers.
type ComputeMode int

// Compute modes.
const (
	// ComputeDefault allows several processes.
	ComputeDefault ComputeMode = 0
	// ComputeProhibited allows none.
	ComputeProhibited ComputeMode = 2
	// ComputeExclusiveProcess allows one, which is the MPS server if the GPU is shared with MPS.
	ComputeExclusiveProcess ComputeMode = 3
)

// Unusable is a GPU of the machine that the driver does not offer.
type Unusable struct {
	// Where is the location of the GPU for users, for example "at PCI 0000:00:1e.0".
	Where string
	// Why is the reason, as far as known.
	Why string
}

// Driver describes the installed driver.
type Driver struct {
	// Version is the driver version, for example "580.159.03".
	Version string
	// CUDAMajor and CUDAMinor are the newest CUDA version that the driver supports.
	CUDAMajor, CUDAMinor int
}

// Event is an event that a GPU reported.
type Event struct {
	// UUID is the UUID of the GPU, or "" if the event is about all GPUs.
	UUID string
	// Instance is the UUID of the MIG instance, or "" if the event is about the whole GPU.
	Instance string
	// XID is NVIDIA's number of the error.
	XID int
	// Lost reports whether the GPU no longer answers ("GPU is lost", "has fallen off the bus").
	Lost bool
}

// Usage is the usage of a GPU at one moment. Values that the GPU does not report are -1.
type Usage struct {
	MemoryUsedMiB, MemoryFreeMiB int64
	// GPUPercent and MemoryPercent are NVML's utilization rates, from 0 to 100.
	GPUPercent, MemoryPercent int
	TemperatureCelsius        int
	PowerMilliwatts           int64
	// EnergyMillijoules is the energy that the GPU has used since the driver was loaded.
	EnergyMillijoules       int64
	SMClockMHz, MemClockMHz int
	Processes               []Process
	// Profiling is nil for GPUs without profiling counters, and in the first reading after Init.
	Profiling *Profiling
}

// Profiling is what the profiling counters of a GPU counted between two readings. Values that the GPU does not report are -1.
type Profiling struct {
	// GraphicsActive is the share of time in which the graphics or compute engine was active. This and the other shares are from 0 to 1.
	GraphicsActive float64
	// SMActive is the share of time in which a multiprocessor had a warp, averaged over the multiprocessors.
	SMActive float64
	// SMOccupancy is the share of warps that were resident.
	SMOccupancy float64
	// TensorActive and the fields below are the shares of time in which the pipe was active. FP64, FP32 and FP16 exclude tensor operations.
	TensorActive, FP64Active, FP32Active, FP16Active float64
	// DRAMActive is the share of the bandwidth of the device memory that was used.
	DRAMActive float64
	// PCIeTransmit and the fields below are in bytes per second. Transmit is from the GPU, and receive is to it.
	PCIeTransmit, PCIeReceive     float64
	NVLinkTransmit, NVLinkReceive float64 // all links together
}

// Process is a process that uses a GPU, or that has used it since the last reading and ended.
type Process struct {
	PID int
	// MemoryMiB is the device memory of the process in MiB, or -1 if the driver does not report it.
	MemoryMiB int64
	// SMPercent is the share of the GPU's SM time since the last reading, from 0 to 100, rounded up. It is -1 if unknown.
	SMPercent int
}

// Library reads the GPUs of the machine. pkg/node/nvml implements it with NVML, and pkg/node/gputest in memory. Both pass the same test suite.
type Library interface {
	// Init opens the library. It may be called again after an error or after Shutdown. If the library is open, Init only reads the driver again.
	Init() (Driver, error)
	// Shutdown closes the library. A running Wait returns ErrClosed.
	Shutdown() error
	// Devices returns the GPUs, sorted by index. A GPU that was lost after Init is still included.
	Devices() ([]Device, error)
	// Unusable returns the GPUs that the driver did not offer to the last call of Init or Devices, even if that call failed.
	Unusable() []Unusable
	// Links returns the connections of the GPUs that Devices returns, one for each pair, with the lower index first. It is nil if unknown.
	Links() ([]Link, error)
	// Usage returns the usage of a GPU or of a MIG instance. For an instance, only the memory and the processes are known.
	Usage(uuid string) (Usage, error)
	// Recovery returns what the driver asks for so that a GPU works again. It is RecoveryUnknown if the driver or the GPU does not say.
	Recovery(uuid string) (Recovery, error)
	// Wait returns the next event since Init. ok is false if there was none within the timeout. The loss of a GPU is reported once until the next Init.
	// Only one goroutine may wait at a time. The other methods may be called during a Wait.
	Wait(timeout time.Duration) (e Event, ok bool, err error)
}
