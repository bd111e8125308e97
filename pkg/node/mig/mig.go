// Package mig divides the GPUs of a machine into MIG instances, as promised when the machine was launched. It does so before any pod runs, and changes
// nothing that is in use.
package mig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/nodecontract"
	profiles "karve.sh/karve/pkg/nodecontract/mig"
)

// Driver divides GPUs. Package nvml implements it.
type Driver interface {
	Init() (gpu.Driver, error)
	Shutdown() error
	Devices() ([]gpu.Device, error)
	Usage(uuid string) (gpu.Usage, error)
	// Geometry returns the profiles of a GPU, and where their instances can be placed.
	Geometry(uuid string) (profiles.Geometry, error)
	// MIGMode returns whether MIG is on for a GPU, and whether it will be after the next reset.
	MIGMode(uuid string) (now, pending bool, err error)
	// EnableMIG turns the MIG mode on. The error may be gpu.ErrInUse or gpu.ErrResetRequired.
	EnableMIG(uuid string) error
	// GPUInstances returns the instances of a GPU.
	GPUInstances(uuid string) ([]gpu.GPUInstance, error)
	// Create creates an instance with all of its compute. Destroy removes one.
	Create(uuid string, at profiles.Placement) error
	Destroy(uuid string, id int) error
}

// Machine is a machine whose GPUs are to be divided.
type Machine struct {
	Driver Driver
	// Pods returns the pods that hold devices of GPUs, by the UUID of the GPU or the instance.
	Pods func(ctx context.Context) (map[string]string, error)
	// Users returns the processes that have device files of the GPUs open, given the minor numbers of the files.
	Users func(minors []int) []User
	// Reset resets GPUs while the driver is closed.
	Reset func(ctx context.Context, uuids []string) error
	// Reboot requests a reboot of the machine. It is nil if a reboot is not allowed because pods may run on the machine.
	Reboot func(ctx context.Context) error
	// Note records that the machine was rebooted.
	Note Note
	// Files creates the device files of the instances on the machine.
	Files func() error
}

// Options describe how a container that divides the GPUs sees the machine.
type Options struct {
	// StateDir is a directory of the machine that survives a reboot.
	StateDir string
	// Boot is the ID of this boot.
	Boot string
	// Proc is the proc file system of the machine, which shows the processes of all containers.
	Proc string
	// CapabilitiesDir is the machine's /dev/nvidia-caps. If it is "", no device files are created.
	CapabilitiesDir string
	// Systemd is the socket of the machine's systemd.
	Systemd string
	// MayReboot reports whether the machine may be rebooted.
	MayReboot bool
	// Pods returns the pods that hold devices of GPUs, by the UUID of the GPU or the instance.
	Pods func(ctx context.Context) (map[string]string, error)
}

// NewMachine returns this machine.
func NewMachine(driver Driver, o Options) *Machine {
	m := &Machine{
		Driver: driver, Pods: o.Pods, Reset: resetGPUs,
		Users: func(minors []int) []User { return Users(o.Proc, minors) },
		Note:  Note{Dir: o.StateDir, Boot: o.Boot, Now: time.Now},
		Files: func() error { return nil },
	}
	if o.MayReboot {
		m.Reboot = func(ctx context.Context) error { return Reboot(ctx, o.Systemd) }
	}
	if o.CapabilitiesDir != "" {
		m.Files = func() error {
			if err := os.MkdirAll(o.CapabilitiesDir, 0o755); err != nil { //nolint:gosec // As the driver's own, which containers open.
				return err
			}
			return Capabilities{Proc: "/proc"}.Create(o.CapabilitiesDir, mknod)
		}
	}
	return m
}

// resetGPUs calls the driver's program, because NVML cannot reset GPUs.
func resetGPUs(ctx context.Context, uuids []string) error {
	out, err := exec.CommandContext(ctx, "nvidia-smi", "--gpu-reset", "-i", strings.Join(uuids, ",")).CombinedOutput() //nolint:gosec // The UUIDs are the driver's.
	if err != nil {
		return fmt.Errorf("nvidia-smi --gpu-reset: %w: %s", err, strings.Join(strings.Fields(string(out)), " "))
	}
	return nil
}

// ErrHeld means that pods hold GPUs that are not divided as promised. Nothing is changed.
var ErrHeld = errors.New("pods hold GPUs")

// Failure is why GPUs are not divided.
type Failure struct { //nolint:errname // It is the reason of a condition as well.
	// Reason is the reason of the Node's condition nodecontract.SharingCondition.
	Reason  string
	Message string
}

func (p *Failure) Error() string { return p.Message }

func refusedError(format string, args ...any) error {
	return &Failure{nodecontract.ReasonRefused, fmt.Sprintf(format, args...)}
}

func pendingError(format string, args ...any) error {
	return &Failure{nodecontract.ReasonMIGModePending, fmt.Sprintf(format, args...)}
}
