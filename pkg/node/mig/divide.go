package mig

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-logr/logr"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/nodecontract"
	profiles "karve.sh/karve/pkg/nodecontract/mig"
)

// Divide divides the GPUs as wanted. It returns nil on success, ErrHeld, or a *Failure.
func (m *Machine) Divide(ctx context.Context, wanted nodecontract.MIG) error {
	if _, err := m.Driver.Init(); err != nil {
		return &Failure{nodecontract.ReasonNone, "the NVIDIA driver does not answer: " + err.Error()}
	}
	defer func() { _ = m.Driver.Shutdown() }() // Nobody can handle the error.
	gpus, err := m.read(wanted)
	if err != nil {
		return err
	}
	if !allGPUs(gpus, (*state).divided) {
		if err := m.change(ctx, gpus); err != nil {
			return err
		}
		if err := m.verify(wanted); err != nil {
			return err
		}
		logr.FromContextOrDiscard(ctx).Info("Divided the GPUs", "gpus", len(gpus), "into", wanted.Describe())
	}
	m.Note.Clear()
	if err := m.Files(); err != nil {
		return refusedError("the device files of the MIG instances cannot be created: %s", err)
	}
	return nil
}

// read reads the GPUs, and decides which instances each is to have.
func (m *Machine) read(wanted nodecontract.MIG) ([]*state, error) {
	devices, err := m.Driver.Devices()
	if err == nil && len(devices) == 0 {
		err = errors.New("it lists no GPU")
	}
	if err != nil {
		return nil, &Failure{nodecontract.ReasonNone, "the NVIDIA driver does not answer: " + err.Error()}
	}
	gpus := make([]*state, 0, len(devices))
	for _, d := range devices {
		s := &state{Device: d}
		if d.MIGCapable {
			if err := m.readMIG(s); err != nil {
				return nil, refusedError("%s", err)
			}
		}
		gpus = append(gpus, s)
	}
	assigned, err := wanted.Assign(len(gpus), func(i int) map[string]int64 { return gpus[i].profiles() })
	if err != nil {
		return nil, refusedError("the GPUs cannot be divided: %s", err)
	}
	for i, s := range gpus {
		s.wanted = assigned[i]
	}
	return gpus, nil
}

func (m *Machine) readMIG(s *state) (err error) {
	if s.on, s.pending, err = m.Driver.MIGMode(s.UUID); err != nil {
		return err
	}
	if s.geometry, err = m.Driver.Geometry(s.UUID); err != nil {
		return err
	}
	if s.on {
		s.instances, err = m.Driver.GPUInstances(s.UUID)
	}
	return err
}

// change divides those GPUs that are not divided as wanted, after it has checked that nobody uses them.
func (m *Machine) change(ctx context.Context, gpus []*state) error {
	gpus = slices.DeleteFunc(slices.Clone(gpus), (*state).divided)
	places := make([][]profiles.Placement, len(gpus))
	for i, s := range gpus {
		var err error
		if places[i], err = s.places(); err != nil {
			if held := m.held(ctx, gpus); errors.Is(held, ErrHeld) {
				return held // The agent reports the problem, and serves what pods hold.
			}
			return err
		}
	}
	if err := m.unused(ctx, gpus); err != nil {
		return err
	}
	if err := m.enable(ctx, gpus); err != nil {
		return err
	}
	for i, s := range gpus {
		if err := m.divide(s, places[i]); err != nil {
			return err
		}
	}
	return nil
}

// held returns ErrHeld if pods hold one of the GPUs.
func (m *Machine) held(ctx context.Context, gpus []*state) error {
	pods, err := m.Pods(ctx)
	if err != nil {
		return pendingError("the kubelet does not say which pods hold GPUs: %s", err)
	}
	for uuid, pod := range pods {
		for _, s := range gpus {
			if d, _ := gpu.Find([]gpu.Device{s.Device}, uuid); d != nil {
				return fmt.Errorf("%w: %s holds %s of %s", ErrHeld, pod, uuid, s.name())
			}
		}
	}
	return nil
}

// unused returns an error if a pod holds one of the GPUs, or a process computes on it.
func (m *Machine) unused(ctx context.Context, gpus []*state) error {
	if err := m.held(ctx, gpus); err != nil {
		return err
	}
	for _, s := range gpus {
		u, err := m.Driver.Usage(s.UUID)
		if err != nil {
			return pendingError("%s cannot be read: %s", s.name(), err)
		}
		for _, p := range u.Processes {
			if p.MemoryMiB >= 0 || p.SMPercent != 0 { // Others have ended.
				return pendingError("process %d uses %s, which is to be divided: end it", p.PID, s.name())
			}
		}
		for _, user := range m.Users([]int{s.Minor}) {
			if user.Computes {
				return pendingError("%s uses %s, which is to be divided: end it", user, s.name())
			}
		}
	}
	return nil
}

// divide creates the instances of a GPU. It first removes those that an earlier attempt has left.
func (m *Machine) divide(s *state, places []profiles.Placement) error {
	for _, p := range s.instances {
		if err := m.Driver.Destroy(s.UUID, p.ID); err != nil {
			if errors.Is(err, gpu.ErrInUse) {
				return pendingError("%s%s", err, m.openers(s))
			}
			return refusedError("%s", err)
		}
	}
	for _, at := range places {
		if err := m.Driver.Create(s.UUID, at); err != nil {
			return refusedError("%s", err)
		}
	}
	return nil
}

// verify returns an error if the driver does not list the GPUs as wanted, including the names that containers are given.
func (m *Machine) verify(wanted nodecontract.MIG) error {
	gpus, err := m.read(wanted)
	if err != nil {
		return err
	}
	devices := make([]gpu.Device, 0, len(gpus))
	for _, s := range gpus {
		devices = append(devices, s.Device)
	}
	if err := Check(devices, wanted); err != nil {
		return refusedError("%s", err)
	}
	for _, s := range gpus {
		if !s.divided() {
			return refusedError("%s has other MIG instances than were just created", s.name())
		}
	}
	return nil
}
