//go:build !cgo

package nvml

import (
	"errors"
	"time"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/nodecontract/mig"
)

// Library is the library in programs that were built without cgo. It finds no GPUs.
type Library struct{}

// New returns a library whose Init fails.
func New(Options) *Library { return &Library{} }

var errNoCgo = errors.New("this program was built without cgo and cannot load libnvidia-ml.so.1: build it with CGO_ENABLED=1 and a C compiler")

// Init returns an error.
func (*Library) Init() (gpu.Driver, error) { return gpu.Driver{}, errNoCgo }

// Shutdown does nothing.
func (*Library) Shutdown() error { return nil }

// Devices returns an error.
func (*Library) Devices() ([]gpu.Device, error) { return nil, gpu.ErrClosed }

// SetComputeMode returns an error.
func (*Library) SetComputeMode(string, gpu.ComputeMode) error { return gpu.ErrClosed }

// Unusable returns none.
func (*Library) Unusable() []gpu.Unusable { return nil }

// Links returns an error.
func (*Library) Links() ([]gpu.Link, error) { return nil, gpu.ErrClosed }

// Usage returns an error.
func (*Library) Usage(string) (gpu.Usage, error) { return gpu.Usage{}, gpu.ErrClosed }

// Recovery returns an error.
func (*Library) Recovery(string) (gpu.Recovery, error) { return gpu.RecoveryUnknown, gpu.ErrClosed }

// Wait returns an error.
func (*Library) Wait(time.Duration) (gpu.Event, bool, error) {
	return gpu.Event{}, false, gpu.ErrClosed
}

// Geometry returns an error.
func (*Library) Geometry(string) (mig.Geometry, error) { return mig.Geometry{}, gpu.ErrClosed }

// MIGMode returns an error.
func (*Library) MIGMode(string) (now, pending bool, err error) { return false, false, gpu.ErrClosed }

// EnableMIG returns an error.
func (*Library) EnableMIG(string) error { return gpu.ErrClosed }

// GPUInstances returns an error.
func (*Library) GPUInstances(string) ([]gpu.GPUInstance, error) { return nil, gpu.ErrClosed }

// Create returns an error.
func (*Library) Create(string, mig.Placement) error { return gpu.ErrClosed }

// Destroy returns an error.
func (*Library) Destroy(string, int) error { return gpu.ErrClosed }
