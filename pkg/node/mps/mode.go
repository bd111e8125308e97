package mps

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"karve.sh/karve/pkg/node/gpu"
)

// modeFile records the compute mode that a GPU had before the supervisor changed it, so that the next supervisor can restore it.
const modeFile = "compute-mode"

// Library changes the compute mode of GPUs.
type Library interface {
	Init() (gpu.Driver, error)
	Shutdown() error
	Devices() ([]gpu.Device, error)
	SetComputeMode(uuid string, mode gpu.ComputeMode) error
}

// modes changes the compute modes of GPUs, and restores them.
type modes struct {
	// dir is the directory of the supervisor.
	dir     string
	library Library
	opening sync.Mutex // Only one daemon opens NVML at a time.
}

// exclusive sets the compute mode EXCLUSIVE_PROCESS.
func (m *modes) exclusive(uuid string) error {
	return m.withGPUs(func(devices []gpu.Device) error {
		i := slices.IndexFunc(devices, func(d gpu.Device) bool { return d.UUID == uuid })
		if i < 0 {
			return fmt.Errorf("the driver lists no GPU %s", uuid)
		}
		if devices[i].ComputeMode == gpu.ComputeExclusiveProcess {
			return nil
		}
		record := filepath.Join(m.dir, uuid, modeFile)
		if err := os.WriteFile(record, []byte(strconv.Itoa(int(devices[i].ComputeMode))+"\n"), 0o600); err != nil {
			return fmt.Errorf("recording the compute mode: %w", err)
		}
		if err := m.library.SetComputeMode(uuid, gpu.ComputeExclusiveProcess); err != nil {
			return fmt.Errorf("setting the compute mode EXCLUSIVE_PROCESS: %w", err)
		}
		return nil
	})
}

// restoreOthers restores the compute modes of GPUs that need no daemon, including modes that an earlier supervisor changed.
func (m *modes) restoreOthers(wanted Wanted) error {
	records, err := filepath.Glob(filepath.Join(m.dir, "*", modeFile))
	if err != nil {
		return fmt.Errorf("looking for recorded compute modes: %w", err)
	}
	records = slices.DeleteFunc(records, func(record string) bool { return wanted.Has(filepath.Base(filepath.Dir(record))) })
	if len(records) == 0 {
		return nil
	}
	return m.withGPUs(func(devices []gpu.Device) error {
		var errs []error
		for _, record := range records {
			errs = append(errs, m.restore(record, devices))
		}
		return errors.Join(errs...)
	})
}

func (m *modes) restore(record string, devices []gpu.Device) error {
	uuid := filepath.Base(filepath.Dir(record))
	text, err := os.ReadFile(record)
	if err != nil {
		return fmt.Errorf("reading the recorded compute mode: %w", err)
	}
	mode, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		mode = int(gpu.ComputeDefault) // A machine starts with it.
	}
	i := slices.IndexFunc(devices, func(d gpu.Device) bool { return d.UUID == uuid })
	if i >= 0 && devices[i].ComputeMode == gpu.ComputeExclusiveProcess {
		if err := m.library.SetComputeMode(uuid, gpu.ComputeMode(mode)); err != nil {
			return fmt.Errorf("restoring the compute mode of %s: %w", uuid, err)
		}
	}
	if err := os.Remove(record); err != nil {
		return fmt.Errorf("removing the recorded compute mode: %w", err)
	}
	return nil
}

// withGPUs opens the driver for a call of do. It is closed otherwise, because an open driver cannot be unloaded.
func (m *modes) withGPUs(do func([]gpu.Device) error) (err error) {
	m.opening.Lock()
	defer m.opening.Unlock()
	if _, err := m.library.Init(); err != nil {
		return fmt.Errorf("opening the driver: %w", err)
	}
	defer func() { err = errors.Join(err, m.library.Shutdown()) }()
	devices, err := m.library.Devices()
	if err != nil {
		return fmt.Errorf("listing the GPUs: %w", err)
	}
	return do(devices)
}
