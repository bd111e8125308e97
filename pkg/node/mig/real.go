package mig

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

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

// mknod creates a device file that everybody may read, like the driver's own: read access gives access to an instance.
func mknod(path string, major, minor int) error {
	number := uint64(minor&0xff) | uint64(major&0xfff)<<8 | uint64(minor&^0xff)<<12
	if err := syscall.Mknod(path, syscall.S_IFCHR|0o444, int(number)); err != nil {
		return &os.PathError{Op: "mknod", Path: path, Err: err}
	}
	return os.Chmod(path, 0o444) //nolint:gosec // The umask may have taken it away.
}

// smi is the driver's program that resets GPUs. NVML cannot reset them.
const smi = "nvidia-smi"

func resetGPUs(ctx context.Context, uuids []string) error {
	out, err := exec.CommandContext(ctx, smi, "--gpu-reset", "-i", strings.Join(uuids, ",")).CombinedOutput() //nolint:gosec // The UUIDs are the driver's.
	if err != nil {
		return fmt.Errorf("%s --gpu-reset: %w: %s", filepath.Base(smi), err, strings.Join(strings.Fields(string(out)), " "))
	}
	return nil
}
