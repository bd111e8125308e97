// Package gpu describes the GPUs of a machine as plain values, whoever reads them: NVML, or a fake in tests.
package gpu

import (
	"errors"
	"time"
)

// What a Library's errors are, for errors.Is. Their text says what to do.
var (
	// ErrLost says that the GPU does not answer any more.
	ErrLost = errors.New("the GPU is lost")
	// ErrUnknown says that there is no GPU with that UUID.
	ErrUnknown = errors.New("there is no such GPU")
	// ErrClosed says that Init was not called, did not succeed, or that Shutdown was called since.
	ErrClosed = errors.New("the GPU library is not open")
	// ErrRestart says that only a new process can read the GPUs: the driver was replaced under this one.
	ErrRestart = errors.New("the process must be restarted")
	// ErrHung says that the driver does not return from a call.
	ErrHung = errors.New("the driver hangs: it does not return from a call")
)

// Device is one physical GPU.
type Device struct {
	// UUID is NVML's, for instance "GPU-2d1f...".
	UUID string
	// Index is NVML's, from 0.
	Index int
	// Product is the product name with spaces, for instance "Tesla T4".
	Product string
	// MemoryMiB is the device memory that the driver reports.
	MemoryMiB int64
	// ComputeMajor and ComputeMinor are the CUDA compute capability, for instance 7 and 5.
	ComputeMajor, ComputeMinor int
	// NUMANode is the NUMA node that the GPU is near; -1 when it is not known.
	NUMANode int
	// Minor is the number of the device file: /dev/nvidia<Minor>.
	Minor int
	// MIG says that the GPU is partitioned.
	MIG bool
	// MIGCapable says that it could be.
	MIGCapable bool
}

// Unusable is a GPU that is in the machine and that the driver does not offer.
type Unusable struct {
	// Where is how people find it, for instance "at PCI 0000:00:1e.0".
	Where string
	// Why is what is known of that.
	Why string
}

// Driver is what is installed on the machine.
type Driver struct {
	// Version is the driver's, for instance "580.159.03".
	Version string
	// CUDAMajor and CUDAMinor are the newest CUDA version that the driver supports.
	CUDAMajor, CUDAMinor int
}

// Event is something that a GPU reported.
type Event struct {
	// UUID is the GPU's; "" when the event is about all of them.
	UUID string
	// XID is NVIDIA's number for what went wrong.
	XID int
	// Lost says that the GPU does not answer any more ("GPU is lost", "has fallen off the bus").
	Lost bool
}

// Usage is what a GPU does at a moment. What the GPU does not tell is -1.
type Usage struct {
	MemoryUsedMiB, MemoryFreeMiB int64
	// GPUPercent and MemoryPercent are NVML's utilization rates, 0 to 100.
	GPUPercent, MemoryPercent int
	TemperatureCelsius        int
	PowerMilliwatts           int64
	SMClockMHz, MemClockMHz   int
	Processes                 []Process
}

// Process is a process that uses a GPU, or has computed on it since the last look and ended.
type Process struct {
	PID int
	// MemoryMiB is the device memory that it holds; -1 when the driver does not tell.
	MemoryMiB int64
	// SMPercent is its share of the GPU's SM time since the last look, 0 to 100, rounded up; -1 when it is not known.
	SMPercent int
}

// Library reads the GPUs of this machine. pkg/node/nvml implements it over NVML, pkg/node/gputest in memory; both pass the same suite.
type Library interface {
	// Init opens the library; it may be called again after an error or after Shutdown. When it is open already, it only reads the driver again.
	Init() (Driver, error)
	// Shutdown closes it; a Wait under way ends with ErrClosed.
	Shutdown() error
	// Devices lists the GPUs by index. A GPU that was lost since Init stays in the list.
	Devices() ([]Device, error)
	// Unusable lists the GPUs of the machine that the last Init or Devices, also one that failed, found that the driver does not offer.
	Unusable() []Unusable
	// Usage reads one GPU.
	Usage(uuid string) (Usage, error)
	// Wait returns the next event since Init; ok is false when none came within the timeout. A lost GPU is told once until the next Init.
	// One goroutine waits at a time; the other methods may be called meanwhile.
	Wait(timeout time.Duration) (e Event, ok bool, err error)
}
